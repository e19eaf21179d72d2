"""A tuner with stacked trials, killed at any write: the same trials and values."""

from __future__ import annotations

from contextlib import nullcontext

import pytest

from raysim.tuning.studies.samplers import SearchOptions
from tests.tuning.common import make_search, make_tuner, values
from tests.tuning.copies import Copies
from tests.tuning.test_killed import PRUNERS

LR = {"low": 1e-3, "high": 0.5, "log": True}
RATES = [0.01, 0.05, 0.2, 3e38]
"""With the last one a trial diverges."""
TRIALS, STACK = 6, 3
TPE = {"sampler": "tpe", "sampler_options": {"n_startup_trials": 1}}
STUDIES = {
    "halving": {"pruner": "successive-halving", **TPE},
    "median": {"pruner": "median", "sampler": "random"},
    "hyperband": {"pruner": "hyperband", **TPE},
    "diverging": {"pruner": "none", **TPE},
    "seeds": {"pruner": "none", "seeds": 2, **TPE},
    "two objectives": {"pruner": "none", "objectives": ("accuracy", "bytes"), **TPE},
}
FIRST = {
    "diverging": [{"local.lr": 0.05}, {"local.lr": 3e38}],
    "two objectives": [{"local.lr": 0.002}],  # the others of its turn are better
}


def started(folder, name):
    given = STUDIES[name]
    pruning = PRUNERS.get(given["pruner"], {})
    options = SearchOptions(stack=STACK, pruner_options=pruning, **given)
    space = {"local.lr": RATES if name == "diverging" else LR}
    settings = {"rounds": 4, "checkpoint_every": 2, "fraction": 0.05}
    table = {"space": space, "first": FIRST.get(name, [])}
    search = make_search(folder, options, table=table, **settings)
    return search, make_tuner(search, folder)


def run(folder, name, copies=None):
    """Run a study, or resume it; return its trials, with their places and turns, and its notes."""
    folder.mkdir(exist_ok=True)
    search, tuner = started(folder, name)
    with copies.before_writes(search) if copies else nullcontext():
        tuner.run(TRIALS, 1)
    begun = [trial.user_attrs.get("begun") for trial in search.study.get_trials()]
    found = values(search), begun
    search.close()
    assert tuner.listener.notes == []
    return found


@pytest.fixture
def folder(tmp_path, local_slots):
    local_slots._key = str
    return tmp_path / "study"


@pytest.mark.parametrize(
    ("name", "every"),
    [("halving", 17), *(pytest.param(name, 1, marks=pytest.mark.full) for name in STUDIES)],
)
def test_killed_at_a_write_to_the_storage(name, every, folder):
    copies = Copies(folder, every)
    expected = run(folder, name, copies)
    states = {trial[2] for trial in expected[0]}
    assert ("PRUNED" in states) == (STUDIES[name]["pruner"] != "none")
    assert ("FAIL" in states) == (name == "diverging")
    for write in copies:
        assert run(folder, name) == expected, write


def test_killed_after_the_first_end_of_a_turn(folder):
    """The next trial is not drawn before the others of the turn have ended."""
    copies = Copies(folder)
    expected = run(folder, "two objectives", copies)
    changes = [
        place for place, write in enumerate(copies.seen) if write == "set_trial_state_values"
    ]
    copies.put_back(changes[len(FIRST["two objectives"])] + 1)  # a first trial was waiting
    assert run(folder, "two objectives") == expected


@pytest.mark.parametrize("every", [23, pytest.param(1, marks=pytest.mark.full)])
def test_killed_at_a_file_of_one_of_the_trials(every, folder):
    """Some members have committed the round, one has half of its files, others have none."""
    copies = Copies(folder, every)
    with copies.before_files():
        expected = run(folder, "halving")
    assert len(copies.seen) > 2 * 23
    for write in copies:
        assert run(folder, "halving") == expected, write
