"""Clients unlike the others: their updates beside their data, of `analysis=client_updates`.

Legend: n rows of rounds and clients.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, NamedTuple

import numpy as np
import pyarrow as pa

from raysim.errors import RunError
from raysim.results.compare import RunGroup
from raysim.results.render import Entry, Grid
from raysim.results.report.charts import averaged
from raysim.results.report.partitions import ReadLabels, class_names, classes_of, name_of
from raysim.results.runs import RunRecord
from raysim.samples.client_indices import named
from raysim.storage.recorder import ANALYSIS
from raysim.storage.rows.parted import read_table

NAME = "client_updates"
WORST = 10
"""Clients of a table."""
SHOWN_CLASSES = 3
HEADER = (
    *("client", "seed", "cosine", "norm", "loss before", "loss after", "samples", "rounds"),
    "largest classes",
)
ORDER = (
    "Ordered by the cosine of a client's update with the mean update of the other clients of the"
    " round, the smallest first."
)
MEANS = "Cosine, norm and losses are means over the measured rounds that a client took part in."


class _Unlike(NamedTuple):
    """Means of a client's rows, in the order of clients unlike the others."""

    cosine: float
    seed: int
    client: int
    norm: float
    before: float
    after: float
    samples: int
    rounds: int
    record: RunRecord


def unlike_tables(groups: Sequence[RunGroup], labels: ReadLabels) -> list[Grid]:
    """Return a table of the clients unlike the others of each group that has measured updates.

    Args:
        groups: The groups of runs.
        labels: Labels of a run's training samples, for the clients' classes.
    """
    tables = []
    for group in groups:
        found = [client for record in averaged(group) for client in _measured(record)]
        worst = sorted(found, key=lambda client: client[:3])[:WORST]
        if worst:
            rows = tuple(_row(client, labels) for client in worst)
            title = f"{group.label}: {len(worst)} of {len(found)} clients"
            tables.append(Grid(title, HEADER, rows, (ORDER, MEANS)))
    return tables


def _measured(record: RunRecord) -> list[_Unlike]:
    """Return the clients of a run with the means of their rows; none if it has not measured any."""
    path = record.path / ANALYSIS / f"{NAME}.parquet"
    if not path.exists():
        return []
    try:
        table = read_table(path)
        names = ("client", "cosine", "update_norm", "loss_before", "loss_after", "samples")
        client, *columns = (table[name].to_numpy() for name in names)
    except (RunError, LookupError, pa.ArrowException):
        return []
    clients, places, counts = np.unique(client, return_inverse=True, return_counts=True)
    means = [np.bincount(places, weights=values) / counts for values in columns]
    return [
        _Unlike(cosine, record.seed, int(client), norm, before, after, round(size), rounds, record)
        for client, rounds, cosine, norm, before, after, size in zip(
            clients.tolist(), counts.tolist(), *(mean.tolist() for mean in means), strict=True
        )
    ]


def _row(one: _Unlike, labels: ReadLabels) -> tuple[Entry, ...]:
    """Return the row of a client."""
    numbers: list[tuple[Any, str]] = [
        *((one.seed, "d"), (one.cosine, ".3f"), (one.norm, ".3g")),
        *((one.before, ".4g"), (one.after, ".4g"), (one.samples, "d"), (one.rounds, "d")),
    ]
    return (
        Entry(named(one.client, name_of(one.record, one.client)), value=one.client),
        *(Entry(format(value, form), value=float(value)) for value, form in numbers),
        Entry(_classes(one, labels)),
    )


def _classes(one: _Unlike, labels: ReadLabels) -> str:
    """Return the largest classes of a client with their shares; "-" if they are not known."""
    counts = classes_of(one.record, labels(one.record), one.client)
    if counts is None or not counts.sum():
        return "-"
    known = class_names(one.record)
    largest = [number for number in np.argsort(-counts, kind="stable") if counts[number]]
    words = [
        f"{known[number] if number < len(known) else number} {counts[number] / counts.sum():.0%}"
        for number in largest[:SHOWN_CLASSES]
    ]
    rest = len(largest) - SHOWN_CLASSES
    return ", ".join([*words, f"and {rest} more"] if rest > 0 else words)
