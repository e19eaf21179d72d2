"""The fault drill: a run on two nodes, faults that strike it, and what became of it."""

from __future__ import annotations

import shutil
from collections.abc import Callable, Sequence
from contextlib import ExitStack
from dataclasses import dataclass, field
from functools import cached_property
from pathlib import Path
from time import monotonic, sleep
from typing import Any

import raysim
from tests.faults.held import held_task
from tests.faults.processes import Run, cluster
from tests.tasks import long_settings, model_of

SIZES = (1, 3, 120, 17, 80, 60)
SETTINGS: dict[str, Any] = {
    "method.name": "scaffold",
    "rounds": 5,
    "checkpoint_every": 2,
    "fraction": 1.0,  # so that the client that is held takes part in every round
}
ENGINE = {"engine.backend": "ray", "engine.actors": 2, "engine.client_timeout": 10}
SEEN_SECONDS = 5.0
"""Time in which an effect must be seen."""


class Stage:
    """Place of the drill: a cluster of two nodes, a small disk, and one run at a time.

    Attributes:
        folder: For what the drill itself writes.
        disk: For the run.
        nodes: The cluster.
        guests: What else uses the cluster for a while.
        evidence: What strikes have seen themselves.
    """

    def __init__(self, folder: Path, disk: Path) -> None:
        self.folder, self.disk = folder, disk
        self.orders = folder / "orders"
        self.orders.mkdir()
        self.evidence: list[str] = []
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
        options = {"address": self.nodes.address, "orders": self.orders}
        return Run(self.disk / "run", SIZES, moments, **options, **SETTINGS, **ENGINE)

    @cached_property
    def undisturbed(self) -> bytes:
        """The model bytes of the inline run."""
        folder = self.folder / "inline"
        raysim.run(long_settings(folder, **SETTINGS), held_task(SIZES, self.folder / "none"))
        return model_of(folder)

    def difference(self) -> str | None:
        """Return how the finished run differs from the undisturbed one."""
        return None if model_of(self.disk / "run") == self.undisturbed else "other bytes"


@dataclass(frozen=True)
class Fault:
    """A fault.

    Attributes:
        title: Its name in the table.
        strike: Breaks something while the run holds still.
        effect: Returns whether it is seen that the fault struck, when the run went on or was
            resumed: in the run's events and notes, in its files, or on the cluster.
        mend: Puts it right when the run has ended or gone on.
        at: Moment of the round: `mid`, or `held`, a worker in the middle of a client.
        says: Part of the error by which the run ends; None where it goes on.
        codes: Exit codes where it ends.
        may_go_on: Whether it may go on all the same.
        keeps: Whether the rounds committed are checkpointed when it ends.
    """

    title: str
    strike: Callable[[Stage, Run], None]
    effect: Callable[[Stage, Run], object]
    mend: Callable[[Stage], None] = lambda stage: None
    at: str = "mid"
    says: str | None = None
    codes: tuple[int, ...] = (2,)
    may_go_on: bool = False
    keeps: bool = False


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


@dataclass
class Play:
    """A run through a schedule of faults.

    Attributes:
        stage: Where it is played.
        moments: Of the faults.
        outcomes: Of the faults so far.
    """

    stage: Stage
    schedule: Sequence[tuple[Fault, int]]
    outcomes: list[Outcome] = field(default_factory=list)

    def through(self) -> list[Outcome]:
        """Run to the end through all faults, resuming where a fault ends the run.

        Raises:
            AssertionError: a run ended otherwise than it should, a fault had no effect, or the
                model has other bytes.
        """
        shutil.rmtree(self.stage.disk / "run", ignore_errors=True)
        moments = [f"{number}.{fault.at}" for fault, number in self.schedule]
        run = self.stage.run(moments)
        try:
            run.until(moments[0])
            for at, (fault, _) in enumerate(self.schedule, 1):
                run = self._strike(fault, run, moments[at:])
            titles = [fault.title for fault, _ in self.schedule]
            assert run.end() == (0, ""), f"{titles}: {run.end()}"
        finally:
            run.close()
        wrong = self.stage.difference()
        assert not wrong, wrong
        return self.outcomes

    def _strike(self, fault: Fault, run: Run, moments: Sequence[str]) -> Run:
        """Have a fault strike; return the run, which is at the next moment or has ended well."""
        following, lost = moments[0] if moments else None, 0
        self.stage.evidence.clear()
        fault.strike(self.stage, run)
        run.go()
        went_on = run.reaches(following) or run.process.wait() == 0
        fault.mend(self.stage)
        expected = {fault.says is None} | ({True} if fault.may_go_on else set())
        assert went_on in expected, f"{fault.title}: {'went on' if went_on else run.end()}"
        if not went_on:
            code, words = run.end()
            ended = f"{fault.title}: exit code {code}: {words}"
            same = {code, 128 - code if code < 0 else code}  # a shell's, of a late signal
            assert not same.isdisjoint(fault.codes) and (fault.says or "") in words, ended
            committed = max(run.rounds, default=0)
            run.close()
            run = self.stage.run(moments)
            assert run.reaches(following) == bool(following), f"{fault.title}: {run.end()}"
            lost = max(committed + 1 - run.rounds[0], 0) if run.rounds else 0
            assert not (fault.keeps and lost), f"{fault.title}: {lost} rounds were lost"
        assert seen(fault, self.stage, run), f"{fault.title}: had no effect: {run.events}"
        self.outcomes.append(Outcome(fault, went_on, lost))
        return run


def seen(fault: Fault, stage: Stage, run: Run) -> bool:
    """Return whether the effect of a fault is seen in time."""
    end = monotonic() + SEEN_SECONDS
    while not (found := fault.effect(stage, run)) and monotonic() < end:
        if run.process.poll() is not None:
            break
        sleep(0.2)
    return bool(found or fault.effect(stage, run))
