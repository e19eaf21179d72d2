"""Progress of a sweep or a study in a notebook."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager

from raysim.api.columns import Column
from raysim.display.notebook import in_notebook
from raysim.notebook.curve import Point
from raysim.notebook.view import View
from raysim.process.exits import hinting_at


class LinesView:
    """Bar and last lines of several runs, and a curve if there is one; nothing if not visible."""

    def __init__(self, *, visible: bool) -> None:
        self._view, self._visible = View(), visible

    def line(self, text: str) -> None:
        """Show a line."""
        self._view.notes.append(text)
        self._update()

    def progress(self, done: int, total: int) -> None:
        """Show how many runs or trials are done."""
        self._view.lines = [f"{done} of {total} done"]
        self._view.done = done / max(total, 1)
        self._update()

    def curve(self, points: Sequence[Point], column: Column, x: str) -> None:
        """Show a curve."""
        view = self._view
        view.points, view.axes = [*points], (column, x)
        view.last = max((round(at) for at, _ in points), default=1)
        self._update()

    def close(self) -> None:
        """Show the last state, without a bar."""
        self._view.done = None
        self._update(at_once=True)

    def _update(self, *, at_once: bool = False) -> None:
        if self._visible:
            self._view.update(at_once=at_once)


@contextmanager
def shown_lines(what: str) -> Iterator[LinesView]:
    """Yield a view for a sweep or a study, visible in a notebook.

    Raises:
        KeyboardInterrupt: the body was interrupted; the message says how to go on.
    """
    view = LinesView(visible=in_notebook())
    try:
        with hinting_at(f"interrupted; the same call resumes the {what}"):
            yield view
    finally:
        view.close()
