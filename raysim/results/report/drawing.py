"""Drawing of charts: reproducible SVG by matplotlib, in the colours of the page.

Colours are drawn as those of PALETTE and become variables of the page's style, so that lines and
their labels can be read on white, on a dark screen and on paper.
"""

from __future__ import annotations

import io
import json
import math
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from html import escape
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy.typing as npt

from raysim.core.errors import visible

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

INK = "#010203"
"""Colour of text and axes in the SVG, to be replaced by the page's text colour."""
BACK = "#fdfcfb"
"""Colour in the SVG that is to be replaced by that of the page."""
SIZE = (5.4, 3.4)
"""Inches of a chart."""
BELOW, CHARACTER = 0.48, 0.014
"""Inches below the axes; the share of a chart's width that a character takes."""
PALETTE: Sequence[tuple[str, str]] = (
    ("#0b5fb3", "#6cb2ff"),
    ("#b04a00", "#ff9d4d"),
    ("#17703a", "#5fd08a"),
    ("#b3212f", "#ff8080"),
    ("#7239ae", "#c9a0ff"),
    ("#75502d", "#dcae84"),
    ("#007080", "#4fd0df"),
    ("#a82671", "#ff93cf"),
    ("#62620a", "#cfcf4a"),
    ("#55585d", "#b8bbc0"),
)
"""Colours on a light and on a dark page, each at a contrast of 4.5 and more."""
COLOURS = len(PALETTE)
DASHES = ("-", (0, (5, 1.6)), (0, (6, 1.4, 1.2, 1.4)), (0, (1.2, 1.4)))
"""Styles of lines, which lines on each other are told apart by: neighbours differ."""
END_LABEL = 16
"""Most characters of a label at the end of a line: of longer ones, lines have numbers."""
MOST_ENDS = 16
"""Most labels at the ends of lines: more have no room."""
WHOLE = ("round", "trial", "class")
"""Labels of axes whose ticks are whole numbers."""
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
        """Return the label of a group, behind its number where charts name groups by number."""
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


def style_of(name: str) -> Any:
    """Return the context for drawing a chart, independent of the process's and the user's styles.

    The chart's ids depend on its name alone.
    """
    from matplotlib import style
    from matplotlib.rcsetup import cycler

    inks: Any = ("text.color", "axes.edgecolor", "axes.labelcolor", "xtick.color", "ytick.color")
    own: Any = {
        **dict.fromkeys(inks, INK),
        "axes.prop_cycle": cycler(color=[light for light, _ in PALETTE]),
        "svg.hashsalt": name,
        "svg.fonttype": "none",
        "text.parse_math": False,
        "font.size": 9,
        "axes.grid": True,
        "grid.alpha": 0.3,
        "axes.axisbelow": True,
        "axes.spines.top": False,
        "axes.spines.right": False,
    }
    return style.context(["default", own])


def new_axes(
    x: str, y: str = "", *, height: float = SIZE[1], left: float = 0.13, right: float = 0.03
) -> tuple[Figure, Axes]:
    """Return a figure and its axes with labels; `left` and `right` are margins, as its shares."""
    from matplotlib.figure import Figure
    from matplotlib.ticker import MaxNLocator

    figure = Figure(figsize=(SIZE[0], height))
    bottom = BELOW / height
    axes = figure.add_axes((left, bottom, 1 - left - right, 1 - bottom - 0.14 / height))
    axes.set_xlabel(x)
    axes.set_ylabel(y)
    axes.ticklabel_format(useOffset=False)
    if x in WHOLE:
        axes.xaxis.set_major_locator(MaxNLocator(integer=True))
    return figure, axes


def make_room(axes: Axes) -> None:
    """Widen the left margin of axes, with all that is drawn in them, where tick labels are long."""
    ticks = axes.yaxis.get_major_formatter().format_ticks(axes.get_yticks().tolist())
    (left, bottom), (right, top) = axes.get_position().get_points()
    left = max(left, 0.065 + CHARACTER * max(map(len, ticks)))
    axes.set_position((left, bottom, right - left, top - bottom))


def pointed(axes: Axes, lines: Sequence[Traced], says: str) -> str:
    """Return what a page needs to show the values of lines under the pointer, as JSON.

    Args:
        axes: The axes.
        lines: The lines.
        says: Text about a point, with {x} and {y} for its values.
    """
    limits = [*axes.get_position().extents, *axes.get_xlim(), *axes.get_ylim()]
    each = [
        [line.name, _short(line.x), _short(line.y)]
        + ([] if line.rounds is None else [line.rounds.astype(int).tolist()])
        for line in lines
    ]
    values = {"axes": [float(f"{limit:.6g}") for limit in limits], "says": says, "lines": each}
    return json.dumps(values, separators=(",", ":"))


def _short(values: Values) -> list[float | int]:
    """Return values in five digits; whole numbers without a point."""
    numbers = (float(f"{value:.5g}") for value in values.tolist())
    return [int(n) if math.isfinite(n) and n == int(n) else n for n in numbers]


def end_labels(axes: Axes, legend: Legend, lines: Mapping[int, Traced]) -> None:
    """Write the name of each group beside the end of its line, none on another one.

    Args:
        axes: The axes, with all that is drawn in them, and the legend's margin at their right.
        legend: The groups.
        lines: Their lines by number.
    """
    if not legend.has_ends or not lines:
        return
    axes.autoscale_view()
    axes.autoscale(enable=False)
    figure_height = axes.get_figure(root=True).get_size_inches()[1]  # type: ignore[union-attr]
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


def to_svg(figure: Figure, name: str, labels: Sequence[str] = (), *, tight: bool = False) -> str:
    """Return the figure as an element whose ids begin with its name; curves get a title.

    Args:
        figure: The figure.
        name: Its name.
        labels: Labels of the groups, whose curves have ids `NAME-gNUMBER-...`.
        tight: Whether the element ends where the drawing does.
    """
    file = io.StringIO()
    about = dict.fromkeys(("Creator", "Date", "Format", "Type"))
    figure.savefig(
        file, format="svg", transparent=True, metadata=about, bbox_inches="tight" if tight else None
    )
    text = file.getvalue()
    text = re.sub(r"<metadata>.*?</metadata>", "", text[text.index("<svg") :], flags=re.DOTALL)
    text = text.replace(INK, "currentColor").replace(BACK, "var(--back)")
    for number, (colour, _) in enumerate(PALETTE):
        text = text.replace(colour, f"var(--c{number})")
    text = re.sub(rf' id="(?!{re.escape(name)}-g\d)', f' id="{name}-', text)
    text = re.sub(r'(url\(#|href="#)', rf"\g<1>{name}-", text)

    def curve(match: re.Match[str]) -> str:
        number = int(match[1])
        return f'<g class="curve g{number}"><title>{escape(labels[number])}</title>'

    return re.sub(rf'<g id="{re.escape(name)}-g(\d+)-\w+">', curve, text).strip()
