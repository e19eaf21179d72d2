"""The cores of a process, where the machine has more."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from raysim.process.machine import cores
from raysim.process.machine.cores import usable_cores


@pytest.fixture(autouse=True)
def machine(tmp_path, monkeypatch):
    """A machine of 64 cores, whose control groups are files of the test."""
    monkeypatch.setattr(os, "cpu_count", lambda: 64)
    monkeypatch.setattr(os, "sched_getaffinity", lambda _: set(range(64)))
    monkeypatch.setattr(cores, "CGROUPS", tmp_path / "cgroup")
    monkeypatch.setattr(cores, "MEMBERSHIP", tmp_path / "membership")
    for name in cores.SLURM:
        monkeypatch.delenv(name, raising=False)


def groups(folder: Path, membership: str, **files: str) -> None:
    """Write the process's control groups; `__` in a file's name stands for a folder."""
    (folder / "membership").write_text(membership)
    for name, text in files.items():
        path = folder / "cgroup" / name.replace("__", "/").replace("_max", ".max")
        path = path.with_name(path.name.replace("cpu_cfs", "cpu.cfs"))
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text)


def test_all_without_a_limit():
    assert usable_cores() == 64


@pytest.mark.parametrize(
    ("variables", "expected"),
    [
        ({"SLURM_CPUS_PER_TASK": "4", "SLURM_CPUS_ON_NODE": "8"}, 4),
        ({"SLURM_CPUS_ON_NODE": "8"}, 8),
        ({"SLURM_CPUS_PER_TASK": "128"}, 64),
        ({"SLURM_CPUS_PER_TASK": "", "SLURM_CPUS_ON_NODE": "x"}, 64),
    ],
)
def test_slurm(monkeypatch, variables, expected):
    for name, value in variables.items():
        monkeypatch.setenv(name, value)
    assert usable_cores() == expected


def test_affinity(monkeypatch):
    monkeypatch.setattr(os, "sched_getaffinity", lambda _: {3, 5})
    assert usable_cores() == 2
    monkeypatch.setenv("SLURM_CPUS_PER_TASK", "4")
    assert usable_cores() == 2


@pytest.mark.parametrize(
    ("membership", "files", "expected"),
    [
        ("0::/\n", {"cpu_max": "200000 100000\n"}, 2),
        ("0::/a/b\n", {"a__b__cpu_max": "max 100000\n", "a__cpu_max": "350000 100000\n"}, 3),
        ("0::/not/seen/here\n", {"cpu_max": "50000 100000\n"}, 1),
        ("0::/a\n", {"a__cpu_max": "max 100000\n"}, 64),
        ("0::/a\n", {"a__cpu_max": "broken\n"}, 64),
        (
            "4:memory:/m\n3:cpu,cpuacct:/docker/1\n0::/\n",
            {
                "cpu__docker__1__cpu_cfs_quota_us": "500000\n",
                "cpu__docker__1__cpu_cfs_period_us": "100000\n",
            },
            5,
        ),
        (
            "1:cpu:/\n",
            {"cpu__cpu_cfs_quota_us": "-1\n", "cpu__cpu_cfs_period_us": "100000\n"},
            64,
        ),
    ],
)
def test_quotas_of_control_groups(tmp_path, membership, files, expected):
    groups(tmp_path, membership, **files)
    assert usable_cores() == expected
