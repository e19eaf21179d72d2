"""Kills at random times: runs and a study are ended with SIGKILL and resumed, again and again.

Every run ends with the bytes of the undisturbed one, every study with its trials, and nothing is
left over: no file that is half written, no process, no folder of Ray.
"""

from __future__ import annotations

import mmap
import os
import random
import signal
import time
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any
from unittest import mock

import psutil

import raysim
from raysim.driver.rounds.commits import Commits
from raysim.driver.rounds.run import Run
from raysim.storage.checkpoints import Checkpoints
from raysim.tuning.studies import STUDIES
from tests.faults.forked import SECONDS, Child
from tests.faults.interrupted import InterruptedRun, settings_of
from tests.faults.interrupted_study import study_difference, tune
from tests.tuning.common import make_study

METHODS = ("fedavg", "scaffold", "mifl", "fedma")
ON_ACTORS, OF_STUDY = 16, 24
"""One kill of so many strikes a run on actors, and the study."""
SOONER, LATER = 0.8, 1.05
"""Factors of the time until a kill, when a run had ended before it, and when it hit."""
STARTING, IN_ROUND, IN_COMMIT, ENDING = range(4)
PHASES = ("starting", "in a round", "in a commit", "ending")
LEFT_SECONDS = 120.0
"""Time that processes of a killed driver have to end: agents of a Ray that was starting take it."""
MARK = "RAYSIM_KILLS"
"""Environment variable by which all processes of the runs are known."""


@dataclass
class Killed:
    """What is killed and resumed, and what became of it.

    Attributes:
        name: Its name in the table.
        work: Starts or resumes it in a folder.
        difference: Returns how a finished one differs from an undisturbed one.
        seconds: Longest time until a kill.
        phases: Kills by phase.
        finished: Runs that have ended, and were compared.
        wrong: Differences, and other failures.
    """

    name: str
    work: Callable[[Path], object]
    difference: Callable[[Path], str | None]
    seconds: float
    phases: Counter[str] = field(default_factory=Counter)
    finished: int = 0
    wrong: list[str] = field(default_factory=list)

    def strike(self, kills: int, folder: Path, draw: random.Random) -> None:
        """Kill and resume until so many kills have hit; have the last run end, and compare it."""
        folder.mkdir(exist_ok=True)
        while self.phases.total() < kills:
            self._once(folder / f"{self.name}-{self.finished}", draw)
        self._end(folder / f"{self.name}-{self.finished}")

    def _once(self, path: Path, draw: random.Random) -> None:
        """Start or resume a run, and kill it, if it has not ended before."""
        if (path / "summary.json").exists():
            self._compare(path)
            return
        with _phase() as phase:
            child = Child(lambda: self.work(path))
            if _ends_within(child, draw.uniform(0, self.seconds)):
                self._end(path, child)
                self.seconds *= SOONER
            else:
                self.phases[PHASES[phase[0]]] += 1
                os.kill(child.pid, signal.SIGKILL)
                child.wait()
                self.seconds *= LATER

    def _end(self, path: Path, child: Child | None = None) -> None:
        """Have a run end by itself, if it has not, and compare it."""
        if child is None and not (path / "summary.json").exists():
            child = Child(lambda: self.work(path))
        ended = child.wait() if child else None
        if ended and ended.code:
            self.wrong.append(f"{path.name}: exit code {ended.code}: {ended.errors[-500:]}")
        self._compare(path)

    def _compare(self, path: Path) -> None:
        if wrong := self.difference(path):
            self.wrong.append(f"{path.name}: {wrong}")
        self.finished += 1


def _ends_within(child: Child, seconds: float) -> bool:
    end = time.monotonic() + seconds
    while (left := end - time.monotonic()) > 0:
        if os.waitid(os.P_PID, child.pid, os.WEXITED | os.WNOHANG | os.WNOWAIT):
            return True
        time.sleep(min(0.001, left))
    return bool(os.waitid(os.P_PID, child.pid, os.WEXITED | os.WNOHANG | os.WNOWAIT))


@contextmanager
def _phase() -> Iterator[mmap.mmap]:
    """Have the runs of the children say in which phase they are, in a byte of shared memory."""
    with mmap.mmap(-1, 1) as shared:

        def noting(function: Callable[..., Any], inside: int, after: int) -> Callable[..., Any]:
            def noted(*arguments: Any, **named: Any) -> Any:
                shared[0] = inside
                result = function(*arguments, **named)
                shared[0] = after
                return result

            return noted

        with (
            mock.patch.object(Run, "done_round", noting(Run.done_round, IN_ROUND, IN_ROUND)),
            mock.patch.object(Commits, "finish", noting(Commits.finish, ENDING, ENDING)),
            mock.patch.object(Checkpoints, "save", noting(Checkpoints.save, IN_COMMIT, IN_ROUND)),
        ):
            yield shared


def inline_run(method: str, folder: Path) -> Killed:
    """Return a run in its driver's process."""
    begun = time.monotonic()
    run = InterruptedRun(method, folder)
    seconds = (time.monotonic() - begun) / 2
    work = lambda path: raysim.run(settings_of(method, path))  # noqa: E731
    return Killed(method, work, run.difference, seconds)


def run_on_actors(inline: Killed, folder: Path) -> Killed:
    """Return the same run on actors of its own Ray instance."""
    engine = {"backend": "ray", "actors": 2}
    work = lambda path: raysim.run(settings_of(inline.name, path, engine=engine))  # noqa: E731
    return _measured(f"{inline.name} on actors", work, inline.difference, folder)


def study(folder: Path) -> Killed:
    """Return a study on its own Ray instance."""
    STUDIES["blobs"] = make_study(folder)  # type: ignore[index]
    undisturbed = folder / "undisturbed-0"
    found = _measured("undisturbed", tune, lambda path: None, folder)
    different = lambda path: study_difference(path, undisturbed)  # noqa: E731
    return Killed("study", tune, different, found.seconds)


def _measured(
    name: str,
    work: Callable[[Path], object],
    difference: Callable[[Path], str | None],
    folder: Path,
) -> Killed:
    """Run it once undisturbed, for the seconds that it takes."""
    found, begun = Killed(name, work, difference, SECONDS), time.monotonic()
    found.strike(0, folder, random.Random())
    assert not found.wrong, found.wrong
    return Killed(name, work, difference, time.monotonic() - begun)


def kill(count: int, seed: int, folder: Path) -> Iterator[Killed]:
    """Yield what became of runs and a study that were killed so often in all."""
    draw, on_actors, of_study = random.Random(seed), count // ON_ACTORS, count // OF_STUDY
    inline = []
    for number, method in enumerate(METHODS):
        left = count - on_actors - of_study
        inline.append(inline_run(method, folder))
        inline[-1].strike(left // 4 + (number < left % 4), folder, draw)
        yield inline[-1]
    for number in range(min(on_actors, 4)):
        found = run_on_actors(inline[number], folder)
        found.strike(on_actors // 4 + (number < on_actors % 4), folder / "actors", draw)
        yield found
    if of_study:
        found = study(folder)
        found.strike(of_study, folder / "study", draw)
        yield found


@contextmanager
def own_places(folder: Path) -> Iterator[Callable[[], list[str]]]:
    """Have all processes use folders of their own; yield what they have left over there."""
    places = {name: folder / name for name in ("tmp", "ray")}
    for place in places.values():
        place.mkdir()
    values = {MARK: folder.name, "TMPDIR": places["tmp"], "RAY_TMPDIR": places["ray"]}
    with mock.patch.dict(os.environ, {key: str(value) for key, value in values.items()}):
        yield lambda: [*_processes(folder.name), *_left(places)]


def _left(places: dict[str, Path]) -> list[str]:
    sessions = places["ray"].rglob("session_*_*")
    return [str(path) for path in (*places["tmp"].iterdir(), *sessions) if not path.is_symlink()]


def _processes(mark: str) -> list[str]:
    """Return the processes of the runs that do not end in time."""
    end = time.monotonic() + LEFT_SECONDS
    while (found := list(_marked(mark))) and time.monotonic() < end:
        time.sleep(0.5)
    return found


def _marked(mark: str) -> Iterator[str]:
    for process in psutil.process_iter():
        try:
            if process.pid != os.getpid() and process.environ().get(MARK) == mark:
                yield f"process {process.name()}"
        except psutil.Error:
            continue
