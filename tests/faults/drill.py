"""The fault drill: what each fault breaks in a run on two nodes, and what became of the run."""

from __future__ import annotations

import os
import random
import resource
import shutil
import signal
import subprocess
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from time import sleep
from typing import Any

import raysim
from tests.conftest import make_settings, make_task, model_of
from tests.faults.crowd import crowded
from tests.faults.processes import Run, cluster

SIZES = (1, 3, 120, 17, 80, 60)
SETTINGS: dict[str, Any] = {"method.name": "scaffold", "rounds": 5, "checkpoint_every": 2}
ENGINE = {"engine.backend": "ray", "engine.actors": 2, "engine.client_timeout": 10}
DISK_MEGABYTES = 16


class Stage:
    """Where the drill takes place: a cluster of two nodes, a small disk, and one run at a time.

    Attributes:
        folder: For what the drill itself writes.
        disk: For the run.
        nodes: The cluster.
        guests: What else uses the cluster for a while.
    """

    def __init__(self, folder: Path, disk: Path) -> None:
        self.folder, self.disk = folder, disk
        self._open = ExitStack()
        self.start_cluster()

    def __enter__(self) -> Stage:
        return self

    def __exit__(self, *_: object) -> None:
        self._open.close()

    def start_cluster(self) -> None:
        """Start the cluster, anew where there is one."""
        self._open.close()
        self.nodes = self._open.enter_context(cluster(2))
        self.guests = self._open.enter_context(ExitStack())

    def run(self, moments: Sequence[str] = ()) -> Run:
        """Start the run, or go on with it."""
        address = self.nodes.address
        return Run(self.disk / "run", SIZES, moments, address=address, **SETTINGS, **ENGINE)

    @cached_property
    def undisturbed(self) -> bytes:
        """The model bytes of the inline run."""
        folder = self.folder / "inline"
        raysim.run(make_settings(folder, **SETTINGS), make_task(SIZES))
        return model_of(folder)


@dataclass(frozen=True)
class Fault:
    """A fault.

    Attributes:
        title: What it is called in the table.
        strike: Breaks something while the run holds still.
        mend: Puts it right when the run has ended or gone on.
        says: What the error names by which the run ends; None where it goes on.
        code: The exit code where it ends.
        may_go_on: Whether it may go on all the same.
    """

    title: str
    strike: Callable[[Stage, Run], None]
    mend: Callable[[Stage], None] = lambda stage: None
    says: str | None = None
    code: int = 2
    may_go_on: bool = False


@dataclass(frozen=True)
class Outcome:
    """What became of a run after a fault.

    Attributes:
        fault: The fault.
        went_on: Whether it went on by itself.
        rounds_lost: Committed rounds that were run again after it was resumed.
    """

    fault: Fault
    went_on: bool
    rounds_lost: int


def kill_actor(stage: Stage, run: Run) -> None:
    os.kill(run.actors()[-1]["pid"], signal.SIGKILL)


def hang_actor(stage: Stage, run: Run) -> None:
    os.kill(run.actors()[0]["pid"], signal.SIGSTOP)


def starve_actors(stage: Stage, run: Run) -> None:
    """Leave the actors no memory to allocate; what they need may lie free in their heaps."""
    for actor in run.actors():
        pages = int(Path(f"/proc/{actor['pid']}/statm").read_text().split()[0])
        used = pages * resource.getpagesize()
        resource.prlimit(actor["pid"], resource.RLIMIT_AS, (used, used))


def kill_node(stage: Stage, run: Run) -> None:
    stage.nodes.remove_node(next(iter(stage.nodes.worker_nodes)), allow_graceful=False)


def add_node(stage: Stage) -> None:
    stage.nodes.add_node(num_cpus=1)


def fill_stores(stage: Stage, run: Run) -> None:
    stage.guests.enter_context(crowded(stage.nodes.address))


def empty_stores(stage: Stage) -> None:
    stage.guests.close()


def kill_driver(stage: Stage, run: Run) -> None:
    run.kill()


def kill_head(stage: Stage, run: Run) -> None:
    for name in ("gcs_server", "raylet"):
        stage.nodes.head_node.all_processes[name][0].process.kill()


def fill_disk(stage: Stage, run: Run) -> None:
    """Leave no byte free."""
    with (stage.disk / "filler").open("wb", buffering=0) as filler:
        for size in (2**16, 2**12, 1):
            try:
                while filler.write(bytes(size)):
                    pass
            except OSError:
                continue


def seal_disk(stage: Stage, run: Run) -> None:
    """Have the run end, and find its disk read-only."""
    run.kill()
    for _ in range(60):  # until the actors have closed their files
        sleep(0.5)
        if not _mount("-o", "remount,ro", str(stage.disk)):
            break
    with stage.run() as refused:
        code, words = refused.end()
        assert code == 2 and "is not a folder that can be written: Read-only" in words, words


def open_disk(stage: Stage) -> None:
    assert not _mount("-o", "remount,rw", str(stage.disk))


FAULTS = (
    Fault("actor killed", kill_actor),
    Fault("actor hangs", hang_actor),
    Fault("actors out of memory", starve_actors, says="client ", may_go_on=True),
    Fault("node killed", kill_node, add_node),
    Fault("object stores full", fill_stores, empty_stores),
    Fault("driver killed", kill_driver, code=-signal.SIGKILL, says=""),
    # Which of the two it misses first, the head or its own machine's Ray, is chance.
    Fault("head restarted", kill_head, Stage.start_cluster, says="then type: raysim resume"),
    Fault(
        "disk full",
        fill_disk,
        lambda stage: (stage.disk / "filler").unlink(),
        says="No space left on device",
    ),
    Fault("output read-only", seal_disk, open_disk, code=-signal.SIGKILL, says=""),
)


def schedules(seed: int, count: int) -> Iterator[list[tuple[Fault, int]]]:
    """Draw schedules: which faults strike, and in which rounds.

    The first ones have each fault once, so that every fault is tried.
    """
    draw = random.Random(seed)
    first = draw.sample(FAULTS, len(FAULTS))
    for number in range(count):
        rounds = sorted(draw.sample(range(2, SETTINGS["rounds"] + 1), draw.randint(1, 3)))
        faults = draw.choices(FAULTS, k=len(rounds))
        if number < len(first):
            faults[0] = first[number]
        yield list(zip(faults, rounds, strict=True))


def play(stage: Stage, schedule: Sequence[tuple[Fault, int]]) -> list[Outcome]:
    """Run to the end through all faults, resuming where a fault ends the run.

    Raises:
        AssertionError: a run ended otherwise than it should, or its model has other bytes.
    """
    shutil.rmtree(stage.disk / "run", ignore_errors=True)
    moments = [f"{number}.mid" for _, number in schedule]
    outcomes = []
    run = stage.run(moments)
    run.until(moments[0])
    for (fault, _), following in zip(schedule, [*moments[1:], None], strict=True):
        fault.strike(stage, run)
        run.go()
        went_on = run.reaches(following) or run.process.wait() == 0
        fault.mend(stage)
        lost = 0
        expected = {fault.says is None} | ({True} if fault.may_go_on else set())
        assert went_on in expected, f"{fault.title}: {run.end()}"
        if not went_on:
            code, words = run.end()
            assert code == fault.code and (fault.says or "") in words, f"{fault.title}: {words}"
            committed = max(run.rounds, default=0)
            run.close()
            run = stage.run(moments[moments.index(following) :] if following else ())
            assert run.reaches(following) == bool(following)
            lost = max(committed + 1 - run.rounds[0], 0)
        outcomes.append(Outcome(fault, went_on, lost))
    assert run.end() == (0, ""), f"{[fault.title for fault, _ in schedule]}: {run.end()}"
    run.close()
    assert model_of(stage.disk / "run") == stage.undisturbed, "the model has other bytes"
    return outcomes


@contextmanager
def small_disk(folder: Path) -> Iterator[Path]:
    """Mount a disk of a few megabytes.

    Raises:
        PermissionError: this machine permits no mounts.
    """
    folder.mkdir()
    size = f"size={DISK_MEGABYTES}m"
    if refused := _mount("-t", "tmpfs", "-o", size, "tmpfs", str(folder)):
        raise PermissionError(f"this machine permits no mounts: {refused}")
    try:
        yield folder
    finally:
        subprocess.run(["umount", "--lazy", str(folder)], check=True)


def _mount(*arguments: str) -> str:
    """Mount; return why it was refused, if it was."""
    done = subprocess.run(["mount", *arguments], check=False, capture_output=True, text=True)
    return done.stderr.strip() if done.returncode else ""
