"""Charts of a run's clients in virtual time: their passes by round, and staleness."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import pyarrow as pa

from raysim.core.errors import visible
from raysim.results.compare import RunGroup
from raysim.results.report.charts import COLOURS, SHOWN_LABEL, Chart, style_of, to_svg
from raysim.results.runs import RunRecord
from raysim.storage.rows.parted import read_table

BARS = 200
"""Most bars of a chart: more cannot be distinguished."""
MOST_BARS = 50
"""Most bars of a histogram."""
COLUMNS = ["round", "client", "virtual_start", "virtual_seconds"]


def gantt_charts(groups: Sequence[RunGroup]) -> list[Chart]:
    """Return a Gantt chart of the first seed of each group with a virtual clock."""
    records = [group.records[0] for group in groups]
    timed = [record for record in records if "virtual_seconds" in record.metrics.column_names]
    tables = [(record, _client_passes(record)) for record in timed]
    drawn = [(record, table) for record, table in tables if table is not None]
    return [_gantt(record, table, f"gantt{number}") for number, (record, table) in enumerate(drawn)]


def _client_passes(record: RunRecord) -> pa.Table | None:
    """Return the rows of `clients.parquet`, a client's pass each; None if no result counted."""
    path = record.path / "clients.parquet"
    table = read_table(path) if path.exists() else None
    return table if table is not None and {*COLUMNS} <= {*table.column_names} else None


def staleness_charts(groups: Sequence[RunGroup]) -> list[Chart]:
    """Return a histogram of the updates' staleness for each group with asynchronous rounds."""
    records = [group.records[0] for group in groups]
    stale = [record for record in records if "staleness_mean" in record.metrics.column_names]
    return [_histogram(record, f"staleness{number}") for number, record in enumerate(stale)]


def _histogram(record: RunRecord, name: str) -> Chart:
    """Draw the number of updates by staleness; above MOST_BARS, a bar covers several values."""
    from matplotlib.figure import Figure

    path = record.path / "clients.parquet"
    staleness = read_table(path)["staleness"].to_numpy() if path.exists() else np.zeros(0)
    most = int(staleness.max(initial=0))
    width = -(-(most + 1) // MOST_BARS)
    with style_of(name):
        figure = Figure(figsize=(5.4, 2.4))
        axes = figure.add_axes((0.12, 0.2, 0.85, 0.75))
        axes.hist(staleness, bins=(np.arange(0, most + width + 1, width) - 0.5).tolist())
        axes.set_xlabel("versions between start and aggregation")
        axes.set_ylabel("updates")
        label = visible(str(record.path), SHOWN_LABEL)
        return Chart(f"staleness of updates ({label})", to_svg(figure, name, ()))


def _gantt(record: RunRecord, table: pa.Table, name: str) -> Chart:
    """Draw the first BARS passes of clients whose results counted.

    Colours are rounds; in asynchronous rounds, the versions from which clients start.
    """
    from matplotlib.figure import Figure

    overlap = "version" in table.column_names
    columns = ["version" if overlap else "round", *COLUMNS[1:]]
    models, clients, starts, seconds = (table[column].to_numpy() for column in columns)
    order = np.lexsort((clients, starts))[:BARS]
    models, clients, starts, seconds = (v[order] for v in (models, clients, starts, seconds))
    shown, rows = np.unique(clients, return_inverse=True)
    with style_of(name):
        figure = Figure(figsize=(5.4, 1.2 + 0.08 * max(len(shown), 10)))
        axes = figure.add_axes((0.12, 0.2, 0.85, 0.75))
        colours = [f"C{int(number) % COLOURS}" for number in models]
        axes.barh(rows, seconds, left=starts, height=0.8, color=colours)
        axes.set_xlabel("virtual seconds")
        axes.set_ylabel("client")
        few = np.unique(np.linspace(0, len(shown) - 1, 8).astype(int))
        axes.set_yticks(few, [str(client) for client in shown[few]])
        axes.invert_yaxis()
        label = visible(str(record.path), SHOWN_LABEL)
        meaning = "the versions they start from" if overlap else "rounds"
        title = f"clients in virtual time, colours are {meaning} ({label})"
        return Chart(title, to_svg(figure, name, ()))
