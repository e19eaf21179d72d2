"""Searches of a sweep without their runs: which trials they draw, on what, and what is refused."""

from __future__ import annotations

import json

import pytest

import raysim
from raysim.tuning.search.record import record_of
from raysim.tuning.search.search import Search
from raysim.tuning.search.storage import default_storage
from raysim.tuning.tables.plan import make_plan
from raysim.tuning.tables.searches import budget, read_tune, to_search
from raysim.workloads.sweeps import read_sweep
from tests.tuning.common import PRESET

METHODS = {"method.name": ["fedavg", "fedprox"]}
LR = {"local.lr": {"low": 1e-3, "high": 1, "log": True}}
MU = {"method.mu": [0.0, 0.1]}


@pytest.fixture
def searched(tmp_path, monkeypatch):
    """Return `[tune]` and the searches of a sweep of blobs, by the keys of `[tune]`."""
    monkeypatch.chdir(tmp_path)
    (tmp_path / "blobs.json").write_text(json.dumps(PRESET))

    def of(axes=METHODS, settings=None, **tune):
        table = read_sweep("blobs.json", settings, axes, tune=tune)
        tune = read_tune(table.tune)
        return tune, to_search(make_plan(table), tune)

    return of


def drawn(searched, folder):
    """Return the values of all trials of each search, by its title."""
    tune, searches = searched
    found = {}
    for number, each in enumerate(searches):
        place = folder / str(number)
        place.mkdir(parents=True)
        search = Search("tuning", default_storage(place), each.options, each.study)
        found[each.title] = [search.ask().params for _ in range(tune.trials)]
        search.close()
    return found


REAL_MU = {"method.mu": {"low": 0.01, "high": 1, "log": True}}
OTHERS = {
    "method.lam": {"low": 0.01, "high": 1, "log": True},
    "method.reduction": ["sum", "mean"],
}
SCRAMBLED = {"name": "qmc", "scramble": True}


@pytest.mark.parametrize("sampler", ["qmc", SCRAMBLED, SCRAMBLED | {"qmc_type": "halton"}])
@pytest.mark.parametrize("space", [LR | REAL_MU | OTHERS, OTHERS | REAL_MU | LR])
def test_all_rows_have_the_same_points_in_whatever_order_ranges_are_given(
    searched, tmp_path, space, sampler
):
    """In the ranges that they share, whatever lies between these."""
    axes = {"method.name": ["fedmmd", "fedprox", "fedavg", "two_stream_l2"]}
    found = drawn(searched(axes, space=space, sampler=sampler, trials=6), tmp_path / "searches")
    points = {
        key: [[t[key] for t in trials[1:]] for trials in found.values() if key in trials[1]]
        for key in space
    }
    assert [len(points[key]) for key in (*LR, *REAL_MU, *OTHERS)] == [4, 1, 2, 2]
    for of_rows in points.values():
        assert all(row == of_rows[0] for row in of_rows)
    assert len({*points["local.lr"][0]}) == 5


@pytest.mark.parametrize("sampler", ["qmc", SCRAMBLED, "random"])
def test_rows_that_are_added_change_no_search(searched, tmp_path, sampler):
    """Nor does the order of rows and ranges: a search has one record, and the same points."""
    records, points = [], []
    for rows in (["fedprox"], ["fedprox", "fedavg"], ["fedavg", "fedprox"]):
        for space in (LR | REAL_MU, REAL_MU | LR):
            found = searched({"method.name": rows}, space=space, sampler=sampler, trials=5)
            each = next(each for each in found[1] if each.title == "fedprox")
            records.append(record_of(each.study, each.options))
            points.append(drawn(found, tmp_path / str(len(points)))["fedprox"])
    assert all(each == records[0] for each in records)
    assert all(each == points[0] for each in points)


def test_the_record_of_a_search_has_the_ranges_that_its_row_lacks(searched):
    """Where they lie before its own; else it is that of a study without them."""

    def records(rows, space):
        found = searched({"method.name": rows}, space=space)[1]
        return {each.title: record_of(each.study, each.options) for each in found}

    before = records(["fedavg", "fedprox"], LR | REAL_MU)
    after = records(["fedavg", "fedprox", "two_stream_l2"], LR | REAL_MU | OTHERS)
    assert before["fedavg"] == after["fedavg"]
    assert not any("coordinates" in each for each in (*before.values(), after["fedavg"]))
    own = ["local.lr", "method.lam", "method.mu", "method.reduction"]
    assert after["fedprox"]["coordinates"] == after["two_stream_l2"]["coordinates"] == own


@pytest.mark.parametrize("own", [0.05, 0.01, 0.1, 1.0])
def test_no_choice_is_drawn_twice_while_another_was_not_tried(searched, tmp_path, own):
    """Whether or not the settings' own value, the first trial, is one of them."""
    settings = {"local.lr": own}
    found = drawn(
        searched(settings=settings, space={"local.lr": [0.01, 0.1, 1]}, trials=3), tmp_path / "some"
    )
    for trials in found.values():
        assert sorted(trial["local.lr"] for trial in trials) == [0.01, 0.1, 1.0]
        assert own == 0.05 or trials[0]["local.lr"] == own


GRID = [0.01, 0.05]


@pytest.mark.parametrize("sampler", ["grid", {"name": "grid"}])
def test_grids_have_as_many_points_as_trials(searched, tmp_path, sampler):
    space = {"local.lr": GRID} | MU
    message = "tune.trials=4: the grid of fedavg has 2 points; must be at most that"
    with pytest.raises(raysim.SettingsError, match=message):
        searched(space=space, trials=4, sampler=sampler)
    found = drawn(searched(space=space, trials=2, sampler=sampler), tmp_path / "searches")
    assert sorted(trial["local.lr"] for trial in found["fedavg"]) == GRID
    assert len({tuple(trial.values()) for trial in found["fedprox"]}) == 2


def test_the_budget_names_a_pruner_and_its_options(searched):
    pruner = {"name": "percentile", "percentile": 30.0}
    said = budget(*searched(space=LR, trials=2, pruner=pruner))
    assert said.startswith(
        "Tuned by 2 trials of 4 rounds, pruned by percentile (percentile=30.0) for each row"
    )


@pytest.mark.parametrize(("rounds", "of_runs", "trials"), [(2, 5, 2), (9, 5, 5), (None, 5, 5)])
def test_trials_may_have_fewer_rounds_than_runs(searched, rounds, of_runs, trials):
    tune, searches = searched(settings={"rounds": of_runs}, space=LR, rounds=rounds)
    assert {search.study.settings.rounds for search in searches} == {trials}
    assert f" trials of {trials} rounds" in budget(tune, searches)


def test_a_row_is_searched_on_its_first_column_with_data(searched, tmp_path):
    """As its other cells are left out without data; a column that is named must have it."""
    (tmp_path / "own.csv").write_text("x,y\n1,0\n2,1\n")
    paths = [str(tmp_path / name) for name in ("nope.csv", "own.csv")]
    axes = METHODS | {"dataset.path": paths}
    given = {"dataset.name": "files"}
    _, found = searched(axes, given, space=LR)
    assert [each.study.settings.dataset.path for each in found] == [paths[1]] * 2
    assert [each.title for each in found] == [
        f"{row} (on path={paths[1]})" for row in axes["method.name"]
    ]
    message = rf"fedavg: tune.column=path={paths[0]}: dataset.path={paths[0]}: not there"
    with pytest.raises(raysim.SettingsError, match=message):
        searched(axes, given, space=LR, column=f"path={paths[0]}")


def test_a_row_searches_its_own_range_as_often(searched, tmp_path):
    axes, lr = {"method.name": ["fedavg", "fedprox", "scaffold"]}, {"local.lr": [0.01, 0.02, 0.04]}
    rows = {"fedprox": {"local": {"lr": [0.2, 0.4, 0.8]}}}
    found = drawn(searched(axes, space=lr | MU, rows=rows, trials=3), tmp_path)
    rates = {row: sorted(trial["local.lr"] for trial in trials) for row, trials in found.items()}
    assert rates == {
        "fedavg": [0.01, 0.02, 0.04],
        "fedprox": [0.2, 0.4, 0.8],
        "scaffold": [0.01, 0.02, 0.04],
    }
    assert {trial["method.mu"] for trial in found["fedprox"]} <= {0.0, 0.1}


@pytest.mark.parametrize(
    ("rows", "message"),
    [
        ({"fedporx": LR}, "tune.rows.fedporx: is no row; did you mean 'fedprox'"),
        ({"fedprox": MU}, r"tune.rows.fedprox.method.mu: must be in tune.space, too: all rows"),
        ({"fedprox": {"local.lr": 3}}, r"^fedprox: tune.space.local.lr=3: must be"),
        ({"fedprox": 3}, "tune.rows=3: must be a valid dictionary"),
    ],
)
def test_a_wrong_range_of_a_row_is_refused(searched, rows, message):
    with pytest.raises(raysim.SettingsError, match=message):
        searched(space=LR, rows=rows)


@pytest.mark.parametrize("key", ["patience", "patience_metric", "target_accuracy"])
def test_what_decides_budget_or_judge_is_not_searched(searched, key):
    with pytest.raises(raysim.SettingsError, match=rf"tune.space.{key}: cannot be searched"):
        searched(space={key: [1, 2]})


def test_a_hint_names_the_table_of_the_sweep(searched):
    message = r"^tune.space.local.lr.hgh: .* did you mean 'tune\.space\.local\.lr\.high'"
    with pytest.raises(raysim.SettingsError, match=message):
        searched(space={"local.lr": {"low": 0.1, "hgh": 1}})
