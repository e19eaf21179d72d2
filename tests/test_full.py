"""`python -m tests.full`: every test in one part, all parts run, and failures are told."""

from __future__ import annotations

import os
import re
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parent.parent
TOY = """
import os, pytest

@pytest.mark.full
@pytest.mark.parametrize("number", range(15))
def test_number(number):
    with open("seen", "a") as file:
        file.write(f"{number}\\n")
    if number == 14:
        os._exit(3)
    assert number != 1
    if number == 2:
        pytest.skip("two")

def test_quick():
    raise AssertionError("not for the full part")
"""
INI = """
[pytest]
addopts = -q -m 'not full'
markers = full: the whole matrix
"""


@pytest.fixture
def toy(tmp_path: Path) -> Path:
    (tmp_path / "test_toy.py").write_text(TOY)
    (tmp_path / "pytest.ini").write_text(INI)
    return tmp_path


def full(folder: Path, *words: str) -> tuple[int, list[str]]:
    code = f"import sys; sys.path.append({str(ROOT)!r}); from tests import full; full.PARTS = 4"
    command = [sys.executable, "-c", f"{code}; sys.exit(full.main())", *words, "."]
    quick = {**os.environ, "PYTEST_DISABLE_PLUGIN_AUTOLOAD": "1"}
    done = subprocess.run(
        command, check=False, cwd=folder, env=quick, capture_output=True, text=True
    )
    return done.returncode, re.sub(r" in \d+ s", "", done.stdout).splitlines()


def seen(folder: Path) -> list[int]:
    return [int(line) for line in (folder / "seen").read_text().split()]


@pytest.mark.full
def test_all_parts_run_whatever_became_of_the_one_before(toy):
    code, lines = full(toy)
    assert code == 1 and sorted(seen(toy)) == list(range(15))
    assert lines[-5:] == [
        "part 1/4: 4 passed",
        "part 2/4: 1 failed, 3 passed",
        "part 3/4: 1 error",  # 2 was skipped, 6 and 10 passed, and 14 ended the process
        "part 4/4: 3 passed",
        "of 15 tests: 1 error, 1 failed, 10 passed",
    ]


def test_one_part_alone(toy):
    code, lines = full(toy, "--part", "3/5")
    assert code == 0 and sorted(seen(toy)) == [2, 7, 12]
    assert lines[-2:] == ["part 3/5: 2 passed, 1 skipped", "of 15 tests: 2 passed, 1 skipped"]


@pytest.mark.parametrize("part", ["0/5", "6/5", "five"])
def test_parts_that_are_not_there(toy, part):
    assert full(toy, "--part", part)[0] == 2 and not (toy / "seen").exists()
