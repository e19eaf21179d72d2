"""Charts of the page: reproducible SVG by matplotlib, to be put into HTML.

Legend: K clients, C classes.
"""

from __future__ import annotations

import io
import json
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from html import escape
from typing import TYPE_CHECKING, Any

import numpy as np
import numpy.typing as npt

from raysim.core.errors import visible
from raysim.results.compare import ENDED, RunGroup
from raysim.results.report.curves import Curve, curve_of, mean_curve, thinned
from raysim.results.runs import RunRecord

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

INK = "#010203"
"""Colour of text and axes in the SVG, to be replaced by the page's text colour."""
SIZE = (5.4, 3.4)
SHOWN_LABEL = 48
WHOLE = ("rounds", "trial", "class")
"""Labels of axes whose ticks are whole numbers."""
COLOURS = 10
"""Colours of matplotlib's default cycle; further groups are dashed."""
DASHES = {"-": "\u2014", "--": "- -", ":": "\u00b7\u00b7\u00b7", "-.": "-\u00b7-"}
"""Styles of lines, and how a legend in HTML shows them."""
Against = Mapping[str, tuple[str, float]]
AGAINST: Against = {
    "round": ("rounds", 1.0),
    "bytes": ("MB", 1e-6),
    "total_seconds": ("s", 1.0),
    "total_virtual_seconds": ("virtual hours", 1 / 3600),
    "total_virtual_joules": ("J of all clients", 1.0),
}
"""Columns against which curves are drawn, with label and scale."""
TIMES = {"seconds": "rounds", "evaluation_seconds": "evaluation", "checkpoint_seconds": "saving"}
TENTHS = range(1, 10)
WORKER = re.compile(r"worker_(\w+)_seconds")


@dataclass(frozen=True)
class Chart:
    """A chart: SVG for the page, and its title.

    Attributes:
        title: The title.
        svg: The element.
        axes: Position of the axes within the element and their limits, as JSON; "" without axes.
    """

    title: str
    svg: str
    axes: str = ""


def curves(groups: Sequence[RunGroup], column: str, against: str, name: str) -> Chart | None:
    """Draw a column's curves: thin lines of all runs, the mean, and a band of one deviation."""
    label, scale = AGAINST[against]

    def scaled(records: Sequence[RunRecord]) -> list[Curve]:
        curves = [curve_of(record, column, against) for record in records]
        return [Curve(curve.x * scale, curve.y) for curve in curves if curve]

    drawn = [(scaled(group.records), scaled(_averaged(group))) for group in groups]
    if not any(every for every, _ in drawn):
        return None
    with style_of(name):
        figure, axes = _axes(label)
        for number, (every, averaged) in enumerate(drawn):
            _draw(axes, every, averaged, number, f"{name}-g{number}")
        return Chart(f"{column} against {label}", to_svg(figure, name, groups), _limits(axes))


def legend(groups: Sequence[RunGroup]) -> list[dict[str, str]]:
    """Return colour, line and label of each group, as they are drawn."""
    from matplotlib.colors import to_hex

    return [
        {
            "colour": to_hex(f"C{number % COLOURS}"),
            "line": DASHES[_dashes(number)],
            "label": group.label,
        }
        for number, group in enumerate(groups)
    ]


def _dashes(number: int) -> str:
    return [*DASHES][number // COLOURS % len(DASHES)]


def _averaged(group: RunGroup) -> list[RunRecord]:
    """Return the runs to average, as in the table: without diverged and failed ones."""
    return [record for record in group.records if record.state not in ENDED]


def _draw(
    axes: Axes, every: Sequence[Curve], averaged: Sequence[Curve], number: int, gid: str
) -> None:
    """Draw all curves of a group and the mean of the averaged ones; ids begin with `gid`."""
    look: dict[str, Any] = {"color": f"C{number % COLOURS}", "linestyle": _dashes(number)}
    alone = len(every) == len(averaged) == 1  # its mean is the run
    for k, curve in enumerate(map(thinned, () if alone else every)):
        axes.plot(curve.x, curve.y, linewidth=0.6, alpha=0.5, gid=f"{gid}-{k}", **look)
    if not averaged or (mean := mean_curve(averaged)) is None:
        return
    axes.plot(mean.x, mean.mean, linewidth=1.6, gid=f"{gid}-mean", **look)
    if len(averaged) > 1:
        low, high = mean.mean - mean.deviation, mean.mean + mean.deviation
        fill: dict[str, Any] = {"color": look["color"], "alpha": 0.15, "linewidth": 0}
        axes.fill_between(mean.x, low, high, gid=f"{gid}-band", **fill)


def deciles(groups: Sequence[RunGroup], name: str) -> Chart | None:
    """Draw the deciles of the clients' accuracies at the last evaluation, means over seeds."""
    with style_of(name):
        figure, axes = _axes("decile of the clients")
        drawn = False
        for number, group in enumerate(groups):
            runs = [[r.points(f"client_accuracy_d{d}") for d in TENTHS] for r in _averaged(group)]
            values = [[points[-1][1] for points in each] for each in runs if all(each)]
            if values:
                drawn = True
                look: dict[str, Any] = {
                    "color": f"C{number % COLOURS}",
                    "linestyle": _dashes(number),
                }
                mean = np.mean(values, axis=0)
                axes.plot(
                    TENTHS, mean, marker="o", markersize=3, gid=f"{name}-g{number}-mean", **look
                )
        if not drawn:
            return None
        return Chart("accuracy of clients by decile", to_svg(figure, name, groups), _limits(axes))


def searches(found: Mapping[str, Mapping[int, float]], title: str, *, least: bool) -> Chart:
    """Draw the scores of searches: a point per trial, and the best score so far as a line.

    Earlier searches are drawn wider, so that they are seen below later ones with the same scores.

    Args:
        found: Score by number of the trial, of each search by name.
        title: What is scored.
        least: Whether the least score is the best.
    """
    with style_of("searches"):
        figure, axes = _axes("trial")
        best = np.minimum if least else np.maximum
        for number, (name, scores) in enumerate(found.items()):
            trials, values = [*scores], np.array([*scores.values()])
            look: dict[str, Any] = {"color": f"C{number % COLOURS}", "linestyle": _dashes(number)}
            wider = (len(found) - 1 - number) / max(len(found) - 1, 1)  # from 1 to 0
            axes.plot(trials, values, "o", markersize=3 + 4 * wider, color=look["color"])
            reached = best.accumulate(values)
            look["linewidth"] = 1.2 + 3 * wider
            axes.step(trials, reached, where="post", label=visible(name, 30), **look)
        axes.legend(loc="upper center", bbox_to_anchor=(0.5, -0.14), ncol=2, frameon=False)
        return Chart(title, to_svg(figure, "searches", (), tight=True))


def heat_map(title: str, counts: npt.NDArray[Any], name: str) -> Chart:
    """Draw samples by client and class [K, C]."""
    from matplotlib.ticker import MaxNLocator

    with style_of(name):
        figure, axes = _axes("class")
        clients, classes = counts.shape
        edges = (-0.5, classes - 0.5, clients - 0.5, -0.5)
        image = axes.imshow(
            counts, aspect="auto", vmin=0, cmap="viridis", extent=edges, interpolation="nearest"
        )
        axes.set_ylabel("client")
        axes.yaxis.set_major_locator(MaxNLocator(integer=True))
        axes.grid(visible=False)
        figure.colorbar(image, label="samples")
        return Chart(title, to_svg(figure, name, ()))


def times(groups: Sequence[RunGroup], name: str) -> Chart | None:
    """Draw the seconds of runs by activity, means over seeds."""
    seconds = [_sums(group, TIMES) for group in groups]
    return _bars("seconds of a run", groups, seconds, name)


def phases(groups: Sequence[RunGroup], name: str) -> Chart | None:
    """Draw the workers' seconds by phase of traced runs, means over seeds."""
    columns = dict.fromkeys(
        column for g in groups for r in _averaged(g) for column in r.metrics.column_names
    )
    names = {c: match[1] for c in columns if (match := WORKER.fullmatch(c))}
    return _bars("seconds of workers by phase", groups, [_sums(g, names) for g in groups], name)


def _sums(group: RunGroup, columns: Mapping[str, str]) -> dict[str, float]:
    """Return the sums of columns over the rounds, means over the seeds of traced runs."""
    runs = [r for r in _averaged(group) if columns and {*columns} <= {*r.metrics.column_names}]
    return {
        label: float(np.mean([sum(value for _, value in r.points(column)) for r in runs]))
        for column, label in columns.items()
        if runs
    }


def _bars(
    title: str, groups: Sequence[RunGroup], values: Sequence[Mapping[str, float]], name: str
) -> Chart | None:
    parts = list(dict.fromkeys(part for sums in values for part in sums))
    if not parts:
        return None
    with style_of(name):
        figure, axes = _axes("s", height=1.2 + 0.25 * len(groups))
        left = np.zeros(len(groups))
        for number, part in enumerate(parts):
            widths = np.array([sums.get(part, 0.0) for sums in values])
            axes.barh(range(len(groups)), widths, left=left, color=f"C{number}", label=part)
            left += widths
        axes.set_yticks(range(len(groups)), [visible(g.label, SHOWN_LABEL) for g in groups])
        axes.invert_yaxis()
        axes.legend(loc="upper center", bbox_to_anchor=(0.5, -0.35), ncol=len(parts), frameon=False)
        return Chart(title, to_svg(figure, name, (), tight=True))


def style_of(name: str) -> Any:
    """Return the context for drawing a chart, independent of the process's and the user's styles.

    The chart's ids depend on its name alone.
    """
    from matplotlib import style

    inks: Any = ("text.color", "axes.edgecolor", "axes.labelcolor", "xtick.color", "ytick.color")
    own: Any = {
        **dict.fromkeys(inks, INK),
        "svg.hashsalt": name,
        "svg.fonttype": "none",
        "text.parse_math": False,
        "font.size": 9,
        "axes.grid": True,
        "grid.alpha": 0.3,
        "axes.spines.top": False,
        "axes.spines.right": False,
    }
    return style.context(["default", own])


def _axes(label: str, height: float = SIZE[1]) -> tuple[Figure, Axes]:
    from matplotlib.figure import Figure
    from matplotlib.ticker import MaxNLocator

    figure = Figure(figsize=(SIZE[0], height))
    axes = figure.add_axes((0.12, 0.14, 0.85, 0.82))
    axes.set_xlabel(label)
    if label in WHOLE:
        axes.xaxis.set_major_locator(MaxNLocator(integer=True))
    return figure, axes


def _limits(axes: Axes) -> str:
    place = axes.get_position()
    return json.dumps([*place.extents, *axes.get_xlim(), *axes.get_ylim()])


def to_svg(
    figure: Figure, name: str, groups: Sequence[RunGroup] = (), *, tight: bool = False
) -> str:
    """Return the figure as an element whose ids begin with its name; curves get a title."""
    file = io.StringIO()
    about = dict.fromkeys(("Creator", "Date", "Format", "Type"))
    figure.savefig(
        file, format="svg", transparent=True, metadata=about, bbox_inches="tight" if tight else None
    )
    text = file.getvalue()
    text = re.sub(r"<metadata>.*?</metadata>", "", text[text.index("<svg") :], flags=re.DOTALL)
    text = text.replace(INK, "currentColor")
    text = re.sub(rf' id="(?!{re.escape(name)}-g\d)', f' id="{name}-', text)
    text = re.sub(r'(url\(#|href="#)', rf"\g<1>{name}-", text)

    def curve(match: re.Match[str]) -> str:
        number = int(match[1])
        return f'<g class="curve g{number}"><title>{escape(groups[number].label)}</title>'

    return re.sub(rf'<g id="{re.escape(name)}-g(\d+)-\w+">', curve, text).strip()
