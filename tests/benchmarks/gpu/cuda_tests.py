"""The tests that need a CUDA device, by pytest in a process of its own.

Warnings are no errors here, as they are on a CPU: what a driver or a new GPU warns of says nothing
of raysim, and a test that it ended would leave open what the test is about. The log has them.
"""

from __future__ import annotations

import re
import subprocess
import sys
from collections.abc import Iterable, Sequence
from pathlib import Path

from tests.benchmarks.gpu.results import Emit, Row
from tests.benchmarks.runner import ROOT

MARK = "mark.cuda"
OUTCOME = re.compile(r"^(tests/\S+::.*?) (PASSED|FAILED|SKIPPED|ERROR|XFAIL|XPASS)\b")


def run(emit: Emit, chosen: str, log: Path, names: Sequence[str] = ()) -> None:
    """Run tests.

    Args:
        emit: Takes the rows, one for each test that has ended.
        chosen: pytest's expression of marks, such as "cuda and not full".
        log: File of pytest's own output.
        names: Parts of the names of tests, of which each has one; all tests by default.
    """
    options = ["-v", "-W", "default", "-p", "no:cacheprovider", "--tb=short", "-m", chosen]
    options += ["-k", " or ".join(names)] if names else []
    command = [sys.executable, "-m", "pytest", "-o", "addopts=--strict-markers", *options]
    rows: list[Row] = []
    with (
        log.open("w") as copy,
        subprocess.Popen(
            [*command, *files()],
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
            cwd=ROOT,
        ) as process,
    ):
        assert process.stdout
        for line in process.stdout:
            copy.write(line)
            copy.flush()
            found = outcomes([line])
            rows += [{"test": test, "outcome": outcome.lower()} for test, outcome in found]
            emit(rows)
    if process.returncode not in (0, 1):
        raise RuntimeError(f"pytest ended with code {process.returncode}; see {log}")


def files() -> list[str]:
    """Return the files of tests with such a mark."""
    paths = sorted((ROOT / "tests").rglob("test_*.py"))
    return [str(path.relative_to(ROOT)) for path in paths if MARK in path.read_text()]


def outcomes(lines: Iterable[str]) -> list[tuple[str, str]]:
    """Return test and outcome of pytest's lines that tell one."""
    return [(found[1], found[2]) for line in lines if (found := OUTCOME.match(line))]
