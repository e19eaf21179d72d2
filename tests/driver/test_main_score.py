"""One main score: that of the model which clients deploy, on their own tests before others."""

from __future__ import annotations

from dataclasses import replace
from itertools import product

import pytest

import raysim
from raysim.results.compare import common_score, compared_metrics, comparison_tables, group_runs
from raysim.results.runs import read_run
from raysim.results.verdict import verdicts
from raysim.storage.column_names import OF_SCORES
from raysim.storage.declared import main_score_of
from raysim.storage.summary import main_score
from raysim.workloads.sweeps import read_sweep
from tests.tasks import Notes, make_settings, make_task

CLIENTS = (40, 30, 20, 60)
OWN, HOLDOUT = {"evaluation.local_test": 0.4}, {"evaluation.holdout": 0.3}
SETS = {
    "own": (OWN, "personal_local_test", "personal_local_test"),
    "held out": (HOLDOUT, "personal_holdout", "personal_holdout"),
    "both": ({**OWN, **HOLDOUT}, "personal_local_test", "personal_holdout"),
    "test": ({}, "test", "test"),
}


@pytest.mark.parametrize(("case", "method"), [*product(SETS, ("local", "fedavg"))])
def test_what_clients_deploy_decides(tmp_path, case, method):
    options, of, chosen = SETS[case]
    if method == "fedavg":
        of, chosen = (name.removeprefix("personal_") for name in (of, chosen))
    notes = Notes()
    settings = make_settings(tmp_path, **options, **{"method.name": method, "patience": 9})
    result = raysim.run(settings, make_task(CLIENTS), notes)
    summary, score = result.summary, f"{of}_accuracy"
    values = result.metrics[score].to_pylist()
    assert (summary["score"], summary["final_score"]) == (score, values[-1])
    assert summary["best_score"] == max(values)
    followed = result.metrics[f"{chosen}_accuracy"].to_pylist()
    assert summary["best_round"] == 1 + followed.index(max(followed))
    record = read_run(tmp_path)
    assert common_score([record]) == OF_SCORES[score]
    assert main_score_of(settings, own_models=method == "local") == OF_SCORES[score]
    said = [note for note in notes.notes if "which nothing evaluates" in note]
    assert len(said) == (case == "test" and method == "local")


def test_a_target_is_of_the_main_score(tmp_path):
    """The global model of `local` stays what it was."""
    options = {**OWN, "method.name": "local", "rounds": 8, "local.lr": 0.3}
    whole = raysim.run(make_settings(tmp_path / "whole", **options), make_task(CLIENTS))
    values = whole.metrics["personal_local_test_accuracy"].to_pylist()
    target = sorted(values)[len(values) // 2]
    assert max(whole.metrics["test_accuracy"].to_pylist()) < target
    settings = make_settings(tmp_path / "run", **options, target_accuracy=target)
    result = raysim.run(settings, make_task(CLIENTS))
    reached = next(n for n, value in enumerate(values, 1) if value >= target)
    assert result.summary["stopped_by"] == "target_accuracy" and result.summary["rounds"] == reached
    assert result.summary["rounds_to_target"] <= reached


def test_a_target_needs_no_test_set_where_samples_are_held_out(tmp_path):
    task = replace(make_task(CLIENTS), test=None)
    settings = make_settings(tmp_path, **HOLDOUT, target_accuracy=0.01)
    assert raysim.run(settings, task).summary["stopped_by"] == "target_accuracy"


def test_runs_are_compared_by_what_their_clients_deploy(tmp_path):
    paths = []
    for method, seed in product(("fedavg", "local"), range(5)):
        path = tmp_path / f"{method}-{seed}"
        settings = make_settings(path, **OWN, **{"method.name": method, "seed": seed, "rounds": 2})
        raysim.run(settings, make_task(CLIENTS))
        paths.append(path)
    groups = group_runs([read_run(path) for path in paths])
    (name, metric, unit), *_ = columns = compared_metrics(groups, None)
    assert (name, unit) == ("last ten own test accuracy", "%")
    assert str(metric) == "last_ten(personal_local_test_accuracy)"
    cells = [group.cell(metric).mean for group in groups]
    assert cells[0] != cells[1]
    table, *_ = comparison_tables(groups[:1], columns[:1])
    row, column = table.rows[0], table.columns[0]
    twins = [replace(table.cell(row, column), row=name) for name in ("fedavg", "twin")]
    (verdict,) = verdicts([replace(table, rows=("fedavg", "twin"), cells=twins)])
    assert (verdict.heading, verdict.certainty) == ("fedavg and twin are equal", "equal")


SWEPT = {
    "last_ten(personal_local_test_accuracy)": {**OWN, **HOLDOUT},
    "last_ten(personal_holdout_accuracy)": HOLDOUT,
    "last_ten(test_accuracy)": {},
}


@pytest.mark.parametrize("metric", SWEPT)
def test_a_sweep_shows_the_main_score_of_all_its_methods(metric):
    axes = {"method.name": ["fedavg", "ditto"]}
    assert read_sweep("mnist-fedavg", SWEPT[metric], axes).metric == metric
    alone = read_sweep("mnist-fedavg", SWEPT[metric], {"local.lr": [0.1, 0.2]}).metric
    assert alone == metric.replace("personal_", "")


def test_without_a_declared_accuracy_the_loss_counts():
    losses = {name: OF_SCORES[name] for name in ("test_loss", "personal_train_set_loss")}
    accuracy = replace(OF_SCORES["test_accuracy"], better=None)
    assert main_score(losses) == losses["test_loss"]
    assert main_score(losses | {"test_accuracy": accuracy}) == losses["test_loss"]
    assert main_score({}) is None
