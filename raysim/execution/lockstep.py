"""Lockstep of runs in one process: clients of runs that differ only in numbers share stacks.

Each run advances until it has clients to train, and waits there for the others. Then clients of
such runs are trained in common stacks, by the trainer that also stacks clients of one run; sums,
records, failures and all else remain each run's own.

A run's bits depend on its settings and on the largest number of runs, not on the runs beside it,
which may be killed. So all stacks are padded to one shape, also those of a run alone.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from contextlib import ExitStack, suppress
from dataclasses import dataclass, field, replace
from functools import partial
from itertools import zip_longest
from time import perf_counter
from typing import Any, Generic, TypeVar

from raysim.config import EngineSettings, Settings
from raysim.core.errors import MachineError
from raysim.core.exits import interruptible
from raysim.core.steps import Steps, resumed
from raysim.execution.base import (
    Call,
    InlineExecutor,
    Item,
    NextResult,
    Request,
    device_errors,
    unnoticed,
)
from raysim.execution.messages import FailedItem, PassMessage, WorkerResult
from raysim.execution.process import configure, is_device_error, own_modes
from raysim.execution.ray_runtime import OpenExecutor
from raysim.execution.worker import Worker, WorkerSpec
from raysim.training.job import ClientJob
from raysim.training.stacked.alike import differing_module, groups_of, unsupported_reason, why_apart
from raysim.training.stacked.stack_size import largest_batch
from raysim.training.stacked.stacks import Shape
from raysim.training.stacked.trainer import StackedTrainer

T = TypeVar("T")


@dataclass
class _Training:
    """Clients that a run has to train."""

    message: PassMessage
    stacks: Sequence[Item]
    on_done: Callable[[int], None]
    done: int = 0
    error: Exception | None = None

    def __post_init__(self) -> None:
        self.width = max(map(len, self.stacks), default=0)

    def count(self, stack: Item) -> None:
        self.done += len(stack)
        self.on_done(self.done)


class _Run(Generic[T]):
    """Run and its steps; `stacked_with`: the most runs in a stack of its clients so far."""

    def __init__(self, lockstep: Lockstep[T], number: int, steps: Steps[Any]) -> None:
        self.lockstep, self.number, self.steps = lockstep, number, steps
        self.waits, self.stacked_with = False, 1
        self._answer: Callable[[], Any] = _nothing
        self.waits_for: _Training
        self.worker: Worker
        self.rows: int
        self.settings: Settings

    def go_on(self) -> T | None:
        """Advance the run to its next step; return it, or None if the run waits.

        Raises:
            StopIteration: the run has ended.
        """
        while True:
            answer, self._answer = self._answer, _nothing
            value: Any = None
            error: BaseException | None = None
            try:
                value = answer()
            except BaseException as raised:  # goes to where the request was made
                error = raised
            try:
                step = resumed(self.steps, value, error)
            finally:
                value = error = None
            if not isinstance(step, Request):
                return step  # type: ignore[no-any-return]
            if training := self._training(step):
                self.waits_for, self.waits, self._answer = training, True, self._trained
                return None
            self._answer = step.answer
            if isinstance(step, OpenExecutor):
                self._answer = partial(_LockstepExecutor, step.spec, self)

    def _training(self, request: Request) -> _Training | None:
        """Return the clients of requested results, if other runs' clients may join their stacks."""
        results = request.results if isinstance(request, NextResult) else None
        return results.training() if isinstance(results, _Results) else None

    def _trained(self) -> WorkerResult:
        """Return the results of the awaited clients."""
        if self.waits_for.error:
            raise self.waits_for.error
        return self.worker.take("train")


def _nothing() -> None:
    """Answer without a request."""


class _Results(Iterator[WorkerResult | FailedItem]):
    """Results of a run in lockstep, whose clients may be trained with those of other runs."""

    def __init__(
        self,
        results: Iterator[WorkerResult | FailedItem],
        waiting: deque[tuple[Any, list[Item]]],
        on_done: Callable[[int], None],
    ) -> None:
        self._results, self._waiting, self._on_done = results, waiting, on_done

    def __next__(self) -> WorkerResult | FailedItem:
        return next(self._results)

    def training(self) -> _Training | None:
        """Return the next clients to train, if other runs' clients may join their stacks."""
        if not self._waiting:
            return None
        message, items = self._waiting[0]
        if not message.work.epochs or message.retry:
            return None
        self._waiting.popleft()
        return _Training(message, items, self._on_done)


class _LockstepExecutor(InlineExecutor):
    """Inline executor of a run in lockstep."""

    def __init__(self, spec: WorkerSpec, run: _Run[Any]) -> None:
        super().__init__(replace(spec, runs=run.lockstep.size))
        self._run, self.stack = run, run.lockstep.size
        run.worker, run.settings = self._worker, spec.settings
        largest = largest_batch(spec.settings.local, int(spec.federation.training_sizes.max()))
        run.rows = largest + self._worker.sequential.network.has_batchnorm
        run.lockstep.welcome(run)

    def results(
        self, call: Call, on_done: Callable[[int], None] = unnoticed
    ) -> Iterator[WorkerResult | FailedItem]:
        """Yield the results of a method's items; other runs may train its clients."""
        results = super().results(call, on_done)
        return _Results(results, self._waiting[call], on_done) if call == "train" else results

    def describe(self) -> dict[str, Any]:
        """Return a description of the worker, with the most runs stacked, possible and actual."""
        description = super().describe()
        for actor in description["actors"]:
            if "memory" in actor:  # by which the stack size is decided
                actor["memory"] //= self.stack
        return {**description, "stack": self.stack, "stacked_with": self._run.stacked_with}


@dataclass
class _Family:
    """Runs that differ only in numbers.

    `checked`: numbers of the passes whose steps do not depend on padding; `refused`: the reason why
    they are still not stacked.
    """

    settings: Settings
    rows: int
    trainer: StackedTrainer
    runs: list[_Run[Any]]
    checked: set[int] = field(default_factory=set)
    refused: str | None = None


class Lockstep(Generic[T]):
    """Runs that take turns, by number.

    Attributes:
        size: Largest number of runs.
        notes: Lines for the user on runs that could not be stacked, each once.
    """

    def __init__(self, size: int) -> None:
        self.size = size
        self.notes: list[str] = []
        self._runs: dict[int, _Run[T]] = {}
        self._families: list[_Family] = []
        self._process = ExitStack()

    def start(
        self,
        number: int,
        engine: EngineSettings,
        steps: Steps[Any],
    ) -> None:
        """Start a run in place of the earlier one with its number.

        Args:
            number: The run's number.
            engine: Settings of the process, the same for all runs.
            steps: The run's steps.
        """
        self.stop(number)
        if not self._runs:  # once for all, as runs end in any order
            self._process.enter_context(configure(engine))
        self._runs[number] = _Run(self, number, steps)

    def stop(self, number: int) -> None:
        """End a run, which can be resumed."""
        if run := self._runs.get(number):
            try:
                with interruptible(), own_modes():
                    run.steps.close()
            finally:
                self._forget(number)

    def advance(self) -> dict[int, T]:
        """Advance each run to its next step; return the steps by number, without ended runs."""
        steps: dict[int, T] = {}
        with interruptible(), own_modes():
            try:
                while self._runs.keys() - steps.keys():
                    self._go_on(steps)
                    self._train()
            except BaseException:
                for number in [*self._runs]:
                    self.stop(number)
                raise
        return dict(sorted(steps.items()))

    def _go_on(self, steps: dict[int, T]) -> None:
        """Advance each run until it waits, or to its next step, which is added to `steps`."""
        for number, run in sorted(self._runs.items()):
            if not run.waits and number not in steps:
                try:
                    step = run.go_on()
                except StopIteration:
                    self._forget(number)
                    continue
                if step is not None:
                    steps[number] = step

    def welcome(self, run: _Run[Any]) -> None:
        """Add a run to the family from which it differs only in numbers, or to a new one."""
        module, reason = run.worker.sequential.network.module, None
        for family in self._families:
            its = family.trainer.sequential.network.module
            reason = why_apart(family.settings, run.settings) or differing_module(its, module)
            if reason is None and family.rows != run.rows:
                reason = "the samples of the largest client differ"
            if reason is None:
                family.runs.append(run)
                return
        if reason is not None:
            self._note(f"trials of one slot are not stacked where {reason}")
        trainer = StackedTrainer(run.worker.sequential, self._note)
        self._families.append(family := _Family(run.settings, run.rows, trainer, [run]))
        self._refuse(family, unsupported_reason(module))

    def _forget(self, number: int) -> None:
        gone = self._runs.pop(number)
        for family in self._families:
            family.runs = [run for run in family.runs if run is not gone]
        self._families = [family for family in self._families if family.runs]
        if not self._runs:
            self._process.close()

    def _refuse(self, family: _Family, reason: str | None) -> None:
        family.refused = reason
        if reason:
            self._note(f"trials are trained one at a time: {reason}")

    def _note(self, text: str) -> None:
        if text not in self.notes:
            self.notes.append(text)

    def _train(self) -> None:
        """Train the awaited clients of the earliest pass, so that runs in different passes meet."""
        for family in self._families:
            waiting = [run for run in family.runs if run.waits]
            passes = [run.waits_for.message.pass_number for run in waiting]
            first = [run for run, n in zip(waiting, passes, strict=True) if n == min(passes)]
            for width in {run.waits_for.width for run in first}:
                alike = [run for run in first if run.waits_for.width == width]
                for numbers in groups_of([run.waits_for.message.work for run in alike]):
                    self._train_group(family, [alike[number] for number in numbers])

    def _train_group(self, family: _Family, group: Sequence[_Run[Any]]) -> None:
        """Train the awaited clients of runs, stack by stack."""
        for stacks in zip_longest(*(run.waits_for.stacks for run in group)):
            wanted = zip(group, stacks, strict=True)
            left = {run: stack for run, stack in wanted if stack and not run.waits_for.error}
            self._train_stacks(family, left)
        for run in group:
            run.waits = False

    def _train_stacks(self, family: _Family, wanted: Mapping[_Run[Any], Item]) -> None:
        """Train a stack of each run: all as one, or one after another."""
        try:
            with device_errors("train of stacked trials"):
                trained = self._train_as_one(family, wanted)
        except MachineError as error:
            for run in wanted:
                run.waits_for.error = error
            return
        for run, stack in wanted.items():
            waits_for = run.waits_for
            if run not in trained and waits_for.error is None:
                try:
                    with device_errors(f"train of {stack}"):
                        run.worker.train(waits_for.message, [stack])
                except Exception as error:  # the run's driver handles it
                    waits_for.error = error
            waits_for.count(stack)

    def _train_as_one(
        self, family: _Family, wanted: Mapping[_Run[Any], Item]
    ) -> Collection[_Run[Any]]:
        """Train the stacks of runs as one; return the runs for which this was done."""
        begun, jobs = perf_counter(), dict[_Run[Any], dict[int, ClientJob]]()
        for run, stack in () if family.refused else wanted.items():
            with suppress(Exception):  # a client that fails here fails again by itself
                jobs[run] = run.worker.jobs(run.waits_for.message, stack)
        if not jobs:
            return ()
        every = [(job, run.worker.sequential) for run, own in jobs.items() for job in own.values()]
        width = next(iter(jobs)).waits_for.width  # of all
        places = [run.number * width + n for run, own in jobs.items() for n in range(len(own))]
        shape = Shape(self.size * width, family.rows, places)
        number = next(iter(jobs)).waits_for.message.pass_number
        try:
            if number not in family.checked:
                family.trainer.check_padding(*zip(*every, strict=True))
                family.checked.add(number)
            results = iter(family.trainer.run(*zip(*every, strict=True), shape=shape))
        except Exception as error:  # a rule or a module may raise anything
            if isinstance(error, MachineError) or is_device_error(error):
                raise
            self._refuse(family, " ".join(str(error).split()) or repr(error))
            return ()
        seconds = (perf_counter() - begun) / len(every)
        for run, own in jobs.items():
            given = [next(results) for _ in own]
            run.worker.accept(run.waits_for.message, wanted[run], own, given, seconds)
            run.stacked_with = max(run.stacked_with, len(jobs))
        return jobs
