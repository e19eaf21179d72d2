"""Charts of a page: their legend, the looks of its lines, and values under the pointer."""

from __future__ import annotations

import json
import math
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy.typing as npt

from raysim.display.canvas import BACK, CHARACTER, COLOURS, PALETTE, figure_of, to_svg
from raysim.errors import visible

if TYPE_CHECKING:
    from matplotlib.axes import Axes

DASHES = ("-", (0, (5, 1.6)), (0, (6, 1.4, 1.2, 1.4)), (0, (1.2, 1.4)))
"""Styles of lines, which lines on each other are told apart by: neighbours differ."""
END_LABEL = 16
"""Most characters of a label at the end of a line: of longer ones, lines have numbers."""
MOST_ENDS = 16
"""Most labels at the ends of lines: more have no room."""
Values = npt.NDArray[Any]


@dataclass(frozen=True)
class Chart:
    """A chart: SVG for the page, and its title.

    Attributes:
        title: The title.
        svg: The element.
        points: Values that the page shows under the pointer, as JSON; "" without any.
    """

    title: str
    svg: str
    points: str = ""


class Look(NamedTuple):
    """Look of one of several lines.

    Attributes:
        colour: Colour in the SVG.
        dashes: Style of the line.
        width: Its width in points; earlier lines are wider, to be seen below later ones.
    """

    colour: str
    dashes: Any
    width: float

    @property
    def line(self) -> dict[str, Any]:
        """Arguments of matplotlib for a line."""
        return {"color": self.colour, "linestyle": self.dashes, "linewidth": self.width}

    @property
    def main_line(self) -> dict[str, Any]:
        """Arguments of matplotlib for a line that is seen on others: it has an edge around it."""
        from matplotlib.patheffects import withStroke

        edge = withStroke(linewidth=self.width + 1.1, foreground=BACK)
        return {**self.line, "path_effects": [edge]}

    @property
    def svg_dashes(self) -> str:
        """The `stroke-dasharray` of the line."""
        if isinstance(self.dashes, str):
            return "none"
        return " ".join(f"{length * self.width:.2f}" for length in self.dashes[1])


class Traced(NamedTuple):
    """Points of a line that the page shows under the pointer.

    Attributes:
        name: Name of the line in words.
        x: Places [n], in the unit of the axis.
        y: Values [n], in the unit of the axis.
        rounds: Rounds [n] of the points, if the axis is another one and the line has some.
    """

    name: str
    x: Values
    y: Values
    rounds: Values | None = None


def look(number: int, count: int) -> Look:
    """Return the look of line `number` of `count`."""
    over = (count - 1 - number) / max(count - 1, 1)  # from 1 to 0
    dashes = DASHES[(number + number // (2 * COLOURS)) % len(DASHES)]
    return Look(PALETTE[number % COLOURS][0], dashes, 1.3 + 1.9 * over)


@dataclass(frozen=True)
class Legend:
    """Groups of the charts of a page, each with its number and look.

    Attributes:
        labels: Labels of the groups, all different.
    """

    labels: tuple[str, ...]

    def look(self, number: int) -> Look:
        """Return the look of a group."""
        return look(number, len(self.labels))

    def named(self, number: int) -> str:
        """Return the label of a group, after its number where charts name groups by number."""
        label = self.labels[number]
        return f"{number + 1}: {label}" if self.is_numbered else label

    def short(self, number: int) -> str:
        """Return the group's name in charts: its label, or its number in the legend."""
        return str(number + 1) if self.is_numbered else visible(self.labels[number])

    @property
    def is_numbered(self) -> bool:
        """True where charts name groups by number."""
        return any(len(label) > END_LABEL for label in self.labels)

    @property
    def has_ends(self) -> bool:
        """True where lines have labels at their ends."""
        return 1 < len(self.labels) <= MOST_ENDS

    @property
    def margin(self) -> float:
        """Share of a chart's width for labels at the ends of lines."""
        if not self.has_ends:
            return 0.03
        longest = max(len(self.short(number)) for number in range(len(self.labels)))
        return 0.03 + CHARACTER * longest


def keys(legend: Legend, shown: int) -> list[dict[str, str]]:
    """Return the entries of the first groups of a legend for a page: label, and line in SVG."""
    return [
        {
            "label": legend.named(number),
            "colour": f"var(--c{number % COLOURS})",
            "width": f"{legend.look(number).width:.2f}",
            "dashes": legend.look(number).svg_dashes,
        }
        for number in range(shown)
    ]


def colour_style() -> str:
    """Return the style sheet of the colours: `--c0` and so on, by the page's scheme."""
    light, dark = (
        "".join(f" --c{number}: {colour};" for number, colour in enumerate(colours))
        for colours in zip(*PALETTE, strict=True)
    )
    return (
        f":root {{{light} }}\n@media screen and (prefers-color-scheme: dark)"
        f" {{ :root {{{dark} }} }}\n"
    )


def make_room(axes: Axes) -> None:
    """Widen the left margin of axes, with all that is drawn in them, where tick labels are long."""
    ticks = axes.yaxis.get_major_formatter().format_ticks(axes.get_yticks().tolist())
    (left, bottom), (right, top) = axes.get_position().get_points()
    left = max(left, 0.065 + CHARACTER * max(map(len, ticks)))
    axes.set_position((left, bottom, right - left, top - bottom))


def chart(
    title: str,
    axes: Axes,
    name: str,
    labels: Sequence[str] = (),
    *,
    lines: Iterable[Traced] = (),
    says: str = "",
    tight: bool = False,
) -> Chart:
    """Return the lines drawn in axes as a chart of a page.

    Args:
        title: Its title.
        axes: The axes.
        name: Its name, and the prefix of its ids.
        labels: Labels of the groups; their curves have ids `NAME-gNUMBER-...`.
        lines: Lines with values that the page shows under the pointer.
        says: Text about a point, with {x} and {y} for its values.
        tight: Whether the chart ends where the drawing does.
    """
    limits = [*axes.get_position().extents, *axes.get_xlim(), *axes.get_ylim()]
    drawn = [
        [line.name, _short(line.x), _short(line.y)]
        + ([] if line.rounds is None else [line.rounds.astype(int).tolist()])
        for line in lines
    ]
    values = {"axes": [float(f"{limit:.6g}") for limit in limits], "says": says, "lines": drawn}
    points = json.dumps(values, separators=(",", ":")) if drawn else ""
    return Chart(title, to_svg(figure_of(axes), name, labels, tight=tight), points)


def _short(values: Values) -> list[float | int]:
    """Return values in five digits; whole numbers without a point."""
    numbers = (float(f"{value:.5g}") for value in values.tolist())
    return [int(n) if math.isfinite(n) and n == int(n) else n for n in numbers]


def end_labels(axes: Axes, legend: Legend, lines: Mapping[int, Traced]) -> None:
    """Write the name of each group next to the end of its line, none on another one.

    Args:
        axes: The axes, with all that is drawn in them, and the legend's margin at their right.
        legend: The groups.
        lines: Their lines by number.
    """
    if not legend.has_ends or not lines:
        return
    axes.autoscale_view()
    axes.autoscale(enable=False)
    figure_height = figure_of(axes).get_size_inches()[1]
    apart = 10.5 / 72 / (axes.get_position().height * figure_height)  # of labels of 8 points
    inside = axes.transData + axes.transAxes.inverted()
    ends = {n: inside.transform((line.x[-1], line.y[-1])).tolist() for n, line in lines.items()}
    order = sorted(ends, key=lambda number: ends[number][1])
    heights = _spread([ends[number][1] for number in order], apart)
    for number, shown in zip(order, heights, strict=True):
        (x, y), colour = ends[number], legend.look(number).colour
        common: dict[str, Any] = {"color": colour, "transform": axes.transAxes, "clip_on": False}
        axes.plot([x, 1.012], [y, shown], linewidth=0.6, linestyle=(0, (1, 3)), **common)
        axes.text(1.018, shown, legend.short(number), size=8, va="center", **common)


def _spread(heights: Sequence[float], apart: float) -> list[float]:
    """Return ascending heights from 0 to 1, moved as little as it takes to be apart."""
    spread = list[float]()
    for height in heights:
        spread.append(max(height, spread[-1] + apart) if spread else height)
    if spread and spread[-1] > 1:
        spread[-1] = 1.0
        for k in range(len(spread) - 2, -1, -1):
            spread[k] = min(spread[k], spread[k + 1] - apart)
    return spread
