"""Drawings of figures with matplotlib, from the tables of their runs.

The same tables give the same bytes on one machine, with any number of threads: SVG files have no
date and a fixed salt, and t-SNE runs on one thread.
"""

from __future__ import annotations

import io
from collections.abc import Sequence
from importlib.util import find_spec
from textwrap import fill
from typing import TYPE_CHECKING

from raysim.core.errors import SettingsError
from raysim.workloads.papers.drawing_kinds import KINDS, Tables
from raysim.workloads.papers.figure import Figure

if TYPE_CHECKING:
    from matplotlib.figure import Figure as Canvas

PACKAGES = {"matplotlib": "matplotlib", "sklearn": "scikit-learn"}
WHOLE = ("class", "layer", "local epochs", "round")
"""Labels of axes of whole numbers."""
TITLE, NOTE = 11, 14
"""Characters of the title and of notes in an inch."""
LEGEND, LINE = 1.7, 0.18
"""Width of the legend, and height of a note's line, in inches."""


def check_packages() -> None:
    """Check that figures can be drawn.

    Raises:
        SettingsError: a package is missing.
    """
    for module, package in PACKAGES.items():
        if find_spec(module) is None:
            raise SettingsError(f"figure: needs {package}; pip install 'raysim-fl[plots]'")


def draw(figure: Figure, tables: Tables, notes: Sequence[str] = ()) -> Canvas:
    """Draw a figure; the legend stands beside its panels, notes below them."""
    from matplotlib.figure import Figure as Canvas
    from matplotlib.ticker import MaxNLocator

    canvas = Canvas(layout="constrained")
    KINDS[figure.draw](canvas, figure, tables)
    for axes in canvas.axes:
        if axes.get_xlabel() in WHOLE:
            axes.xaxis.set_major_locator(MaxNLocator(integer=True))
    _add_legend(canvas)
    width, height = canvas.get_size_inches()
    beside = LEGEND if canvas.legends else 0.0
    title = fill(figure.title, int((width - beside) * TITLE), break_on_hyphens=False)
    canvas.suptitle(f"{title}\n{figure.source}", fontsize="medium")
    text = "\n".join(fill(note, int(width * NOTE), break_on_hyphens=False) for note in notes)
    if text:
        canvas.supxlabel(text, fontsize="small")
        canvas.set_size_inches(width, height + LINE * (text.count("\n") + 1))
    return canvas


def _add_legend(canvas: Canvas) -> None:
    """Add one legend of the lines in all panels, and make room for it."""
    handles = {
        label: handle
        for axes in canvas.axes
        for handle, label in zip(*axes.get_legend_handles_labels(), strict=True)
    }
    if handles:
        width, height = canvas.get_size_inches()
        canvas.set_size_inches(width + LEGEND, height)
        canvas.legend([*handles.values()], [*handles], loc="outside right upper", fontsize="small")


def rendered(canvas: Canvas, suffix: str) -> bytes:
    """Return a drawing as `svg` or `png`, the same bytes each time."""
    import matplotlib as mpl

    buffer = io.BytesIO()
    with mpl.rc_context({"svg.hashsalt": "raysim"}):
        metadata = {"Date": None} if suffix == "svg" else {"Software": None}
        canvas.savefig(buffer, format=suffix, dpi=150, metadata=metadata)
    return buffer.getvalue()
