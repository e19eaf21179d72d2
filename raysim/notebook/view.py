"""Output of a cell, updated in place: a title, a bar, lines, a curve and notes."""

from __future__ import annotations

from collections.abc import Sequence
from html import escape
from importlib import import_module
from time import perf_counter
from typing import Any

from raysim.api.columns import Column
from raysim.notebook.curve import Point, curve

SECONDS = 0.2
"""Seconds between two updates, at least."""
SHARE = 0.1
"""Share of the time that updates take, at most."""
SHOWN = 5
"""Most notes that are shown, the last ones."""


class View:
    """Output of a cell, updated in place; nothing is shown before `update`.

    Attributes:
        title: First line.
        lines: Lines below the bar.
        notes: Lines at the end; the last ones are shown.
        done: How much is done, from 0 to 1; None shows no bar.
        points: Points of the curve.
        axes: The curve's values as a column, and the name of its axis.
        last: Where the axis ends.
        goal: Value of a dashed line, or None.
    """

    def __init__(self) -> None:
        self.title = ""
        self.lines: Sequence[str] = ()
        self.notes: list[str] = []
        self.done: float | None = None
        self.points: list[Point] = []
        self.axes = (Column("value"), "round")
        self.last = 1
        self.goal: float | None = None
        self._handle: Any = None
        self._updated, self._took = 0.0, 0.0

    def update(self, *, at_once: bool = False) -> None:
        """Show the present state, if the last update is long enough ago or `at_once`."""
        begun = perf_counter()
        if not at_once and begun - self._updated < max(SECONDS, self._took / SHARE):
            return
        if self._handle is None and not self.text():
            return
        shown = {"text/html": self.html(), "text/plain": self.text()}
        if self._handle is None:
            display = import_module("IPython.display").display
            self._handle = display(shown, raw=True, display_id=True)
        else:
            self._handle.update(shown, raw=True)
        self._updated = perf_counter()
        self._took = self._updated - begun

    def text(self) -> str:
        """Return the state as plain text."""
        return "\n".join(filter(None, [self.title, *self.lines, *self._last_notes()]))

    def html(self) -> str:
        """Return the state as HTML that needs no style sheet and no script."""
        bar = ""
        if self.done is not None:
            width = 'aria-label="done" style="width: 100%"'
            bar = f'<progress value="{self.done:.4f}" {width}></progress>'
        column, x = self.axes
        parts = [
            *map(_line, filter(None, [self.title])),
            bar,
            *map(_line, self.lines),
            curve(self.points, column, last=self.last, x=x, goal=self.goal),
            *map(_line, self._last_notes()),
        ]
        return f'<div style="max-width: 40em; margin-bottom: 0.6em">{"".join(parts)}</div>'

    def _last_notes(self) -> list[str]:
        """Return the last notes, below the number of notes that are left out."""
        more = len(self.notes) - SHOWN
        left_out = [f"{more} earlier lines"] if more > 0 else []
        return [*left_out, *self.notes[-SHOWN:]]


def _line(text: str) -> str:
    return f'<div style="overflow-wrap: anywhere">{escape(text)}</div>'
