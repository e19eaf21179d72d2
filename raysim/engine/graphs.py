"""CUDA graphs: a step that repeats is recorded once, and then takes one launch, not hundreds.

A recorded step reads and writes the tensors that it was recorded with: all that it changes it
changes in place, and its inputs are copied to where the recording reads them.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Mapping
from typing import Any

import torch
from torch import Tensor

Inputs = Mapping[str, Tensor]
Outputs = tuple[Tensor, ...]
Step = Callable[[Inputs], Outputs]

CALLS_BEFORE = 3
"""Calls with inputs of the same shapes before they are recorded, which costs about as many."""


class Recorder:
    """Calls a step, or plays a recording of it where shapes repeat."""

    def __init__(self, step: Step, record: Callable[[Step, Inputs], Step]) -> None:
        """Wrap a step.

        Args:
            step: It must do the same with inputs of the same shapes, whatever is in them.
            record: Returns a recording of the step on inputs like these, without taking the step.
                Raises RuntimeError if it does something that cannot be recorded.
        """
        self._step, self._record = step, record
        self._calls: Counter[str] = Counter()
        self._recordings: dict[str, Step] = {}

    def __call__(self, inputs: Inputs) -> Outputs:
        """Take the step; return new tensors."""
        shapes = repr([(name, tuple(tensor.shape)) for name, tensor in inputs.items()])
        self._calls[shapes] += 1
        if self._calls[shapes] > CALLS_BEFORE and shapes not in self._recordings:
            try:
                self._recordings[shapes] = self._record(self._step, inputs)
            except RuntimeError:  # it sets a generator's state, say
                self._recordings[shapes] = self._step
        return self._recordings.get(shapes, self._step)(inputs)


class CudaRecording:
    """A step as it ran on inputs of some shapes on the current stream, a side stream."""

    def __init__(self, step: Step, inputs: Inputs, pool: Any) -> None:
        """Record a step in a memory pool; see `Recorder`."""
        self._inputs = {name: tensor.clone() for name, tensor in inputs.items()}
        self._graph = torch.cuda.CUDAGraph()
        self._graph.capture_begin(pool, capture_error_mode="thread_local")
        try:
            self._outputs = step(self._inputs)
        finally:
            self._graph.capture_end()

    def __call__(self, inputs: Inputs) -> Outputs:
        """Take the step; return new tensors."""
        for name, tensor in inputs.items():
            self._inputs[name].copy_(tensor)
        self._graph.replay()
        return tuple(tensor.clone() for tensor in self._outputs)


def recorded(step: Step, device: torch.device) -> Step:
    """Return a step that does the same, on a CUDA device with fewer launches."""
    if device.type != "cuda":
        return step
    pool = torch.cuda.graph_pool_handle()
    stream = torch.cuda.Stream(device)  # type: ignore[no-untyped-call]
    recorder = Recorder(step, lambda step, inputs: CudaRecording(step, inputs, pool))

    def aside(inputs: Inputs) -> Outputs:
        current = torch.cuda.current_stream(device)
        stream.wait_stream(current)
        with torch.cuda.stream(stream):
            outputs = recorder(inputs)
        current.wait_stream(stream)
        return outputs

    return aside
