"""The whole fault drill; `python -m tests.faults` prints its table."""

from __future__ import annotations

import os

import pytest

from tests.faults.drill import FAULTS, Stage, play, schedules, small_disk

SEED = 0


def test_schedules_follow_from_the_seed_and_have_every_fault():
    drawn = list(schedules(SEED, 20))
    assert drawn == list(schedules(SEED, 20)) != list(schedules(SEED + 1, 20))
    assert {fault for schedule in drawn for fault, _ in schedule} == set(FAULTS)
    for schedule in drawn:
        rounds = [number for _, number in schedule]
        assert rounds == sorted(set(rounds)) and min(rounds) > 1


@pytest.mark.full
@pytest.mark.skipif(os.geteuid() != 0, reason="only root may mount the disk that fills up")
@pytest.mark.parametrize("number", range(20))
def test_a_run_ends_with_the_same_bytes_whatever_strikes(tmp_path, number):
    schedule = list(schedules(SEED, 20))[number]
    try:
        with small_disk(tmp_path / "disk") as disk, Stage(tmp_path, disk) as stage:
            assert len(play(stage, schedule)) == len(schedule)
    except PermissionError as error:
        pytest.skip(str(error))
