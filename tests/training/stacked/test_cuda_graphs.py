"""Recordings of steps: what is recorded, when, and what becomes of a refusal.

A CPU has no graphs: a tape with a graph's semantics stands in for one.
"""

from __future__ import annotations

import pytest
import torch
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_leaves

from raysim.training.stacked.cuda_graphs import (
    CALLS_BEFORE,
    MIN_REPLAYS,
    GraphedSteps,
    GraphRecorder,
)


class Tape(TorchDispatchMode):
    """Records a step as a CUDA graph does: operations on the memory in which tensors lay."""

    played = 0

    def __init__(self, step, inputs):
        super().__init__()
        self.inputs = {name: tensor.clone() for name, tensor in inputs.items()}
        self.calls = []
        with self:
            self.outputs = step(self.inputs)
        self.taken = True  # unlike a graph, which records without working

    def __torch_dispatch__(self, function, types, args=(), kwargs=None):
        if function is torch.ops.aten._local_scalar_dense.default:
            raise RuntimeError("a recording cannot wait for the device")
        result = function(*args, **(kwargs or {}))
        self.calls.append((function, args, kwargs or {}, result))
        return result

    def __call__(self, inputs):
        if not self.taken:
            for name, tensor in inputs.items():
                self.inputs[name].copy_(tensor)
            with torch.no_grad():
                for call in self.calls:
                    again(*call)
            Tape.played += 1
        self.taken = False
        return tuple(tensor.clone() for tensor in self.outputs)


def again(function, args, kwargs, result):
    """Do an operation once more, and have its result lie where it lay."""
    if function._schema.is_mutable:
        function(*args, **kwargs)
    elif not any(
        value.alias_info for value in function._schema.returns
    ):  # no view of what is there
        new = tree_leaves(function(*args, **kwargs))
        for then, now in zip(tree_leaves(result), new, strict=True):
            if isinstance(then, torch.Tensor):  # no gradient is asked for of some inputs
                then.copy_(now)


def add_one(inputs):
    return (inputs["x"] + 1,)


def take(steps, times, shape=(2,)):
    """Take the steps of inputs that come so often."""
    for number in range(times):
        (result,) = steps({"x": torch.full(shape, number)}, times)
        assert result.eq(number + 1).all()


def test_only_what_pays_is_recorded():
    recorded = []

    def record(step, inputs):
        recorded.append(inputs["x"].shape)
        return Tape(step, inputs)

    steps = GraphedSteps(add_one, GraphRecorder(record, print))
    take(steps, CALLS_BEFORE + MIN_REPLAYS - 1, (1,))
    take(steps, CALLS_BEFORE + MIN_REPLAYS, (2,))
    assert recorded == [(2,)]


def test_what_cannot_be_recorded_is_done_each_time():
    refused = []

    def refuse(step, inputs):
        refused.append(inputs["x"].shape)
        raise RuntimeError("operation not permitted when stream is capturing")

    notes = []
    recorder = GraphRecorder(refuse, notes.append)
    take(GraphedSteps(add_one, recorder), 20)
    take(GraphedSteps(add_one, recorder), 20, (3,))
    assert refused == [(2,)]  # then no more is tried
    assert notes == [
        "steps are not recorded as CUDA graphs: operation not permitted when stream is capturing"
    ]


def test_no_memory_to_record_in_is_no_refusal():
    def no_room(step, inputs):
        raise torch.OutOfMemoryError("CUDA out of memory")

    with pytest.raises(torch.OutOfMemoryError):
        take(GraphedSteps(add_one, GraphRecorder(no_room, print)), 20)
