"""Charts of a run's clients in virtual time: their passes by round, and staleness."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import NamedTuple

import numpy as np
import pyarrow as pa

from raysim.display.canvas import COLOURS, canvas
from raysim.display.thinning import evenly_chosen
from raysim.display.units import SCALES, fitting_unit
from raysim.results.compare import RunGroup
from raysim.results.report.charts import label_of
from raysim.results.report.drawing import Chart, Values, chart
from raysim.results.runs import RunRecord
from raysim.samples.client_indices import named
from raysim.storage.rows.parted import read_table

BARS = 200
"""Most bars of a chart: more cannot be distinguished."""
MOST_BARS = 50
"""Most bars of a histogram."""
MOST_NAMED = 8
"""Most clients that an axis names."""
COLUMNS = ["round", "client", "virtual_start", "virtual_seconds"]


class Work(NamedTuple):
    """Passes of clients in virtual time, all [n].

    Attributes:
        title: The run in words.
        models: Number of the round or of the version of each pass.
        clients: Its client.
        starts: Its start in virtual seconds.
        seconds: Its duration.
        meaning: Meaning of `models`.
        names: Names of clients by number, if they have any.
    """

    title: str
    models: Values
    clients: Values
    starts: Values
    seconds: Values
    meaning: str
    names: Mapping[int, str]


def gantt_charts(groups: Sequence[RunGroup]) -> list[Chart]:
    """Return a Gantt chart of the first seed of each group with a virtual clock.

    All have one scale of time, so that groups can be compared.
    """
    works = [
        _work(f"{group.label}, seed {record.seed}", table)
        for group in groups
        if "virtual_seconds" in (record := group.records[0]).metrics.column_names
        and (table := _client_passes(record)) is not None
    ]
    end = max((float((work.starts + work.seconds).max()) for work in works), default=0.0)
    return [_gantt(work, end, f"gantt{number}") for number, work in enumerate(works)]


def _client_passes(record: RunRecord) -> pa.Table | None:
    """Return the rows of `clients.parquet`, a client's pass each; None if no result counted."""
    path = record.path / "clients.parquet"
    table = read_table(path) if path.exists() else None
    return table if table is not None and {*COLUMNS} <= {*table.column_names} else None


def staleness_charts(groups: Sequence[RunGroup]) -> list[Chart]:
    """Return a histogram of the updates' staleness for each group with asynchronous rounds."""
    stale = [group for group in groups if "staleness_mean" in group.records[0].metrics.column_names]
    return [_histogram(group, f"staleness{number}") for number, group in enumerate(stale)]


def _histogram(group: RunGroup, name: str) -> Chart:
    """Draw the number of updates by staleness; above MOST_BARS, a bar covers several values."""
    record = group.records[0]
    path = record.path / "clients.parquet"
    staleness = read_table(path)["staleness"].to_numpy() if path.exists() else np.zeros(0)
    most = int(staleness.max(initial=0))
    width = -(-(most + 1) // MOST_BARS)
    with canvas("versions between start and aggregation", "updates", height=2.4) as axes:
        axes.hist(staleness, bins=(np.arange(0, most + width + 1, width) - 0.5).tolist())
        return chart(f"staleness of updates: {group.label}, seed {record.seed}", axes, name)


def _work(title: str, table: pa.Table) -> Work:
    """Return the first BARS passes of clients with results that counted.

    In asynchronous rounds, the versions that clients start from tell the passes apart.
    """
    overlap = "version" in table.column_names
    columns = ["version" if overlap else "round", *COLUMNS[1:]]
    models, clients, starts, seconds = (table[column].to_numpy() for column in columns)
    names = table["name"].to_pylist() if "name" in table.column_names else []
    first = np.lexsort((clients, starts))[:BARS]
    meaning = "the versions they start from" if overlap else "rounds"
    passes = models[first], clients[first], starts[first], seconds[first]
    return Work(title, *passes, meaning, {int(clients[k]): names[k] for k in first if names})


def _gantt(work: Work, end: float, name: str) -> Chart:
    """Draw passes of clients up to an end that all charts share, and with it their unit."""
    unit = fitting_unit([end], "s")
    shown, rows = np.unique(work.clients, return_inverse=True)
    height = 0.8 + 0.08 * max(len(shown), 10)
    with canvas(label_of("virtual time", unit), "client", height=height) as axes:
        colours = [f"C{int(number) % COLOURS}" for number in work.models]
        seconds, starts = work.seconds * SCALES[unit], work.starts * SCALES[unit]
        axes.barh(rows, seconds, left=starts, height=0.8, color=colours)
        axes.set_xlim(0, end * SCALES[unit] * 1.02 or 1.0)
        few = evenly_chosen(len(shown), MOST_NAMED)
        axes.set_yticks(few, [named(int(k), work.names.get(int(k), "")) for k in shown[few]])
        axes.invert_yaxis()
        title = f"{work.title}: clients in virtual time, colours are {work.meaning}"
        return chart(title, axes, name)
