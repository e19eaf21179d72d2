"""Clients' own tests in comparisons: the models that they deploy, and gains over local training."""

from __future__ import annotations

import json

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from raysim.api.scoring import REGRESSION, evaluated_columns
from raysim.results import report
from raysim.results.compare import (
    compared_metrics,
    comparison,
    comparison_tables,
    group_runs,
    judged_columns,
)
from raysim.results.metrics import parse_metric
from raysim.results.own_tests import local_rows, over_local, own_test_columns
from raysim.results.report import clients, page
from raysim.results.report.drawing import Legend
from raysim.results.runs import read_run
from raysim.results.tables import ResultCell
from raysim.storage import declared
from tests.results.conftest import make_rows
from tests.tasks import make_settings

OF_ROWS = {"fedavg": ("",), "ditto": ("", "personal_"), "local": ("", "personal_")}
SCORES = {"fedavg": 0.5, "ditto": 0.75, "local": 0.625}
TESTED = {"evaluation.local_test": 0.25, "evaluation.holdout": 0.1}


def columns_of(model, score):
    """Return columns of two rounds; the first is better on the test, the second on the holdout."""
    name, ends = f"{model}local_test_accuracy", ("mean", "deviation", "worst_tenth", "jain")
    found = {name: [score + 0.125, score], f"{model}holdout_accuracy": [0.25, 0.5]}
    found |= {f"{name}_{end}": [0.25, score / 2] for end in ends}
    return found | ({f"{name}_gain": [0.0, 0.25]} if model else {})


@pytest.fixture
def runs(write_run):
    """Write two seeds of FedAvg, Ditto and local training, the last by hand; return their paths."""
    paths = []
    for method, models in OF_ROWS.items():
        for seed in (0, 1):
            columns = {}
            for model in models:
                score = SCORES[method] if model else 0.5
                columns |= columns_of(model, score + 0.125 * seed * (method == "ditto"))
            rows = make_rows([0.5, 0.5], **columns)
            path = write_run(f"{method}{seed}", rows, seed=seed, **TESTED)
            config = json.loads((path / "config.json").read_text())
            config["method"] = {"name": method} | ({"lam": 0.1} if method == "ditto" else {})
            (path / "config.json").write_text(json.dumps(config))
            paths.append(path)
    return paths


def test_columns_say_which_model_on_which_samples(runs):
    groups = group_runs([read_run(path) for path in runs])
    grid = comparison(groups, compared_metrics(groups, None))
    found = {
        row[0].text: {name: entry.value for name, entry in zip(grid.header, row, strict=True)}
        for row in grid.rows
    }
    # Means over two seeds; FedAvg deploys the global model, so that its gain over it is 0.
    assert [found[m]["own test, by sample [%]"] for m in OF_ROWS] == [0.5, 0.8125, 0.625]
    assert [found[m]["gain over global [%]"] for m in OF_ROWS] == [0.0, 0.25, 0.25]
    assert [found[m]["gain over local [%]"] for m in OF_ROWS] == [-0.125, 0.1875, 0.0]
    assert [found[m]["at best holdout [%]"] for m in OF_ROWS] == [0.5, 0.8125, 0.625]
    assert [found[m]["best on test [%]"] for m in OF_ROWS] == [0.625, 0.9375, 0.75]
    judged = [name for name, *_ in judged_columns(compared_metrics(groups, None))]
    assert judged == ["last ten accuracy", "own test, by sample", "at best holdout"]
    assert "new clients [%]" not in grid.header and "fine-tuned [%]" not in grid.header
    plain = group_runs([read_run(path) for path in runs[:2]])
    assert not any("over local" in name for name, *_ in compared_metrics(plain, None))


@pytest.mark.parametrize(
    ("end", "of_accuracy", "of_loss"),
    [
        *[("deviation", False, False), ("worst_tenth", True, False), ("jain", True, True)],
        *[("mean", True, False), ("d9", True, False), ("gain", True, False)],
    ],
)
def test_the_better_of_two_spreads(tmp_path, end, of_accuracy, of_loss):
    for score, larger in (("accuracy", of_accuracy), ("loss", of_loss)):
        found = declared.columns_of(make_settings(tmp_path))[f"local_test_{score}_{end}"]
        assert found.larger == larger
        assert found.unit == ("%" if score == "accuracy" and end != "jain" else "")


def test_without_an_accuracy_the_held_out_loss_chooses_the_round():
    """As the run does itself: `at_best_holdout_...` of its summary."""
    names = [f"personal_{name}" for name in ("local_test_mae", "holdout_mae", "holdout_loss")]
    names += [f"personal_local_test_mae_{end}" for end in ("mean", "jain")]
    known = evaluated_columns((*REGRESSION.scores.values(),))
    measured = {name: known[name] for name in names}
    columns = {name: metric for name, metric, _ in own_test_columns(measured, has_local=False)}
    chosen = "at_best(personal_local_test_mae, personal_holdout_loss)"
    assert str(columns["at best holdout"]) == chosen


def test_gains_over_local_training_are_by_seed_and_data():
    settings = {
        name: {"method.name": method, "partition.name": partition, "local.lr": lr}
        for name, method, partition, lr in (
            ("a", "ditto", "iid", 0.1),
            ("b", "local", "iid", 0.2),
            ("c", "ditto", "shards", 0.1),
        )
    }
    local = local_rows(settings)
    assert local == {"a": "b", "b": "b"}
    cells = {"a": ResultCell({0: 0.75, 1: 0.5, 2: None}), "b": ResultCell({0: 0.5, 2: 0.25})}
    cells["c"] = ResultCell({0: 1.0})
    gain = parse_metric("over_local(personal_local_test_accuracy)")
    found = over_local(cells, dict.fromkeys(cells, gain), local)
    assert {name: cell.values for name, cell in found.items()} == {
        "a": {0: 0.25, 1: None, 2: None},
        "b": {0: 0.0, 2: 0.0},
        "c": {0: None},
    }
    plain = parse_metric("final(personal_local_test_accuracy)")
    assert over_local(cells, dict.fromkeys(cells, plain), local) == cells
    twice = local_rows({**settings, "d": {**settings["b"], "local.lr": 0.3}})
    assert twice == {}  # none of two is the one to compare with


@pytest.mark.parametrize(
    ("key", "value", "paired"),
    [
        *(("model.name", "cnn", False), ("rounds", 9, False), ("fraction", 0.5, False)),
        *(("local.epochs", 2, False), ("local.lr_decay", 0.9, False), ("start_from", "x", False)),
        *(("evaluation.new_clients", 0.2, False), ("partition.alpha", 0.2, False)),
        *(("method.lam", 0.1, True), ("local.lr", 0.2, True), ("weighting", "uniform", True)),
        *(("evaluation.finetune_epochs", 5, True), ("evaluation.when", "after", True)),
        *(("channel.clip.norm", 1.0, True), ("aggregation.name", "median", True)),
    ],
)
def test_local_training_differs_in_the_method_alone(key, value, paired):
    common = {"model.name": "mlp", "rounds": 3, "fraction": 1.0, "local.lr": 0.1}
    ditto = {**common, "method.name": "ditto", key: value}
    local = local_rows({"ditto": ditto, "local": {**common, "method.name": "local"}})
    assert local.get("ditto") == ("local" if paired else None)


def write_clients(path, **columns):
    table = pa.table({"round": [2] * 5, "client": [*range(5)], **columns})
    pq.write_table(table, path / "client_accuracy.parquet")


def test_the_report_draws_each_model_beside_the_global_one(runs):
    shared, own = [0.5, 0.25, 1.0, 0.5, np.nan], [0.75, 0.25, 0.5, 0.75, np.nan]
    about = {"participations": [2, 1, 1, 0, 1], "is_new": [0, 0, 0, 1, 0]}
    for path in runs[:2]:
        write_clients(path, local_test_accuracy=shared, **about)
    for path in runs[2:4]:
        scores = {"local_test_accuracy": shared, "personal_local_test_accuracy": own}
        write_clients(path, **scores, **about)
    groups = group_runs([read_run(path) for path in runs[:4]])
    numbered = page.panel_of(groups).numbered(legend := Legend(("fedavg", "ditto")))
    (chart,) = clients.own_beside_global(legend, numbered, "own")
    # Of two seeds, the new client among them: a circle.
    assert chart.title == "ditto: own model beside the global one: 4 of 8 clients better, 2 worse"
    lines = {name: (x, y) for name, x, y in json.loads(chart.points)["lines"]}
    assert lines["client 3, seed 1"] == ([50], [75]) and len(lines) == 8
    drawn = clients.histogram(legend, numbered, "histogram")
    name, centres, shares = json.loads(drawn.points)["lines"][1]
    assert name == "ditto" and sum(shares) == pytest.approx(100, abs=0.01)
    assert dict(zip(centres, shares, strict=True))[77.5] == pytest.approx(33.333)  # 1 of 3 clients
    columns = compared_metrics(groups, None)
    tables = comparison_tables(groups, columns)
    text = report.report(
        [page.panel_of(groups)], comparison(groups, columns), tables, lambda record: None
    )
    assert chart.title in text and drawn.title in text
    for path in runs[:4]:  # of runs from before these columns
        write_clients(path, accuracy=shared)
    assert clients.histogram(legend, numbered, "histogram") is None


def test_without_own_tests_the_worst_decile_is_beside_the_mean(write_run):
    columns = {"client_accuracy_mean": [0.25, 0.5], "client_accuracy_d1": [0.5, 0.125]}
    run = write_run("run", make_rows([0.5, 0.5], **columns))
    metrics = compared_metrics(groups := group_runs([read_run(run)]), None)
    grid = comparison(groups, metrics)
    (row,) = grid.rows
    found = {name: entry.value for name, entry in zip(grid.header, row, strict=True)}
    assert (found["mean of clients [%]"], found["worst decile [%]"]) == (0.5, 0.125)
    assert [name for name, *_ in judged_columns(metrics)] == ["last ten accuracy"]
