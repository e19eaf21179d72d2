"""Plots of the GPU benchmark."""

from __future__ import annotations

import statistics
from collections import defaultdict
from collections.abc import Iterable, Sequence
from itertools import count
from pathlib import Path
from typing import Any

from tests.benchmarks.gpu.results import Outcome
from tests.benchmarks.scaling.output import new_figure


def plot_speed(outcomes: Sequence[Outcome], out: Path) -> None:
    """Plot local steps a second by stack, a panel for each comparison."""
    shown = [each for each in outcomes if any(row["seconds"] for row in each.rows)]
    if not shown:
        return
    columns = min(len(shown), 3)
    lines = -(-len(shown) // columns)
    figure = new_figure(4 * columns, 3.2 * lines)
    for number, outcome in enumerate(shown, 1):
        axes = figure.add_subplot(lines, columns, number)
        _draw(axes, outcome)
        axes.set(yscale="log", xlabel="stack", ylabel="local steps/s", title=outcome.job)
        _stacks(axes, {row["stack"] for row in outcome.rows})
    figure.savefig(out / "speed.png")


def _draw(axes: Any, outcome: Outcome) -> None:
    """Draw raysim's systems by stack, and the others, which have none, as lines across."""
    series: dict[str, list[tuple[int, float]]] = defaultdict(list)
    colours = count()
    for row in outcome.rows:
        if not row["seconds"]:
            continue
        rate = row["steps"] / statistics.median(row["seconds"])
        processes = f", {row['workers']} processes" if row["workers"] > 1 else ""
        if row["name"] == "raysim":
            kind = "graphs" if row["graphs"] else "plain"
            series[f"raysim, {kind}"].append((row["stack"], rate))
        else:
            colour = f"C{next(colours)}"
            axes.axhline(rate, ls=":", lw=1, color=colour, label=f"{row['name']}{processes}")
    for label, points in series.items():
        xy = zip(*sorted(points), strict=True)
        axes.plot(*xy, marker="o", ms=3, lw=1, color=f"C{next(colours)}", label=label)
    axes.legend(fontsize=5)


def _stacks(axes: Any, stacks: Iterable[int]) -> None:
    """Have an axis show stack sizes."""
    axes.set_xscale("log", base=2)
    axes.set_xticks(sorted(stacks), [str(stack) for stack in sorted(stacks)])


def plot_memory(outcomes: Sequence[Outcome], out: Path) -> None:
    """Plot counted over estimated memory by stack."""
    series: dict[str, list[tuple[int, float]]] = defaultdict(list)
    for outcome in outcomes:
        for row in outcome.rows:
            if "counted" in row:
                point = (row["stack"], row["counted"] / row["estimate"])
                series[row["network"]].append(point)
    if not series:
        return
    figure = new_figure(5, 3.2)
    axes = figure.add_subplot()
    for network, points in series.items():
        axes.plot(*zip(*sorted(points), strict=True), marker="o", ms=3, lw=1, label=network)
    axes.axhline(1, color="black", lw=0.5)
    axes.set(xlabel="stack", ylabel="bytes counted / estimated")
    _stacks(axes, {stack for points in series.values() for stack, _ in points})
    axes.legend(fontsize=6)
    figure.savefig(out / "memory.png")
