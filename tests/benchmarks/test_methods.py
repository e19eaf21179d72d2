"""The table of all methods has them all, and settings that a run takes."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

from raysim.core.method import METHODS
from tests.benchmarks.methods import ROWS, settings_of


@pytest.mark.full
def test_every_method_has_a_row_in_a_process_of_its_own():
    command = [sys.executable, "-m", "tests.benchmarks.methods", "--help"]
    said = subprocess.run(command, capture_output=True, text=True, check=True).stdout
    (line,) = [line for line in said.splitlines() if line.lstrip().startswith("[--only {")]
    rows = line.split("{")[1].split("}")[0].split(",")
    assert {*METHODS} - {"chain"} <= {*rows}


def test_rows_have_settings(tmp_path: Path) -> None:
    for row in ROWS:
        assert settings_of(row, 1, 2, tmp_path).rounds == 2
