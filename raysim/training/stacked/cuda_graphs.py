"""CUDA graphs: a repeated step is recorded once and then needs one launch instead of hundreds.

A recorded step reads and writes the tensors of its recording: it changes tensors in place, and its
inputs are copied into the recorded ones.
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

from raysim.errors import MachineError
from raysim.numbers.tensors.torch_private import foreach_copy_

Inputs = Mapping[str, Tensor]
Outputs = tuple[Tensor, ...]
Step = Callable[[Inputs], Outputs]

CALLS_BEFORE = 3
"""Calls with inputs of the same shapes before a recording: they choose the kernels."""
MIN_REPLAYS = 12
"""Least number of expected replays: to record a step costs as much as to take it a few times.

Replays may be in later groups: as many calls are expected as there were.
"""

MOST_FAILURES = 8
"""Failed recordings after which none is tried: a kind without a key is new in each group."""


def steps_before() -> int:
    """Return the number of steps of a kind before one is recorded of a client alone."""
    return CALLS_BEFORE + MIN_REPLAYS


WAITS = "called a synchronizing CUDA operation"
"""torch's message when a refused operation waits for the device."""
NO_MEMORY = "there is no memory for their tensors"


class GraphRecorder:
    """Records steps as CUDA graphs until memory is short, or many kinds of steps have failed.

    The tensors of a recording that failed are undefined.

    Attributes:
        stream_context: Returns the context for training clients.
        works: Whether steps are still recorded.
    """

    def __init__(
        self,
        record: Callable[[Step, Inputs], Step],
        note: Callable[[str], None],
        stream_context: Callable[[], AbstractContextManager[None]] = nullcontext,
        free: Callable[[], None] | None = None,
    ) -> None:
        """Create a recorder.

        Args:
            record: Returns a recording of the step on inputs like these, without taking the step.
                Raises RuntimeError if the step cannot be recorded.
            note: Shows the user why steps are not recorded.
            stream_context: See above.
            free: Frees memory kept for later recordings, if any.
        """
        self._record, self._note, self.stream_context = record, note, stream_context
        self._free, self.works = free, True
        self._failures: list[str] = []

    def __call__(self, step: Step, inputs: Inputs) -> Step | None:
        """Return a recording of a step, or None if it cannot be recorded."""
        if self.works:
            try:
                return self._record(step, inputs)
            except torch.OutOfMemoryError:
                self.give_up()
            except RuntimeError as error:  # for example, it waits for the device
                self.fail(" ".join(str(error).split()))
                self.works = len(self._failures) < MOST_FAILURES
        return None

    def give_up(self) -> None:
        """Stop recording steps, as memory is short."""
        self.works = False
        if self._free:
            self._free()
        self.fail(NO_MEMORY)

    def fail(self, reason: str) -> None:
        """Note why a kind of step is not recorded, each reason once."""
        if reason not in self._failures:
            self._note(f"steps are not recorded as CUDA graphs: {reason}")
        self._failures.append(reason)


class GraphedSteps:
    """Takes the steps of groups of one kind, and replays recordings for repeated shapes."""

    def __init__(self, step: Step, recorder: GraphRecorder | None) -> None:
        """Wrap a step.

        Args:
            step: The step, which must run the same operations on all inputs of the same shapes.
            recorder: Records the step; None takes every step without recording.
        """
        self._step, self._recorder = step, recorder
        self._calls: Counter[str] = Counter()
        self._recordings: dict[str, Step] = {}

    def __call__(self, inputs: Inputs, repeats: int) -> Outputs:
        """Take a step on inputs; their shapes occur `repeats` times in this group.

        The result is valid until the next call.
        """
        if self._recorder is None:
            return self._step(inputs)
        shapes = repr([(name, tuple(tensor.shape)) for name, tensor in inputs.items()])
        self._calls[shapes] += 1
        calls = self._calls[shapes]
        pays = max(calls, repeats) >= CALLS_BEFORE + MIN_REPLAYS
        if pays and calls > CALLS_BEFORE and shapes not in self._recordings:
            self._recordings[shapes] = self._recorder(self._step, inputs) or self._step
        return self._recordings.get(shapes, self._step)(inputs)


class CudaRecording:
    """Recording of a step on inputs of some shapes, on the current side stream."""

    def __init__(self, step: Step, inputs: Inputs, pool: Any) -> None:
        """Record a step in a memory pool; see `GraphRecorder`.

        Raises:
            RuntimeError: the step cannot be recorded.
            MachineError: CUDA invalidated the recording. torch treats it as still running, and
                frees none of its cached memory when memory is short.
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
                    " be relied on in this process: change what waits there, or train on the CPU"
                    " (engine.gpus_per_actor=0)"
                ) from error
            if WAITS in str(error):
                raise RuntimeError(f"{_caller(error)} waits for the device") from error
            raise
        self.graph.capture_end()

    def _end(self) -> None:
        """End an incomplete recording.

        `capture_end`, the only way in older torch, also instantiates the graph, which fails if
        memory is short, although the recording has ended properly.
        """
        getattr(self.graph, "capture_end_pre", self.graph.capture_end)()

    def __call__(self, inputs: Inputs) -> Outputs:
        """Take the step; return tensors that the next step overwrites."""
        foreach_copy_([*self._inputs.values()], [inputs[name] for name in self._inputs])
        self.graph.replay()
        return self._outputs


@contextmanager
def waiting_refused() -> Iterator[None]:
    """Let torch raise an error with `WAITS` if the body waits for the device.

    It is raised before the call of CUDA, which would invalidate a recording, for calls through
    `memcpy_and_sync` and `stream_synchronize` of c10/cuda/CUDAFunctions.h, such as reading a value;
    not for `torch.cuda.synchronize`, events, sparse tensors, copies to memory that is not pinned
    with `non_blocking=True`, nor other libraries.
    """
    before = torch.cuda.get_sync_debug_mode()
    _refuse_waiting("error")
    try:
        yield
    finally:
        _refuse_waiting(before)


def _refuse_waiting(mode: int | str) -> None:
    with warnings.catch_warnings(action="ignore"):  # torch warns that it does not see all
        torch.cuda.set_sync_debug_mode(mode)


def _caller(error: BaseException) -> str:
    """Return the innermost function outside torch that raised an error, and its position."""
    of_torch = str(Path(torch.__file__).parent)
    calls = [
        (frame.f_code, number)
        for frame, number in traceback.walk_tb(error.__traceback__)
        if not frame.f_code.co_filename.startswith(of_torch)
    ]
    code, number = calls[-1]
    return f"{code.co_qualname} ({Path(code.co_filename).name}, line {number})"


@cache
def side_stream(device: torch.device) -> torch.cuda.Stream:
    """Return the stream for recording this process's steps.

    Freed memory is not shared between streams, and cuBLAS keeps a workspace for each.
    """
    return torch.cuda.Stream(device)  # type: ignore[no-untyped-call]


class CudaGraphs:
    """Records steps on a CUDA device, all on one stream and in one memory pool.

    A pool is destroyed with its last graph, after which its handle is invalid: so the last graph is
    kept.
    """

    def __init__(self, device: torch.device) -> None:
        self._device = device
        self._stream = side_stream(device)
        self._pool = torch.cuda.graph_pool_handle()
        self._last: torch.cuda.CUDAGraph | None = None

    @contextmanager
    def stream_context(self) -> Iterator[None]:
        """Run the body on the stream for recording steps."""
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
        # A recording can use neither freed but cached memory, nor the memory of the last graph's
        # pool.
        self.free()
        torch.cuda.empty_cache()
        return self._recorded(step, inputs)

    def free(self) -> None:
        """Free the last graph, and with it the pool."""
        self._last, self._pool = None, torch.cuda.graph_pool_handle()

    def _recorded(self, step: Step, inputs: Inputs) -> Step:
        try:
            recording = CudaRecording(step, inputs, self._pool)
        except BaseException:
            if self._last is None:  # the pool went with its only graph
                self._pool = torch.cuda.graph_pool_handle()
            raise
        self._last = recording.graph
        return recording


def recorder_on(device: torch.device, note: Callable[[str], None]) -> GraphRecorder | None:
    """Return the recorder of steps on a device; None on a CPU."""
    if device.type != "cuda":
        return None
    graphs = CudaGraphs(device)
    return GraphRecorder(graphs.record, note, graphs.stream_context, graphs.free)
