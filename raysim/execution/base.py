"""The executor's interface, and the inline executor."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from typing import Any, Literal, Protocol

from raysim.core.errors import MachineError
from raysim.execution.messages import FailedItem, WorkerResult
from raysim.execution.process import configure, is_device_error
from raysim.execution.worker import Worker, WorkerSpec

Call = Literal["train", "evaluate"]
"""A method of `Worker` that takes a message and items."""
Item = tuple[int, ...]
"""A stack of clients, or a batch of an evaluated set."""


class Executor(Protocol):
    """Runs a worker's calls over many items.

    Attributes:
        stack: Runs whose clients may share stacks, this one included.
    """

    stack: int

    def map(
        self,
        call: Call,
        message: Any,
        costs: Mapping[Item, float],
        on_done: Callable[[int], None],
        failed_at: Mapping[Item, str] | None = None,
    ) -> Iterator[WorkerResult | FailedItem]:
        """Call `Worker.<call>(message, items)` until all items are done; yield the results.

        Every item is in exactly one `WorkerResult` or `FailedItem`; they come in any order.

        Args:
            call: The worker's method.
            message: Its first argument, sent once.
            costs: Work of each item.
            on_done: Called with the number of clients or batches that are done.
            failed_at: Items that failed, and the worker, which must not have them again where there
                can be another.
        """
        ...

    def describe(self) -> dict[str, Any]:
        """Return where work runs, for `environment.json`."""
        ...

    def close(self) -> None:
        """Stop the workers."""
        ...


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


class InlineExecutor:
    """Executor in this process, one item after another: a breakpoint stops in it."""

    stack = 1

    def __init__(self, spec: WorkerSpec) -> None:
        with configure(spec.settings.engine) as undo:
            self._worker = Worker(spec)
            self._undo = undo.pop_all()

    def map(
        self,
        call: Call,
        message: Any,
        costs: Mapping[Item, float],
        on_done: Callable[[int], None],
        failed_at: Mapping[Item, str] | None = None,
    ) -> Iterator[WorkerResult | FailedItem]:
        """Run all items; yield one result.

        Raises:
            MachineError: the GPU fails; see `device_errors`.
        """
        done = 0
        for item in costs:
            with device_errors(f"{call} of {item}"):
                getattr(self._worker, call)(message, [item])
            done += len(item)
            on_done(done)
        yield self._worker.take()

    def describe(self) -> dict[str, Any]:
        """Return where work runs."""
        return {"backend": "inline", "actors": [self._worker.about()]}

    def close(self) -> None:
        """Undo the settings of the process."""
        self._undo.close()
