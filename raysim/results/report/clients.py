"""Charts of single clients: how their accuracies are spread, and each client's accuracy.

Legend: n clients.
"""

from __future__ import annotations

from collections.abc import Mapping
from itertools import chain
from math import isfinite
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq

from raysim.display.canvas import canvas
from raysim.display.thinning import evenly_chosen
from raysim.results.compare import RunGroup
from raysim.results.report.charts import averaged
from raysim.results.report.drawing import Chart, Legend, Traced, Values, chart, end_labels
from raysim.results.runs import RunRecord
from raysim.samples.client_indices import named
from raysim.storage.rows.parted import read_table

if TYPE_CHECKING:
    from matplotlib.axes import Axes

TENTHS = range(1, 10)
MOST = 1_000
"""Most clients of a chart; of more, clients at equal distances are shown."""
OWN = {
    "own model": "personal_local_test_accuracy",
    "fine-tuned model": "finetuned_local_test_accuracy",
}
"""Columns of the models that are drawn against the global one, by their names in charts."""
BINS = 20
"""Bars of a histogram."""


class Client(NamedTuple):
    """Client of a seed, as another seed's clients have other samples; with its name, if any."""

    seed: int
    number: int
    name: str

    def __str__(self) -> str:
        return f"client {named(self.number, self.name)}, seed {self.seed}"


PARTITION = (
    *("dataset.", "partition.", "clients", "evaluation.local_test", "evaluation.holdout"),
    *("evaluation.new_clients", "evaluation.test_samples"),
)
"""Prefixes of the settings that decide, with the seed, which samples a client has."""
GLOBAL = "local_test_accuracy"
SCORES = ("accuracy", GLOBAL, "personal_local_test_accuracy")
"""Columns of `client_accuracy.parquet`; a chart shows the last one that runs have."""


def deciles(legend: Legend, groups: Mapping[int, RunGroup], name: str) -> Chart | None:
    """Draw the deciles of the clients' accuracies at the last evaluation, means over seeds."""
    by_group = {number: _deciles(group) for number, group in groups.items()}
    means = {number: mean for number, mean in by_group.items() if mean is not None}
    if not means:
        return None
    with canvas("decile of the clients", "accuracy [%]", right=legend.margin) as axes:
        for number, mean in means.items():
            gid, style = f"{name}-g{number}-mean", legend.look(number).line
            axes.plot(TENTHS, mean, marker="o", markersize=3, gid=gid, **style)
        lines = {n: Traced(legend.labels[n], np.array(TENTHS), mean) for n, mean in means.items()}
        end_labels(axes, legend, lines)
        title, says = "accuracy of clients by decile", "{y}% at decile {x}"
        return chart(title, axes, name, legend.labels, lines=lines.values(), says=says)


def _deciles(group: RunGroup) -> Values | None:
    """Return the nine deciles of a group in percent, means over the seeds that have them."""
    for score in ("personal_local_test_accuracy", "client_accuracy"):
        runs = [[r.points(f"{score}_d{d}") for d in TENTHS] for r in averaged(group)]
        if values := [[points[-1][1] for points in run] for run in runs if all(run)]:
            percents: Values = np.mean(values, axis=0) * 100
            return percents
    return None


def histogram(legend: Legend, groups: Mapping[int, RunGroup], name: str) -> Chart | None:
    """Draw the share of clients by their accuracy with the models that they deploy.

    Clients of all seeds count, except clients that are kept out of training.
    """
    scores = {number: _scores(group) for number, group in groups.items()}
    if not any(scores.values()) or not any(map(_are_tested, groups.values())):
        return None
    edges = np.linspace(0, 100, BINS + 1)
    with canvas("accuracy [%]", "clients [%]") as axes:
        lines = []
        for number, by_client in scores.items():
            if not by_client:
                continue
            counts, _ = np.histogram([*by_client.values()], edges)
            shares = 100 * counts / len(by_client)
            look, gid = legend.look(number), f"{name}-g{number}-bars"
            x, y = np.repeat(edges, 2), np.concatenate([[0], np.repeat(shares, 2), [0]])
            axes.fill_between(x, y, color=look.colour, alpha=0.12, linewidth=0)
            axes.plot(x, y, gid=gid, **look.main_line)
            lines.append(Traced(legend.labels[number], (edges[:-1] + edges[1:]) / 2, shares))
        axes.set(xlim=(0, 100), ylim=(0, None))
        title = "accuracy of clients with their deployed models"
        says = "{y}% of the clients have {x}%, within 2.5"
        return chart(title, axes, name, legend.labels, lines=lines, says=says)


def own_beside_global(legend: Legend, groups: Mapping[int, RunGroup], name: str) -> list[Chart]:
    """Draw the accuracy of each client with its own model against that with the global one.

    Its own model is that which it deploys, or the fine-tuned one. Clients that took part are dots,
    others circles.
    """
    drawn = []
    for number, group in groups.items():
        known: list[Any] = []
        for model, score in OWN.items():
            pairs = {seen: _pairs(group, score, seen=seen) for seen in (True, False)}
            if any(pairs.values()) and pairs not in known:  # own models may be the fine-tuned ones
                known.append(pairs)
                title = f"{legend.labels[number]}: {model} beside the global one"
                labels, colour = ("global model", model), legend.look(number).colour
                chart_name = f"{name}-{number}-{score.partition('_')[0]}"
                drawn.append(_beside(title, labels, pairs, colour, chart_name))
    return drawn


def _pairs(group: RunGroup, score: str, *, seen: bool) -> dict[Client, tuple[float, ...]]:
    """Return the accuracies in percent with the global model and another, of some clients.

    Args:
        group: The runs.
        score: Column of the other model.
        seen: Whether of clients that took part, or of the others.
    """
    pairs: dict[Client, tuple[float, ...]] = {}
    for record in averaged(group):
        table = _accuracies(record)
        names = ("participations", GLOBAL, score)
        if not {*names} <= {*table.column_names}:
            continue
        columns = _clients(record, table), *(table[name].to_pylist() for name in names)
        for client, times, *both in zip(*columns, strict=True):
            if (times > 0) == seen and all(v is not None and isfinite(v) for v in both):
                pairs[client] = tuple(100 * value for value in both)
    return pairs


def _are_tested(group: RunGroup) -> bool:
    return any("participations" in _accuracies(record).column_names for record in group.records)


def scatters(legend: Legend, groups: Mapping[int, RunGroup], name: str) -> list[Chart]:
    """Draw the accuracy of each client against its accuracy in the first group, or its samples.

    The first group is the first one with the same samples of clients. If there is none, accuracies
    are drawn against the samples that a client trains on.
    """
    scores = {number: _scores(group) for number, group in groups.items()}
    known = [number for number, group_scores in scores.items() if group_scores]
    drawn, firsts = list[Chart](), dict[str, int]()
    for number in known:
        first = firsts.setdefault(
            repr([(k, v) for k, v in groups[number].settings.items() if k.startswith(PARTITION)]),
            number,
        )
        pairs = _common(scores[first], scores[number])
        if first != number and pairs:
            title = f"{legend.labels[number]} beside {legend.labels[first]}"
            labels, colour = (legend.short(first), legend.short(number)), legend.look(number).colour
            drawn.append(_beside(title, labels, {True: pairs}, colour, f"{name}-{number}"))
    if drawn:
        return drawn
    common = {number: _common(_sizes(groups[number]), scores[number]) for number in known}
    return [
        _by_samples(legend, number, by_client, f"{name}-{number}")
        for number, by_client in common.items()
        if len(by_client) > 1  # a single place has the samples of all clients
    ]


def _scores(group: RunGroup) -> dict[Client, float]:
    """Return the accuracy in percent of each client at the last evaluation of each run."""
    scores: dict[Client, float] = {}
    for record in averaged(group):
        table = _accuracies(record)
        score = next((name for name in reversed(SCORES) if name in table.column_names), None)
        if score is not None:
            if "is_new" in table.column_names:
                table = table.filter(pc.equal(table["is_new"], 0))
            values = zip(_clients(record, table), table[score].to_pylist(), strict=True)
            scores |= {k: 100 * v for k, v in values if v is not None and isfinite(v)}
    return scores


def _accuracies(record: RunRecord) -> pa.Table:
    """Return the rows of `client_accuracy.parquet`; an empty table without them."""
    try:
        table = pq.read_table(record.path / "client_accuracy.parquet")
    except (OSError, ValueError, pa.ArrowException):
        return pa.table({})
    return table if "client" in table.column_names else pa.table({})


def _sizes(group: RunGroup) -> dict[Client, float]:
    """Return the training samples of each client that has taken part."""
    sizes: dict[Client, float] = {}
    for record in averaged(group):
        path = record.path / "clients.parquet"
        if path.exists():
            table = read_table(path)
            sizes |= zip(_clients(record, table), table["samples"].to_pylist(), strict=True)
    return sizes


def _clients(record: RunRecord, table: pa.Table) -> list[Client]:
    """Return the client of each row."""
    numbers = table["client"].to_pylist()
    names = table["name"].to_pylist() if "name" in table.column_names else [""] * len(numbers)
    return [*map(Client, [record.seed] * len(numbers), numbers, names)]


def _beside(
    title: str,
    labels: tuple[str, str],
    pairs: Mapping[bool, Mapping[Client, tuple[float, ...]]],
    colour: str,
    name: str,
) -> Chart:
    """Draw pairs of the clients' accuracies, the second against the first.

    Args:
        title: Title of the chart, which goes on with how many are better.
        labels: The two models or groups.
        pairs: Accuracies in percent, by whether they are drawn as dots or as circles.
        colour: Their colour.
        name: Name of the chart.
    """
    values = [pair for by_client in pairs.values() for pair in by_client.values()]
    better, worse = sum(y > x for x, y in values), sum(y < x for x, y in values)
    title = f"{title}: {better} of {len(values)} clients better, {worse} worse"
    with canvas(*(f"{label}: accuracy [%]" for label in labels)) as axes:
        axes.axline((0, 0), slope=1, color="0.5", linewidth=0.8)
        axes.set(xlim=(-3, 103), ylim=(-3, 103))
        drawn = [
            _dots(axes, by_client, colour, hollow=not dots)
            for dots, by_client in pairs.items()
            if by_client
        ]
        return chart(title, axes, name, lines=chain(*drawn), says="{x}% and {y}%")


def _by_samples(
    legend: Legend, number: int, points: Mapping[Client, tuple[float, ...]], name: str
) -> Chart:
    """Draw the accuracies of clients against the samples that they train on."""
    with canvas("training samples", "accuracy [%]") as axes:
        title, says = f"{legend.labels[number]}: accuracy of each client", "{y}% with {x} samples"
        dots = _dots(axes, points, legend.look(number).colour)
        return chart(title, axes, name, lines=dots, says=says)


def _common(*values: Mapping[Client, float]) -> dict[Client, tuple[float, ...]]:
    """Return the values of the clients that have all of them."""
    clients = sorted(set.intersection(*map(set, values)))
    return {client: tuple(value[client] for value in values) for client in clients}


def _dots(
    axes: Axes, points: Mapping[Client, tuple[float, ...]], colour: str, *, hollow: bool = False
) -> list[Traced]:
    """Draw a point for each client, of more than MOST at equal distances; return them."""
    every = [*points]
    clients = [every[k] for k in evenly_chosen(len(every), MOST)]
    x, y = np.array([points[client] for client in clients]).T
    look: dict[str, Any] = {"alpha": 0.5, "markeredgewidth": 0}
    if hollow:
        look = {"markerfacecolor": "none", "markeredgewidth": 0.9}
    axes.plot(x, y, "o", markersize=4, color=colour, **look)
    return [Traced(str(client), x[k : k + 1], y[k : k + 1]) for k, client in enumerate(clients)]
