"""A shell's limit of memory, `ulimit -v`, that torch and Ray do not fit in."""

from __future__ import annotations

import resource
import subprocess
import sys

import pytest

FAILING = """
import os
from raysim.process.machine.memory_limit import within_memory_limit
with within_memory_limit():
    {0}
"""
ADVICE = "type ulimit -v unlimited, then the same command again"


def limited(size: int, *words: str) -> tuple[int, list[str]]:
    """Run Python with a limit; return its exit code, and the lines on stderr."""
    done = subprocess.run(
        [sys.executable, *words],
        preexec_fn=lambda: resource.setrlimit(resource.RLIMIT_AS, (size, size)),
        capture_output=True,
        text=True,
        check=False,
        timeout=120,
    )
    return done.returncode, done.stderr.splitlines()


def test_a_limit_in_which_torch_cannot_be_loaded():
    code, lines = limited(700 * 2**20, "-m", "raysim", "run", "none.toml")
    assert code == 75 and len(lines) == 1, lines
    assert lines[0].startswith("raysim: out of memory: ulimit -v allows a process 700 MiB")
    assert lines[0].endswith(ADVICE)


@pytest.mark.parametrize(
    ("body", "code", "said"),
    [
        ("os.abort()", -6, "raysim: this process was ended; if it was for want of memory: ulimit"),
        ("raise MemoryError", 75, "raysim: out of memory: ulimit -v allows a process"),
        ("raise RuntimeError('std::bad_alloc')", 75, "raysim: out of memory: ulimit -v allows"),
        ("raise RuntimeError('a bug')", 1, "RuntimeError: a bug"),
    ],
)
def test_other_ends_within_a_limit(body, code, said):
    ended, lines = limited(2**40, "-c", FAILING.format(body))
    assert ended == code and lines[-1].startswith(said), lines
    if code not in (1, 75):
        assert lines[-1].endswith(ADVICE)


def test_no_line_where_nothing_happens():
    assert limited(2**40, "-c", FAILING.format("pass")) == (0, [])
    assert limited(resource.RLIM_INFINITY, "-c", FAILING.format("os.abort()")) == (-6, [])
