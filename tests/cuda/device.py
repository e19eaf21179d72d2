"""A CUDA device made of CPU memory: values, autograd and vmap are real, and CUDA's rules hold.

Tensors stay the CPU's; a label on their memory says that they lie on the device. A mode of torch
functions answers what Python asks of tensors; a dispatch mode, below autograd and vmap, applies the
device's rules to every operation. Parts of `torch.cuda` have stand-ins.

    with CudaDevice() as gpu:
        raysim.run(settings, task)
    print(gpu.counts, gpu.where.most_common(9))

It refuses, as CUDA does: tensors of host and device in one operation, reads by the host without a
copy, generators of the other device, operations without a deterministic kernel where that is asked
for, waits and copies in the capture of a graph; and what CUDA lets pass to wrong values: replays
that read freed memory, and copies that are used, or whose source changes, before they are done. It
counts kernels, waits, copies and replays, by line.

It cannot show: CUDA's own rounding (kernels of cuBLAS and cuDNN, TF32, autocast's choice of
operations), time, memory that is short, reuse of memory within the pool of graphs, other processes
on the device, errors of the device, copies in a graph, kernels of recurrent layers (the CPU's are
others than cuDNN's), kernels of two streams at once beyond the
copies above, threads other than the one that made it.
"""

from __future__ import annotations

import sys
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from types import SimpleNamespace
from typing import Any, Self
from unittest import mock

import torch
from torch import Tensor
from torch.overrides import TorchFunctionMode
from torch.utils._python_dispatch import TorchDispatchMode

from raysim.training.stacked.cuda_graphs import side_stream
from tests.cuda.graphs import Generator, GeneratorOf, Graph
from tests.cuda.memory import CPU, GPU, is_on_gpu, is_pinned, pinned, placed, tensors_of
from tests.cuda.operations import (
    NO_HOST_SCALARS,
    OWN_INDICES,
    is_nondeterministic,
    kernels,
    name_of,
    waits,
)
from tests.cuda.transfers import Event, Stream, Transfers

GIB = 2**30
OWN = ("/raysim/", "/workloads/", "/tests/")
NOT_OWN = ("/tests/cuda/device.py", "/tests/cuda/graphs.py", "/tests/cuda/transfers.py")


def _without_onednn(forward: Callable[..., Any]) -> Callable[..., Any]:
    """Return a function that uses none of oneDNN's kernels, whose workspace no graph can keep."""

    def run(*args: Any) -> Any:
        torch._C._set_mkldnn_enabled(False)
        try:
            return forward(*args)
        finally:
            torch._C._set_mkldnn_enabled(True)

    return run


def line() -> str:
    """Return the innermost line that asked for an operation, outside torch and this device."""
    frame = sys._getframe(1)
    while frame.f_back:
        name = frame.f_code.co_filename
        if any(part in name for part in OWN) and not name.endswith(NOT_OWN):
            folder = max(OWN, key=name.rfind)
            return f"{folder[1:]}{name.rpartition(folder)[2]}:{frame.f_lineno}"
        frame = frame.f_back
    return "elsewhere"


class CudaDevice:
    """The device; see above.

    Attributes:
        counts: "launches", "syncs", "to the device", "to the host", "captures" and "replays", and
            "bytes to the device" and "bytes to the host".
        where: The first four by line: ("syncs", "raysim/training/job.py:9").
        graphs: The captured graphs.
        capability: Its compute capability.
    """

    def __init__(
        self, memory: int = 80 * GIB, name: str = "CPU memory", *, lines: bool = True
    ) -> None:
        """Make a device.

        Args:
            memory: Bytes that it says it has.
            name: Its name.
            lines: Whether launches are counted by line, which takes a third of the time.
        """
        self.memory, self.name, self.lines = memory, name, lines
        self.capability = 9, 0
        self.counts: Counter[str] = Counter()
        self.where: Counter[tuple[str, str]] = Counter()
        self.graphs: list[Graph] = []
        self.transfers = Transfers()
        self.generator = Generator()
        self.current = self.default = Stream(GPU)
        self.capture: Graph | None = None
        self.inside = False
        """Whether a function of the device's tensors runs, so that what C++ makes is there too."""
        self._moving = False
        self._fraction, self._sync_mode = 1.0, 0

    def __enter__(self) -> Self:
        Stream.active = self
        side_stream.cache_clear()
        with ExitStack() as stack:
            stack.callback(side_stream.cache_clear)
            for name, value in self._of_torch_cuda().items():
                stack.enter_context(mock.patch.object(torch.cuda, name, value))
            autocast, is_enabled = torch.autocast, torch.is_autocast_enabled
            dtype_of = torch.get_autocast_dtype
            for owner, name, value in (
                (torch, "Generator", GeneratorOf),
                (torch, "autocast", lambda kind, *given, **own: autocast("cpu", *given, **own)),
                (torch, "is_autocast_enabled", lambda kind="cuda": is_enabled("cpu")),
                (torch, "get_autocast_dtype", lambda kind: dtype_of("cpu")),
                # cuDNN joins the weights of recurrent layers; a CPU has no such operation.
                (torch.nn.RNNBase, "flatten_parameters", lambda layer: None),
                (torch.nn.LSTM, "forward", _without_onednn(torch.nn.LSTM.forward)),
            ):
                stack.enter_context(mock.patch.object(owner, name, value))
            stack.enter_context(_Functions(self))
            stack.enter_context(_Operations(self))
            self._stack = stack.pop_all()
        return self

    def __exit__(self, kind: type[BaseException] | None, *error: object) -> None:
        self._stack.close()
        if kind is None:
            self.transfers.end(self.transfers.before(self.default))

    def _of_torch_cuda(self) -> dict[str, Any]:
        """Return the stand-ins for parts of torch.cuda."""
        about = SimpleNamespace(total_memory=self.memory, name=self.name, multi_processor_count=132)
        return {
            "is_available": lambda: True,
            "is_bf16_supported": lambda *_, **__: True,
            "_lazy_init": lambda: None,
            "device_count": lambda: 1,
            "current_device": lambda: 0,
            "get_device_properties": lambda device=None: about,
            "get_device_name": lambda device=None: self.name,
            "get_device_capability": lambda device=None: self.capability,
            "mem_get_info": lambda device=None: (self.memory - GIB, self.memory),
            "memory_allocated": lambda device=None: 0,
            "empty_cache": lambda: None,
            "set_per_process_memory_fraction": self._set_fraction,
            "get_per_process_memory_fraction": lambda device=None: self._fraction,
            "synchronize": lambda device=None: self.wait(None),
            "default_generators": (self.generator,),
            "Stream": Stream,
            "Event": Event,
            "stream": self._stream,
            "current_stream": lambda device=None: self.current,
            "default_stream": lambda device=None: self.default,
            "CUDAGraph": self._graph,
            "graph_pool_handle": lambda: (0, 1),
            "get_sync_debug_mode": lambda: self._sync_mode,
            "set_sync_debug_mode": self._set_sync_mode,
        }

    def _set_fraction(self, fraction: float, device: Any = None) -> None:
        self._fraction = fraction

    def _set_sync_mode(self, mode: int | str) -> None:
        self._sync_mode = {"default": 0, "warn": 1, "error": 2}.get(mode, mode)

    def _graph(self) -> Graph:
        self.graphs.append(Graph())
        return self.graphs[-1]

    @contextmanager
    def _stream(self, stream: Stream) -> Iterator[None]:
        before, self.current = self.current, stream
        try:
            yield
        finally:
            self.current = before

    def wait(self, stream: Stream | None) -> None:
        """Have the host wait for a stream, or for all."""
        self._count("syncs")
        self.transfers.end(self.transfers.before(stream or self.current))

    def launched(self, name: str, count: int) -> None:
        """Count kernels outside of a capture."""
        if count:
            self._count("launches", count, by_line=self.lines)

    def _count(self, kind: str, count: int = 1, *, by_line: bool = True) -> None:
        self.counts[kind] += count
        if by_line:
            self.where[kind, line()] += count

    def _waited(self, name: str) -> None:
        """Count a wait for the current stream.

        Raises:
            RuntimeError: a stream is captured.
        """
        self._refuse_in_capture(name)
        self.wait(self.current)

    def _refuse_in_capture(self, name: str) -> None:
        if self.capture:
            if self._sync_mode == 2:
                raise RuntimeError(f"called a synchronizing CUDA operation ({name})")
            raise RuntimeError(
                f"CUDA error: operation not permitted when stream is capturing ({name})"
            )

    def copied(self, name: str, tensor: Tensor, *, up: bool, waits: bool = True) -> None:
        """Count a copy to the device or from it; the host waits for it unless it is said not to."""
        self._refuse_in_capture(name)
        where = "to the device" if up else "to the host"
        self._count(where)
        self.counts[f"bytes {where}"] += tensor.numel() * tensor.element_size()
        if waits:
            self.wait(self.current)

    @contextmanager
    def moving(self) -> Iterator[None]:
        """Let operations in the body be parts of one copy, which is counted already."""
        before, self._moving = self._moving, True
        try:
            yield
        finally:
            self._moving = before

    def to_host(self, tensor: Tensor, *, waits: bool = True) -> Tensor:
        """Return a copy of a tensor in the host's memory."""
        self.copied("cpu", tensor, up=False, waits=waits)
        with self.moving():
            found: Tensor = placed(tensor.clone(), on_gpu=False)
        if not waits:
            self.transfers.begin(tensor, pinned(found), line(), self.current)
        return found

    def run(self, func: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
        """Do an operation by the device's rules."""
        if self._moving:
            return func(*args, **kwargs)
        tensors = tensors_of((args, kwargs))
        on_gpu = any(map(is_on_gpu, tensors))
        asked = kwargs.get("device")
        pin = kwargs.pop("pin_memory", None)
        if asked is not None:
            kwargs["device"] = CPU
        if func is torch.ops.aten._to_copy.default and not on_gpu:
            return self._converted(func, args, kwargs, asked)
        here = on_gpu if asked is None else asked.type == "cuda"
        here = here or (asked is not None and not tensors and self.inside)
        if not here and not on_gpu:
            self._check_generator(func, args, kwargs, on_gpu=False)
            found = func(*args, **kwargs)
            return pinned(found) if pin else found
        self._check(func, args, kwargs, tensors)
        if func is torch.ops.aten.copy_.default and self._copy(*args, **kwargs):
            return args[0]
        if self.capture:
            self.capture.before(func, args, kwargs)
        found = placed(self.drawing(func, args, kwargs)())
        if self.capture:
            self.capture.record(func, args, kwargs, tensors_of(found))
        else:
            self.launched(name_of(func), kernels(func, args))
        return found

    def _converted(self, func: Any, args: Any, kwargs: dict[str, Any], asked: Any) -> Any:
        """Return a tensor of the host in another type, or on the device."""
        found = func(*args, **kwargs)
        if asked is not None and asked.type == "cuda":
            waits = not kwargs.get("non_blocking")
            self.copied("to", found, up=True, waits=waits)
            placed(found)
            if not waits:
                self.transfers.begin(args[0], found, line(), self.current)
        return found

    def _copy(self, to: Tensor, source: Tensor, non_blocking: bool = False) -> bool:
        """Copy between host and device; return whether that is what it was."""
        up = is_on_gpu(to)
        if up == is_on_gpu(source):
            return False
        self.copied("copy_", source, up=up, waits=not non_blocking)
        torch.ops.aten.copy_.default(to, source)
        if non_blocking:
            self.transfers.begin(source, to, line(), self.current)
        return True

    def _check(
        self, func: Any, args: tuple[Any, ...], kwargs: dict[str, Any], tensors: list[Tensor]
    ) -> None:
        """Check that CUDA would do an operation, and count its waits."""
        name = name_of(func)
        self._check_generator(func, args, kwargs, on_gpu=True)
        self.transfers.check(tensors, self.current)
        if is_nondeterministic(func, args) and torch.are_deterministic_algorithms_enabled():
            raise RuntimeError(f"{name} does not have a deterministic implementation: {line()}")
        if waits(func, args):
            self._waited(name)
        apart = [t for t in tensors if not is_on_gpu(t) and (t.dim() or name in NO_HOST_SCALARS)]
        if name == "copy_" or not apart or len(apart) == len(tensors):
            return
        if name in OWN_INDICES and is_on_gpu(args[0]):
            for tensor in apart:
                self.copied(name, tensor, up=True)
            return
        raise RuntimeError(
            "Expected all tensors to be on the same device, but found at least two devices, cuda:0"
            f" and cpu, in {name}: {line()}"
        )

    @staticmethod
    def _check_generator(func: Any, args: Any, kwargs: dict[str, Any], *, on_gpu: bool) -> None:
        own = (each for each in (*args, *kwargs.values()) if isinstance(each, torch._C.Generator))
        generator = next(own, None)
        if generator is not None and (generator._cdata in Generator.alive) != on_gpu:
            kind = "cuda" if on_gpu else "cpu"
            raise RuntimeError(
                f"Expected a '{kind}' device type for generator in {name_of(func)}: {line()}"
            )

    def drawing(
        self, func: Any, args: tuple[Any, ...], kwargs: dict[str, Any]
    ) -> Callable[[], Any]:
        """Return an operation that draws from the device's generator unless it has its own."""
        given = (*args, *kwargs.values())
        if torch.Tag.nondeterministic_seeded not in func.tags or any(
            isinstance(each, torch._C.Generator) for each in given
        ):
            return lambda: func(*args, **kwargs)

        def draw() -> Any:
            host, states = torch.default_generator, torch._C.Generator
            before = host.get_state()
            host.set_state(states.get_state(self.generator))
            try:
                return func(*args, **kwargs)
            finally:
                states.set_state(self.generator, host.get_state())
                host.set_state(before)

        return draw


class _Operations(TorchDispatchMode):
    """What the device does at operations."""

    def __init__(self, gpu: CudaDevice) -> None:
        super().__init__()
        self._gpu = gpu

    @classmethod
    def _should_skip_dynamo(cls) -> bool:
        return False

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        with torch._C.DisableTorchFunction():
            return self._gpu.run(func, args, dict(kwargs or {}))


class _Functions(TorchFunctionMode):
    """What Python asks of tensors."""

    def __init__(self, gpu: CudaDevice) -> None:
        super().__init__()
        self._gpu = gpu
        self._answers: dict[Any, Callable[..., Any]] = {
            Tensor.device.__get__: lambda t: GPU if is_on_gpu(t) else CPU,
            Tensor.is_cuda.__get__: is_on_gpu,
            Tensor.is_cpu.__get__: lambda t: not is_on_gpu(t),
            Tensor.cpu: lambda t, **_: self._to(t, CPU),
            Tensor.cuda: lambda t, device=None, non_blocking=False, **_: self._to(
                t, GPU, non_blocking=non_blocking
            ),
            Tensor.to: self._to,
            Tensor.numpy: self._numpy,
            Tensor.__array__: self._array,
            Tensor.tolist: self._tolist,
            Tensor.pin_memory: self._pin_memory,
            Tensor.is_pinned: is_pinned,
            Tensor.new_tensor: self._new_tensor,
            torch.tensor: self._made_of(torch.tensor),
            torch.as_tensor: self._made_of(torch.as_tensor),
            torch.asarray: self._made_of(torch.asarray),
        }

    def __torch_function__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        kwargs, gpu = kwargs or {}, self._gpu
        if isinstance(func, torch._ops.OpOverload):  # of C++ that a watch calls, with its devices
            return func(*args, **kwargs)
        try:
            answer = self._answers.get(func)
        except TypeError:  # not hashable
            answer = None
        if getattr(func, "__name__", "") == "__get__":  # makes no tensor of its own
            return (answer or func)(*args, **kwargs)
        before, gpu.inside = gpu.inside, any(map(is_on_gpu, tensors_of((args, kwargs))))
        try:
            found = answer(*args, **kwargs) if answer else func(*args, **kwargs)
        finally:
            gpu.inside = before
        asked = kwargs.get("device")  # ones_like(x, device="cpu"): C++ would say the CPU anyway
        if not answer and asked is not None and torch.device(asked).type == "cpu":
            placed(found, on_gpu=False)
        return found

    def _to(self, tensor: Tensor, *given: Any, **named: Any) -> Tensor:
        """Return `tensor.to(...)`."""
        device, rest = named.pop("device", None), []
        for each in given:
            if isinstance(each, str | torch.device) or type(each) is int:
                device = each
            elif isinstance(each, Tensor):
                device = GPU if is_on_gpu(each) else CPU
                named["dtype"] = each.dtype
            else:
                rest.append(each)
        flags = [each for each in rest if isinstance(each, bool)]
        named |= zip(("non_blocking", "copy"), flags, strict=False)
        for each in rest:
            if isinstance(each, torch.dtype):
                named["dtype"] = each
        waits = not named.pop("non_blocking", False)
        there = is_on_gpu(tensor)
        wanted = there if device is None else torch.device(device).type == "cuda"
        if wanted and not there:  # to `_to_copy`
            return Tensor.to(tensor, GPU, non_blocking=not waits, **named)
        if there and not wanted:
            tensor = self._gpu.to_host(tensor, waits=waits)
            named.pop("copy", None)
        named = {key: value for key, value in named.items() if value}
        return Tensor.to(tensor, **named) if named else tensor

    def _made_of(self, make: Callable[..., Any]) -> Callable[..., Any]:
        """Return a function that makes tensors of Python's values or others."""

        def made(data: Any, *given: Any, device: Any = None, **named: Any) -> Any:
            there = isinstance(data, Tensor) and is_on_gpu(data)
            if there or device is None or torch.device(device).type == "cpu":
                if there and device is not None and torch.device(device).type == "cpu":
                    data = self._gpu.to_host(data)
                return make(data, *given, **named)
            with self._gpu.moving():
                found = make(data, *given, **named).clone()
            self._gpu.copied(make.__name__, found, up=True)
            return placed(found)

        return made

    def _new_tensor(self, tensor: Tensor, data: Any, **named: Any) -> Any:
        own = {"dtype": tensor.dtype, "device": GPU if is_on_gpu(tensor) else CPU}
        return self._made_of(torch.tensor)(data, **(own | named))

    def _numpy(self, tensor: Tensor, *, force: bool = False) -> Any:
        if is_on_gpu(tensor) and not force:
            raise TypeError(
                "can't convert cuda:0 device type tensor to numpy. Use Tensor.cpu() to copy the"
                " tensor to host memory first."
            )
        return Tensor.numpy(self._to(tensor, CPU), force=force)

    def _array(self, tensor: Tensor, *given: Any, **named: Any) -> Any:
        if is_on_gpu(tensor):
            self._numpy(tensor)
        return Tensor.__array__(tensor, *given, **named)

    def _tolist(self, tensor: Tensor) -> Any:
        return Tensor.tolist(self._to(tensor, CPU) if is_on_gpu(tensor) else tensor)

    def _pin_memory(self, tensor: Tensor, device: Any = None) -> Tensor:
        return tensor if is_pinned(tensor) else pinned(tensor.clone())
