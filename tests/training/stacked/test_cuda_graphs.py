"""Recordings of steps: what is recorded, when, and what becomes of a refusal.

A CPU has no graphs: a tape with a graph's semantics stands in for one.
"""

from __future__ import annotations

from functools import partial
from types import SimpleNamespace

import pytest
import torch
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_leaves

from raysim.errors import MachineError
from raysim.training.stacked.cuda_graphs import (
    CALLS_BEFORE,
    MIN_REPLAYS,
    MOST_FAILURES,
    CudaGraphs,
    GraphedSteps,
    GraphRecorder,
    recorder_on,
    side_stream,
)
from raysim.training.stacked.step import KeptSteps


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
        result = self.do(len(self.calls), function, args, kwargs or {})
        self.calls.append((function, args, kwargs or {}, result))
        return result

    def do(self, number, function, args, kwargs):
        """Do the operation of this number, the first time or once more."""
        return function(*args, **kwargs)

    def __call__(self, inputs):
        if not self.taken:
            for name, tensor in inputs.items():
                self.inputs[name].copy_(tensor)
            with torch.no_grad():
                for number, call in enumerate(self.calls):
                    self.again(number, *call)
            Tape.played += 1
        self.taken = False
        return self.outputs

    def again(self, number, function, args, kwargs, result):
        """Do an operation once more, and have its result lie where it lay."""
        if function._schema.is_mutable:
            self.do(number, function, args, kwargs)
        elif not any(
            value.alias_info for value in function._schema.returns
        ):  # no view of what is there
            new = tree_leaves(self.do(number, function, args, kwargs))
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
    assert refused == [(2,), (3,)]  # each once, said once
    for size in range(4, 20):
        take(GraphedSteps(add_one, recorder), 20, (size,))
    assert len(refused) == MOST_FAILURES and not recorder.works
    assert notes == [
        "steps are not recorded as CUDA graphs: operation not permitted when stream is capturing"
    ]


class Reads(TorchDispatchMode):
    """What becomes of reading a value while a step is recorded."""

    waiting = 0
    """What torch has been told to do with an operation that waits."""

    def __torch_dispatch__(self, function, types, args=(), kwargs=None):
        if function is torch.ops.aten._local_scalar_dense.default:
            if Reads.waiting == "error":
                raise RuntimeError("called a synchronizing CUDA operation\nException raised from")
            Graph.invalidated = True
            raise RuntimeError("CUDA error: operation not permitted when stream is capturing")
        return function(*args, **(kwargs or {}))

    __torch_dispatch__.__code__ = __torch_dispatch__.__code__.replace(co_filename=torch.__file__)


class Graph:
    """A stand-in for torch.cuda.CUDAGraph."""

    alive = 0
    """Graphs that hold memory of their pools."""
    invalidated = False
    short = False
    """Whether there is no memory to instantiate one."""

    def __init__(self):
        Graph.alive += 1
        self.reads = Reads()

    def __del__(self):
        Graph.alive -= 1

    def capture_begin(self, pool=None, capture_error_mode="global"):
        assert pool is not None
        self.reads.__enter__()

    def capture_end_pre(self):
        self.reads.__exit__(None, None, None)
        if Graph.invalidated:
            raise RuntimeError("CUDA error: operation failed due to a previous error")

    def capture_end(self):
        self.capture_end_pre()
        if Graph.short:
            raise RuntimeError("CUDA error: out of memory")

    def replay(self):
        raise AssertionError("nothing is played here")


class Stream:
    made = 0

    def __init__(self, device):
        assert device.index is not None
        Stream.made += 1


@pytest.fixture
def cuda(monkeypatch):
    """Have stand-ins for what torch records graphs with; return the graphs alive at each emptying
    of the cache."""
    emptied, pools = [], iter(range(100))
    monkeypatch.setattr(torch.cuda, "CUDAGraph", Graph)
    monkeypatch.setattr(torch.cuda, "Stream", Stream)
    monkeypatch.setattr(Stream, "made", 0)
    side_stream.cache_clear()
    monkeypatch.setattr(torch.cuda, "graph_pool_handle", lambda: (0, next(pools)))
    monkeypatch.setattr(torch.cuda, "empty_cache", lambda: emptied.append(Graph.alive))
    monkeypatch.setattr(Graph, "invalidated", False)
    monkeypatch.setattr(Graph, "short", False)
    monkeypatch.setattr(torch.cuda, "get_sync_debug_mode", lambda: Reads.waiting)
    monkeypatch.setattr(torch.cuda, "set_sync_debug_mode", partial(setattr, Reads, "waiting"))
    monkeypatch.setattr(Reads, "waiting", 0)
    yield emptied
    side_stream.cache_clear()


X = {"x": torch.zeros(2)}
GPU = torch.device("cuda", 0)


def test_runs_of_a_process_have_one_stream(cuda):
    """What one of them freed could not be used on the stream of the next."""
    assert CudaGraphs(GPU) is not CudaGraphs(GPU) and Stream.made == 1
    CudaGraphs(torch.device("cuda", 1))
    assert Stream.made == 2


def test_memory_of_the_last_graph_is_free_for_the_next(cuda):
    graphs, before = CudaGraphs(GPU), Graph.alive
    graphs.record(add_one, X)
    assert Graph.alive == before + 1  # its pool lives
    failures = [torch.OutOfMemoryError("CUDA out of memory")]

    def once_too_large(inputs):
        if failures:
            raise failures.pop()
        return add_one(inputs)

    graphs.record(once_too_large, X)
    assert cuda == [before] and Graph.alive == before + 1


def test_what_does_not_fit_is_done_each_time(cuda, monkeypatch):
    """Nor would what there is of the graph fit: it is not instantiated."""
    monkeypatch.setattr(Graph, "short", True)
    calls, notes = [], []

    def large_to_record(inputs):
        calls.append(1)
        if len(calls) in (CALLS_BEFORE + 1, CALLS_BEFORE + 2):
            raise torch.OutOfMemoryError("CUDA out of memory. Tried to allocate 1 GiB.")
        return add_one(inputs)

    recorder = GraphRecorder(CudaGraphs(GPU).record, notes.append)
    take(GraphedSteps(large_to_record, recorder), 20)
    assert len(calls) == 22 and len(cuda) == 1  # tried twice
    assert notes == ["steps are not recorded as CUDA graphs: there is no memory for their tensors"]


class Unkept(SimpleNamespace):
    """Step of one kind, that is kept as another one."""

    def __init__(self, take, on_its_own):
        super().__init__(take=take, key=lambda: "kind", on_its_own=on_its_own)

    def with_own_tensors(self):
        return self


def test_what_is_kept_is_free_once_memory_is_short(cuda):
    notes, before = [], Graph.alive
    kept = KeptSteps(recorder := recorder_on(GPU, notes.append))
    step = Unkept(add_one, lambda: own)
    own = SimpleNamespace(take=add_one)
    assert kept.of(step)[0] is own and recorder(add_one, X)
    assert Graph.alive == before + 1  # which the pool of the next one needs
    assert kept.give_up() and not kept.give_up()
    assert Graph.alive == before
    assert notes == ["steps are not recorded as CUDA graphs: there is no memory for their tensors"]
    assert kept.of(step)[0] is step  # the group is taken again without copies


def test_memory_of_a_group_whose_recording_did_not_fit_is_freed_too(cuda):
    def refuse(step, inputs):
        raise torch.OutOfMemoryError("CUDA out of memory")

    own = SimpleNamespace(take=add_one)
    step = Unkept(add_one, lambda: own)
    notes = []
    kept = KeptSteps(recorder := GraphRecorder(refuse, notes.append))
    assert kept.of(step)[0] is own
    assert recorder(add_one, X) is None
    assert kept.give_up() and not kept.give_up() and len(notes) == 1


def test_a_step_that_waits_for_the_device_is_never_recorded(cuda):
    def step(inputs):
        return (inputs["x"] + float(inputs["x"].sum()),)

    Reads.waiting, notes, before = 1, [], Graph.alive  # "warn", set by the user
    recorder = recorder_on(GPU, notes.append)
    assert recorder(step, X) is None
    assert notes == [
        f"steps are not recorded as CUDA graphs: {step.__qualname__} (test_cuda_graphs.py, line"
        f" {step.__code__.co_firstlineno + 1}) waits for the device"
    ]
    assert (Graph.alive, Graph.invalidated, Reads.waiting) == (before, False, 1)


def test_nothing_is_kept_once_recordings_are_given_up():
    def refuse(step, inputs):
        raise torch.OutOfMemoryError("CUDA out of memory")

    recorder = GraphRecorder(refuse, lambda note: None)
    step = Unkept(add_one, lambda: None)
    take(GraphedSteps(add_one, recorder), 20)
    found, steps = KeptSteps(recorder).of(step)
    take(steps, 1)
    assert found is step


def test_a_recording_that_cuda_gives_up_leaves_no_process_to_go_on_in(cuda, monkeypatch):
    def waits(inputs):
        raise RuntimeError("CUDA error: operation not permitted\nSearch for it")

    recorder = GraphRecorder(CudaGraphs(GPU).record, print)
    assert recorder(waits, X) is None  # the recording has ended as it should
    monkeypatch.setattr(Graph, "invalidated", True)
    recorder = GraphRecorder(CudaGraphs(GPU).record, print)
    expected = r"^a step ends its recording as a CUDA graph \(CUDA error: operation not permitted\)"
    with pytest.raises(MachineError, match=expected):
        recorder(waits, X)
