"""Scores of single clients by every metric of a task, and metrics that return no number."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import numpy as np
import pyarrow.parquet as pq
import pytest
import torch
from sklearn.metrics import confusion_matrix, roc_auc_score

import raysim
from raysim.core.scoring import CLASSIFICATION
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
        (lambda outputs: outputs.numpy(), "Scoring.predict: of outputs [2, 3] it returned ndarray"),
        (lambda outputs: outputs.sum(), "Scoring.predict: of outputs [2, 3] it returned a tensor"),
    ):
        with pytest.raises(raysim.SettingsError) as caught:
            scored(tmp_path / "run", predict=predict, auc=auc)
        assert str(caught.value).startswith(message)
        assert not (tmp_path / "run").exists()
