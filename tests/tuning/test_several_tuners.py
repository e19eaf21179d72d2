"""Several tuners on one study in a database server."""

from __future__ import annotations

import os
import subprocess
import sys
from contextlib import ExitStack
from functools import partial

import pytest

import raysim
from raysim.storage.lock import lock_folder
from tests.tuning.common import LocalSlots, make_search, make_tuner, values
from tests.tuning.faults import RANDOM
from tests.tuning.test_faults import PATIENCE, ROOT, check, done, wait_until

ROUNDS = {"rounds": 2}
WAITING = {
    "method.name": "tests.tuning.waiting:Waiting",
    "rounds": 12,
    "fraction": 0.05,
    "evaluation.every": 2,
}


@pytest.fixture
def another(postgresql, tmp_path):
    """Return a further tuner of the test's study, with its search."""
    url = postgresql.new_database(tmp_path.name)
    searches = []

    def make():
        search = make_search(tmp_path, RANDOM, url, **ROUNDS)
        searches.append(search)
        return search, make_tuner(search, tmp_path)

    yield make
    for search in searches:
        search.close()


@pytest.fixture
def straight(tmp_path, monkeypatch):
    """The values of the study with one tuner on a file."""
    monkeypatch.setattr("raysim.tuning.tuner.open_slots", LocalSlots().open)
    folder = tmp_path / "straight"
    folder.mkdir()
    search = make_search(folder, RANDOM, **ROUNDS)
    make_tuner(search, folder).run(4, None)
    return values(search)


def test_a_tuner_that_joins_runs_what_others_have_not_begun(
    another, straight, tmp_path, monkeypatch
):
    first, second = LocalSlots(), LocalSlots()

    def join(number):
        if number == 1:
            monkeypatch.setattr("raysim.tuning.tuner.open_slots", second.open)
            another()[1].run(4, None)

    first.fault = join
    monkeypatch.setattr("raysim.tuning.tuner.open_slots", first.open)
    search, tuner = another()
    result = tuner.run(4, None)
    assert (first.started, second.started) == ([0, 1], [2, 3])
    assert values(search) == straight
    assert result.best == [max(search.study.get_trials(), key=lambda trial: trial.value)]
    assert not [*(tmp_path / "out" / "tuners").iterdir()]


def test_a_trial_of_a_tuner_that_has_died_is_taken_over(another, straight, tmp_path, monkeypatch):
    dead, its_tuner = another()
    slots, life = LocalSlots(), ExitStack()
    its_folder = tmp_path / "out" / "tuners" / dead.tuner
    life.enter_context(lock_folder(its_folder, ""))  # and does not remove it
    its_tuner.folder.match(dead.study)
    dead.claim()
    dead.ask()
    slots.fault = lambda number: life.close() if number == 2 else None
    monkeypatch.setattr("raysim.tuning.tuner.open_slots", slots.open)
    search, tuner = another()
    tuner.run(4, None)
    assert slots.started == [1, 2, 0, 3]
    assert values(search) == straight and not its_folder.exists()


def test_no_tuner_draws_while_another_does(another, monkeypatch):
    monkeypatch.setattr("raysim.tuning.folder.PATIENCE", 0.1)
    tuner, (search, other) = another()[1], another()
    with tuner.folder.alone(), pytest.raises(raysim.RunError, match=r"drawing a trial, for 0\.1 s"):
        other.run(1, None)
    assert not search.study.get_trials()


@pytest.mark.full
def test_three_tuners_of_which_one_is_killed(postgresql, tmp_path, shared_ray, local_slots):
    import ray

    url, trials = postgresql.new_database("killed"), 32
    slots = {"engine.gpus_per_actor": 0.5, "method.seconds": 0.5}
    words = [f"{key}={value}" for key, value in (WAITING | slots).items()]
    command = [sys.executable, "-m", "tests.tuning.faults", str(tmp_path), str(trials)]
    environment = os.environ | {"RAY_ADDRESS": ray.get_runtime_context().gcs_address}
    start = partial(
        subprocess.Popen, [*command, f"--storage={url}", *words], cwd=ROOT, env=environment
    )
    first = start()
    wait_until(lambda: done(tmp_path) >= 2, first)  # it has all slots
    others = [start(), start()]
    wait_until(lambda: len([*tmp_path.glob("out/tuners/*")]) == 3, first)
    first.kill()
    assert first.wait() == -9
    for tuner in others:
        assert tuner.wait(PATIENCE) == 0
    search = make_search(tmp_path, RANDOM, url, **WAITING | slots)
    check(search, tmp_path, trials)
    tuners = {trial.user_attrs["tuner"] for trial in search.study.get_trials()}
    assert len(tuners) > 1  # the last one's slots may start when nothing is left
    (tmp_path / "straight").mkdir()
    alone = make_search(tmp_path / "straight", RANDOM, **WAITING | {"method.seconds": 0.0})
    make_tuner(alone, tmp_path / "straight").run(trials, 1)
    assert values(search) == values(alone)
    search.close()
