"""Searches of a sweep without their runs: which trials they draw, on what, and what is refused."""

from __future__ import annotations

import json

import pytest

import raysim
from raysim.tuning.search.search import Search
from raysim.tuning.search.storage import default_storage
from raysim.tuning.tables.plan import TableOptions, make_plan
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
        return tune, to_search(make_plan(table, TableOptions()), tune)

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


@pytest.mark.parametrize("space", [LR | MU, MU | LR])
def test_all_rows_have_the_same_points_in_whatever_order_ranges_are_given(
    searched, tmp_path, space
):
    found = drawn(searched(space=space, trials=6), tmp_path / "searches")
    rates = {row: [trial["local.lr"] for trial in trials] for row, trials in found.items()}
    assert rates["fedavg"] == rates["fedprox"] and len({*rates["fedavg"]}) == 6
    assert {*found["fedprox"][1]} == {"local.lr", "method.mu"}


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


@pytest.mark.parametrize("key", ["patience", "patience_metric", "target_accuracy"])
def test_what_decides_budget_or_judge_is_not_searched(searched, key):
    with pytest.raises(raysim.SettingsError, match=rf"tune.space.{key}: cannot be searched"):
        searched(space={key: [1, 2]})
