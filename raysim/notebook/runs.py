"""Progress of a run in a notebook."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from contextlib import contextmanager, suppress
from typing import Any

import pyarrow as pa

from raysim.api.columns import OF_ENGINE
from raysim.display.notebook import in_notebook
from raysim.driver.listeners.listener import Listener, Started
from raysim.driver.listeners.progress import RunProgress, closing_lines, opening_line, words_of
from raysim.notebook.view import View
from raysim.storage.rows.metrics import read_metrics


class RunView(RunProgress):
    """Bar, values of the last round, and curve of the main score, or the train loss, of a run."""

    def __init__(self, first: str = "") -> None:
        super().__init__()
        self._view = View()
        self._rounds = 0
        self._ended = False
        if first:
            self._view.lines = [first]
            self._view.update(at_once=True)

    def preparing(self, what: str, done: int, total: int) -> None:
        """Show how data is fetched or prepared."""
        self._view.lines = [f"{what}: {done / max(total, 1):.0%}"]
        self._view.done = done / max(total, 1)
        self._view.update()

    def started(self, run: Started) -> None:
        """Show the run, with the rounds that it had before."""
        super().started(run)
        view, self._rounds = self._view, run.round_number
        view.title, view.last, view.goal = opening_line(run), run.rounds, run.target
        view.lines, view.done = [f"round {self._rounds + 1}/{run.rounds}"], 0.0
        with suppress(OSError, ValueError, pa.ArrowException):
            for row in read_metrics(run.path / "metrics.parquet", run.rounds).to_pylist():
                if 1 <= row["round"] <= self._rounds:
                    self._add(row)
        view.update(at_once=True)

    def progress(self, done: int, total: int) -> None:
        """Move the bar within a round."""
        if self._run:
            part = (self._rounds + done / max(total, 1)) / self._run.rounds
            self._view.done = max(part, self._view.done or 0.0)  # a round may have several passes
            self._view.update()

    def round_done(self, row: Mapping[str, Any]) -> None:
        """Show the values of a round."""
        self._rounds = row["round"]
        values = self.values(row)
        left, number = values.pop("left"), values.pop("round")
        rounds = self._run.rounds if self._run else self._rounds
        shown = [f"{name} {value}" for name, value in values.items()]
        self._view.lines = [f"round {number}/{rounds}, {left} left", ", ".join(shown)]
        self._view.done = self._rounds / rounds
        self._add(row)
        self._view.update()

    def note(self, text: str) -> None:
        """Show a note."""
        self._view.notes.append(f"note: {text}")
        self._view.update()

    def finished(self, summary: Mapping[str, Any]) -> None:
        """Show the final values."""
        self._view.lines = closing_lines(summary, self._run, {})
        self._ended = True

    def close(self) -> None:
        """Show the last state, without a bar; a run that is not finished says so."""
        view, run = self._view, self._run
        if run and not self._ended:
            view.lines = [f"stopped after {self._rounds} of {run.rounds} rounds", *view.lines[1:]]
        elif not self._ended:
            view.lines = []
        view.done, view.last = None, self._rounds or view.last
        view.update(at_once=True)

    def _add(self, row: Mapping[str, Any]) -> None:
        """Add a round to the curve."""
        run = self._run
        column = run.columns[run.score] if run and run.score else OF_ENGINE["train_loss"]
        self._view.axes = column.named(words_of(column)), "round"
        if row[column.name] is not None:
            self._view.points.append((row["round"], row[column.name]))


@contextmanager
def shown(listener: Listener | None, first: str = "") -> Iterator[Listener]:
    """Yield the listener that was given, or a view in a notebook, or one that does nothing.

    Args:
        listener: A user's listener.
        first: Line that the view shows until something happens.
    """
    if listener is not None or not in_notebook():
        yield listener or Listener()
        return
    view = RunView(first)
    try:
        yield view
    finally:
        view.close()
