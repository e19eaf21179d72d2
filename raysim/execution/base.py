"""What the driver asks of an executor, and the inline executor."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from typing import Any, Literal, Protocol

from raysim.execution.process import configure
from raysim.execution.worker import Worker, WorkerSpec

Call = Literal["train", "evaluate"]
Item = tuple[int, ...]
"""Clients that are trained together, or a batch of the test set."""


@dataclass(frozen=True)
class FailedItem:
    """An item that no worker survived.

    Attributes:
        item: The item.
        cause: What became of the workers, in one line.
    """

    item: Item
    cause: str


class Executor(Protocol):
    """Runs a worker's calls over many items, somewhere."""

    def map(
        self, call: Call, shared: Any, costs: Mapping[Item, float], on_done: Callable[[int], None]
    ) -> Iterator[Any]:
        """Call `Worker.<call>(shared, items)` until all items are done; yield what workers hold.

        Every item is in exactly one result, or in one `FailedItem`; they come in any order.

        Args:
            call: The worker's method.
            shared: Its first argument, sent once.
            costs: The items, with the work of each.
            on_done: Told how many clients or batches are done.
        """
        ...

    def describe(self) -> dict[str, Any]:
        """Return where work runs, for `environment.json`."""
        ...

    def close(self) -> None:
        """Stop the workers."""
        ...


class InlineExecutor:
    """Runs everything in this process, one item after another: a breakpoint stops in it."""

    def __init__(self, spec: WorkerSpec) -> None:
        with configure(spec.settings.engine) as undo:
            self._worker = Worker(spec)
            self._undo = undo.pop_all()

    def map(
        self, call: Call, shared: Any, costs: Mapping[Item, float], on_done: Callable[[int], None]
    ) -> Iterator[Any]:
        """Go through the items and yield one result."""
        work = getattr(self._worker, call)
        done = 0
        for item in costs:
            work(shared, [item])
            done += len(item)
            on_done(done)
        yield self._worker.take()

    def describe(self) -> dict[str, Any]:
        """Return where work runs."""
        return {"backend": "inline", "actors": [self._worker.about(1.0)]}

    def close(self) -> None:
        """Set the process back to what it was."""
        self._undo.close()
