"""Curve of a value by round as SVG, drawn in the colours of the page around it."""

from __future__ import annotations

import math
from collections.abc import Sequence
from html import escape

from raysim.core.thinning import evenly_chosen

WIDTH, HEIGHT = 480, 190
LEFT, RIGHT, TOP, BOTTOM = 48, 468, 26, 160
"""Edges of the axes."""
COLOUR = "#3b82d6"
"""Colour of the line, of a contrast above 3:1 on white and on dark grey."""
MOST_POINTS = 300
Point = tuple[float, float]


def curve(
    points: Sequence[Point], name: str, *, last: int, x: str = "round", goal: float | None = None
) -> str:
    """Return a curve, or an empty text where there is nothing to draw.

    Args:
        points: Its points; values that are not finite are left out.
        name: Name of its values; those of an accuracy are shown in percent.
        last: Where the axis ends.
        x: Name of the axis.
        goal: Value of a dashed line.
    """
    finite = [(at, value) for at, value in points if math.isfinite(value)]
    if not finite:
        return ""
    points = [finite[k] for k in evenly_chosen(len(finite), MOST_POINTS)]
    heights = [value for _, value in points] + ([] if goal is None else [goal])
    low, high = min(heights), max(heights)
    room = 0.05 * (high - low) or 0.05 * abs(high) or 1.0
    across, up = (
        _Axis(min(0, points[0][0]), last, LEFT, RIGHT),
        _Axis(low - room, high + room, BOTTOM, TOP),
    )
    whole = [tick for tick in across.ticks(6) if tick == round(tick)]
    place = " ".join(f"{across.at(at):.1f},{up.at(value):.1f}" for at, value in points)
    end_x, end_y = place.rsplit(" ", 1)[-1].split(",")
    parts = [
        *(_row(up.at(tick), _shown(tick, name, up.step(4))) for tick in up.ticks(4)),
        *(_text(across.at(tick), BOTTOM + 16, f"{tick:.0f}", "middle") for tick in whole),
        _text(RIGHT, HEIGHT - 2, x, "end"),
        _text(0, 12, name, "start"),
        "" if goal is None else _line(up.at(goal), 'stroke-dasharray="5 4"'),
        f'<polyline points="{place}" fill="none" stroke="{COLOUR}" stroke-width="2"/>',
        f'<circle cx="{end_x}" cy="{end_y}" r="3" fill="{COLOUR}"/>',
    ]
    at, value = points[-1]
    label = escape(f"{name} by {x}: {_shown(value, name, 0.0001)} at {x} {at:.0f}", quote=True)
    return (
        f'<svg role="img" aria-label="{label}" viewBox="0 0 {WIDTH} {HEIGHT}"'
        f' style="display: block; width: 100%; max-width: {WIDTH}px; font-size: 12px">'
        f"{''.join(parts)}</svg>"
    )


class _Axis:
    """Axis from a value to another one, at places of the drawing."""

    def __init__(self, low: float, high: float, start: float, end: float) -> None:
        self._low, self._high = low, high if high > low else low + 1
        self._start, self._end = start, end

    def at(self, value: float) -> float:
        """Return the place of a value."""
        share = (value - self._low) / (self._high - self._low)
        return self._start + share * (self._end - self._start)

    def step(self, most: int) -> float:
        """Return the distance of at most so many round values: 1, 2 or 5 times a power of ten."""
        rough = (self._high - self._low) / most
        power = 10.0 ** math.floor(math.log10(rough))
        step = next(power * each for each in (1, 2, 5, 10) if power * each >= rough * 0.999)
        return step if len(_multiples(step, self._low, self._high)) > 1 else step / 2

    def ticks(self, most: int) -> list[float]:
        """Return round values on the axis, at least two."""
        return _multiples(self.step(most), self._low, self._high)


def _multiples(step: float, low: float, high: float) -> list[float]:
    """Return the multiples of a step from low to high."""
    first, end = math.ceil(low / step - 1e-9), math.floor(high / step + 1e-9)
    return [step * number for number in range(first, end + 1)]


def _shown(value: float, name: str, step: float) -> str:
    """Return a value in the digits that a step needs."""
    scale, unit = (100, "%") if "accuracy" in name else (1, "")
    digits = max(0, -math.floor(math.log10(step * scale) + 1e-9))
    return f"{value * scale:{'.2g' if digits > 6 else f'.{digits}f'}}{unit}"


def _text(x: float, y: float, text: str, anchor: str) -> str:
    place = f'x="{x:.1f}" y="{y:.1f}" text-anchor="{anchor}"'
    return f'<text {place} fill="currentColor">{escape(text)}</text>'


def _line(y: float, more: str) -> str:
    ends = f'x1="{LEFT}" x2="{RIGHT}" y1="{y:.1f}" y2="{y:.1f}"'
    return f'<line {ends} stroke="currentColor" {more}/>'


def _row(y: float, text: str) -> str:
    """Return a line of the grid, and its value."""
    return _line(y, 'stroke-opacity="0.2"') + _text(LEFT - 6, y + 4, text, "end")
