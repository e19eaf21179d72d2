"""Metrics of a classification that runs ask for by name: `evaluation.metrics=auc,f1`.

They take outputs, not the task's predictions: logits [N, C], or [N, 1] of two classes, and class
numbers [N]. Precision, recall, F1 and AUC are means over the classes with samples among these, each
counting alike, as scikit-learn's `average="macro"` with those `labels`.

Sources: scikit-learn (`zero_division=0`); Mann and Whitney, 1947 (AUC by ranks).

Legend: N samples, C classes, P classes with samples.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any

import numpy as np
import torch

from raysim.api.columns import Column
from raysim.api.components import listed_names
from raysim.api.scoring import Metric, Scoring, predicted_classes
from raysim.errors import SettingsError
from raysim.numbers.arrays import Array, Flags


def precision(logits: Array, labels: Array) -> float:
    """Return the macro precision TP / predicted; 0 for a class that is never predicted."""
    correct, _, predicted = _counts(logits, labels)
    return float(np.mean(correct / np.maximum(predicted, 1)))


def recall(logits: Array, labels: Array) -> float:
    """Return the macro recall TP / actual, the balanced accuracy."""
    correct, actual, _ = _counts(logits, labels)
    return float(np.mean(correct / actual))


def f1(logits: Array, labels: Array) -> float:
    """Return the macro F1, 2 TP / (actual + predicted) of each class."""
    correct, actual, predicted = _counts(logits, labels)
    return float(np.mean(2 * correct / (actual + predicted)))


def auc(logits: Array, labels: Array) -> float:
    """Return the area under the ROC curve, of each class against the rest by its softmax, macro.

    For two classes it is the binary one. It is NaN if all samples are of one class, or if a logit
    is not finite.
    """
    logits = logits.astype(np.float64)
    present = np.unique(labels)
    if len(present) < 2 or not np.isfinite(logits).all():
        return float("nan")
    if logits.shape[1] <= 2:  # the margin orders as the softmax does, and never rounds to 1
        return _area(logits[:, -1] - (logits[:, 0] if logits.shape[1] == 2 else 0), labels == 1)
    powers = np.exp(logits - logits.max(axis=1, keepdims=True))
    # Sorted: sums of equal numbers in another order differ by rounding, and ties would not tie.
    softmax = powers / np.sort(powers, axis=1).sum(axis=1, keepdims=True)
    return float(np.mean([_area(softmax[:, label], labels == label) for label in present]))


def _area(scores: Array, is_positive: Flags) -> float:
    """Return the share of pairs that rank the sample of the class higher; ties count half."""
    _, places, counts = np.unique(scores, return_inverse=True, return_counts=True)
    ranks = (np.cumsum(counts) - (counts - 1) / 2)[places]
    count = int(is_positive.sum())
    above = ranks[is_positive].sum() - count * (count + 1) / 2
    return float(above / (count * (len(is_positive) - count)))


def _counts(logits: Array, labels: Array) -> tuple[Array, Array, Array]:
    """Return the correct, actual and predicted samples of each class with samples [P]."""
    predicted = predicted_classes(torch.from_numpy(logits)).numpy()
    classes = max(logits.shape[1], 2)
    actual = np.bincount(labels, minlength=classes)
    correct = np.bincount(labels[predicted == labels], minlength=classes)
    present = actual > 0
    return correct[present], actual[present], np.bincount(predicted, minlength=classes)[present]


METRICS: Mapping[str, Metric] = {"auc": auc, "f1": f1, "precision": precision, "recall": recall}
"""Metrics by name; their input is the network's outputs, not predictions as in a `Scoring`."""
COLUMNS = (Column("auc", "larger"), *(Column(n, "larger", "%") for n in METRICS if n != "auc"))


def metric_names(value: Any) -> Any:
    """Return the setting `evaluation.metrics`, as `listed_names` does.

    Raises:
        ValueError: a name is unknown, or names a table.
    """
    if isinstance(value, str | list | tuple) and "confusion" in value:
        raise ValueError("confusion is a table, not a number: analysis=confusion writes it")
    return listed_names(value, METRICS, "metric", "metrics")


def with_metrics(scoring: Scoring, names: Sequence[str]) -> Scoring:
    """Return a scoring with further metrics by name.

    Raises:
        SettingsError: the task has a metric of such a name.
    """
    for name in names:
        if name in scoring.metrics:
            raise SettingsError(
                f"evaluation.metrics={','.join(names)}: the task has a metric {name!r}; leave"
                f" {name} out"
            )
    return replace(
        scoring,
        metrics={**scoring.metrics, **{name: METRICS[name] for name in names}},
        columns=[*scoring.columns, *COLUMNS],
    )
