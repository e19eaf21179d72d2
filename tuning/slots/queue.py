"""Queues of runs, and the loop that executes a queue in slots."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections import Counter
from collections.abc import Callable, Mapping
from time import perf_counter
from typing import Generic, TypeVar

import raysim
from raysim.errors import MachineError, SettingsError
from raysim.tuning.slots.pool import SlotPool
from raysim.tuning.slots.report import Report, SlotLost

MAX_LOSSES = 3
"""Number of lost slots after which a run has failed."""

R = TypeVar("R")


class RunQueue(ABC, Generic[R]):
    """Runs of a study, a table or a figure, in the order of their start.

    Attributes:
        pausing: Whether a run pauses after each evaluation until `goes_on` has decided.
        forced: Whether a resumed run continues with other data, versions or machines.
    """

    pausing: bool = False
    forced: bool = False

    @abstractmethod
    def remain(self) -> bool:
        """Return whether a run can be started; if not, another must be running."""

    @abstractmethod
    def next(self) -> R | None:
        """Return the next run to start, or None; called if a slot is free."""

    @abstractmethod
    def settings(self, run: R) -> raysim.Settings:
        """Return the settings of a run; its run directory is `out`."""

    @abstractmethod
    def name(self, run: R) -> str:
        """Return the name of a run in messages."""

    @abstractmethod
    def ended(self, run: R, report: Report, seconds: float) -> None:
        """Record the end of a run: its summary, its error, or neither if it was stopped."""

    @abstractmethod
    def note(self, text: str) -> None:
        """Show the user a line."""

    def goes_on(self, run: R, report: Report) -> bool:
        """Return whether a run goes on after an evaluation."""
        return True


class CombinedQueue(RunQueue[tuple[str, R]]):
    """Several queues as one; their runs share the slots, and earlier queues are served first."""

    def __init__(self, queues: Mapping[str, RunQueue[R]], note: Callable[[str], None]) -> None:
        """Join queues, which all pause or never do.

        Args:
            queues: The queues by title.
            note: Shows the user a line.
        """
        self._queues, self._note = queues, note
        self.pausing = any(queue.pausing for queue in queues.values())
        self.forced = all(queue.forced for queue in queues.values())

    def remain(self) -> bool:
        """Return whether a queue has a run that can be started."""
        return any(queue.remain() for queue in self._queues.values())

    def next(self) -> tuple[str, R] | None:
        """Return the next run of the first queue that has one."""
        for title, queue in self._queues.items():
            if queue.remain() and (run := queue.next()) is not None:
                return title, run
        return None

    def settings(self, run: tuple[str, R]) -> raysim.Settings:
        """Return the settings of a run."""
        return self._queues[run[0]].settings(run[1])

    def name(self, run: tuple[str, R]) -> str:
        """Return the title of a run's queue, and its name there."""
        return f"{run[0]}, {self._queues[run[0]].name(run[1])}"

    def goes_on(self, run: tuple[str, R], report: Report) -> bool:
        """Return whether its queue lets a run go on."""
        return self._queues[run[0]].goes_on(run[1], report)

    def ended(self, run: tuple[str, R], report: Report, seconds: float) -> None:
        """Tell its queue the end of a run."""
        self._queues[run[0]].ended(run[1], report, seconds)

    def note(self, text: str) -> None:
        """Show the user a line."""
        self._note(text)


def run_in_slots(slots: SlotPool[R], queue: RunQueue[R]) -> None:
    """Execute the runs of a queue side by side, until none remains.

    If a slot is lost, its run resumes from its checkpoint before other runs start.

    Raises:
        MachineError: disk, memory or cluster failed; this ends no run.
    """
    begun: dict[R, float] = {}
    lost: list[R] = []
    losses: Counter[R] = Counter()
    while True:
        while slots.has_free() and (run := lost.pop(0) if lost else queue.next()) is not None:
            if _start(slots, queue, run):
                begun[run] = perf_counter()
        if not begun and not lost and not queue.remain():
            return
        if (event := slots.wait()) is None:
            continue
        run, report = event
        if not isinstance(report, SlotLost):
            if not _goes_on(queue, run, report):
                queue.ended(run, report, perf_counter() - begun.pop(run))
                slots.release(run, paused=report.is_evaluation)
            continue
        seconds = perf_counter() - begun.pop(run)
        losses[run] += report.suspicious
        if losses[run] < MAX_LOSSES:
            queue.note(f"{queue.name(run)}: its slot was lost; resuming from its checkpoint")
            lost.append(run)
        else:
            error = f"lost its slot {MAX_LOSSES} times: {report.cause}"
            queue.ended(run, Report(error=error), seconds)


def _start(slots: SlotPool[R], queue: RunQueue[R], run: R) -> bool:
    """Start a run in a free slot; return False if a trial has drawn invalid values."""
    try:
        settings = queue.settings(run)
    except SettingsError as wrong:
        queue.ended(run, Report(error=str(wrong)), 0.0)
        return False
    slots.start(run, settings, queue.pausing, queue.forced)
    return True


def _goes_on(queue: RunQueue[R], run: R, report: Report) -> bool:
    """Show the notes of a report, and return whether its run goes on.

    Raises:
        MachineError: disk, memory or cluster failed.
    """
    for note in report.notes:
        queue.note(f"{queue.name(run)}: {note}")
    if report.machine_error is not None:
        raise MachineError(f"{queue.name(run)}: {report.machine_error}")
    return report.is_evaluation and queue.goes_on(run, report)
