"""Medians, ratios and the machine, in Markdown."""

from __future__ import annotations

import os
import platform
import statistics
from collections.abc import Mapping, Sequence
from datetime import date
from pathlib import Path

import torch

Seconds = Mapping[str, Sequence[float]]
"""Per system, the seconds of its rounds in the order of the sweeps."""


def ratio(seconds: Sequence[float], base: Sequence[float]) -> float:
    """Return the median, over sweeps, of a system's seconds over the base's."""
    return statistics.median(a / b for a, b in zip(seconds, base, strict=True))


def cell(name: str, base: str, repeats: Sequence[Seconds]) -> str:
    """Return "seconds (ratio)"; the ratio is the repeats' median, with least and greatest.

    "-" is a system that was not to run, "failed" one that finished no repeat; one that finished
    some says how many.
    """
    finished = [repeat for repeat in repeats if repeat.get(name)]
    if not finished:
        return "failed" if any(name in repeat for repeat in repeats) else "-"
    text = f"{statistics.median(s for repeat in finished for s in repeat[name]):.3g}"
    found = [ratio(each[name], each[base]) for each in finished if each.get(base)]
    if found and name != base:
        spread = f", {min(found):.2f} to {max(found):.2f}" if len(found) > 1 else ""
        text += f" ({statistics.median(found):.2f}{spread})"
    return text if len(finished) == len(repeats) else f"{text}; {len(finished)} of {len(repeats)}"


def line(cells: Sequence[object]) -> str:
    """Return a line of a table."""
    return f"| {' | '.join(map(str, cells))} |"


def heading(*names: str) -> str:
    """Return the first lines of a table."""
    return f"{line(names)}\n{line(['---'] * len(names))}"


def machine() -> str:
    """Return date, processor, cores, memory, load and the versions of this environment."""
    memory = os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES") / 2**30
    parts = [
        f"{date.today()}",
        f"{processor()}, {os.cpu_count()} cores, {memory:.0f} GiB",
        *gpus(),
        f"{platform.system()} {platform.release()}",
        f"load {os.getloadavg()[0]:.1f} before",
        f"Python {platform.python_version()}, torch {torch.__version__}",
    ]
    return "; ".join(parts)


def gpus() -> list[str]:
    """Return a line with the names of the GPUs, or why torch cannot use them; none without GPUs.

    torch counts them also where it cannot: the driver is too old for its CUDA, say.
    """
    count = torch.cuda.device_count()
    try:
        names = [torch.cuda.get_device_name(number) for number in range(count)]
    except RuntimeError as error:
        return [f"{count} GPU{'s' * (count > 1)}, not used: {' '.join(str(error).split())}"]
    return [", ".join(names)] if names else []


def processor() -> str:
    """Return the processor's name, as far as the system tells it."""
    information = Path("/proc/cpuinfo")
    lines = information.read_text().splitlines() if information.exists() else []
    names = [text.partition(":")[2].strip() for text in lines if text.startswith("model name")]
    return names[0] if names else platform.processor() or platform.machine()
