"""Scores of single clients: their spread, as columns of a round, and their table.

Legend: n clients, N' samples of theirs.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
import numpy.typing as npt

from raysim.core.scoring import SPREAD, Metric
from raysim.federation.evaluation_sets import EvaluationSet

Table = dict[str, npt.NDArray[Any]]
Floats = npt.NDArray[np.float64]


def figure_names(name: str) -> tuple[str, ...]:
    """Return the columns of a spread."""
    return tuple(f"{name}_{end}" for end in SPREAD)


def spread(name: str, scores: Floats) -> dict[str, float | None]:
    """Return the spread of clients' scores [n] without NaN."""
    known = scores[~np.isnan(scores)]
    if not len(known):
        return dict.fromkeys(figure_names(name))
    deciles = np.quantile(known, np.arange(1, 10) / 10)
    values = [float(known.mean()), *deciles.tolist()]
    return dict(zip(figure_names(name), values, strict=True))


def client_accuracies(samples: EvaluationSet, correct: npt.NDArray[np.bool_]) -> Floats:
    """Return the accuracy of each client [n], given flags of correct predictions [N']."""
    counts = np.add.reduceat(correct, samples.samples.offsets[:-1], dtype=np.int64)
    accuracies: Floats = counts / samples.samples.sizes
    return accuracies


def client_scores(
    samples: EvaluationSet, metric: Metric, predicted: npt.NDArray[Any], targets: npt.NDArray[Any]
) -> Floats:
    """Return the score of each client [n]; NaN if the metric is undefined on its samples.

    Args:
        samples: The clients' samples.
        metric: Compares predictions with targets.
        predicted: The predictions [N', ...].
        targets: The targets [N', ...].
    """
    cuts = samples.samples.offsets[1:-1]
    both = zip(np.split(predicted, cuts), np.split(targets, cuts), strict=True)
    return np.array([_score(metric, *each) for each in both], dtype=np.float64)


def _score(metric: Metric, predicted: npt.NDArray[Any], targets: npt.NDArray[Any]) -> float:
    try:
        return float(metric(predicted.copy(), targets.copy()))  # it may change them in place
    except Exception:  # a user's metric may be undefined for a client, as with one class
        return float("nan")


def client_table(samples: EvaluationSet, prefix: str, scores: Mapping[str, Floats]) -> Table:
    """Return the columns [n] of clients: their samples, as `{prefix}samples`, and scores."""
    return {"client": samples.clients, f"{prefix}samples": samples.samples.sizes, **scores}


def joined(tables: Sequence[Table]) -> Table:
    """Return one table of all clients, with 0 samples and NaN where a table lacks a client."""
    if not tables:
        return {}
    clients = np.unique(np.concatenate([table["client"] for table in tables]))
    columns: Table = {"client": clients}
    for table in tables:
        at = np.searchsorted(clients, table["client"])
        for name, values in table.items():
            if name != "client":
                whole = values.dtype.kind in "iu"
                columns[name] = (
                    np.zeros(len(clients), values.dtype) if whole else np.full(len(clients), np.nan)
                )
                columns[name][at] = values
    return columns
