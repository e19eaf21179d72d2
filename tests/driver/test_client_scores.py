"""Scores of single clients by every metric of a task, and metrics that return no number."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import numpy as np
import pyarrow.parquet as pq
import pytest
import torch
from sklearn.metrics import (
    confusion_matrix,
    f1_score,
    precision_score,
    recall_score,
    roc_auc_score,
)

import raysim
from raysim.api.scoring import CLASSIFICATION
from raysim.testing.tasks import SmallNet
from tests.tasks import UNEQUAL, make_settings, make_task

ONE_EACH = {"evaluation.local_test": 0.4, "evaluation.clients": True, "rounds": 1}


def positive(outputs: torch.Tensor) -> torch.Tensor:
    return torch.softmax(outputs, 1)[:, 0]


def auc(predicted: Any, targets: Any) -> float:
    return float(roc_auc_score(targets == 0, predicted))


def right(predicted: Any, targets: Any) -> float:
    return float(np.mean((predicted > 0.5) == (targets == 0)))


def matrix(predicted: Any, targets: Any) -> Any:
    return confusion_matrix(targets == 0, predicted > 0.5)


def mapping(predicted: Any, targets: Any) -> Any:
    return {"a": 1.0}


def nothing(predicted: Any, targets: Any) -> Any:
    return None


def failing(predicted: Any, targets: Any) -> Any:
    raise ValueError("only one class")


def scored(folder: Any, more: Any = ONE_EACH, predict: Any = positive, **metrics: Any) -> Any:
    scoring = replace(CLASSIFICATION, metrics=metrics, predict=predict, columns=())
    task = replace(make_task(UNEQUAL), scoring=scoring)
    return raysim.run(make_settings(folder, fraction=1.0, **more), task), task


def test_every_metric_has_its_spread_and_a_column_of_clients(tmp_path):
    """Also where predictions are probabilities; AUC is undefined for clients of one class."""
    result, task = scored(tmp_path / "run", auc=auc, accuracy=right)
    row = result.metrics.to_pylist()[-1]
    table = pq.read_table(tmp_path / "run/client_accuracy.parquet").to_pandas()
    for metric in ("auc", "accuracy"):
        own = table[f"local_test_{metric}"].dropna()
        assert row[f"local_test_{metric}_mean"] == pytest.approx(own.mean())
    assert table["local_test_auc"].isna().any() and table["local_test_auc"].notna().any()
    network = SmallNet()
    network.load_state_dict(result.params)
    x, y = (torch.as_tensor(each) for each in task.test)
    with torch.no_grad():
        whole = right(positive(network(x)).numpy(), y.numpy())
    assert row["test_accuracy"] == pytest.approx(whole)
    assert row["client_accuracy_mean"] == pytest.approx(table["accuracy"].mean())
    assert 0 < row["client_accuracy_mean"] < 1


REFUSED = {
    "Scoring.metrics: 'm' returned an array [2, 2]; must return a number": {"m": matrix},
    "Scoring.metrics: 'm' returned a dict; must return a number": {"m": mapping},
    "Scoring.metrics: 'm' returned a NoneType; must return a number": {"m": nothing},
    "Scoring.metrics: 'm' of predictions [": {"m": failing},
}


@pytest.mark.parametrize("message", REFUSED)
def test_a_metric_that_returns_no_number_is_one_line(tmp_path, message):
    with pytest.raises(raysim.SettingsError) as caught:
        scored(tmp_path, {"rounds": 1}, **REFUSED[message])
    assert str(caught.value).startswith(message)


def test_predictions_that_are_no_classes_need_an_accuracy(tmp_path):
    for predict, message in (
        (positive, "evaluation.clients=true: needs a class for each sample, and Scoring.predict r"),
        (
            lambda outputs: outputs.numpy(),
            "Scoring.predict: for outputs [2, 3] it returned ndarray",
        ),
        (lambda outputs: outputs.sum(), "Scoring.predict: for outputs [2, 3] it returned a tensor"),
    ):
        with pytest.raises(raysim.SettingsError) as caught:
            scored(tmp_path / "run", predict=predict, auc=auc)
        assert str(caught.value).startswith(message)
        assert not (tmp_path / "run").exists()


NAMED = ("auc", "f1", "precision", "recall")
OF_MODELS = {"method.name": "ditto", "evaluation.local_test": 0.4, "evaluation.holdout": 0.2}


def test_metrics_by_name_are_of_all_sets_and_change_nothing_else(tmp_path):
    """Each has its spread over clients; AUC has none for a client of one class."""
    task, given = make_task(UNEQUAL), {**OF_MODELS, "rounds": 2, "fraction": 1.0}
    plain = raysim.run(make_settings(tmp_path / "plain", **given), task)
    given["evaluation.metrics"] = "auc,f1,precision,recall"
    result = raysim.run(make_settings(tmp_path / "run", **given), task)
    row, before = (each.metrics.to_pylist()[-1] for each in (result, plain))
    same = [name for name in before if "seconds" not in name]
    assert [row[name] for name in same] == [before[name] for name in same]
    network = SmallNet()
    network.load_state_dict(result.params)
    x, y = (torch.as_tensor(each) for each in task.test)
    with torch.no_grad():
        shares = torch.softmax(network(x).double(), 1).numpy()
    oracles: Any = {"f1": f1_score, "precision": precision_score, "recall": recall_score}
    scores = {
        name: oracle(y, shares.argmax(1), average="macro", zero_division=0)
        for name, oracle in oracles.items()
    }
    scores["auc"] = roc_auc_score(y, shares, multi_class="ovr", average="macro")
    assert {name: row[f"test_{name}"] for name in NAMED} == pytest.approx(scores)
    table = pq.read_table(tmp_path / "run/client_accuracy.parquet").to_pandas()
    for name in NAMED:
        for of in ("local_test", "personal_local_test"):
            own = table[f"{of}_{name}"].dropna()
            assert row[f"{of}_{name}_mean"] == pytest.approx(own.mean())
            assert len(own) < len(table) or name != "auc"
            assert f"{of}_{name}_worst_tenth" in row
        assert 0 < row[f"personal_holdout_{name}"] <= 1
    fields = pq.read_schema(tmp_path / "run/metrics.parquet")
    assert fields.field("test_recall").metadata[b"unit"] == b"%"
    assert {fields.field(f"test_{name}").metadata[b"better"] for name in NAMED} == {b"larger"}


def test_metrics_by_name_are_of_outputs_whatever_is_predicted(tmp_path):
    more = {"evaluation.metrics": "f1,auc", "rounds": 1}
    result, task = scored(tmp_path / "run", more, positive, mine=right)
    row = result.metrics.to_pylist()[-1]
    network = SmallNet()
    network.load_state_dict(result.params)
    x, y = (torch.as_tensor(each) for each in task.test)
    with torch.no_grad():
        logits = network(x)
    assert row["test_f1"] == pytest.approx(f1_score(y, logits.argmax(1), average="macro"))
    assert row["test_mine"] == right(positive(logits).numpy(), y.numpy())
    assert row["test_auc"] > 0.5
    with pytest.raises(raysim.SettingsError) as caught:
        scored(tmp_path / "two", {"evaluation.metrics": "f1,auc", "rounds": 1}, auc=auc)
    expected = "evaluation.metrics=f1,auc: the task has a metric 'auc'; leave auc out"
    assert str(caught.value) == expected
    with pytest.raises(raysim.SettingsError, match="analysis=confusion: needs a class for each s"):
        scored(tmp_path / "three", {"analysis": "confusion", "rounds": 1}, auc=auc)


def test_metrics_by_name_of_a_set_of_one_class_have_no_value(tmp_path):
    x, y = (np.asarray(each) for each in make_task(UNEQUAL).test)
    task = replace(make_task(UNEQUAL), test=(x[y == 1], y[y == 1]))
    given = {"evaluation.metrics": ["auc", "recall"], "rounds": 1}
    row = raysim.run(make_settings(tmp_path / "run", **given), task).metrics.to_pylist()[-1]
    assert row["test_auc"] is None and row["test_recall"] == row["test_accuracy"]


def test_a_regression_has_no_metrics_by_name(tmp_path):
    x, y = make_task(UNEQUAL).test
    scoring = raysim.Scoring(lambda outputs, targets: (outputs[:, 0] - targets).square())
    task = raysim.Task(SmallNet, [(x, np.float32(y))], (x, np.float32(y)), scoring)
    with pytest.raises(raysim.SettingsError) as caught:
        raysim.run(make_settings(tmp_path / "run", **{"evaluation.metrics": "auc,f1"}), task)
    expected = "evaluation.metrics=auc,f1: the task is no classification; leave it out"
    assert str(caught.value) == expected
    assert not (tmp_path / "run").exists()
