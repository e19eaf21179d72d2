"""Queues of runs, and the loop that executes one in slots."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from time import perf_counter
from typing import Generic, TypeVar

import raysim
from raysim.core.errors import MachineError, RaysimError, RunError, SettingsError
from raysim.results.failures import is_divergence
from raysim.results.runs import infinite_loss
from raysim.tuning.slots.pool import SlotPool
from raysim.tuning.slots.report import Report, SlotLost
from raysim.tuning.slots.slot import Lane

MAX_LOSSES = 3
"""Lost slots after which a run has failed."""

R = TypeVar("R")


class RunQueue(ABC, Generic[R]):
    """Runs of a study, a table or a figure, in the order in which they are to start.

    Attributes:
        pausing: Whether a run pauses after each evaluation until `goes_on` has decided.
        forced: Whether a resumed run goes on where its data, versions or machine are others.
    """

    pausing: bool = False
    forced: bool = False

    @abstractmethod
    def remain(self) -> bool:
        """Return whether a run can be started; where none can, another must be running."""

    @abstractmethod
    def next(self) -> R | None:
        """Return the next run to start, or None; called where a slot is free."""

    @abstractmethod
    def settings(self, run: R) -> raysim.Settings:
        """Return the settings of a run; its run directory is `out`."""

    @abstractmethod
    def name(self, run: R) -> str:
        """Return the name of a run in messages."""

    @abstractmethod
    def ended(self, run: R, report: Report, seconds: float) -> None:
        """Record the end of a run: its summary, its error, or neither where it was stopped."""

    @abstractmethod
    def note(self, text: str) -> None:
        """Show the user a line."""

    def goes_on(self, run: R, report: Report) -> bool:
        """Return whether a run goes on after an evaluation."""
        return True

    def resumes_at(self, run: R) -> tuple[int, int | None]:
        """Return the number of a run's evaluations that are known, and of its lane, if any."""
        return 0, None

    def placed(self, run: R, number: int) -> None:
        """Note the number of the lane in which a run has started."""


def reference_failed(name: str, error: str) -> str:
    """Return the error of a run whose reference failed."""
    return f"its reference {name} failed: {error}"


class ReferencedRuns(RunQueue[R]):
    """Runs of a table or a figure: a run waits until the one that it is compared with has ended.

    Where that one failed, a run is never started, and has failed with it. A line is printed at the
    end of each.

    Attributes:
        waiting: Runs that have not been started.
        unended: Runs that have not ended; those that are running are among them.
        failed: Errors of the runs that failed or diverged.
    """

    def __init__(
        self, title: str, runs: Sequence[R], total: int, line: Callable[[str], None]
    ) -> None:
        """Queue runs.

        Args:
            title: Name of the table or the figure.
            runs: Those that are left, in the order in which they are to start.
            total: Number of all runs.
            line: Prints a line.
        """
        self.waiting, self.unended = [*runs], {*runs}
        self.failed: dict[R, str] = {}
        self._title, self._total, self._line = title, total, line

    @abstractmethod
    def reference(self, run: R) -> R | None:
        """Return the run with whose model a run is compared."""

    @abstractmethod
    def record(self, run: R, error: str | None) -> None:
        """Record the end of a run, of a failed one with its error."""

    @abstractmethod
    def text_of(self, run: R) -> str:
        """Return what is printed of a finished run."""

    def check(self) -> None:
        """Check that those left can start, once where they differ in the seed alone.

        Those with a reference are checked without its model, which is not there yet.

        Raises:
            RaysimError: one cannot; nothing has been started.
        """
        checked = set()
        if self.waiting:
            self._line(f"checking {len(self.waiting)} runs")
        for run in self.waiting:
            settings = self.settings(run)
            if self.reference(run) is not None:
                settings = settings.model_copy(update={"reference": None})
            key = repr(settings.model_copy(update={"seed": 0, "out": None}))
            if key in checked:
                continue
            checked.add(key)
            try:
                raysim.check(settings, listener=_Preparation(self._line))
            except RaysimError as error:
                raise type(error)(f"{self.name(run)}: {error}") from error

    @property
    def done(self) -> int:
        """Number of runs that have ended."""
        return self._total - len(self.unended)

    def started(self, slots: int) -> None:
        """Print the number of runs when the slots are ready."""
        self._line(f"{self._title}: {self._total} runs, {self.done} done; {slots} slots")

    def remain(self) -> bool:
        """Return whether a run can be started."""
        return any(map(self._is_ready, self.waiting))

    def next(self) -> R | None:
        """Return the first run that waits for no reference."""
        run = next(filter(self._is_ready, self.waiting), None)
        if run is not None:
            self.waiting.remove(run)
        return run

    def ended(self, run: R, report: Report, seconds: float) -> None:
        """Record the end of a run; those that wait for one that failed end with it."""
        self.unended.remove(run)
        error = report.error
        if report.summary:
            error = infinite_loss(Path(str(self.settings(run).out)))
        if error is not None:
            self.failed[run] = error
        self.record(run, error)
        if error is None:
            outcome = self.text_of(run)
        else:  # a reference's divergence is a failure of those that wait for it
            own = is_divergence(error) and self.reference(run) not in self.failed
            outcome = f"{'diverged' if own else 'failed'}: {error}"
        self._line(f"{self.done}/{self._total} {self.name(run)}: {outcome}  {seconds:.1f} s")
        if error is not None:
            error = reference_failed(self.name(run), error)
            for other in [each for each in self.waiting if self.reference(each) == run]:
                self.waiting.remove(other)
                self.ended(other, Report(error=error), 0.0)

    def note(self, text: str) -> None:
        """Print a note."""
        self._line(f"note: {text}")

    def raise_failure(self, next_step: str) -> None:
        """Raise the first failure; a run that diverged is a result.

        Raises:
            RunError: a run failed by something else.
        """
        failed = [(run, error) for run, error in self.failed.items() if not is_divergence(error)]
        for run, error in failed:
            count = f"{len(failed)} of {self._total} runs failed, the first "
            raise RunError(
                f"{count if len(failed) > 1 else ''}{self.name(run)}: {error}; {next_step}"
            )

    def _is_ready(self, run: R) -> bool:
        return self.reference(run) not in self.unended


class _Preparation(raysim.Listener):
    """Listener that prints a line when data begins to be fetched or prepared."""

    def __init__(self, line: Callable[[str], None]) -> None:
        self._line = line

    def preparing(self, what: str, done: int, total: int) -> None:
        """Print what begins."""
        if done == 0:
            self._line(f"{what} ...")


def run_in_slots(slots: SlotPool, queue: RunQueue[R]) -> None:
    """Execute the runs of a queue side by side, until none remains.

    A run whose slot is lost starts again from its checkpoint before others do. After MAX_LOSSES - 1
    losses it goes on alone in a slot, so that of runs that shared one, the last loss is that of its
    cause.

    Raises:
        MachineError: disk, memory or cluster failed; no run has ended by that.
    """
    running: dict[Lane, tuple[R, float]] = {}
    lost: list[R] = []
    losses: Counter[R] = Counter()
    while True:
        while slots.has_free() and (run := _next(slots, queue, lost, losses)) is not None:
            if (lane := _start(slots, queue, run, _goes_alone(losses, run))) is not None:
                running[lane] = run, perf_counter()
        if not running and not lost and not queue.remain():
            return
        if (found := slots.wait()) is None:
            continue
        lane, report = found
        run, begun = running[lane]
        if not isinstance(report, SlotLost):
            if _goes_on(queue, run, report):
                continue
            if report.is_evaluation:
                slots.stop(lane)
            queue.ended(run, report, perf_counter() - begun)
            slots.release(lane)
            del running[lane]
            continue
        del running[lane]
        losses[run] += report.suspicious
        if losses[run] < MAX_LOSSES:
            how = ", alone" if slots.stack > 1 and _goes_alone(losses, run) else ""
            queue.note(f"{queue.name(run)}: its slot was lost; resuming from its checkpoint{how}")
            lost.append(run)
        else:
            error = f"lost its slot {MAX_LOSSES} times: {report.cause}"
            queue.ended(run, Report(error=error), perf_counter() - begun)


def _goes_alone(losses: Mapping[R, int], run: R) -> bool:
    return losses[run] == MAX_LOSSES - 1


def _next(slots: SlotPool, queue: RunQueue[R], lost: list[R], losses: Mapping[R, int]) -> R | None:
    """Return the next run to start, or None; one that goes on alone waits for an empty slot."""
    if not lost:
        return queue.next()
    return lost.pop(0) if slots.has_free(alone=_goes_alone(losses, lost[0])) else None


def _start(slots: SlotPool, queue: RunQueue[R], run: R, alone: bool) -> Lane | None:
    """Start a run in a free lane; return None where the values that a trial has drawn are wrong."""
    try:
        settings = queue.settings(run)
    except SettingsError as wrong:
        queue.ended(run, Report(error=str(wrong)), 0.0)
        return None
    at = queue.resumes_at(run)
    lane = slots.start(settings, queue.pausing, queue.forced, *at, alone=alone)
    queue.placed(run, lane.number)
    return lane


def _goes_on(queue: RunQueue[R], run: R, report: Report) -> bool:
    """Return whether a run goes on after a report, whose notes are shown.

    Raises:
        MachineError: disk, memory or cluster failed.
    """
    for note in report.notes:
        queue.note(f"{queue.name(run)}: {note}")
    if report.machine_error is not None:
        raise MachineError(f"{queue.name(run)}: {report.machine_error}")
    return report.is_evaluation and queue.goes_on(run, report)
