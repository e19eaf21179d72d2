"""Which of two values is better is what their writer declares, whatever the name."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import numpy as np
import pyarrow.parquet as pq
import pytest

import raysim
from raysim import Column
from raysim.api.aggregation import AGGREGATIONS
from raysim.api.channel import STAGES
from raysim.api.columns import by_name
from raysim.api.scoring import CLASSIFICATION, accuracy
from raysim.api.selection import SELECTIONS
from raysim.driver.listeners.progress import result_values
from raysim.methods.fedavg import FedAvg
from raysim.results.compare import common_score, compared_metrics, comparison_tables, group_runs
from raysim.results.metrics import parse_metric
from raysim.results.runs import read_run
from raysim.storage.declared import of_components
from raysim.storage.rows.metrics import declared_in, with_declared
from raysim.storage.rows.tags import tag_of
from raysim.storage.summary import summarise
from tests.tasks import Notes, make_settings, make_task

CLIENTS = (40, 30, 20, 60)
CURVE = (3.0, 1.0, 2.0, 2.0, 1.5, 0.5)
COLUMNS: Any = (
    *(Column("regret", "smaller", "s"), Column("phase", fold="sum", title="all phases")),
    Column("spent", fold="last", title="spent so far"),
    *(Column("part", "larger", numbered=True), Column("mood", tag="train/mood")),
)
"""What the method here declares."""


def wrong(predicted: Any, labels: Any) -> float:
    return 1 - accuracy(predicted, labels)


def task_of(name: str, better: Any, function: Any = wrong) -> raysim.Task:
    columns = [Column(name, better, "%")] if better else []
    metrics = {name: function}
    scoring = replace(CLASSIFICATION, metrics=metrics, columns=columns)
    return replace(make_task(CLIENTS), scoring=scoring)


class Regrets(FedAvg):
    """Gives a number of each round."""

    columns = COLUMNS

    def round(self, now, state):
        after, _ = yield from super().round(now, state)
        parts = {"part_1": 0.5, "part_2": 0.25, "spent": 2 * now.number, "mood": 0}
        return after, {"regret": CURVE[now.number], "phase": now.number, **parts}


OPTIONS: dict[str, Any] = {"rounds": 4, "evaluation.local_test": 0.5, "local.lr": 0.05}
REGRETS = {"method.name": f"{__name__}:Regrets", "rounds": 6, "patience_metric": "regret"}
NAMED = {
    "mape": ("smaller", wrong),
    "wer": ("smaller", wrong),
    "regret": ("smaller", wrong),
    "time_to_x": ("smaller", wrong),
    "lost_share": ("smaller", wrong),
    "mse_skill": ("larger", accuracy),
    "less_loss": ("larger", accuracy),
}


def test_titled_columns_are_compared_and_told_at_the_end(tmp_path):
    """The total of one that is summed up, the last value of another."""
    settings = make_settings(tmp_path / "run", **{**OPTIONS, **REGRETS})
    result = raysim.run(settings, make_task(CLIENTS))
    record = read_run(result.run_dir)
    costs = {name: each for name, each, _ in compared_metrics(group_runs([record]), None)}
    values = {name: costs[name].of(record) for name in ("all phases", "spent so far")}
    assert values == {"all phases": sum(range(6)), "spent so far": 10}
    assert result_values(result.summary, by_name(COLUMNS))["spent so far"] == "10"


@pytest.mark.parametrize("name", NAMED)
def test_a_run_follows_the_declared_direction(tmp_path, name):
    better, function = NAMED[name]
    settings = make_settings(tmp_path, **OPTIONS, patience=9, patience_metric=f"test_{name}")
    result = raysim.run(settings, task_of(name, better, function))
    values = result.metrics[f"test_{name}"].to_pylist()
    choose = max if better == "larger" else min
    assert len({*values}) > 1
    assert result.summary["best_round"] == 1 + values.index(choose(values))
    own = result.metrics[f"local_test_{name}"].to_pylist()
    assert result.summary[f"best_on_test_local_test_{name}"] == choose(own)
    scores = pq.read_table(tmp_path / "client_accuracy.parquet")[f"local_test_{name}"].to_pylist()
    worst = (min if better == "larger" else max)(scores)
    assert result.metrics[f"local_test_{name}_worst_tenth"].to_pylist()[-1] == worst
    record = read_run(tmp_path)
    for column in (f"test_{name}", f"local_test_{name}_d1", f"personal_local_test_{name}_mean"):
        assert record.column(column).named(column) == Column(column, better, "%")
    assert record.column(f"local_test_{name}_jain").better == "larger"
    assert record.column(f"local_test_{name}_deviation").better == "smaller"
    assert parse_metric(f"best(test_{name})").of(record) == choose(values)


def test_without_a_declaration_there_is_no_best(tmp_path):
    notes, task = Notes(), task_of("mape", None)
    options = {**OPTIONS, "patience": 3, "patience_metric": "local_test_mape_mean"}
    says = r"patience_metric=local_test_mape_mean: it is not declared .* raysim\.Column\('mape'"
    with pytest.raises(raysim.SettingsError, match=says):
        raysim.run(make_settings(tmp_path / "none", **options), task)
    assert not (tmp_path / "none").exists()
    for seed in range(5):
        result = raysim.run(make_settings(tmp_path / str(seed), seed=seed, **OPTIONS), task, notes)
    (said,) = {note for note in notes.notes if "declare" in note}
    assert said.startswith("metric mape: it is not declared") and "Column('mape', " in said
    assert not [n for n in result.metrics.column_names if n.endswith("mape_worst_tenth")]
    assert not [n for n in result.summary if n.startswith("best_on_test_") and "mape" in n]
    other = raysim.run(
        make_settings(
            tmp_path / "min", **OPTIONS, patience_metric="test_mape", patience_mode="min"
        ),
        task,
    )
    values = other.metrics["test_mape"].to_pylist()
    assert other.summary["best_round"] == 1 + values.index(min(values))
    records = [read_run(tmp_path / str(seed)) for seed in range(5)]
    with pytest.raises(raysim.SettingsError, match=r"best\(test_mape\): it is not declared"):
        parse_metric("best(test_mape)").of(records[0])
    groups = group_runs(records)
    tables = comparison_tables(
        groups, compared_metrics(groups, None, [parse_metric("final(test_mape)")])
    )
    (table,) = [each for each in tables if each.metric == "final(test_mape)"]
    assert not table.differences(*table.columns) and not table.best(*table.columns)
    assert "Scoring.columns" in table.undeclared(*table.columns)


@pytest.mark.parametrize("name", ["information_gain", "error_mean", "x_d1"])
def test_a_line_names_a_metric_that_ends_like_a_spread(tmp_path, name):
    settings = make_settings(tmp_path / "run", patience=3, patience_metric=f"test_{name}")
    with pytest.raises(raysim.SettingsError, match=rf"raysim\.Column\('{name}', "):
        raysim.run(settings, task_of(name, None))


def test_a_metric_of_a_method_is_followed(tmp_path):
    """Rounds that are not evaluated count, too: the method gives a number of each."""
    options = {**REGRETS, "rounds": 2, "patience": 2, "evaluation.every": 2}
    raysim.run(make_settings(tmp_path, **options), make_task(CLIENTS))
    result = raysim.resume(tmp_path, make_task(CLIENTS), overrides={"rounds": 6})
    assert result.summary["best_round"] == 2 and result.summary["stopped_by"] == "patience"
    assert result.metrics.num_rows == 4
    record = read_run(tmp_path)
    assert record.column("regret") == COLUMNS[0] and record.column("phase").better is None
    assert record.column("part_2").better == "larger" and record.column("part_3").better is None
    assert (result.summary["phase"], result.summary["final_spent"]) == (0 + 1 + 2 + 3, 6)
    assert dict(record.points("total_phase"))[4] == 6


def test_patience_follows_the_loss_of_training(tmp_path):
    options = {"patience": 2, "patience_metric": "train_loss", "rounds": 6, "local.lr": 2.0}
    result = raysim.run(make_settings(tmp_path, **options), make_task(CLIENTS))
    losses = result.metrics["train_loss"].to_pylist()
    assert result.summary["best_round"] == 1 + losses.index(min(losses))
    assert result.summary["stopped_by"] == "patience"


WRONG = {
    "engine": ((Column("test_loss", "larger"),), "'test_loss' has the name of a column of the eng"),
    "text": (("regret",), "must be raysim.Column's"),
    "one": (Column("regret", "smaller"), "must be raysim.Column's"),
}


@pytest.mark.parametrize("case", WRONG)
def test_a_wrong_declaration_of_a_method_is_refused_before_the_start(tmp_path, monkeypatch, case):
    declared, message = WRONG[case]
    monkeypatch.setattr(Regrets, "columns", declared)
    settings = make_settings(tmp_path / "run", **REGRETS | {"patience_metric": None})
    with pytest.raises(raysim.SettingsError, match=f"Regrets: .*{message}"):
        raysim.run(settings, make_task(CLIENTS))
    assert not (tmp_path / "run").exists()


class Timed(FedAvg):
    """A method with a declared number."""

    columns = (Column("time_to_x", "smaller"),)


class Loud(raysim.Stage):
    """A stage with a declared number."""

    columns = (Column("noise", "smaller"),)


def test_members_of_a_chain_and_stages_declare_theirs(tmp_path):
    chain = {"method.name": "chain", "method.methods": {f"{__name__}:Timed": {}, "fedprox": {}}}
    settings = make_settings(tmp_path, **chain, **{"channel": {f"{__name__}:Loud": {}}})
    assert {*of_components(settings)} == {"time_to_x", "noise"}


NEEDS: dict[str, dict[str, Any]] = {
    "gaussian": {
        "aggregation.weighting": "fixed",
        "channel.gaussian.quantile": 0.5,
        "channel.gaussian.noise": 0.1,
    },
    "poisson": {"aggregation.weighting": "fixed"},
    "fltrust": {"aggregation.root": 4},
    "error_feedback": {"channel": {"topk": {}, "error_feedback": {}}},
}
WRITERS = [
    *(("selection.name", name) for name in SELECTIONS),
    *(("aggregation.name", name) for name in AGGREGATIONS),
    *(("channel", name) for name in STAGES),
]


@pytest.mark.parametrize(("setting", "name"), WRITERS)
def test_every_column_that_a_component_writes_is_declared(tmp_path, setting, name):
    """Those of methods are looked at by their contract."""
    chosen = {setting: {name: {}} if setting == "channel" else name}
    options = {**chosen, "fraction": 1.0, "rounds": 2, **NEEDS.get(name, {})}
    result = raysim.run(make_settings(tmp_path, **options), make_task((*CLIENTS, *CLIENTS)))
    assert [field.name for field in result.metrics.schema if not field.metadata] == []


def test_a_renamed_column_keeps_its_treatment(tmp_path):
    options = {"evaluation.holdout": 0.3, "rounds": 3, "evaluation.every": 2}
    result = raysim.run(make_settings(tmp_path, **options), make_task(CLIENTS))
    columns = declared_in(result.metrics.schema)
    names = [f"x{number}" if columns[n].scored else n for number, n in enumerate(columns)]
    renamed = {
        old: replace(columns[old], name=new) for old, new in zip(columns, names, strict=True)
    }
    table = with_declared(result.metrics.rename_columns(names), by_name(renamed.values()))
    pq.write_table(table, tmp_path / "metrics.parquet")
    record = read_run(tmp_path)
    score = common_score([record])
    assert score == renamed["holdout_accuracy"]
    assert [number for number, _ in record.points(score.name)] == [2, 3]
    summary = summarise(table.to_pylist(), by_name(renamed.values()), None, every=2, rounds=3)
    assert summary["final_score"] == result.summary["final_score"]
    assert summary["final_accuracy"] == result.summary["final_accuracy"]
    assert tag_of(renamed["test_loss"]) == "test/loss"


OF_ENGINE = {
    "attack_success_rate": ("smaller", "%"),
    "train_loss": ("smaller", ""),
    "test_accuracy": ("larger", "%"),
    "test_loss": ("smaller", ""),
    "bytes_up": ("smaller", "B"),
    "total_seconds": ("smaller", "s"),
    "worker_training_seconds": ("smaller", "s"),
    "bad_clients": (None, ""),
    "lr": (None, ""),
}


def test_the_engine_declares_its_own(tmp_path):
    attack = {"attack.name": "backdoor", "attack.fraction": 0.5, "attack.size": 1}
    raysim.run(make_settings(tmp_path, **attack, rounds=1, trace=True), make_task(CLIENTS))
    record = read_run(tmp_path)
    found = {name: record.column(name) for name in OF_ENGINE}
    assert {name: (column.better, column.unit) for name, column in found.items()} == OF_ENGINE
    stored = pq.read_schema(tmp_path / "metrics.parquet").field("attack_success_rate").metadata
    assert {stored[b"better"], stored[b"unit"]} == {b"smaller", b"%"}
    assert np.isfinite(parse_metric("best(attack_success_rate)").of(record))
