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
    "checkpoint_every": 1,
    "local": {"epochs": 1, "batch_size": 20, "lr": 0.05},
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


class LocalLane(int):
    """Lane of a slot in this process."""

    @property
    def number(self) -> int:
        return int(self)


class LocalSlots:
    """One slot in this process, without Ray.

    Attributes:
        started: Runs that were started, in order: numbers of trials, or what `key` makes of `out`.
        fault: Called with a run before it starts; returns what comes instead, or None.
        asked: Number of slots that was asked for.
    """

    busy = None
    asked: int | None = None

    def __init__(self, key: Callable[[Path], Any] = lambda out: int(out.name)) -> None:
        self.started: list[Any] = []
        self.fault: Callable[[Any], Report | SlotLost | None] = lambda run: None
        self.key = key

    @contextmanager
    def open(
        self,
        settings: raysim.Settings,
        jobs: int | None,
        note: Callable[[str], None],
        stack: int = 1,
    ) -> Iterator[LocalSlots]:
        self._actor, self._note, self.stack = SlotActor({}, stack), note, stack
        self.asked = jobs
        self._free, self._running = [*map(LocalLane, range(stack))], set[int]()
        self._orders: dict[int, Any] = {}
        self._due: list[tuple[LocalLane, Report | SlotLost]] = []
        yield self

    def __len__(self) -> int:
        return 1

    def has_free(self, alone: bool = False) -> bool:
        return bool(self._free) and not (alone and self._running)

    def start(
        self,
        settings: raysim.Settings,
        pausing: bool,
        forced: bool,
        reported: int = 0,
        number: int | None = None,
        *,
        alone: bool = False,
    ) -> LocalLane:
        lane = number if number in self._free else min(self._free)
        self._free = [each for each in self._free if each != lane and not alone]
        self._running.add(lane)
        lane, run = LocalLane(lane), self.key(Path(settings.out))
        self.started.append(run)
        values = settings.override({"engine.backend": "inline"}).to_dict()
        self._orders[lane] = run, (values, pausing, forced, reported)
        return lane

    def stop(self, lane: LocalLane) -> None:
        self._orders[lane] = None, None

    def release(self, lane: LocalLane) -> None:
        self._running.remove(lane)
        taken = {*self._free, *self._running}
        self._free += [LocalLane(n) for n in range(self.stack) if n not in taken]

    def wait(self) -> tuple[LocalLane, Report | SlotLost]:
        if not self._due:
            self._advance()
        lane, report = self._due.pop(0)
        if isinstance(report, SlotLost):
            self.release(lane)  # of a new one
        return lane, report

    def _advance(self) -> None:
        faults = {
            lane: self.fault(run) for lane, (run, _) in self._orders.items() if run is not None
        }
        orders = {lane: each for lane, (_, each) in self._orders.items() if not faults.get(lane)}
        self._orders = {}
        self._due = [(lane, fault) for lane, fault in faults.items() if fault]
        lost = [fault for fault in faults.values() if isinstance(fault, SlotLost)]
        if lost:  # with all its runs
            busy = [LocalLane(n) for n in sorted(self._running)]
            self._actor.advance({lane: None for lane in busy})
            self._due = [(lane, lost[0]) for lane in busy]
            return
        if self._due:
            self._orders = {lane: (None, each) for lane, each in orders.items()}
            return
        reports, notes = self._actor.advance(orders)
        self._due = [(LocalLane(lane), report) for lane, report in reports.items()]
        for text in notes:
            self._note(text)


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
