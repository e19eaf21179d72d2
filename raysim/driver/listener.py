"""Being told how a run goes: what a terminal view, a notebook or a study listens to."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any


@dataclass(frozen=True)
class Started:
    """A run is about to start its first round.

    Attributes:
        path: The run directory.
        method: Name of the method.
        round_number: Rounds that are done already.
        rounds: Rounds at most.
        cohort: Clients per round.
        clients: Clients in all.
        target: Test accuracy at which the run stops, or None.
    """

    path: Path
    method: str
    round_number: int
    rounds: int
    cohort: int
    clients: int
    target: float | None


class Listener:
    """Hears what happens in a run; every answer defaults to doing nothing."""

    def preparing(self, what: str, done: int, total: int) -> None:
        """Data is being fetched or prepared."""

    def started(self, run: Started) -> None:
        """The first round is about to start."""

    def progress(self, done: int, total: int) -> None:
        """Clients of the present pass that are done."""

    def round_done(self, row: Mapping[str, Any]) -> None:
        """A round was committed; its row of `metrics.parquet`."""

    def note(self, text: str) -> None:
        """Something that a user should know, in one line."""

    def finished(self, summary: Mapping[str, Any]) -> None:
        """The run is finished; its `summary.json`."""
