"""Bad input of every kind ends in one line and exit code 2, and leaves nothing behind."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from pathlib import Path

import pytest

from tests.inputs import commands, data_files, files, plugins, runs, settings
from tests.inputs.case import Case
from tests.inputs.conftest import Said, damaged

OF_DATA = [*data_files.CASES]
CASES = [*settings.CASES, *files.CASES, *plugins.CASES, *runs.CASES, *commands.CASES, *OF_DATA]
LONGEST = 2_000
"""Most characters of a message."""


def files_in(folder: Path) -> set[Path]:
    return {*folder.rglob("*")}


def check_line(err: str, says: Iterable[str]) -> None:
    """Check that a message is one line that says the parts."""
    assert err.startswith("raysim: ") and err.endswith("\n"), err
    line = err.removesuffix("\n")
    assert line.isprintable() and len(line) <= LONGEST, line
    for part in says:
        assert part in line


@pytest.mark.parametrize("case", CASES, ids=str)
def test_case(
    command: Callable[[Case], Said],
    unfinished: Callable[[Path], None],
    tmp_path: Path,
    kit: Path,
    case: Case,
) -> None:
    damaged(case, unfinished)
    before = files_in(tmp_path) | files_in(kit)
    code, _, err = command(case)
    assert code == case.code, err
    if code == 0:
        assert err == ""
        return
    check_line(err, [part.replace("KIT", str(kit)) for part in case.says])
    left = (files_in(tmp_path) | files_in(kit)) - before
    allowed = {tmp_path / "data"}  # a plugin's own files, and the prepared data
    if case.words[-1] == "out=run" and not case.run:
        allowed.add(tmp_path / "work/run")  # its first round failed
    left = {path for path in left if not allowed & {path, *path.parents}}
    by_imports = ("torchinductor", "__pycache__")
    assert not {path for path in left if not any(name in str(path) for name in by_imports)}


@pytest.mark.parametrize("case", runs.STRAY_CASES, ids=str)
def test_stray_file(
    command: Callable[[Case], Said], unfinished: Callable[[Path], None], case: Case
) -> None:
    """A run with a file that is none of its own goes on, or says what stands in its way."""
    damaged(case, unfinished)
    code, out, err = command(case)
    if code == 0:
        assert err == "" and "after 3 rounds" in out
    else:
        assert code == 2
        check_line(err, ["run/"])
