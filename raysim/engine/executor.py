"""What the driver asks of an executor, and the inline executor."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any, Literal, Protocol

import torch

from raysim.engine.worker import Worker, WorkerSpec

Call = Literal["train", "evaluate"]


class Executor(Protocol):
    """Runs a worker's calls over many items, somewhere."""

    def map(self, call: Call, shared: Any, costs: Mapping[int, float]) -> Iterator[Any]:
        """Yield the results of `Worker.<call>(shared, items)` for chunks that cover all items.

        Every item is in exactly one result; results come in any order.

        Args:
            call: The worker's method.
            shared: Its first argument, sent once.
            costs: The items, with the work of each.
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
        self._threads = torch.get_num_threads()
        self._worker = Worker(spec)

    def map(self, call: Call, shared: Any, costs: Mapping[int, float]) -> Iterator[Any]:
        """Yield one result per item."""
        work = getattr(self._worker, call)
        return (work(shared, [item]) for item in costs)

    def describe(self) -> dict[str, Any]:
        """Return where work runs."""
        return {"backend": "inline", "actors": [{"device": str(self._worker.device)}]}

    def close(self) -> None:
        """Give the process its threads back."""
        torch.set_num_threads(self._threads)
