"""Charts of single clients: deciles of their accuracies, and each client's accuracy.

Legend: n clients.
"""

from __future__ import annotations

from collections.abc import Mapping
from math import isfinite
from typing import TYPE_CHECKING

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq

from raysim.results.compare import RunGroup
from raysim.results.report.charts import averaged
from raysim.results.report.drawing import (
    Chart,
    Legend,
    Traced,
    Values,
    end_labels,
    new_axes,
    pointed,
    style_of,
    to_svg,
)
from raysim.results.runs import RunRecord
from raysim.storage.rows.parted import read_table

if TYPE_CHECKING:
    from matplotlib.axes import Axes

TENTHS = range(1, 10)
MOST = 1_000
"""Most clients of a chart; of more, clients at equal distances are shown."""
PARTITION = ("dataset.", "partition.", "clients")
"""Prefixes of the settings that decide, with the seed, which samples a client has."""
SCORES = ("accuracy", "local_test_accuracy", "personal_local_test_accuracy")
"""Columns of `client_accuracy.parquet`, of which a chart shows the last that runs have."""


def deciles(legend: Legend, groups: Mapping[int, RunGroup], name: str) -> Chart | None:
    """Draw the deciles of the clients' accuracies at the last evaluation, means over seeds."""
    found = {number: _deciles(group) for number, group in groups.items()}
    means = {number: mean for number, mean in found.items() if mean is not None}
    if not means:
        return None
    with style_of(name):
        figure, axes = new_axes("decile of the clients", "accuracy [%]", right=legend.margin)
        for number, mean in means.items():
            gid, style = f"{name}-g{number}-mean", legend.look(number).line
            axes.plot(TENTHS, mean, marker="o", markersize=3, gid=gid, **style)
        lines = {n: Traced(legend.labels[n], np.array(TENTHS), mean) for n, mean in means.items()}
        end_labels(axes, legend, lines)
        points = pointed(axes, [*lines.values()], "{y}% at decile {x}")
        return Chart("accuracy of clients by decile", to_svg(figure, name, legend.labels), points)


def _deciles(group: RunGroup) -> Values | None:
    """Return the nine deciles of a group in percent, means over the seeds that have them."""
    runs = [[r.points(f"client_accuracy_d{d}") for d in TENTHS] for r in averaged(group)]
    values = [[points[-1][1] for points in each] for each in runs if all(each)]
    return np.mean(values, axis=0) * 100 if values else None


def scatters(legend: Legend, groups: Mapping[int, RunGroup], name: str) -> list[Chart]:
    """Draw the accuracy of each client: against that under the first group, or its samples.

    Groups are drawn against the first one whose clients have the same samples; where there is
    none, against the samples that a client trains on.
    """
    scores = {number: _scores(group) for number, group in groups.items()}
    known = [number for number, found in scores.items() if found]
    drawn, firsts = list[Chart](), dict[str, int]()
    for number in known:
        first = firsts.setdefault(_samples_of(groups[number]), number)
        if first != number and scores[first].keys() & scores[number].keys():
            drawn.append(_beside(legend, (first, number), scores, f"{name}-{number}"))
    if drawn:
        return drawn
    sizes = {number: _sizes(groups[number]) for number in known}
    return [
        _by_samples(legend, number, (sizes[number], scores[number]), f"{name}-{number}")
        for number in known
        if sizes[number].keys() & scores[number].keys()
    ]


Client = tuple[int, int]
"""Seed and client: another seed's clients have other samples."""


def _scores(group: RunGroup) -> dict[Client, float]:
    """Return the accuracy in percent of each client at the last evaluation of each run."""
    found: dict[Client, float] = {}
    for record in averaged(group):
        table = _accuracies(record)
        score = next((name for name in reversed(SCORES) if name in table.column_names), None)
        if score is not None:
            values = zip(table["client"].to_pylist(), table[score].to_pylist(), strict=True)
            found |= {(record.seed, k): 100 * v for k, v in values if v is not None and isfinite(v)}
    return found


def _accuracies(record: RunRecord) -> pa.Table:
    """Return the rows of `client_accuracy.parquet`; an empty table without them."""
    try:
        table = pq.read_table(record.path / "client_accuracy.parquet")
    except (OSError, ValueError, pa.ArrowException):
        return pa.table({})
    return table if "client" in table.column_names else pa.table({})


def _sizes(group: RunGroup) -> dict[Client, float]:
    """Return the training samples of each client that has taken part."""
    found: dict[Client, float] = {}
    for record in averaged(group):
        path = record.path / "clients.parquet"
        if path.exists():
            table = read_table(path)
            values = zip(table["client"].to_pylist(), table["samples"].to_pylist(), strict=True)
            found |= {(record.seed, client): samples for client, samples in values}
    return found


def _samples_of(group: RunGroup) -> str:
    return repr([(k, v) for k, v in group.settings.items() if k.startswith(PARTITION)])


def _beside(
    legend: Legend,
    numbers: tuple[int, int],
    scores: Mapping[int, Mapping[Client, float]],
    name: str,
) -> Chart:
    """Draw the accuracies of clients under the second of two groups against those of the first."""
    one, other = (legend.labels[number] for number in numbers)
    found = _common(scores[numbers[0]], scores[numbers[1]])
    better = sum(y > x for x, y in found.values())
    worse = sum(y < x for x, y in found.values())
    title = f"{other} beside {one}: {better} of {len(found)} clients better, {worse} worse"
    colour = legend.look(numbers[1]).colour
    with style_of(name):
        figure, axes = new_axes(*(f"{legend.short(n)}: accuracy [%]" for n in numbers))
        axes.axline((0, 0), slope=1, color="0.5", linewidth=0.8)
        axes.set(xlim=(-3, 103), ylim=(-3, 103))
        points = pointed(axes, _dots(axes, found, colour), "{x}% and {y}%")
        return Chart(title, to_svg(figure, name), points)


def _by_samples(
    legend: Legend, number: int, values: tuple[Mapping[Client, float], ...], name: str
) -> Chart:
    """Draw the accuracies of clients against the samples that they train on."""
    title = f"{legend.labels[number]}: accuracy of each client"
    with style_of(name):
        figure, axes = new_axes("training samples", "accuracy [%]")
        dots = _dots(axes, _common(*values), legend.look(number).colour)
        points = pointed(axes, dots, "{y}% with {x} samples")
        return Chart(title, to_svg(figure, name), points)


def _common(*values: Mapping[Client, float]) -> dict[Client, tuple[float, ...]]:
    """Return the values of the clients that have all of them."""
    clients = sorted(set.intersection(*map(set, values)))
    return {client: tuple(each[client] for each in values) for client in clients}


def _dots(axes: Axes, found: Mapping[Client, tuple[float, ...]], colour: str) -> list[Traced]:
    """Draw a point for each client, of more than MOST at equal distances; return them."""
    count = len(found)
    chosen = np.unique(np.linspace(0, count - 1, min(count, MOST)).round().astype(int)).tolist()
    clients = [[*found][k] for k in chosen]
    x, y = np.array([found[client] for client in clients]).T
    axes.plot(x, y, "o", markersize=4, alpha=0.5, color=colour, markeredgewidth=0)
    return [
        Traced(f"client {client}, seed {seed}", x[k : k + 1], y[k : k + 1])
        for k, (seed, client) in enumerate(clients)
    ]
