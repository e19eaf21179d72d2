"""Environments of nodes, which decide the bits of a result besides settings and seeds.

Two nodes with equal environments compute the same bits on the CPU. With different ones, a client's
update may differ in its last bits by the node that trained it.
"""

from __future__ import annotations

import os
import platform
import re
import socket
import warnings
from collections.abc import Mapping, Sequence
from functools import cache
from importlib.metadata import version
from pathlib import Path
from typing import Any

import numpy as np
import torch

VARIABLES = (
    "ATEN_CPU_CAPABILITY",
    "CUDA_MPS_ACTIVE_THREAD_PERCENTAGE",
    "MKL_CBWR",
    "MKL_ENABLE_INSTRUCTIONS",
    "ONEDNN_MAX_CPU_ISA",
    "OPENBLAS_CORETYPE",
    "NVIDIA_TF32_OVERRIDE",
)
"""Environment variables that decide which kernels the libraries choose."""
SHOWN_NODES = 3
SHOWN_CHARACTERS = 60


def environment(device: torch.device) -> dict[str, Any]:
    """Return the facts of this process that decide bits.

    Args:
        device: The device of the process.
    """
    build = torch.__config__.show()
    on_gpu = device.type == "cuda"
    lines = [line.strip().removeprefix("- ") for line in build.splitlines()[1:]]
    match = re.search(r"BLAS_INFO=(\w+)", build)
    config: Any = np.show_config(mode="dicts")
    blas = config.get("Build Dependencies", {}).get("blas", {})
    return {
        "processor": _processor(),
        "cpu_capability": torch.backends.cpu.get_cpu_capability(),
        "variables": {name: os.environ[name] for name in VARIABLES if name in os.environ},
        "threads": torch.get_num_threads(),
        "python": platform.python_version(),
        "torch": str(torch.__version__),
        "torch_commit": torch.version.git_version,
        "torch_libraries": [
            line for line in lines if line and not line.startswith(("Build settings", "CPU cap"))
        ],  # the compiler and libraries, without the list of flags
        "torch_blas": match[1] if match else None,
        "numpy": np.__version__,
        "numpy_blas": f"{blas['name']} {blas.get('version')}" if "name" in blas else None,
        "scipy": installed_version("scipy"),
        "torchvision": installed_version("torchvision"),
        "gpu": torch.cuda.get_device_name(device) if on_gpu else None,
        "cuda": (torch.version.cuda or f"ROCm {torch.version.hip}") if on_gpu else None,
        "cudnn": torch.backends.cudnn.version() if on_gpu else None,  # type: ignore[no-untyped-call]
    }


def gpu_names() -> list[str]:
    """Return the names of this machine's GPUs; empty if the driver is too old for torch."""
    with warnings.catch_warnings(action="ignore"):  # torch warns on every query
        usable = torch.cuda.is_available()
    return [torch.cuda.get_device_name(n) for n in range(torch.cuda.device_count() * usable)]


@cache
def installed_version(package: str) -> str | None:
    """Return a package's version, or None without the package; takes milliseconds."""
    try:
        return version(package)
    except ImportError:
        return None


def by_environment(actors: Sequence[Mapping[str, Any]]) -> list[dict[str, Any]]:
    """Return the distinct environments of actors with their nodes, the most common first."""
    environments: list[tuple[Mapping[str, Any], list[str]]] = []
    for actor in actors:
        if "environment" not in actor:
            continue
        nodes = next((n for known, n in environments if known == actor["environment"]), None)
        if nodes is None:
            environments.append((actor["environment"], nodes := []))
        nodes.append(actor.get("host", socket.gethostname()))
    environments.sort(key=lambda item: -len(item[1]))
    return [{"nodes": sorted(set(nodes)), **values} for values, nodes in environments]


def node_differences(actors: Sequence[Mapping[str, Any]]) -> str | None:
    """Return one line with the nodes that differ from most, and how; None if none does."""
    if len(environments := by_environment(actors)) < 2:
        return None
    common, *others = environments
    parts = [f"{_names(other['nodes'])}: {_difference(other, common)}" for other in others]
    return (
        "nodes differ, so that the last bits of results may depend on where clients are trained: "
        + "; ".join(parts)
    )


def unknown_environment(
    present: Sequence[Mapping[str, Any]], known: Sequence[Mapping[str, Any]]
) -> str | None:
    """Return how the first unknown environment differs from the nearest known; None without one.

    If none is known, every environment is accepted.
    """
    for values in present:
        if known and values not in known:
            differing = [[n for n in values if values[n] != facts.get(n)] for facts in known]
            names, nearest = min(zip(differing, known, strict=True), key=lambda pair: len(pair[0]))
            old, new = ({n: _short(facts.get(n)) for n in names} for facts in (nearest, values))
            return ", ".join(f"{name} was {old[name]} (here {new[name]})" for name in names)
    return None


def _difference(values: Mapping[str, Any], common: Mapping[str, Any]) -> str:
    keys = [key for key in values if key != "nodes" and values[key] != common.get(key)]
    return ", ".join(f"{k}={_short(values[k])} (most: {_short(common.get(k))})" for k in keys)


def _names(nodes: Sequence[str]) -> str:
    more = len(nodes) - SHOWN_NODES
    return ", ".join(nodes[:SHOWN_NODES]) + (f" and {more} more" if more > 0 else "")


def _short(value: object) -> str:
    text = str(value)
    return text if len(text) <= SHOWN_CHARACTERS else f"{text[:SHOWN_CHARACTERS]}..."


def _processor() -> str:
    """Return the processor's name, with family and model if the name is no model's."""
    try:
        text = Path("/proc/cpuinfo").read_text(encoding="utf-8")
    except OSError:
        return platform.processor() or platform.machine()
    first = text.split("\n\n", 1)[0]
    fields: dict[str, str] = dict(re.findall(r"^([^\t:]+)\s*: (.*)$", first, flags=re.MULTILINE))
    name = fields.get("model name", platform.machine())
    return name + "".join(
        f", {key} {fields[key]}" for key in ("cpu family", "model") if key in fields
    )
