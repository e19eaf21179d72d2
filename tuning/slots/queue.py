"""Queues of runs, and the loop that executes a queue in slots."""

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

    def resumes_at(self, run: R) -> tuple[int, int | None]:
        """Return the number of a run's known evaluations, and of its lane, if any."""
        return 0, None

    def placed(self, run: R, number: int) -> None:
        """Note the number of the lane in which a run has started."""


def reference_failed(name: str, error: str) -> str:
    """Return the error of a run whose reference failed."""
    return f"its reference {name} failed: {error}"


class ReferencedRuns(RunQueue[R]):
    """Runs of a table or a figure, each of which waits for the end of its reference.

    If the reference failed, a run is not started and counts as failed. A line is printed at the end
    of each run.

    Attributes:
        waiting: Runs that have not been started.
        unended: Runs that have not ended, including running ones.
        failed: Errors of the runs that failed or diverged.
    """

    def __init__(
        self, title: str, runs: Sequence[R], total: int, line: Callable[[str], None]
    ) -> None:
        """Queue runs.

        Args:
            title: Name of the table or the figure.
            runs: The remaining runs, in the order of their start.
            total: Number of all runs.
            line: Prints a line.
        """
        self.waiting, self.unended = [*runs], {*runs}
        self.failed: dict[R, str] = {}
        self._title, self._total, self._line = title, total, line

    @abstractmethod
    def reference(self, run: R) -> R | None:
        """Return the reference of a run."""

    @abstractmethod
    def record(self, run: R, error: str | None) -> None:
        """Record the end of a run, and the error of a failed run."""

    @abstractmethod
    def text_of(self, run: R) -> str:
        """Return the text to print for a finished run."""

    def check(self) -> None:
        """Check that the remaining runs can start, once for runs that differ only in the seed.

        Runs with a reference are checked without its model, which does not exist yet.

        Raises:
            RaysimError: a run cannot start; none has been started.
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
        """Return the first run that does not wait for its reference."""
        run = next(filter(self._is_ready, self.waiting), None)
        if run is not None:
            self.waiting.remove(run)
        return run

    def ended(self, run: R, report: Report, seconds: float) -> None:
        """Record the end of a run; runs that wait for a failed reference end with it."""
        self.unended.remove(run)
        error = report.error
        if report.summary:
            error = infinite_loss(Path(str(self.settings(run).out)))
        if error is not None:
            self.failed[run] = error
        self.record(run, error)
        if error is None:
            outcome = self.text_of(run)
        else:  # if a reference diverges, the waiting runs fail
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
        """Raise the first failure; divergence is a result.

        Raises:
            RunError: a run failed, other than by divergence.
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
        """Print the beginning of a preparation."""
        if done == 0:
            self._line(f"{what} ...")


def run_in_slots(slots: SlotPool, queue: RunQueue[R]) -> None:
    """Execute the runs of a queue side by side, until none remains.

    A run whose slot is lost resumes from its checkpoint before others start. After MAX_LOSSES - 1
    losses it continues alone in a slot, so that of runs that shared one, only the cause of the loss
    fails.

    Raises:
        MachineError: disk, memory or cluster failed; no run has ended thereby.
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
        if (event := slots.wait()) is None:
            continue
        lane, report = event
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
    """Return the next run to start, or None; a run that continues alone needs an empty slot."""
    if not lost:
        return queue.next()
    return lost.pop(0) if slots.has_free(alone=_goes_alone(losses, lost[0])) else None


def _start(slots: SlotPool, queue: RunQueue[R], run: R, alone: bool) -> Lane | None:
    """Start a run in a free lane; return None if a trial has drawn invalid values."""
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
    """Show the notes of a report, and return whether its run goes on.

    Raises:
        MachineError: disk, memory or cluster failed.
    """
    for note in report.notes:
        queue.note(f"{queue.name(run)}: {note}")
    if report.machine_error is not None:
        raise MachineError(f"{queue.name(run)}: {report.machine_error}")
    return report.is_evaluation and queue.goes_on(run, report)
