"""Scores of single clients: their spread as columns of a round, and their table.

Legend: n clients, N' samples of these clients.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from contextlib import suppress
from math import ceil, isnan
from typing import Any

import numpy as np

from raysim.api.columns import Column
from raysim.api.components import cause
from raysim.api.scoring import GAIN, SPREAD, UNEQUAL, Metric, spread_column
from raysim.errors import SettingsError
from raysim.federation.evaluation_sets import EvaluationSet
from raysim.numbers.arrays import Array, Flags, Floats

WORST = UNEQUAL[1]
Table = dict[str, Array]
Scores = tuple[Array, Array, Floats]
"""Predictions [N', ...] and targets [N', ...] of a set of samples, and clients' scores [n]."""


def spread_columns(score: Column, *, wide: bool = False, gain: bool = False) -> tuple[Column, ...]:
    """Return the columns of the spread of a score.

    `wide` adds columns of inequality, `gain` adds the gain. A score that does not declare which
    values are better has no worst tenth.
    """
    unequal = (end for end in UNEQUAL if score.better or end != WORST)
    ends = (*SPREAD, *(unequal if wide else ()), *([GAIN] if gain else []))
    return tuple(spread_column(score, end) for end in ends)


def spread(
    score: Column, scores: Floats, *, wide: bool = False, base: Floats | None = None
) -> dict[str, float | None]:
    """Return the spread of clients' scores.

    Args:
        score: The score; its name begins the names of the columns.
        scores: The scores [n]; NaN is left out.
        wide: Whether to add deviation, worst tenth and Jain's index.
        base: The same clients' scores with the global model [n], for the mean gain; may be None.
    """
    columns = spread_columns(score, wide=wide, gain=base is not None)
    names = [column.name for column in columns]
    known = scores[~np.isnan(scores)]
    if not len(known):
        return dict.fromkeys(names)
    values: list[float | None] = [float(known.mean())]
    values += np.quantile(known, np.arange(1, 10) / 10).tolist()
    if wide:
        values += [float(known.std()), *_worst_tenth(score, known), _jain(known)]
    if base is not None:
        gains = (scores - base)[~np.isnan(scores - base)]
        values.append(float(gains.mean()) if len(gains) else None)
    return dict(zip(names, values, strict=True))


def _worst_tenth(score: Column, scores: Floats) -> list[float]:
    """Return the mean of the worst tenth of scores [n], rounded up to whole clients.

    The list is empty if the score does not declare which values are better.
    """
    if score.better is None:
        return []
    sign = 1 if score.larger else -1
    return [sign * float(np.sort(sign * scores)[: ceil(len(scores) / 10)].mean())]


def _jain(scores: Floats) -> float | None:
    """Return Jain's index (sum x)^2 / (n * sum x^2) of scores [n]; None if all are 0."""
    squares = float(np.square(scores).sum())
    return float(scores.sum()) ** 2 / (len(scores) * squares) if squares else None


def part(
    name: str, metric: Metric, samples: EvaluationSet, outputs: Scores, clients: Flags
) -> tuple[float | None, Floats]:
    """Return the score of some clients' pooled samples, and the score of each of these clients.

    Args:
        name: The metric's name.
        metric: The metric.
        samples: The samples of all n clients.
        outputs: The scores of all n clients.
        clients: Flags of the clients to choose [n].
    """
    predicted, targets, scores = outputs
    rows = np.repeat(clients, samples.samples.sizes)
    if not rows.any():
        return None, scores[clients]
    return score_of(name, metric, predicted[rows], targets[rows]), scores[clients]


def are_classes(predicted: Array) -> bool:
    """Return whether predictions are one class number for each sample."""
    return predicted.ndim == 1 and predicted.dtype.kind in "iub"


def client_accuracies(samples: EvaluationSet, correct: Flags) -> Floats:
    """Return the accuracy of each client [n], given flags of correct predictions [N']."""
    counts = np.add.reduceat(correct, samples.samples.offsets[:-1], dtype=np.int64)
    accuracies: Floats = counts / samples.samples.sizes
    return accuracies


def score_of(name: str, metric: Metric, predicted: Array, targets: Array) -> float | None:
    """Return the score of a set of samples; None for NaN.

    Raises:
        SettingsError: the metric fails, or returns no number.
    """
    try:
        returned = metric(predicted.copy(), targets.copy())
    except Exception as error:  # a user's metric may raise anything
        shapes = f"predictions {[*predicted.shape]} and targets {[*targets.shape]}"
        raise SettingsError(f"Scoring.metrics: {name!r} of {shapes}: {cause(error)}") from error
    score = _number(name, returned)
    return None if isnan(score) else score


def _number(name: str, returned: Any) -> float:
    """Return the result of a metric as a number.

    Raises:
        SettingsError: the result is no number.
    """
    with suppress(TypeError, ValueError, RuntimeError):
        if not np.ndim(returned):
            return float(returned)
    what = (
        f"an array {[*np.shape(returned)]}" if np.ndim(returned) else f"a {type(returned).__name__}"
    )
    raise SettingsError(
        f"Scoring.metrics: {name!r} returned {what}; must return a number: make each number of a"
        " table a separate metric"
    )


def client_scores(
    name: str,
    samples: EvaluationSet,
    metric: Metric,
    predicted: Array,
    targets: Array,
) -> Floats:
    """Return the score of each client [n]; NaN if the metric is undefined on its samples.

    Args:
        name: The metric's name.
        samples: The clients' samples.
        metric: Compares predictions with targets.
        predicted: The predictions [N', ...].
        targets: The targets [N', ...].

    Raises:
        SettingsError: the metric returns no number.
    """
    cuts = samples.samples.offsets[1:-1]
    both = zip(np.split(predicted, cuts), np.split(targets, cuts), strict=True)
    return np.array([_number(name, _found(metric, *pair)) for pair in both], dtype=np.float64)


def _found(metric: Metric, predicted: Array, targets: Array) -> Any:
    try:
        return metric(predicted.copy(), targets.copy())  # the metric may change them in place
    except Exception:  # a metric may be undefined for a client, say one with a single class
        return float("nan")


def client_table(samples: EvaluationSet, prefix: str, scores: Mapping[str, Any]) -> Table:
    """Return columns [n] of a table: clients, their samples (`{prefix}samples`) and scores."""
    return {"client": samples.clients, f"{prefix}samples": samples.samples.sizes, **scores}


def joined(tables: Sequence[Table]) -> Table:
    """Join tables by client; a client that a table lacks gets 0 samples and NaN scores."""
    if not tables:
        return {}
    clients = np.unique(np.concatenate([table["client"] for table in tables]))
    columns: Table = {"client": clients}
    for table in tables:
        at = np.searchsorted(clients, table["client"])
        for name, values in table.items():
            if name == "client":
                continue
            if name not in columns:
                whole = values.dtype.kind in "iu"
                columns[name] = (
                    np.zeros(len(clients), values.dtype) if whole else np.full(len(clients), np.nan)
                )
            columns[name][at] = values
    return columns
