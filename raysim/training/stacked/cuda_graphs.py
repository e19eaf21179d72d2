"""CUDA graphs: a step that repeats is recorded once, and then takes one launch, not hundreds.

A recorded step reads and writes the tensors that it was recorded with: all that it changes it
changes in place, and its inputs are copied to where the recording reads them.
"""

from __future__ import annotations

import traceback
import warnings
from collections import Counter
from collections.abc import Callable, Iterator, Mapping
from contextlib import AbstractContextManager, contextmanager, nullcontext, suppress
from functools import cache
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from raysim.core.errors import MachineError

Inputs = Mapping[str, Tensor]
Outputs = tuple[Tensor, ...]
Step = Callable[[Inputs], Outputs]

CALLS_BEFORE = 3
"""Calls with inputs of the same shapes before they are recorded: kernels are chosen in them."""
MIN_REPLAYS = 12
"""Calls that must be left to be played: to record a step costs as much as to take it a few times.

They may be those of later groups: as many are expected as there were.
"""


WAITS = "called a synchronizing CUDA operation"
"""torch's words in the error of an operation that waits for the device, where that is refused."""
NO_MEMORY = "there is no memory for what they keep"


class GraphRecorder:
    """Records steps as CUDA graphs until one recording fails; its remains are not defined.

    Attributes:
        stream_context: Returns the context in which a group is trained.
        works: Whether steps are still recorded.
    """

    def __init__(
        self,
        record: Callable[[Step, Inputs], Step],
        note: Callable[[str], None],
        stream_context: Callable[[], AbstractContextManager[None]] = nullcontext,
        free: Callable[[], None] | None = None,
    ) -> None:
        """Take what records.

        Args:
            record: Returns a recording of the step on inputs like these, without taking the step.
                Raises RuntimeError if it does something that cannot be recorded.
            note: Shows the user why steps are not recorded.
            stream_context: See above.
            free: Gives up memory that is kept for later recordings, if any is.
        """
        self._record, self._note, self.stream_context = record, note, stream_context
        self._free, self.works = free, True

    def __call__(self, step: Step, inputs: Inputs) -> Step:
        """Return a recording of a step, or the step where it cannot be recorded."""
        if self.works:
            try:
                return self._record(step, inputs)
            except torch.OutOfMemoryError:
                reason = NO_MEMORY
            except RuntimeError as error:  # it waits for the device, say
                reason = " ".join(str(error).split())
            self.give_up(reason)
        return step

    def give_up(self, reason: str) -> None:
        """Record no more steps, and say why."""
        self.works = False
        if self._free:
            self._free()
        self._note(f"steps are not recorded as CUDA graphs: {reason}")


class GraphedSteps:
    """Takes the steps of groups of a kind, or plays recordings of them where shapes repeat."""

    def __init__(self, step: Step, recorder: GraphRecorder | None) -> None:
        """Wrap a step.

        Args:
            step: It must do the same with inputs of the same shapes, whatever is in them.
            recorder: Records it; None takes every step as it is.
        """
        self._step, self._recorder = step, recorder
        self._calls: Counter[str] = Counter()
        self._recordings: dict[str, Step] = {}

    def __call__(self, inputs: Inputs, repeats: int) -> Outputs:
        """Take a step on inputs whose shapes come so many times in this group.

        What is returned holds until the next call.
        """
        if self._recorder is None:
            return self._step(inputs)
        shapes = repr([(name, tuple(tensor.shape)) for name, tensor in inputs.items()])
        self._calls[shapes] += 1
        calls = self._calls[shapes]
        pays = max(calls, repeats) >= CALLS_BEFORE + MIN_REPLAYS
        if pays and calls > CALLS_BEFORE and shapes not in self._recordings:
            self._recordings[shapes] = self._recorder(self._step, inputs)
        return self._recordings.get(shapes, self._step)(inputs)


class CudaRecording:
    """A step as it ran on inputs of some shapes on the current stream, a side stream."""

    def __init__(self, step: Step, inputs: Inputs, pool: Any) -> None:
        """Record a step in a memory pool; see `GraphRecorder`.

        Raises:
            RuntimeError: see there.
            MachineError: CUDA gave the recording up. torch takes it for one that still goes on,
                and gives back nothing that it caches where memory is short.
        """
        self._inputs = {name: tensor.clone() for name, tensor in inputs.items()}
        self.graph = torch.cuda.CUDAGraph()
        self.graph.capture_begin(pool, capture_error_mode="thread_local")
        try:
            with waiting_refused():
                self._outputs = step(self._inputs)
        except BaseException as error:
            try:
                self._end()
            except RuntimeError:
                cause = " ".join(str(error).partition("\n")[0].split())
                raise MachineError(
                    f"a step ends its recording as a CUDA graph ({cause}), after which torch cannot"
                    " be relied on in this process: start anew with engine.vectorize=0, which"
                    " records none"
                ) from error
            if WAITS in str(error):
                raise RuntimeError(f"{_caller(error)} waits for the device") from error
            raise
        self.graph.capture_end()

    def _end(self) -> None:
        """End a recording that did not come to its end.

        `capture_end`, the only way of older torch, also instantiates it, which fails where memory
        is short, though the recording has ended as it should.
        """
        getattr(self.graph, "capture_end_pre", self.graph.capture_end)()

    def __call__(self, inputs: Inputs) -> Outputs:
        """Take the step; return tensors that the next one overwrites."""
        for name, tensor in inputs.items():
            self._inputs[name].copy_(tensor)
        self.graph.replay()
        return self._outputs


@contextmanager
def waiting_refused() -> Iterator[None]:
    """Have torch raise an error with `WAITS` where the body waits for the device.

    It does so before CUDA is called, which would give a recording up. It sees what passes
    `memcpy_and_sync` and `stream_synchronize` of c10/cuda/CUDAFunctions.h, as reading a value does;
    not `torch.cuda.synchronize`, events, sparse tensors, copies to memory that is not pinned with
    `non_blocking=True`, nor other libraries.
    """
    before = torch.cuda.get_sync_debug_mode()
    _refuse_waiting("error")
    try:
        yield
    finally:
        _refuse_waiting(before)


def _refuse_waiting(mode: int | str) -> None:
    with warnings.catch_warnings(action="ignore"):  # torch's own, that it does not see all
        torch.cuda.set_sync_debug_mode(mode)


def _caller(error: BaseException) -> str:
    """Return the innermost function outside torch that led to an error, and its place."""
    own = str(Path(torch.__file__).parent)
    calls = [
        (frame.f_code, number)
        for frame, number in traceback.walk_tb(error.__traceback__)
        if not frame.f_code.co_filename.startswith(own)
    ]
    code, number = calls[-1]
    return f"{code.co_qualname} ({Path(code.co_filename).name}, line {number})"


@cache
def side_stream(device: torch.device) -> torch.cuda.Stream:
    """Return the stream on which this process records steps.

    Freed memory is not shared between streams, and cuBLAS keeps a workspace for each.
    """
    return torch.cuda.Stream(device)  # type: ignore[no-untyped-call]


class CudaGraphs:
    """Records steps on a CUDA device, all on one stream and in one memory pool.

    A pool dies with the last graph in it, and its handle is then of no use: so the last graph is
    kept.
    """

    def __init__(self, device: torch.device) -> None:
        self._device = device
        self._stream = side_stream(device)
        self._pool = torch.cuda.graph_pool_handle()
        self._last: torch.cuda.CUDAGraph | None = None

    @contextmanager
    def stream_context(self) -> Iterator[None]:
        """Work on the stream on which steps are recorded."""
        current = torch.cuda.current_stream(self._device)
        self._stream.wait_stream(current)
        try:
            with torch.cuda.stream(self._stream):
                yield
        finally:
            current.wait_stream(self._stream)

    def record(self, step: Step, inputs: Inputs) -> Step:
        """Record a step; see `GraphRecorder`."""
        with suppress(torch.OutOfMemoryError):
            return self._recorded(step, inputs)
        # A recording cannot use memory that is freed but cached, nor that of the last graph's pool.
        self.free()
        torch.cuda.empty_cache()
        return self._recorded(step, inputs)

    def free(self) -> None:
        """Give up the last graph, without which its pool is dead."""
        self._last, self._pool = None, torch.cuda.graph_pool_handle()

    def _recorded(self, step: Step, inputs: Inputs) -> Step:
        recording = CudaRecording(step, inputs, self._pool)
        self._last = recording.graph
        return recording


def recorder_on(device: torch.device, note: Callable[[str], None]) -> GraphRecorder | None:
    """Return what records steps on a device; nothing does on a CPU."""
    if device.type != "cuda":
        return None
    graphs = CudaGraphs(device)
    return GraphRecorder(graphs.record, note, graphs.stream_context, graphs.free)
