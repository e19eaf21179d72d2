"""Drawings of figures, from the tables of their runs.

The same tables give the same bytes on one machine, with any number of threads: t-SNE runs on one.
"""

from __future__ import annotations

from collections.abc import Sequence
from importlib.util import find_spec
from textwrap import fill
from typing import TYPE_CHECKING

from raysim.display.canvas import set_whole, style
from raysim.errors import SettingsError
from raysim.workloads.papers.drawing_kinds import KINDS, Tables, drawn_rows
from raysim.workloads.papers.figure import Figure

if TYPE_CHECKING:
    from matplotlib.figure import Figure as Canvas

PACKAGES = {"matplotlib": "matplotlib", "sklearn": "scikit-learn"}
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
    """Draw a figure; the legend stands next to its panels, notes below them."""
    from matplotlib.figure import Figure as Canvas

    canvas = Canvas(layout="constrained")
    rows = {name: drawn_rows(figure, columns) for name, columns in tables.items()}
    with style():
        KINDS[figure.draw](canvas, figure, rows)
        _finish(canvas, figure, notes)
    return canvas


def _finish(canvas: Canvas, figure: Figure, notes: Sequence[str]) -> None:
    """Add legend, title and notes around the panels."""
    for axes in canvas.axes:
        set_whole(axes)
        if axes.images:
            axes.grid(visible=False)
    _add_legend(canvas)
    width, height = canvas.get_size_inches()
    beside = LEGEND if canvas.legends else 0.0
    title = fill(figure.title, int((width - beside) * TITLE), break_on_hyphens=False)
    canvas.suptitle(f"{title}\n{figure.source}", fontsize="medium")
    text = "\n".join(fill(note, int(width * NOTE), break_on_hyphens=False) for note in notes)
    if text:
        canvas.supxlabel(text, fontsize="small")
        canvas.set_size_inches(width, height + LINE * (text.count("\n") + 1))


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
