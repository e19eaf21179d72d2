"""Metrics by name against scikit-learn, at unequal classes, a class without samples, and ties."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from sklearn.metrics import f1_score, precision_score, recall_score, roc_auc_score

from raysim.api.class_metrics import METRICS, auc

OTHERS = {"precision": precision_score, "recall": recall_score, "f1": f1_score}


def drawn(classes: int, shares: Any, seed: int) -> tuple[Any, Any]:
    """Return logits [N, C], in halves so that many tie, and labels of unequal classes [N]."""
    draws = np.random.default_rng(seed)
    labels = draws.choice(classes, 300, p=shares)
    logits = draws.normal(size=(300, classes)) + 0.7 * np.eye(classes)[labels]
    return (np.round(logits * 2) / 2).astype(np.float32), labels


CASES = {
    "unequal": drawn(4, (0.7, 0.2, 0.07, 0.03), 0),
    "a class without samples, which is predicted": drawn(4, (0.6, 0.3, 0.0, 0.1), 1),
    "two classes": drawn(2, (0.9, 0.1), 2),
}
NEVER = drawn(3, (0.5, 0.3, 0.2), 3)
NEVER[0][:, 1] = -9
CASES["a class that is never predicted"] = NEVER


@pytest.mark.parametrize("case", CASES)
def test_means_over_classes_with_samples_are_those_of_scikit_learn(case):
    logits, labels = CASES[case]
    predicted, present = logits.argmax(1), np.unique(labels)
    given: Any = {"labels": present, "average": "macro", "zero_division": 0}
    for name, oracle in OTHERS.items():
        found = METRICS[name](logits, labels)
        assert found == pytest.approx(oracle(labels, predicted, **given), abs=1e-12), name
    powers = np.exp(logits.astype(np.float64))
    shares = np.round(powers / powers.sum(1, keepdims=True), 12)  # ties but for rounding are ties
    areas = [roc_auc_score(labels == label, shares[:, label]) for label in present]
    assert auc(logits, labels) == pytest.approx(np.mean(areas), abs=1e-12)
    if len(present) == logits.shape[1] > 2:
        whole = roc_auc_score(labels, shares, multi_class="ovr", average="macro")
        assert auc(logits, labels) == pytest.approx(whole, abs=1e-12)


def test_one_logit_is_that_of_the_second_class():
    logits, labels = CASES["two classes"]
    margin = logits[:, 1:] - logits[:, :1]
    assert auc(margin, labels) == pytest.approx(roc_auc_score(labels, margin[:, 0]))
    known = margin[:, 0] != 0  # of equal logits one is neither class's
    for name, metric in METRICS.items():
        assert metric(margin[known], labels[known]) == metric(logits[known], labels[known]), name


def test_auc_has_no_value_for_one_class_or_logits_that_are_not_finite():
    logits, labels = CASES["unequal"]
    assert np.isnan(auc(logits[labels == 0], labels[labels == 0]))
    assert np.isnan(auc(np.where(logits > 0, np.inf, logits), labels))


def test_ties_count_half():
    assert auc(np.zeros((5, 3), np.float32), np.array([0, 0, 1, 2, 2])) == 0.5
    assert auc(np.array([[1.0], [1.0], [0.0]]), np.array([1, 0, 0])) == 0.75
