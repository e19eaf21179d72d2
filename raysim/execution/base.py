"""The executor's interface, and the inline executor."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections import deque
from collections.abc import Callable, Generator, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from inspect import GEN_CLOSED, getgeneratorstate
from typing import Any, Literal, get_args

from raysim.core.errors import MachineError
from raysim.core.steps import Steps, resumed
from raysim.execution.messages import FailedItem, WorkerResult
from raysim.execution.process import configure, is_device_error
from raysim.execution.worker import Worker, WorkerSpec

Call = Literal["train", "evaluate", "aggregate"]
"""A method of `Worker` that takes a message and items."""
Item = tuple[int, ...]
"""A stack of clients, a batch of an evaluated set, or a block of updates."""


def unnoticed(done: int) -> None:
    """Do nothing as more clients or batches are done."""


class Executor(ABC):
    """Runs a worker's calls over many items.

    Attributes:
        stack: Runs whose clients may share stacks, this one included.
    """

    stack: int

    @abstractmethod
    def submit(
        self,
        call: Call,
        message: Any,
        costs: Mapping[Item, float],
        failed_at: Mapping[Item, str] | None = None,
        due: Mapping[Item, float] | None = None,
    ) -> None:
        """Have workers call `Worker.<call>(message, items)`, until all items are done.

        More items, with this message or another, may be added at any time; an item that has not
        been handed over must not.

        Args:
            call: The worker's method.
            message: Its first argument, sent once.
            costs: Work of each item.
            failed_at: Items that failed, and the worker, which must not have them again where there
                can be another.
            due: Of items that are waited for while others run, the work of all items, since some
                moment, by the end of which each is to be done. Those that must start first come
                first, and results as soon as they are there. None: all are waited for, in any
                order.
        """

    @abstractmethod
    def results(
        self, call: Call, on_done: Callable[[int], None] = unnoticed
    ) -> Iterator[WorkerResult | FailedItem]:
        """Yield the results of a method's items, in any order, until all are done.

        Every item is in exactly one `WorkerResult` or `FailedItem`. An iterator may be left, and
        another one goes on.

        Args:
            call: The worker's method.
            on_done: Called with the number of clients or batches that are done.
        """

    @abstractmethod
    def describe(self) -> dict[str, Any]:
        """Return where work runs, for `environment.json`."""

    @abstractmethod
    def close(self) -> None:
        """Stop the workers."""


class Request(ABC):
    """Something that the steps of a run yield in order to be sent its answer."""

    @abstractmethod
    def answer(self) -> Any:
        """Return the answer, where nobody has a better one."""


@dataclass(frozen=True)
class NextResult(Request):
    """Request of a run for the next of some results.

    Attributes:
        results: What `Executor.results` returned.
    """

    results: Iterator[WorkerResult | FailedItem]

    def answer(self) -> WorkerResult | FailedItem | None:
        """Wait for the result; None: there are no more."""
        return next(self.results, None)


def advance(steps: Generator[Any, Any, Any], value: object = None) -> Any:
    """Send a value into the steps of a run, answer its requests, and return what else it yields.

    What an answer raises, an interruption included, is raised where the run made the request.

    Raises:
        StopIteration: the run has ended.
    """
    error: BaseException | None = None
    while True:
        try:
            try:
                found = resumed(steps, value, error)
            finally:
                value = error = None
            if not isinstance(found, Request):
                return found
            value = found.answer()
        except BaseException as raised:
            if getgeneratorstate(steps) == GEN_CLOSED:
                raise
            error = raised


def next_step(steps: Steps[Any]) -> Steps[Any]:
    """Take steps up to what is no request; return it, or None at their end.

    Their requests are passed on.
    """
    value: Any = None
    error: BaseException | None = None
    while True:
        try:
            found = resumed(steps, value, error)
        except StopIteration:
            return None
        finally:
            value = error = None
        if not isinstance(found, Request):
            return found
        try:
            value = yield found
        except BaseException as raised:  # goes to where the request was made
            error = raised


@contextmanager
def device_errors(work: str) -> Iterator[None]:
    """Raise an error that leaves the process without its GPU as one of the machine.

    Raises:
        MachineError: the GPU fails, and does in this process from now on.
    """
    try:
        yield
    except Exception as error:
        if not is_device_error(error):
            raise
        cause = str(error).partition("\n")[0]
        raise MachineError(f"the GPU fails at {work}: {cause}") from error


class InlineExecutor(Executor):
    """Executor in this process, one item after another: a breakpoint stops in it."""

    stack = 1

    def __init__(self, spec: WorkerSpec) -> None:
        with configure(spec.settings.engine) as undo:
            self._worker = Worker(spec)
            self._undo = undo.pop_all()
        self._waiting: dict[Call, deque[tuple[Any, list[Item]]]] = {
            call: deque() for call in get_args(Call)
        }

    def submit(
        self,
        call: Call,
        message: Any,
        costs: Mapping[Item, float],
        failed_at: Mapping[Item, str] | None = None,
        due: Mapping[Item, float] | None = None,
    ) -> None:
        """Note items; they run as their results are asked for."""
        self._waiting[call].append((message, [*costs]))

    def results(
        self, call: Call, on_done: Callable[[int], None] = unnoticed
    ) -> Iterator[WorkerResult | FailedItem]:
        """Run the items, message by message; yield a result of each.

        Raises:
            MachineError: the GPU fails; see `device_errors`.
        """
        while self._waiting[call]:
            message, items = self._waiting[call].popleft()
            done = 0
            for item in items:
                with device_errors(f"{call} of {item}"):
                    getattr(self._worker, call)(message, [item])
                done += len(item)
                on_done(done)
            yield self._worker.take(call)

    def describe(self) -> dict[str, Any]:
        """Return where work runs."""
        return {"backend": "inline", "actors": [self._worker.about()]}

    def close(self) -> None:
        """Undo the settings of the process."""
        self._undo.close()
