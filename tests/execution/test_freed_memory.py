"""Freed memory: counted in pages that the system has to give again."""

from __future__ import annotations

import ctypes
import os
import subprocess
import sys

import pytest

STEPS = """
import resource
import torch
from raysim.execution.process import keep_freed_memory

def pages_a_step():
    for _ in range(3):
        step()
    before = resource.getrusage(resource.RUSAGE_SELF).ru_minflt
    for _ in range(10):
        step()
    return (resource.getrusage(resource.RUSAGE_SELF).ru_minflt - before) / 10

def step():
    return [torch.ones(1_000_000) for _ in range(4)] and None

print(pages_a_step())
keep_freed_memory()
print(pages_a_step())
"""


@pytest.mark.full
@pytest.mark.skipif(
    not hasattr(ctypes.CDLL(None), "mallopt"), reason="the C library is not glibc: nothing is set"
)
def test_kept_memory_is_not_asked_for_again():
    command = [sys.executable, "-c", STEPS]
    # Left to itself, glibc gives large blocks back or not by what it happened to do before.
    gives_back = os.environ | {"MALLOC_MMAP_THRESHOLD_": "131072"}  # glibc's own at first
    done = subprocess.run(command, check=True, capture_output=True, text=True, env=gives_back)
    at_first, kept = map(float, done.stdout.split())
    assert at_first > 1000
    assert kept < at_first / 20  # what else the process does in these steps takes some pages
