"""Interface of executors, and the inline executor."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections import deque
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from typing import Any, Literal, get_args

from torch import nn

from raysim.errors import MachineError
from raysim.execution.messages import FailedItem, WorkerResult
from raysim.execution.process import configure, is_device_error
from raysim.execution.worker import Worker, WorkerSpec

Call = Literal["train", "evaluate", "measure", "aggregate"]
"""A method of `Worker` that takes a message and items."""
Item = tuple[int, ...]
"""A stack of clients, a batch of an evaluated set, a block of updates, or a span of blocks."""


def unnoticed(done: int) -> None:
    """Ignore the number of clients or batches that are done."""


class Executor(ABC):
    """Executor of a worker's calls over many items."""

    @abstractmethod
    def submit(
        self,
        call: Call,
        message: Any,
        costs: Mapping[Item, float],
        failed_at: Mapping[Item, str] | None = None,
        due: Mapping[Item, float] | None = None,
    ) -> None:
        """Let workers call `Worker.<call>(message, items)` until all items are done.

        Further items, with this message or another, may be added at any time, but not an item with
        a result that has not been handed over.

        Args:
            call: The worker's method.
            message: The method's first argument, sent once.
            costs: Work of each item.
            failed_at: The worker of each item that has failed, which must not get it again if there
                can be another worker.
            due: Deadline of each item, if results are needed while other items run: the amount of
                work of all items, counted from some moment. Items with the earliest
                latest start come first, and results are handed over at once. None: all results are
                needed together, in any order.
        """

    @abstractmethod
    def results(
        self, call: Call, on_done: Callable[[int], None] = unnoticed
    ) -> Iterator[WorkerResult | FailedItem]:
        """Yield the results of a method's items, in any order, until all are done.

        Every item is in exactly one `WorkerResult` or `FailedItem`. An iterator may be abandoned,
        and a new one continues.

        Args:
            call: The worker's method.
            on_done: Called with the number of finished clients or batches.
        """

    @abstractmethod
    def describe(self) -> dict[str, Any]:
        """Return a description of the workers, for `environment.json`."""

    @abstractmethod
    def close(self) -> None:
        """Stop the workers."""


@contextmanager
def device_errors(action: str) -> Iterator[None]:
    """Raise an error after which the process cannot use its GPU as a MachineError.

    Raises:
        MachineError: the GPU fails, as will every later call in this process.
    """
    try:
        yield
    except Exception as error:
        if not is_device_error(error):
            raise
        cause = str(error).partition("\n")[0]
        raise MachineError(f"the GPU fails at {action}: {cause}") from error


class InlineExecutor(Executor):
    """Executor in this process, one item after another, so that breakpoints work."""

    def __init__(self, spec: WorkerSpec, network: nn.Module | None = None) -> None:
        """Set this process up, and build the worker.

        Args:
            spec: Specification of the worker.
            network: The network, trained in place; None builds one.
        """
        with configure(spec.settings.engine) as undo:
            self._worker = Worker(spec, network)
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
        """Queue items, which run when their results are requested."""
        self._waiting[call].append((message, [*costs]))

    def results(
        self, call: Call, on_done: Callable[[int], None] = unnoticed
    ) -> Iterator[WorkerResult | FailedItem]:
        """Run the items, message by message, and yield the result of each.

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
        """Return a description of this process as the only worker."""
        return {"backend": "inline", "actors": [self._worker.about()]}

    def close(self) -> None:
        """Undo the settings of the process."""
        self._undo.close()
