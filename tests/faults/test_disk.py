"""Disks that are full or read-only: one line, nothing committed is lost, and the run goes on."""

from __future__ import annotations

import pyarrow.parquet as pq
import pytest

import raysim
from raysim.process import exits
from tests.faults.disks import empty, fill, small_disk
from tests.faults.drill import SETTINGS, SIZES
from tests.faults.processes import Run
from tests.faults.strikes import open_disk, seal_disk
from tests.tasks import long_settings, make_task, model_of


class Disk:
    """A stage without a cluster: the run trains in its own process."""

    def __init__(self, disk) -> None:
        self.disk, self.evidence = disk, []

    def run(self, moments=()) -> Run:
        return Run(self.disk / "run", SIZES, moments, **SETTINGS, **{"engine.backend": "inline"})


@pytest.fixture
def stage(tmp_path):
    try:
        with small_disk(tmp_path / "disk") as disk:
            yield Disk(disk)
    except PermissionError as error:
        pytest.skip(str(error))


@pytest.fixture
def undisturbed(tmp_path):
    raysim.run(long_settings(tmp_path / "inline", **SETTINGS), make_task(SIZES))
    return model_of(tmp_path / "inline")


def rounds_of(stage) -> list[int]:
    return pq.read_table(stage.disk / "run/metrics.parquet")["round"].to_pylist()


@pytest.mark.full
def test_a_full_disk_is_told_in_one_line_and_the_run_goes_on(stage, undisturbed):
    with stage.run(["4.mid"]) as run:
        run.until("4.mid")
        fill(stage.disk)
        run.go()
        code, words = run.end()
        assert code == exits.FAULT and run.errors() == words + "\n"
    assert "cannot be written: " in words and "No space left on device" in words
    assert words.endswith(f"then call: raysim.resume({str(stage.disk / 'run')!r}, task)")
    before = rounds_of(stage)
    assert before[:2] == [1, 2]  # as of the checkpoint
    empty(stage.disk)
    with stage.run() as run:
        assert run.end() == (0, "")
        assert run.rounds == [3, 4, 5]
    assert rounds_of(stage) == [1, 2, 3, 4, 5]
    assert model_of(stage.disk / "run") == undisturbed


@pytest.mark.full
def test_a_read_only_disk_is_told_in_one_line_and_the_run_goes_on(stage, undisturbed):
    with stage.run(["3.mid"]) as run:
        run.until("3.mid")
        seal_disk(stage, run)
    open_disk(stage)
    with stage.run() as run:
        assert run.end() == (0, "")
    assert model_of(stage.disk / "run") == undisturbed
