"""The matrix of damaged files: what it takes for a failure, and a part of it."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

from tests.faults.damages import DAMAGES, NotApplicableError
from tests.faults.forked import Ended
from tests.faults.matrix import FAILED, NONE, ONE_LINE, SAME, Strike

ROOT = Path(__file__).parents[2]
QUICK = "fedavg: metrics.parquet$"


class Stub:
    """An interrupted run of one file, whose resuming ends as a test says.

    A resume goes on where the file is whole or gone, and otherwise says a line, if it has one.
    """

    name = "stub"

    def __init__(self, folder: Path, line: str | None) -> None:
        self.path, self._line = folder / "run", line
        self.path.mkdir()
        (self.path / "values.json").write_text('{"value": 1}')

    def resume(self, path: Path) -> Ended:
        gone = not (path / "values.json").exists()
        if gone or self._line is None or self.difference(path) is None:
            return Ended(0, "", "")
        return Ended(2, "", self._line.format(path=path))

    def start(self, path: Path) -> Ended:
        return Ended(2, "", "raysim: no")

    def difference(self, path: Path) -> str | None:
        file = path / "values.json"
        return None if file.is_file() and file.read_text() == '{"value": 1}' else "another value"


@pytest.mark.parametrize(
    ("line", "outcome", "words"),
    [
        (None, FAILED, "silent: another value"),
        ("raysim: RUN: is damaged", FAILED, "says not what to do"),
        ("raysim: damaged\nraysim: restore it", FAILED, "2 lines"),
        ("note: restore it", FAILED, "1 lines"),
        ("Traceback (most recent call last):\nOSError", FAILED, "traceback: OSError"),
        ("raysim: {path}: is damaged; delete it", FAILED, "not true (delete: another value)"),
        (
            "raysim: use another `out`",
            FAILED,
            "not true (another `out`: exit code 2",
        ),
        ("raysim: {path}: is damaged; restore it", ONE_LINE, "RUN: is damaged"),
    ],
)
def test_what_fails(tmp_path, line, outcome, words):
    strike = Strike(Stub(tmp_path, line), Path("values.json"), "emptied", tmp_path)
    verdict = strike.verdict()
    assert verdict.outcome == outcome and words in verdict.words
    assert [path.name for path in tmp_path.iterdir()] == ["run"]


def test_a_damage_that_does_no_harm_is_no_failure(tmp_path):
    stub = Stub(tmp_path, None)
    (stub.path / "other.txt").write_text("read by nobody")
    outcomes = [Strike(stub, Path("other.txt"), name, tmp_path).verdict() for name in DAMAGES]
    assert {verdict.outcome for verdict in outcomes} == {SAME, NONE}


@pytest.mark.parametrize("name", DAMAGES)
def test_every_damage_changes_a_file(tmp_path, name):
    file = tmp_path / "values.json"
    file.write_text('{"schema": 1, "value": 1}')
    before = file.read_bytes()
    DAMAGES[name](file)
    assert not file.is_file() or file.read_bytes() != before


def test_damages_of_folders(tmp_path):
    for name in ("emptied", "deleted", "garbage", "dangling link"):
        folder = tmp_path / name
        folder.mkdir()
        (folder / "file").touch()
        DAMAGES[name](folder)
        assert not (folder / "file").exists()
    (tmp_path / "folder").mkdir()
    for name in ("truncated", "flipped early", "folder", "huge", "newer version"):
        with pytest.raises(NotApplicableError):
            DAMAGES[name](tmp_path / "folder")


def matrix(*words: str) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, "-m", "tests.faults", "--matrix", *words]
    return subprocess.run(command, cwd=ROOT, check=False, capture_output=True, text=True)


@pytest.mark.full
def test_a_part_of_the_matrix():
    done = matrix("--only", QUICK)
    assert done.returncode == 0, done.stdout + done.stderr


@pytest.mark.full
def test_the_whole_matrix():
    done = matrix()
    assert done.returncode == 0, done.stdout + done.stderr
