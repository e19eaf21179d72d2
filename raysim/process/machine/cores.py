"""Number of the machine's cores that this process may use."""

from __future__ import annotations

import os
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path, PurePosixPath

CGROUPS = Path("/sys/fs/cgroup")
"""Folder of the system's control groups."""
MEMBERSHIP = Path("/proc/self/cgroup")
"""File that names the groups of this process: NUMBER:CONTROLLERS:PATH on each line."""
SLURM = ("SLURM_CPUS_PER_TASK", "SLURM_CPUS_ON_NODE")
"""Environment variables of Slurm for the cores of a task; the first that is set holds."""


def usable_cores() -> int:
    """Return the cores of this process: by its affinity, the quotas of its groups, and Slurm."""
    limits = [os.cpu_count() or 1, *_quotas()]
    if hasattr(os, "sched_getaffinity"):  # not on macOS
        limits.append(len(os.sched_getaffinity(0)))
    texts = (os.environ.get(name, "") for name in SLURM)
    limits += [int(text) for text in texts if text.isdecimal()][:1]
    return max(int(min(limits)), 1)


def _quotas() -> Iterator[float]:
    """Yield the quotas, in cores, of this process's control groups, of both versions."""
    with suppress(OSError, ValueError):
        for line in MEMBERSHIP.read_text("utf-8").splitlines():
            _, controllers, path = line.split(":", 2)
            if not controllers:
                root, files = CGROUPS, ["cpu.max"]
            elif "cpu" in controllers.split(","):
                root, files = CGROUPS / "cpu", ["cpu.cfs_quota_us", "cpu.cfs_period_us"]
            else:
                continue
            group = PurePosixPath(path.lstrip("/"))
            # A container sees its own group as the root, by whatever path it is named.
            for folder in (group, *group.parents):
                yield from _quota([root / folder / name for name in files])


def _quota(files: list[Path]) -> Iterator[float]:
    """Yield the quota in a group's files, microseconds by period; none for `max` and -1."""
    with suppress(OSError, ValueError):
        quota, period = " ".join(file.read_text("utf-8") for file in files).split()
        if int(quota) > 0 and int(period) > 0:
            yield int(quota) / int(period)
