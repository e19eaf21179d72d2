"""Queue of the runs in a folder, each after its reference."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import raysim
from raysim.config import Settings
from raysim.errors import RaysimError, RunError
from raysim.results.failures import is_divergence
from raysim.results.runs import infinite_loss
from raysim.tuning.runs.folder import RunsFolder, reference_failed
from raysim.tuning.slots.fitting import at_most
from raysim.tuning.slots.pool import open_slots
from raysim.tuning.slots.queue import RunQueue, run_in_slots
from raysim.tuning.slots.report import Report
from raysim.workloads.papers.run import Run


class Runs(RunQueue[Run]):
    """Queue of the runs that have neither finished nor diverged; failed ones are repeated.

    A run waits for the end of its reference. If that failed, the run is not started and counts as
    failed. A line is printed at the end of each run.

    Attributes:
        waiting: Runs that have not been started.
        unended: Runs that have not ended, including running ones.
        failed: Errors of the runs that failed or diverged, now or before.
    """

    def __init__(
        self,
        title: str,
        runs: Sequence[Run],
        folder: RunsFolder,
        line: Callable[[str], None],
        *,
        order: Callable[[Run], Any] = lambda run: 0,
        text_of: Callable[[Run], str] = lambda run: "finished",
        changed: Callable[[], object] = lambda: None,
        progress: Callable[[int, int], None] = lambda done, total: None,
    ) -> None:
        """Queue the runs that have not ended.

        Args:
            title: Name of the table or the figure.
            runs: All runs, references among them.
            folder: Their folder.
            line: Prints a line.
            order: Key of the order to start runs in, the least first.
            text_of: Returns the words to print for a finished run.
            changed: Called when a run has ended.
            progress: Called with the numbers of ended and of all runs.
        """
        self.waiting = sorted((run for run in runs if not folder.has_ended(run)), key=order)
        self.unended = {*self.waiting}
        ended = [run for run in runs if run not in self.unended]
        self.failed = {run: error for run in ended if (error := folder.failure(run)) is not None}
        self._title, self._total, self._folder = title, len(runs), folder
        self._line, self._text_of, self._changed = line, text_of, changed
        self._progress = progress

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
            if run.reference is not None:
                settings = settings.model_copy(update={"reference": None})
            key = repr(settings.model_copy(update={"seed": 0, "out": None}))
            if key in checked:
                continue
            checked.add(key)
            try:
                raysim.check(settings, listener=_Preparation(self._line))
            except RaysimError as error:
                raise type(error)(f"{run.title}: {error}") from error

    def run(self, jobs: int | None) -> None:
        """Run them in slots.

        Args:
            jobs: Number of slots; None takes as many as fit.

        Raises:
            RaysimError: the slots do not fit, or disk, memory or cluster failed.
        """
        if self.remain():
            wanted = at_most(jobs, len(self.waiting))
            with open_slots(self.waiting[0].settings, wanted, self.note) as slots:
                self.started(len(slots))
                run_in_slots(slots, self)
        else:
            self._line("every run is finished; nothing is left to do")

    @property
    def done(self) -> int:
        """Number of runs that have ended."""
        return self._total - len(self.unended)

    def started(self, slots: int) -> None:
        """Print the number of runs when the slots are ready."""
        self._line(f"{self._title}: {self._total} runs, {self.done} done; {slots} slots")
        self._progress(self.done, self._total)

    def settings(self, run: Run) -> Settings:
        """Return the settings of a run."""
        return self._folder.settings(run)

    def name(self, run: Run) -> str:
        """Return a run's label and seed."""
        return run.title

    def remain(self) -> bool:
        """Return whether a run can be started."""
        return any(map(self._is_ready, self.waiting))

    def next(self) -> Run | None:
        """Return the first run that does not wait; its failure by an earlier command goes."""
        run = next(filter(self._is_ready, self.waiting), None)
        if run is not None:
            self.waiting.remove(run)
            self._folder.clear_failure(run)
        return run

    def ended(self, run: Run, report: Report, seconds: float) -> None:
        """Record the end of a run; runs that wait for a failed reference end with it."""
        self.unended.remove(run)
        error = report.error
        if report.summary:
            error = infinite_loss(Path(str(self.settings(run).out)))
        if error is not None:
            self.failed[run] = error
            if self._folder.failure(run) is None:
                self._folder.record_failure(run, error)
        self._changed()
        if error is None:
            outcome = self._text_of(run)
        else:  # if a reference diverges, the waiting runs fail
            diverged = is_divergence(error) and run.reference not in self.failed
            outcome = f"{'diverged' if diverged else 'failed'}: {error}"
        self._line(f"{self.done}/{self._total} {run.title}: {outcome}  {seconds:.1f} s")
        self._progress(self.done, self._total)
        if error is not None:
            error = reference_failed(run, error)
            for other in [
                waiting_run for waiting_run in self.waiting if waiting_run.reference == run
            ]:
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
            raise RunError(f"{count if len(failed) > 1 else ''}{run.title}: {error}; {next_step}")

    def _is_ready(self, run: Run) -> bool:
        return run.reference not in self.unended


class _Preparation(raysim.Listener):
    """Listener that prints a line when data begins to be fetched or prepared."""

    def __init__(self, line: Callable[[str], None]) -> None:
        self._line = line

    def preparing(self, what: str, done: int, total: int) -> None:
        """Print the beginning of a preparation."""
        if done == 0:
            self._line(f"{what} ...")
