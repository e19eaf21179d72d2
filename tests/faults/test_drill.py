"""The whole fault drill; `python -m tests.faults` prints its table."""

from __future__ import annotations

import os
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace

import pytest

from tests.faults.disks import small_disk
from tests.faults.drill import Play, Stage
from tests.faults.strikes import FAULTS, schedules
from tests.faults.sweep_drill import FAULTS as SWEEP_FAULTS
from tests.faults.sweep_drill import SweepStage

SEED = 0
root = pytest.mark.skipif(os.geteuid() != 0, reason="only root may mount the disk that fills up")


@pytest.fixture
def stage(tmp_path):
    try:
        with small_disk(tmp_path / "disk") as disk, Stage(tmp_path, disk) as found:
            yield found
    except PermissionError as error:
        pytest.skip(str(error))


def test_schedules_follow_from_the_seed_and_have_every_fault():
    drawn = list(schedules(SEED, 20))
    assert [[(f.title, n) for f, n in s] for s in drawn] == [
        [(f.title, n) for f, n in s] for s in schedules(SEED, 20)
    ]
    assert drawn != list(schedules(SEED + 1, 20))
    assert {fault for schedule in drawn for fault, _ in schedule} == set(FAULTS)
    for schedule in drawn:
        rounds = [number for _, number in schedule]
        assert rounds == sorted(set(rounds)) and min(rounds) > 1


class Unharmed:
    """A run that nothing harms: it reaches every moment, and ends well."""

    folder, held, events, notes, rounds = Path("nowhere"), None, [], [], []

    def reaches(self, moment):
        return moment is not None

    until = go = close = lambda self, *_: None
    end = lambda self: (0, "")  # noqa: E731
    process = SimpleNamespace(wait=lambda: 0, poll=lambda: 0)


class BareStage(Stage):
    """A stage without a cluster, whose runs nothing harms."""

    def start_cluster(self):
        pass

    def run(self, moments=()):
        return Unharmed()


@pytest.mark.parametrize("fault", (*FAULTS, *SWEEP_FAULTS), ids=lambda fault: fault.title)
def test_a_fault_that_misses_is_noticed(tmp_path, fault):
    missing = replace(fault, strike=lambda stage, run: None, mend=lambda stage: None)
    with pytest.raises(AssertionError, match=fault.title):
        Play(BareStage(tmp_path, tmp_path), [(missing, 2)]).through()


@pytest.mark.full
@root
@pytest.mark.parametrize("number", range(20))
def test_a_run_ends_with_the_same_bytes_whatever_strikes(stage, number):
    schedule = list(schedules(SEED, 20))[number]
    assert len(Play(stage, schedule).through()) == len(schedule)


@pytest.mark.full
@root
@pytest.mark.parametrize("fault", SWEEP_FAULTS, ids=lambda fault: fault.title)
def test_a_sweep_ends_with_the_same_cells_whatever_strikes(tmp_path, fault):
    with small_disk(tmp_path / "disk") as disk, SweepStage(tmp_path, disk) as stage:
        assert len(Play(stage, [(fault, 1)]).through()) == 1


@pytest.mark.full
@root
def test_a_kill_that_misses_a_real_run_is_noticed(stage):
    missing = replace(FAULTS[0], strike=lambda stage, run: None)
    with pytest.raises(AssertionError, match="actor killed: had no effect"):
        Play(stage, [(missing, 2)]).through()
