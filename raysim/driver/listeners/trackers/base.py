"""Base class of trackers, and the listener that feeds a tracker."""

from __future__ import annotations

import math
from abc import ABC, abstractmethod
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any, Self

import requests

from raysim.config import Settings
from raysim.driver.listeners.listener import Forwarding, Listener, Started
from raysim.errors import RunError, without_passwords
from raysim.storage.atomic import write_json
from raysim.storage.schema import GRIDS
from raysim.user_input import canonical, parse_json

FILE = "tracker.json"
ANSWER_SECONDS = 10
"""Seconds within which a server must answer before a run starts."""
SUMMARY = "summary/"
"""Prefix of values of `summary.json`; some have the names of columns."""


class Tracker(ABC):
    """Service that keeps values of runs."""

    @abstractmethod
    def open(self, known: str | None, name: str, parameters: Mapping[str, Any]) -> tuple[str, int]:
        """Open a run of the tracker.

        Args:
            known: Id of a run to continue; None opens a new one.
            name: Name of a new run.
            parameters: Settings of a new run, by canonical key.

        Returns:
            The run's id, and the last round that the tracker is known to have.
        """

    @abstractmethod
    def log(self, values: Mapping[str, float], step: int) -> None:
        """Log the values of a round."""

    @abstractmethod
    def summarise(self, values: Mapping[str, float], step: int) -> None:
        """Log the final values, after the last round."""

    @abstractmethod
    def close(self, *, finished: bool) -> None:
        """Close the run; `finished` is False if it was stopped."""


class TrackingListener(Forwarding):
    """Listener that feeds a tracker and forwards to another listener.

    A tracker that fails before the first round stops the run. If it fails later, the run notes it
    and goes on without it.
    """

    def __init__(self, name: str, tracker: Tracker, settings: Settings, listener: Listener) -> None:
        super().__init__(listener)
        self._name = name
        self._tracker: Tracker | None = tracker
        self._settings = canonical(settings.to_dict())
        self._path = Path()
        self._run = ""
        self._round = 0
        self._score: str | None = None
        self._finished = False

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *error: object) -> None:
        """Close the tracker's run, if there is one."""
        if self._run:
            self._feed(lambda tracker: tracker.close(finished=self._finished))

    def started(self, run: Started) -> None:
        """Open the tracker's run, or continue an earlier one.

        Raises:
            RunError: the tracker's run cannot be opened.
        """
        self._path, self._score = run.path / FILE, run.score
        known = _read(self._path).get(self._name, {})
        try:
            if self._tracker is not None:
                self._run, last = self._tracker.open(
                    known.get("run"), run_name(run.path), self._settings
                )
                self._round = max(last, known.get("round", 0))
        except Exception as error:
            raise RunError(f"tracker={self._name}: cannot be used: {error}") from error
        self._save()
        super().started(run)

    def round_done(self, row: Mapping[str, Any]) -> None:
        """Log the round with its main score as `score`, unless the tracker has the round."""
        number = row["round"]
        if number > self._round:
            values = {"score": row.get(self._score or ""), **row}
            self._feed(lambda tracker: tracker.log(_numbers(values), number))
            self._round = number
            self._save()
        super().round_done(row)

    def finished(self, summary: Mapping[str, Any]) -> None:
        """Log the summary."""
        values = {f"{SUMMARY}{name}": value for name, value in _numbers(summary).items()}
        self._feed(lambda tracker: tracker.summarise(values, self._round))
        self._finished = True
        super().finished(summary)

    def _feed(self, log: Callable[[Tracker], None]) -> None:
        """Call the tracker; drop it if it fails."""
        if self._tracker is None:
            return
        try:
            log(self._tracker)
        except Exception as error:
            self._tracker = None
            cause = without_passwords(str(error))
            self.note(f"tracker={self._name}: {cause}; going on without it")

    def _save(self) -> None:
        if self._tracker is not None:
            known = {self._name: {"run": self._run, "round": self._round}}
            write_json(self._path, _read(self._path) | known)


def check_answers(variable: str, url: str) -> None:
    """Check that the server at the URL of a variable answers, with any answer.

    Raises:
        OSError: the server does not answer.
    """
    try:
        requests.head(url, timeout=ANSWER_SECONDS)
    except requests.exceptions.SSLError:
        pass  # the server answers; the tracker has its own settings for certificates
    except requests.RequestException as error:
        place = f"{variable}={without_passwords(url)}"
        raise OSError(f"{place}: no server answers within {ANSWER_SECONDS} s") from error


def run_name(run: Path) -> str:
    """Return a run's name: its path from the folder of its table, figure or study on."""
    path, files = run.absolute(), GRIDS.values()
    above = next((f for f in path.parents if any((f / name).exists() for name in files)), path)
    return path.relative_to(above.parent).as_posix()


def _numbers(values: Mapping[str, Any]) -> dict[str, float]:
    return {
        name: float(value)
        for name, value in values.items()
        if isinstance(value, int | float) and math.isfinite(value)
    }


def _read(path: Path) -> dict[str, Any]:
    """Return the recorded runs of trackers; empty if the file is damaged."""
    try:
        recorded = parse_json(path.read_text(encoding="utf-8"))
    except (OSError, ValueError):
        return {}
    whole = isinstance(recorded, dict) and all(
        isinstance(run, dict) and {name: type(value) for name, value in run.items()} == KINDS
        for run in recorded.values()
    )
    return recorded if whole else {}


KINDS = {"run": str, "round": int}
