"""Canvas of all charts, drawn by matplotlib: style, axes, heat maps, SVG and PNG.

The same chart gives the same bytes. On a page, colours of PALETTE become variables of its style, so
that lines and their labels can be read on white, on a dark screen and on paper.
"""

from __future__ import annotations

import io
import re
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from html import escape
from typing import TYPE_CHECKING, Any

import numpy.typing as npt

from raysim.errors import visible
from raysim.samples.client_indices import named

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

INK = "#010203"
"""Colour of text and axes in the SVG, to be replaced by the page's text colour."""
BACK = "#fdfcfb"
"""Colour of the background in the SVG, to be replaced by the page's background."""
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
WHOLE = ("class", "client", "epochs", "layer", "round", "trial")
"""Labels of axes with whole numbers at the ticks."""
DPI = 150
"""Dots per inch of a PNG."""
MOST_NAMED, LONGEST_NAME = 20, 20
"""Most clients or classes that a heat map names, and most characters of a class's name."""


@contextmanager
def style(**more: Any) -> Iterator[None]:
    """Draw charts in one style, independent of the process's and the user's; `more` changes it."""
    from matplotlib import style as styles
    from matplotlib.rcsetup import cycler

    inks = ("text.color", "axes.edgecolor", "axes.labelcolor", "xtick.color", "ytick.color")
    settings: dict[str, Any] = {
        **dict.fromkeys(inks, INK),
        "axes.prop_cycle": cycler(color=[light for light, _ in PALETTE]),
        "font.size": 9,
        "axes.grid": True,
        "grid.alpha": 0.3,
        "axes.axisbelow": True,
        "axes.spines.top": False,
        "axes.spines.right": False,
    }
    with styles.context(["default", settings | more]):
        yield


@contextmanager
def canvas(
    x: str, y: str = "", *, height: float = SIZE[1], left: float = 0.13, right: float = 0.03
) -> Iterator[Axes]:
    """Yield the labelled axes of a chart; `left` and `right` are margins, as its shares.

    Texts are shown as they are, without formulas: users choose the names.
    """
    from matplotlib.figure import Figure

    with style(**{"text.parse_math": False}):
        bottom = BELOW / height
        place = (left, bottom, 1 - left - right, 1 - bottom - 0.14 / height)
        axes = Figure(figsize=(SIZE[0], height)).add_axes(place)
        axes.set(xlabel=x, ylabel=y)
        axes.ticklabel_format(useOffset=False)
        set_whole(axes)
        yield axes


def set_whole(axes: Axes) -> None:
    """Put ticks at whole numbers if the axis label is in WHOLE."""
    from matplotlib.ticker import MaxNLocator

    for axis in (axes.xaxis, axes.yaxis):
        if axis.get_label_text() in WHOLE:
            axis.set_major_locator(MaxNLocator(integer=True))


def heat_map(
    axes: Axes,
    values: npt.NDArray[Any],
    label: str,
    *,
    clients: int = 0,
    names: Sequence[str] = (),
    words: Sequence[str] = (),
) -> None:
    """Draw values by client and class [n, C], with a colour bar.

    Args:
        axes: Where they are drawn.
        values: The values; their rows may be of some clients alone.
        label: Name of the values.
        clients: Number of all clients K; 0 if each has a row.
        names: Names of the clients [K], shown if they are few.
        words: Names of the classes [C], shown if they are few.
    """
    clients, classes = clients or len(values), values.shape[1]
    edges = (-0.5, classes - 0.5, clients - 0.5, -0.5)
    look: dict[str, Any] = {"aspect": "auto", "cmap": "viridis", "interpolation": "nearest"}
    image = axes.imshow(values, vmin=0, extent=edges, **look)
    axes.set(xlabel="class", ylabel="client")
    set_whole(axes)
    if len(names) == clients <= MOST_NAMED:
        axes.set_yticks(range(clients), [*map(named, range(clients), names)])
    if classes <= len(words) <= MOST_NAMED:
        shown = [visible(word, LONGEST_NAME) for word in words[:classes]]
        axes.set_xticks(range(classes), shown, rotation=30, ha="right")
    axes.grid(visible=False)
    figure_of(axes).colorbar(image, ax=axes, label=label)


def figure_of(axes: Axes) -> Figure:
    """Return the figure that axes stand in."""
    figure = axes.get_figure(root=True)
    assert figure is not None  # noqa: S101 - for type checkers
    return figure


def written(figure: Figure, suffix: str) -> bytes:
    """Return a figure as the content of a file, `svg` or `png`."""
    buffer, metadata = io.BytesIO(), {"Date": None} if suffix == "svg" else {"Software": None}
    with style(**{"svg.hashsalt": "raysim"}):
        figure.savefig(buffer, format=suffix, dpi=DPI, metadata=metadata)
    return buffer.getvalue()


def to_svg(figure: Figure, name: str, labels: Sequence[str] = (), *, tight: bool = False) -> str:
    """Return the figure as an element; its ids begin with the name, and curves get a title.

    Args:
        figure: The figure.
        name: Its name.
        labels: Labels of the groups; their curves have ids `NAME-gNUMBER-...`.
        tight: Whether the element ends where the drawing does.
    """
    import matplotlib as mpl

    file, box = io.StringIO(), "tight" if tight else None
    about = dict.fromkeys(("Creator", "Date", "Format", "Type"))
    with mpl.rc_context({"svg.hashsalt": name, "svg.fonttype": "none"}):
        figure.savefig(file, format="svg", transparent=True, metadata=about, bbox_inches=box)
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
