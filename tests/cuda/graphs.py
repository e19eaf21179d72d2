"""Graphs and generators of the device."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable
from typing import Any, ClassVar

import torch
from torch import Tensor
from torch.utils._pytree import tree_map_only

from tests.cuda.memory import (
    GPU,
    is_on_gpu,
    memory_of,
    placed,
    poison,
    tensors_of,
    unseen,
)
from tests.cuda.operations import NO_KERNEL, is_view, kernels, name_of
from tests.cuda.transfers import Stream


class Generator(torch._C.Generator):
    """A generator of the device; operations see another wrapper of it.

    In a graph its states are relative to where a replay begins, as in torch from 2.10 on.
    """

    alive: ClassVar[set[int]] = set()
    """Those that there are."""
    device = property(lambda self: GPU)

    def __init__(self, *_: Any) -> None:
        Generator.alive.add(self._cdata)

    def __del__(self) -> None:
        self.alive.discard(self._cdata)  # at the end of Python the class has no name any more

    def get_state(self) -> Tensor:
        """Return the state; in a graph, one that `set_state` takes in this graph."""
        state = super().get_state()
        if graph := Stream.active.capture:
            graph.tape.append(lambda: graph.keep_state(state, super(Generator, self).get_state()))
            graph.keep_state(state, state)
        return state

    def set_state(self, state: Tensor) -> Generator:
        """Set the state."""
        graph = Stream.active.capture
        if graph and graph.kept_state(state) is not None:
            graph.tape.append(lambda: self._replayed_state(graph, state))
        super().set_state(state)
        return self

    def _replayed_state(self, graph: Graph, state: Tensor) -> None:
        super().set_state(graph.kept_state(state))


class GeneratorOf:
    """Stand-in for torch.Generator."""

    def __new__(cls, device: Any = "cpu") -> torch._C.Generator:
        """Return a generator of the host or of the device."""
        return Generator() if torch.device(device).type == "cuda" else torch._C.Generator()


class Graph:
    """Stand-in for torch.cuda.CUDAGraph.

    What the captured operations have changed is put back, as nothing runs in a capture, and their
    results are NaN. A replay does them again on the same memory.

    Attributes:
        tape: The operations.
        kernels: How many kernels they launch.
        replays: How often they were replayed.
    """

    def __init__(self) -> None:
        self.tape: list[Callable[[], None]] = []
        self.kernels = self.replays = 0
        self._results: list[Tensor] = []
        self._changed: dict[int, tuple[torch.UntypedStorage, torch.UntypedStorage]] = {}
        self._created: set[int] = set()
        self._used: dict[int, Tensor] = {}
        self._outside: dict[int, tuple[torch.UntypedStorage, int, tuple[int, ...]]] = {}
        self._states: dict[int, tuple[Tensor, Tensor]] = {}

    def capture_begin(
        self,
        pool: Any = None,
        capture_error_mode: str = "global",
        check_input_liveness: bool = False,
    ) -> None:
        """Begin a capture on the current stream."""
        gpu = Stream.active
        if gpu.current is gpu.default:
            raise RuntimeError("CUDA graphs must be captured on a non-default stream.")
        self._before = gpu.generator.get_state()
        gpu.capture = self
        gpu.counts["captures"] += 1

    def capture_end(self) -> None:
        """End the capture; see above."""
        gpu = Stream.active
        gpu.capture = None
        gpu.generator.set_state(self._before)
        with unseen():
            for result in self._results:
                poison(result)
            for storage, content in self._changed.values():
                storage.copy_(content)
        self._results.clear()
        self._changed.clear()
        mine = Counter(memory_of(tensor) for tensor in self._used.values())
        self._outside = {
            memory: (tensor.untyped_storage(), mine[memory], tuple(tensor.shape))
            for tensor in self._used.values()
            if is_on_gpu(tensor) and (memory := memory_of(tensor)) not in self._created
        }

    capture_end_pre = capture_end

    def replay(self) -> None:
        """Do the operations again.

        Raises:
            RuntimeError: nobody but the graph holds memory that it reads and does not own, so that
                CUDA may have given it to others.
        """
        gpu = Stream.active
        if gpu.capture:
            raise RuntimeError("replayed in a capture")
        for memory, (_, own, shape) in self._outside.items():
            if torch._C._storage_Use_Count(memory) - own <= 1:  # the last is in `_outside`
                raise RuntimeError(f"a graph's replay reads freed memory of shape {shape}")
        self.replays += 1
        gpu.counts["replays"] += 1
        gpu.launched("replay", 1)
        with unseen():
            for operation in self.tape:
                operation()

    def before(self, func: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> None:
        """Keep what an operation is about to change."""
        if not func._schema.is_mutable:
            return
        declared = func._schema.arguments
        given = {a.name: value for a, value in zip(declared, args, strict=False)} | kwargs
        for each in declared:
            if each.alias_info and each.alias_info.is_write:
                for tensor in tensors_of(given.get(each.name)):
                    storage, memory = tensor.untyped_storage(), memory_of(tensor)
                    if memory not in self._created and memory not in self._changed:
                        self._changed[memory] = storage, storage.clone()

    def record(
        self, func: Any, args: tuple[Any, ...], kwargs: dict[str, Any], results: list[Tensor]
    ) -> None:
        """Put an operation on the tape; values of the host are those of now."""
        self.kernels += kernels(func, args)
        mutable, free = func._schema.is_mutable, name_of(func) in NO_KERNEL or is_view(func)
        given = {memory_of(tensor) for tensor in tensors_of((args, kwargs))}
        if not mutable and not is_view(func):
            self._created |= {memory_of(tensor) for tensor in results} - given
        with unseen():  # others than these aliases are somebody else's
            args, kwargs, results = tree_map_only(Tensor, _alias, (args, kwargs, results))
        for tensor in (*tensors_of((args, kwargs)), *results):
            self._used.setdefault(id(tensor), tensor)
        if free:
            return
        self._results += results
        draw = Stream.active.drawing(func, args, kwargs)

        def operation() -> None:
            found = tensors_of(draw())
            if not mutable:
                for then, now in zip(results, found, strict=True):
                    then.copy_(now)

        self.tape.append(operation)

    def keep_state(self, name: Tensor, state: Tensor) -> None:
        """Keep a generator's state under the one that `get_state` returned in the capture."""
        self._states[id(name)] = name, state

    def kept_state(self, name: Tensor) -> Tensor | None:
        """Return such a state, or None."""
        return self._states.get(id(name), (name, None))[1]


def _alias(tensor: Tensor) -> Tensor:
    return tensor.detach() if is_on_gpu(tensor) else placed(tensor.clone(), on_gpu=False)
