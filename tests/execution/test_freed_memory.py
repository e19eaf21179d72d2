"""Freed memory: counted in pages that the system has to give again."""

from __future__ import annotations

import ctypes
import os
import subprocess
import sys

import pytest

STEPS = """
import resource, sys
import torch
from raysim.execution.process import keep_freed_memory
if sys.argv[1] == "keep":
    keep_freed_memory()
def step():
    return [torch.ones(4_000_000) for _ in range(4)] and None
for _ in range(3):
    step()
before = resource.getrusage(resource.RUSAGE_SELF).ru_minflt
for _ in range(10):
    step()
print((resource.getrusage(resource.RUSAGE_SELF).ru_minflt - before) / 10)
"""


def pages_a_step(how: str) -> float:
    """Count; left to itself, glibc gives large blocks back or not by what it happened to do."""
    command = [sys.executable, "-c", STEPS, how]
    gives_back = os.environ | {"MALLOC_MMAP_THRESHOLD_": "131072"}  # glibc's own at first
    done = subprocess.run(command, check=True, capture_output=True, text=True, env=gives_back)
    return float(done.stdout)


@pytest.mark.skipif(
    not hasattr(ctypes.CDLL(None), "mallopt"), reason="the C library is not glibc: nothing is set"
)
def test_kept_memory_is_not_asked_for_again():
    assert pages_a_step("give back") > 1000
    assert pages_a_step("keep") < 10
