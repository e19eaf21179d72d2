"""Callbacks of a run, for terminal views, notebooks and studies."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from contextvars import ContextVar
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from raysim.api.columns import Column


@dataclass(frozen=True)
class Started:
    """Event of a run that is about to start its first round.

    Attributes:
        path: The run directory.
        method: Name of the method.
        round_number: Rounds that are already done.
        rounds: Most rounds of the run.
        cohort: Clients in a round.
        clients: All clients.
        target: Accuracy at which the run stops; None without a target.
        score: Column of the main score; None if nothing is evaluated.
        columns: Declared columns of the run's rounds, by name.
    """

    path: Path
    method: str
    round_number: int
    rounds: int
    cohort: int
    clients: int
    target: float | None
    score: str | None
    columns: Mapping[str, Column]


class Listener:
    """Callbacks of a run; every method does nothing by default."""

    def preparing(self, what: str, done: int, total: int) -> None:
        """Called while the run fetches or prepares data."""

    def started(self, run: Started) -> None:
        """Called before the first round."""

    def progress(self, done: int, total: int) -> None:
        """Called with the finished clients and all clients of the current pass."""

    def round_done(self, row: Mapping[str, Any]) -> None:
        """Called after a round is committed, with its row of `metrics.parquet`."""

    def note(self, text: str) -> None:
        """Called with one line for the user."""

    def finished(self, summary: Mapping[str, Any]) -> None:
        """Called at the end of the run, with its `summary.json`."""


class Forwarding(Listener):
    """Listener that forwards all calls to another one; subclasses override some."""

    def __init__(self, listener: Listener) -> None:
        self._listener = listener

    def preparing(self, what: str, done: int, total: int) -> None:
        """Forward the call."""
        self._listener.preparing(what, done, total)

    def started(self, run: Started) -> None:
        """Forward the call."""
        self._listener.started(run)

    def progress(self, done: int, total: int) -> None:
        """Forward the call."""
        self._listener.progress(done, total)

    def round_done(self, row: Mapping[str, Any]) -> None:
        """Forward the call."""
        self._listener.round_done(row)

    def note(self, text: str) -> None:
        """Forward the call."""
        self._listener.note(text)

    def finished(self, summary: Mapping[str, Any]) -> None:
        """Forward the call."""
        self._listener.finished(summary)


_OF_COMMAND: ContextVar[Listener | None] = ContextVar("listener", default=None)


@contextmanager
def listening(listener: Listener) -> Iterator[None]:
    """Use a listener for the preparation of data, if settings are loaded in the body."""
    before = _OF_COMMAND.set(listener)
    try:
        yield
    finally:
        _OF_COMMAND.reset(before)


def listener_of_command() -> Listener | None:
    """Return the listener of `listening`; None outside of it."""
    return _OF_COMMAND.get()
