"""A study on blobs, small enough for tests."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from functools import cache
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

from optuna.storages import RDBStorage

import raysim
from raysim.tuning.search.search import Search
from raysim.tuning.slots.report import Report, SlotLost
from raysim.tuning.slots.slot import SlotActor
from raysim.tuning.studies import read_study
from raysim.tuning.studies.samplers import SearchOptions
from raysim.tuning.studies.study import Study
from raysim.tuning.tuner import StudyListener, Tuner

PRESET = {
    "dataset": {"name": "tests.blobs:Blobs"},
    "partition": {"name": "iid"},
    "model": {"name": "tests.blobs:Linear"},
    "method": {"name": "fedprox"},
    "clients": 20,
    "rounds": 4,
    "fraction": 0.2,
    "local": {"epochs": 1, "batch_size": 50, "lr": 0.05},
}
SPACE = {
    "local.lr": {"low": 1e-3, "high": 0.5, "log": True},
    "method.mu": [0.0, 0.1, 1.0],
}


def make_study(folder: Path, **table: Any) -> Study:
    """Return a study whose file lies in a folder."""
    path = folder / "blobs.json"
    path.write_text(json.dumps(PRESET | {"study": {"about": "blobs", "space": SPACE, **table}}))
    return read_study(path)


@cache
def empty_tables() -> bytes:
    """Return a database without a study; Optuna makes its tables slowly."""
    with TemporaryDirectory() as folder:
        path = Path(folder) / "study.db"
        RDBStorage(f"sqlite:///{path}").engine.dispose()
        return path.read_bytes()


def make_search(
    folder: Path,
    options: SearchOptions | None = None,
    storage: str | None = None,
    table: Mapping[str, Any] | None = None,
    **overrides: Any,
) -> Search:
    """Return a search in a SQLite file of a folder, or in another storage."""
    database = folder / "study.db"
    if not storage and not database.exists():
        database.write_bytes(empty_tables())
    url = storage or f"sqlite:///{database}"
    resolved = make_study(folder, **(table or {})).resolve(overrides)
    return Search("blobs", url, options or SearchOptions(), resolved)


class RecordingListener(StudyListener):
    """Listener that records notes and ended trials."""

    def __init__(self) -> None:
        self.notes: list[str] = []
        self.ended: list[int] = []

    def trial_done(self, trial: Any, seconds: float) -> None:
        self.ended.append(trial.number)

    def note(self, text: str) -> None:
        self.notes.append(text)


class LocalSlots:
    """One slot in this process, without Ray.

    Attributes:
        started: Runs that were started, in order: numbers of trials, or what `key` makes of `out`.
        fault: Called with a run before it starts; returns what comes instead, or None.
        asked: Number of slots that was asked for.
    """

    busy = None
    asked: int | None = None
    _order: Any
    _run: Any

    def __init__(self, key: Callable[[Path], Any] = lambda out: int(out.name)) -> None:
        self.started: list[Any] = []
        self.fault: Callable[[Any], Report | SlotLost | None] = lambda run: None
        self.key = key

    @contextmanager
    def open(
        self, settings: raysim.Settings, jobs: int | None, note: Callable[[str], None]
    ) -> Iterator[LocalSlots]:
        self._actor, self._note, self.asked = SlotActor({}), note, jobs
        self._running, self._order = False, None
        yield self

    def __len__(self) -> int:
        return 1

    def has_free(self) -> bool:
        return not self._running

    def start(self, run: Any, settings: raysim.Settings, pausing: bool, forced: bool) -> None:
        self._running, self._run = True, run
        self.started.append(self.key(Path(settings.out)))
        values = settings.override({"engine.backend": "inline"}).to_dict()
        self._order = values, pausing, forced

    def release(self, run: Any, paused: bool) -> None:
        self._running = False
        if paused:
            self._actor.stop()

    def wait(self) -> tuple[Any, Report | SlotLost]:
        order, self._order = self._order, None
        if order and (fault := self.fault(self.started[-1])):
            if isinstance(fault, SlotLost):
                self.release(self._run, paused=True)
            return self._run, fault
        report, notes = self._actor.advance(order)
        for text in notes:
            self._note(text)
        return self._run, report


def make_tuner(search: Search, folder: Path) -> Tuner:
    return Tuner(search, folder / "out", RecordingListener())


def values(search: Search) -> list[Any]:
    """Return what identifies the trials: numbers, settings, states, figures."""
    return [
        (trial.number, trial.params, trial.state.name, trial.values, trial.intermediate_values)
        for trial in search.study.get_trials()
    ]


def summaries(folder: Path) -> dict[int, dict[str, float]]:
    """Return the summaries of a study's runs by trial number."""
    return {
        int(path.parent.name): json.loads(path.read_text())
        for path in (folder / "out" / "trials").glob("*/summary.json")
    }
