"""Charts of the page: curves of runs, values of seeds, searches, heat maps, times.

Curves are of a column against rounds, bytes or seconds, thinned out.

Legend: K clients, C classes; n points and S seeds of a curve.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np
import numpy.typing as npt

from raysim.api.columns import Column
from raysim.display.canvas import BELOW, CHARACTER, canvas, heat_map
from raysim.display.thinning import evenly_chosen
from raysim.display.units import SCALES, fitting_unit, with_unit
from raysim.errors import visible
from raysim.results.compare import ENDED, RunGroup, unit_of
from raysim.results.metrics import Metric
from raysim.results.report.drawing import (
    Chart,
    Legend,
    Traced,
    chart,
    end_labels,
    make_room,
)
from raysim.results.runs import RunRecord
from raysim.results.tables import ResultTable
from raysim.storage.summary import EPSILON, HYPOTHETICAL
from raysim.storage.trace import OF_WORKERS

if TYPE_CHECKING:
    from matplotlib.axes import Axes

POINTS = 300
"""Most points of a curve: more cannot be distinguished in a chart."""
Values = npt.NDArray[Any]
SHOWN_LABEL = 40
"""Most characters of a label next to a bar."""
AGAINST: Mapping[str, str] = {
    "round": "round",
    "bytes": "bytes sent",
    "total_seconds": "time",
    "total_virtual_seconds": "virtual time",
    "total_virtual_joules": "energy",
    EPSILON: "epsilon",
    HYPOTHETICAL: "hypothetical epsilon",
}
"""Columns against which curves are drawn, in words."""
TIMES = {"seconds": "rounds", "evaluation_seconds": "evaluation", "checkpoint_seconds": "saving"}


class Curve(NamedTuple):
    """Points of a curve: ascending x [n] and values y [n], and the rounds [n] of a run's."""

    x: Values
    y: Values
    rounds: Values | None = None


class MeanCurve(NamedTuple):
    """Mean of curves at common x, and their sample deviation, all [n]."""

    x: Values
    mean: Values
    deviation: Values


def curve_of(record: RunRecord, column: str, against: str) -> Curve | None:
    """Return a run's curve of the finite values of a column, or None without any."""
    places = dict(record.points(against))
    points = [(places[n], value, n) for n, value in record.points(column) if n in places]
    finite = [point for point in points if np.isfinite(point[:2]).all()]
    return Curve(*np.array(finite, dtype=np.float64).T) if finite else None


def thinned(curve: Curve) -> Curve:
    """Return at most POINTS points of a curve, evenly chosen, with its first and last one."""
    chosen = evenly_chosen(len(curve.x), POINTS)
    rounds = curve.rounds if curve.rounds is None else curve.rounds[chosen]
    return Curve(curve.x[chosen], curve.y[chosen], rounds)


def mean_curve(curves: Sequence[Curve]) -> MeanCurve | None:
    """Return the mean of curves over the x that all of them cover; None without any."""
    low, high = max(c.x[0] for c in curves), min(c.x[-1] for c in curves)
    places = np.unique(np.concatenate([curve.x for curve in curves]))
    places = places[(places >= low) & (places <= high)]
    if not len(places):
        return None
    places = places[evenly_chosen(len(places), POINTS)]
    values = np.stack([np.interp(places, curve.x, curve.y) for curve in curves])  # [S, n]
    deviation = values.std(axis=0, ddof=1) if len(curves) > 1 else np.zeros(len(places))
    return MeanCurve(places, values.mean(axis=0), deviation)


def label_of(title: str, unit: str) -> str:
    """Return the label of an axis."""
    return f"{title} [{unit}]" if unit else title


def curves(
    legend: Legend, groups: Mapping[int, RunGroup], column: str, against: str, name: str
) -> Chart | None:
    """Draw a column's curves: thin lines of all runs, the mean, and a band of one deviation.

    Args:
        legend: Numbers of groups.
        groups: The groups to draw, by number.
        column: Column of the values.
        against: One of AGAINST.
        name: Name of the chart.
    """
    (x, of_x, x_scale), (y, of_y, y_scale) = (
        _axis(groups, quantity) for quantity in (against, column)
    )

    def scaled(record: RunRecord) -> Curve | None:
        curve = curve_of(record, column, against)
        rounds = None if curve is None or against == "round" else curve.rounds
        return curve and Curve(curve.x * x_scale, curve.y * y_scale, rounds)

    drawn = {
        number: [(record, curve) for record in group.records if (curve := scaled(record))]
        for number, group in groups.items()
    }
    if not any(drawn.values()):
        return None
    with canvas(label_of(x, of_x), label_of(y, of_y), right=legend.margin) as axes:
        lines = {
            number: _draw(axes, legend, number, curves_drawn, f"{name}-g{number}")
            for number, curves_drawn in drawn.items()
            if curves_drawn
        }
        make_room(axes)
        end_labels(axes, legend, {number: group_lines[0] for number, group_lines in lines.items()})
        where = "round {x}" if against == "round" else with_unit("{x}", of_x)
        traced = [line for group_lines in lines.values() for line in group_lines]
        says = f"{with_unit('{y}', of_y)} at {where}"
        return chart(f"{y} against {x}", axes, name, legend.labels, lines=traced, says=says)


def _axis(groups: Mapping[int, RunGroup], column: str) -> tuple[str, str, float]:
    """Return a column in words, its unit as in the table of the runs, and the factor to it."""
    records = [record for group in groups.values() for record in group.records]
    unit = unit_of(Metric("final", column), records)
    words = AGAINST.get(column, column.replace("_", " "))
    if column in (EPSILON, HYPOTHETICAL):
        words += privacy_words(groups)
    return words, unit, SCALES.get(unit, 1.0)


def privacy_words(groups: Mapping[int, RunGroup]) -> str:
    """Return accountant, relation and delta of the groups' epsilons, if all have the same."""
    records = [record for group in groups.values() for record in group.records]
    kinds = {words.partition(";")[0] for record in records if (words := record.privacy)}
    return f" ({kinds.pop()})" if len(kinds) == 1 else ""


def averaged(group: RunGroup) -> list[RunRecord]:
    """Return the runs to average, as in the table: without diverged and failed ones."""
    return [record for record in group.records if record.state not in ENDED]


def _draw(
    axes: Axes,
    legend: Legend,
    number: int,
    curves_drawn: Sequence[tuple[RunRecord, Curve]],
    gid: str,
) -> list[Traced]:
    """Draw the curves of a group, and their mean; ids begin with `gid`.

    Return their points: the mean's first, then those of the runs in it.
    """
    style, label = legend.look(number), legend.labels[number]
    curves_drawn = sorted(curves_drawn, key=lambda drawn: drawn[0].state in ENDED)
    lines = [
        Traced(f"{label}, seed {record.seed}", *thinned(curve)) for record, curve in curves_drawn
    ]
    kept = [curve for record, curve in curves_drawn if record.state not in ENDED]
    if not len(lines) == len(kept) == 1:  # else the mean is the run
        for k, line in enumerate(lines):
            thin = {**style.line, "linewidth": 0.6, "alpha": 0.4}
            axes.plot(line.x, line.y, gid=f"{gid}-{k}", **_dot(line.x), **thin)
    if not kept or (mean := mean_curve(kept)) is None:
        return lines
    axes.plot(mean.x, mean.mean, gid=f"{gid}-mean", **_dot(mean.x), **style.main_line)
    if len(kept) == 1:
        return lines
    low, high = mean.mean - mean.deviation, mean.mean + mean.deviation
    fill: dict[str, Any] = {"color": style.colour, "alpha": 0.13, "linewidth": 0}
    axes.fill_between(mean.x, low, high, gid=f"{gid}-band", **fill)
    return [Traced(f"{label}, mean of {len(kept)} seeds", mean.x, mean.mean), *lines]


def _dot(x: Values) -> dict[str, Any]:
    """Return matplotlib's arguments for a curve's only point, which has no line."""
    return {"marker": "o", "markersize": 4} if len(x) == 1 else {}


def seeds(legend: Legend, table: ResultTable, column: str, name: str) -> Chart | None:
    """Draw the value of every seed by row, and their means; the rows are in the table's order.

    Return None where there is one value or none: the text says it.
    """
    rows = [row for row in table.rows if table.cell(row, column).measured]
    if sum(len(table.cell(row, column).measured) for row in rows) < 2:
        return None
    names = [legend.named(legend.labels.index(row)) for row in rows]
    unit = table.unit_of(table.cell(rows[0], column))
    scale = SCALES.get(unit, 1.0)
    title = visible(column if column.endswith(f"[{unit}]") else label_of(column, unit), 60)
    with canvas(title, height=0.75 + 0.27 * len(rows), left=_names_beside(names)) as axes:
        traced = []
        for place, row in enumerate(rows):
            cell, number = table.cell(row, column), legend.labels.index(row)
            colour, values = legend.look(number).colour, np.array([*cell.measured.values()]) * scale
            axes.plot(values, [place] * len(values), "o", markersize=5, alpha=0.55, color=colour)
            axes.plot([values.mean()] * 2, [place - 0.32, place + 0.32], color=colour, linewidth=2)
            traced += [
                Traced(f"{row}, seed {seed}", np.array([value]), np.array([place]))
                for seed, value in zip(cell.measured, values, strict=True)
            ]
        axes.set_ylim(len(rows) - 0.4, -0.6)
        axes.set_yticks(range(len(rows)), [visible(name, SHOWN_LABEL) for name in names])
        axes.grid(visible=False, axis="y")
        says = with_unit("{x}", unit)
        return chart("a dot is a seed, a bar the mean", axes, name, lines=traced, says=says)


def _names_beside(names: Sequence[str]) -> float:
    """Return the share of a chart's width for names next to its axes."""
    return 0.03 + CHARACTER * max(min(len(name), SHOWN_LABEL) for name in names)


def searches(scores_by_name: Mapping[str, Mapping[int, float]], score: Column) -> Chart:
    """Draw the scores of searches: a point per trial, and the best score so far as a line.

    Args:
        scores_by_name: Score by number of the trial, of each search by name.
        score: The score in words, such as "held-out accuracy", and which of its values is better.
    """
    legend, title, unit = Legend((*scores_by_name,)), score.name, score.unit
    with canvas("trial", label_of(title, unit)) as axes:
        best = np.maximum if score.larger else np.minimum
        for number, (name, scores) in enumerate(scores_by_name.items()):
            style = legend.look(number)
            trials, values = np.array([*scores]), np.array([*scores.values()])
            values = values * SCALES.get(unit, 1.0)
            axes.plot(trials, values, "o", markersize=1.5 + 1.5 * style.width, color=style.colour)
            reached = best.accumulate(values)
            axes.step(trials, reached, where="post", label=visible(name, 30), **style.main_line)
        axes.legend(loc="upper center", bbox_to_anchor=(0.5, -0.14), ncol=2, frameon=False)
        return chart(f"{title} by trial", axes, "searches", tight=True)


def partition(
    title: str, counts: npt.NDArray[Any], name: str, names: Sequence[str], words: Sequence[str]
) -> Chart:
    """Draw samples by client and class [K, C], with names of either [K], [C] if they are few."""
    with canvas("class", "client") as axes:
        heat_map(axes, counts, "samples", names=names, words=words)
        return chart(title, axes, name, tight=True)


def times(groups: Sequence[RunGroup], name: str) -> Chart | None:
    """Draw the seconds of runs by activity, means over seeds."""
    seconds = [_sums(group, TIMES) for group in groups]
    return _bars("time of a run", groups, seconds, name)


def phases(groups: Sequence[RunGroup], name: str) -> Chart | None:
    """Draw the workers' seconds by phase of traced runs, means over seeds."""
    columns = {column for g in groups for r in averaged(g) for column in r.metrics.column_names}
    names = {column: phase for column, phase in OF_WORKERS.items() if column in columns}
    return _bars("time of workers by phase", groups, [_sums(g, names) for g in groups], name)


def _sums(group: RunGroup, columns: Mapping[str, str]) -> dict[str, float]:
    """Return the sums of columns over the rounds, means over the seeds of traced runs."""
    runs = [r for r in averaged(group) if columns and {*columns} <= {*r.metrics.column_names}]
    return {
        label: float(np.mean([sum(value for _, value in r.points(column)) for r in runs]))
        for column, label in columns.items()
        if runs
    }


def _bars(
    title: str, groups: Sequence[RunGroup], seconds: Sequence[Mapping[str, float]], name: str
) -> Chart | None:
    parts = list(dict.fromkeys(part for sums in seconds for part in sums))
    if not parts:
        return None
    unit = fitting_unit((sum(sums.values()) for sums in seconds), "s")
    labels, height = [group.label for group in groups], 1.0 + 0.25 * len(groups)
    with canvas(label_of("time", unit), height=height, left=_names_beside(labels)) as axes:
        left = np.zeros(len(groups))
        for number, part in enumerate(parts):
            widths = np.array([sums.get(part, 0.0) for sums in seconds]) * SCALES[unit]
            axes.barh(range(len(groups)), widths, left=left, color=f"C{number + 4}", label=part)
            left += widths
        axes.set_yticks(range(len(groups)), [visible(label, SHOWN_LABEL) for label in labels])
        axes.invert_yaxis()
        axes.grid(visible=False, axis="y")
        axes.legend(
            loc="upper center",
            bbox_to_anchor=(0.5, -BELOW / (height - BELOW)),
            ncol=3,
            frameon=False,
        )
        return chart(title, axes, name, tight=True)
