"""Settings of a process: threads, share of a GPU, determinism, precision, and freed memory.

Actors, slots of a study and inline runs take their share of a GPU only here. Of the share
`engine.gpus_per_actor` of its memory, `CONTEXT_BYTES` are for CUDA itself, so that all shares fit
side by side; the rest is the cap of torch's allocator, which decides whether samples stay on the
device and how large stacks are (`federation.opened.memory_cap`). If NVIDIA's MPS runs, it also
limits the process to its share of memory: it reads the limit once, before CUDA starts.
"""

from __future__ import annotations

import ctypes
import os
import socket
import subprocess
import warnings
from collections.abc import Iterator, Sequence
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import Any

import torch
import torch.utils.deterministic

from raysim.config import EngineSettings
from raysim.errors import MachineError, SettingsError
from raysim.execution.gpu_checks import check_architecture, check_free_memory, check_precision

CONTEXT_BYTES = 1024 * 2**20
"""Bytes of a GPU for each process in addition to its tensors: context, kernels, graphs."""
MPS_FOLDER = "/tmp/nvidia-mps"  # noqa: S108 - the daemon's default
"""Folder of the MPS daemon's pipes unless CUDA_MPS_PIPE_DIRECTORY names another."""
MPS_MEMORY = "CUDA_MPS_PINNED_DEVICE_MEM_LIMIT"
SMI_SECONDS = 30.0
CUBLAS = "CUBLAS_WORKSPACE_CONFIG"
M_TRIM_THRESHOLD, M_MMAP_THRESHOLD = -1, -3
"""Numbers of the options in glibc's malloc.h."""
NEVER = -1
DEVICE_ERRORS = ("CUDA error", "cuDNN error", "HIP error", "MIOpen error")
FLOAT32 = ("fp32", "tf32")
"""Values of `engine.precision` without autocast."""
GPU_DRIVERS = ("/proc/driver/nvidia/gpus", "/dev/kfd")
"""Places of the drivers of NVIDIA's and AMD's GPUs."""
LARGEST_ON_HEAP = 32 * 2**20
"""Bytes of the largest block that glibc can keep in its heap."""


def configure(engine: EngineSettings) -> ExitStack:
    """Set this process up for a worker; closing the returned stack undoes it.

    On a GPU, fp32 is fp32: cuDNN's default is TF32, which is 1e-3 off and `engine.precision=tf32`
    asks for. Uninitialised memory is not filled, as torch's determinism would do: nothing here
    reads it.
    """
    with ExitStack() as undo:
        undo.enter_context(threads_of(engine))
        for name, value in mps_limits(engine.gpus_per_actor).items():
            undo.callback(_set_environment, name, None)
            _set_environment(name, value)
        device = device_of(engine)
        check_precision(engine, device)
        if device.type == "cuda":
            _configure_gpu(engine, device, undo)
        return undo.pop_all()


def _configure_gpu(engine: EngineSettings, device: torch.device, undo: ExitStack) -> None:
    """Set torch up for a share of the GPU; add the reversal to `undo`."""
    check_architecture(device)
    cuda = torch.cuda
    undo.callback(cuda.set_per_process_memory_fraction, cuda.get_per_process_memory_fraction())
    cuda.set_per_process_memory_fraction(_allocator_fraction(engine.gpus_per_actor))
    check_free_memory(engine, device)
    # Even without determinism: cuBLAS reads it once, and a later run may need it.
    undo.callback(_set_environment, CUBLAS, os.environ.get(CUBLAS))
    _set_environment(CUBLAS, ":4096:8")
    # Not use_deterministic_algorithms, which imports torch's compiler: seconds per actor.
    undo.callback(torch.set_deterministic_debug_mode, torch.get_deterministic_debug_mode())
    torch.set_deterministic_debug_mode("error" if engine.deterministic else "default")
    if engine.deterministic:
        _set_flags([(torch.utils.deterministic, "fill_uninitialized_memory", False)], undo)
        _check_cublas()
    if engine.precision in FLOAT32:
        with warnings.catch_warnings(action="ignore"):  # torch 2.9 warns of the old way
            _set_flags(_tf32(on=engine.precision == "tf32"), undo)


def _set_flags(flags: Sequence[tuple[Any, str, Any]], undo: ExitStack) -> None:
    """Set attributes of torch; add their reversal to `undo`, in the same order."""
    before = [(owner, name, getattr(owner, name)) for owner, name, _ in flags]
    for owner, name, value in reversed(before):
        undo.callback(setattr, owner, name, value)
    for owner, name, value in flags:
        setattr(owner, name, value)


def _check_cublas() -> None:
    """Check that cuBLAS, which reads its settings at its first product, is deterministic.

    Raises:
        SettingsError: this process has used cuBLAS before, with other settings.
    """
    try:
        _first_product()
    except RuntimeError as error:
        if CUBLAS not in str(error):
            raise
        raise SettingsError(
            f"engine.deterministic=true: cuBLAS was used in this process before the run, without"
            f" {CUBLAS}=:4096:8, which must be set before the process starts; or set"
            " engine.deterministic=false"
        ) from None


def _first_product() -> None:
    """Compute a product on the GPU."""
    one = torch.ones(1, 1, device="cuda")
    one.mm(one)


def _allocator_fraction(share: float) -> float:
    """Return the fraction of the GPU's memory for the tensors of a process with a share of it.

    Raises:
        SettingsError: CUDA takes the whole share.
    """
    total = torch.cuda.get_device_properties(torch.cuda.current_device()).total_memory
    fraction = share - CONTEXT_BYTES / total
    if fraction <= 0:
        raise SettingsError(
            f"engine.gpus_per_actor={share:g}: must be over {CONTEXT_BYTES / total:.2g} on this GPU"
            f" of {total / 2**20:.0f} MiB; CUDA takes {CONTEXT_BYTES / 2**20:.0f} MiB of it in each"
            " process"
        )
    return fraction


def mps_limits(share: float) -> dict[str, str]:
    """Return the environment variables with which MPS limits a process to a share of its GPU.

    They limit memory. A share of the processors, CUDA_MPS_ACTIVE_THREAD_PERCENTAGE, is the user's
    to set: cuBLAS and cuDNN choose kernels, and so last bits, by the processors that they see.
    Empty without MPS; variables that the user has set are left out.
    """
    folder = Path(os.environ.get("CUDA_MPS_PIPE_DIRECTORY", MPS_FOLDER))
    if not share or not (folder / "control").exists():
        return {}
    memory = None if MPS_MEMORY in os.environ else _gpu_megabytes()
    return {MPS_MEMORY: f"0={int(share * memory)}M"} if memory else {}


def _gpu_megabytes() -> int | None:
    """Return the memory of this process's GPU without starting CUDA; None if unknown."""
    gpu = os.environ.get("CUDA_VISIBLE_DEVICES", "0").partition(",")[0]
    query = ["--query-gpu=memory.total", "--format=csv,noheader,nounits"]
    try:
        completed = subprocess.run(
            ["nvidia-smi", f"--id={gpu}", *query],
            check=True,
            capture_output=True,
            text=True,
            timeout=SMI_SECONDS,
        )
        return int(completed.stdout)
    except (OSError, ValueError, subprocess.SubprocessError):
        return None


@contextmanager
def own_modes() -> Iterator[None]:
    """Suspend the caller's modes of torch, which actors do not have.

    They are autocast, `no_grad`, `inference_mode` and a default device.
    """
    with ExitStack() as undo:
        undo.enter_context(torch.inference_mode(mode=False))
        undo.enter_context(torch.enable_grad())
        for kind in ("cpu", "cuda"):
            if torch.is_autocast_enabled(kind):
                undo.enter_context(torch.autocast(kind, enabled=False))
        if torch.get_default_device().type != "cpu":
            undo.enter_context(torch.device("cpu"))
        yield


@contextmanager
def threads_of(engine: EngineSettings) -> Iterator[None]:
    """Use the threads of an actor, as a product's last bits depend on their number."""
    before = torch.get_num_threads()
    torch.set_num_threads(engine.threads_per_actor)
    try:
        yield
    finally:
        torch.set_num_threads(before)


def _tf32(*, on: bool) -> list[tuple[Any, str, Any]]:
    """Return the flags to set, in this order, so that a GPU computes float32 in TF32, or not.

    torch has two interfaces from 2.9 on; reading the old one fails in a user's module if the two
    differ. Setting the old one resets the new one.
    """
    cudnn: Any = torch.backends.cudnn  # its stub lacks `conv`
    matmul = torch.backends.cuda.matmul
    parts = (cudnn.conv, cudnn.rnn, matmul) if hasattr(matmul, "fp32_precision") else ()
    new = [(part, "fp32_precision", "tf32" if on else "ieee") for part in parts]
    return [*((part, "allow_tf32", on) for part in (cudnn, matmul) if _is_readable(part)), *new]


def _is_readable(part: Any) -> bool:
    """Return whether the old flag can be read; not if the user has set the two differently."""
    try:
        return isinstance(part.allow_tf32, bool)
    except RuntimeError:
        return False


def _set_environment(name: str, value: str | None) -> None:
    """Set an environment variable, or remove it."""
    os.environ.pop(name, None)
    if value is not None:
        os.environ[name] = value


def device_of(engine: EngineSettings) -> torch.device:
    """Return the GPU if the settings ask for one and there is one, else the CPU.

    With its index, without which torch does not return its memory fraction.

    Raises:
        MachineError: there is a GPU that does not start. On the CPU, training would take many times
            as long, and give other bits than in the other actors, or before a fault.
    """
    if not engine.gpus_per_actor:
        return torch.device("cpu")
    if torch.cuda.is_available():
        return torch.device("cuda", torch.cuda.current_device())
    asked = f"engine.gpus_per_actor={engine.gpus_per_actor:g}"
    if any(Path(place).exists() for place in GPU_DRIVERS):
        raise MachineError(
            f"{asked}: the GPU of {socket.gethostname()} does not start: {_no_cuda()}"
        )
    return torch.device("cpu")


def unsupported_gpus() -> str:
    """Return in words that this machine has a GPU of a kind that is not used; empty without one."""
    if torch.backends.mps.is_available():
        return "Apple's GPUs are not supported, as they have no float64, in which updates are added"
    return "Intel's GPUs are not supported" if torch.xpu.is_available() else ""


def _no_cuda() -> str:
    """Return why torch cannot use a GPU, on one line."""
    if not (torch.version.cuda or torch.version.hip):
        return f"torch {torch.__version__} is built without CUDA; install a build with it"
    try:
        torch.cuda.init()  # type: ignore[no-untyped-call]
    except (AssertionError, RuntimeError) as error:
        return f"{' '.join(str(error).split())}; see what nvidia-smi says"
    return "torch finds none in CUDA_VISIBLE_DEVICES; see what nvidia-smi says"


def is_device_error(error: Exception) -> bool:
    """Return whether an error makes every later call on the GPU fail in this process."""
    return any(words in str(error) for words in DEVICE_ERRORS)


def release_freed_memory() -> None:
    """Return freed heap pages to the system.

    Aligned blocks of a model's size do not fit into the gaps of earlier ones, so a driver's memory
    rose by a model per round, to several hundred megabytes, before it fell again by chance.
    """
    trim = getattr(ctypes.CDLL(None), "malloc_trim", None)
    if trim is not None:
        trim(0)


def keep_freed_memory() -> None:
    """Keep the memory that a local step frees for the next step.

    Memory returned to the system comes back page by page, each one zeroed: 4000 pages per step of
    ResNet-18 (B=10), a tenth of its time, and 15% of a step of char-lstm.
    """
    set_option = getattr(ctypes.CDLL(None), "mallopt", None)
    if set_option is not None:
        set_option(M_TRIM_THRESHOLD, NEVER)
        set_option(M_MMAP_THRESHOLD, LARGEST_ON_HEAP)
