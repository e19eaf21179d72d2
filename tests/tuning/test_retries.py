"""Failed trials that are tried again."""

from __future__ import annotations

import pytest

from raysim.tuning.slots.report import Report
from raysim.tuning.studies.samplers import SearchOptions
from tests.tuning.common import make_search, make_tuner, values

RANDOM = SearchOptions("random")
FIRST = {"first": [{"local.lr": 0.01 * (1 + number)} for number in range(3)]}


def study(tmp_path, table=None):
    search = make_search(tmp_path, RANDOM, table=table, rounds=1)
    return search, make_tuner(search, tmp_path)


def failing(*numbers):
    return lambda number: Report(error="it fails") if number in numbers else None


def retries(search):
    return {t.number: t.user_attrs.get("retry_of") for t in search.study.get_trials()}


def test_each_failed_trial_is_tried_again_once(tmp_path, local_slots):
    local_slots.fault = failing(0, 2)
    search, tuner = study(tmp_path)
    tuner.run(3, 1, retry_failed=True)  # none has failed yet
    assert local_slots.started == [0, 1, 2]
    local_slots.fault = failing(3)
    tuner.run(3, 1, retry_failed=True)
    assert retries(search) == {0: None, 1: None, 2: None, 3: 0, 4: 2}
    found = values(search)
    assert [trial[2] for trial in found] == ["FAIL", "COMPLETE", "FAIL", "FAIL", "COMPLETE"]
    assert [found[3][1], found[4][1]] == [found[0][1], found[2][1]]
    tuner.run(3, 1)
    assert len(values(search)) == 5
    local_slots.fault = failing()
    tuner.run(4, 1, retry_failed=True)  # a retry that failed is tried again, and a trial is added
    assert retries(search) == {0: None, 1: None, 2: None, 3: 0, 4: 2, 5: 3, 6: None}
    tuner.run(4, 1, retry_failed=True)
    assert len(values(search)) == 7


def test_first_trials_that_have_not_begun_are_not_left_out(tmp_path, local_slots):
    local_slots.fault = failing(0)
    search, tuner = study(tmp_path, FIRST)
    tuner.run(1, 1)
    tuner.run(3, 1, retry_failed=True)
    assert [trial[1]["local.lr"] for trial in values(search)] == [0.01, 0.01, 0.02, 0.03]


def test_a_tuner_killed_while_it_enqueues_enqueues_none_twice(tmp_path, local_slots, monkeypatch):
    local_slots.fault = failing(0, 1)
    search, tuner = study(tmp_path)
    tuner.run(2, 1)
    enqueue = search.study.enqueue_trial

    def dying(params, user_attrs):
        enqueue(params, user_attrs)
        raise KeyboardInterrupt

    with monkeypatch.context() as change, pytest.raises(KeyboardInterrupt):
        change.setattr(search.study, "enqueue_trial", dying)
        tuner.run(2, 1, retry_failed=True)
    local_slots.fault = failing()
    search, tuner = study(tmp_path)
    tuner.run(2, 1, retry_failed=True)
    assert retries(search) == {0: None, 1: None, 2: 0, 3: 1}
    assert [trial[2] for trial in values(search)] == ["FAIL"] * 2 + ["COMPLETE"] * 2
