"""Curve of a value by round as SVG, in the colours of the page around it."""

from __future__ import annotations

import math
from collections.abc import Sequence
from html import escape
from importlib.util import find_spec

from raysim.api.columns import Column
from raysim.display.canvas import INK, canvas, figure_of, to_svg
from raysim.display.thinning import evenly_chosen
from raysim.display.units import SCALES, with_unit

COLOUR = "#3b82d6"
"""Colour of the line, of a contrast above 3:1 on white and on dark grey."""
MOST_POINTS = 300
Point = tuple[float, float]


def curve(
    points: Sequence[Point],
    column: Column,
    *,
    last: int,
    x: str = "round",
    goal: float | None = None,
) -> str:
    """Return a curve; an empty text where there is nothing to draw, or no matplotlib.

    Args:
        points: Its points; values that are not finite are left out.
        column: Name and unit of its values; fractions ("%") are shown in percent.
        last: Where the axis ends.
        x: Name of the axis.
        goal: Value of a dashed line.
    """
    finite = [(at, value) for at, value in points if math.isfinite(value)]
    if not finite or find_spec("matplotlib") is None:
        return ""
    places, values = zip(*(finite[k] for k in evenly_chosen(len(finite), MOST_POINTS)), strict=True)
    name, unit, scale = column.name, column.unit, SCALES.get(column.unit, 1.0)
    with canvas(x, f"{name} [{unit}]" if unit else name, height=2.4) as axes:
        heights = [value * scale for value in values]
        axes.plot(places, heights, markevery=[-1], marker="o", gid="line")
        axes.set_xlim(min(0, places[0]), last)
        if goal is not None:
            axes.axhline(goal * scale, color=INK, linestyle="--", linewidth=0.8, gid="goal")
        svg = to_svg(figure_of(axes), "curve").replace("var(--c0)", COLOUR)
    shown = f"{heights[-1]:.2f}%" if unit == "%" else with_unit(f"{heights[-1]:.4f}", unit)
    label = escape(f"{name} by {x}: {shown} at {x} {places[-1]:.0f}", quote=True)
    look = "display: block; width: 100%; height: auto; max-width: 36em"
    return svg.replace("<svg", f'<svg role="img" aria-label="{label}" style="{look}"', 1)
