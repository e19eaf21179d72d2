"""Curves of runs: a column against rounds, bytes or seconds, thinned out, and their mean.

Legend: n points, S seeds.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt

from raysim.display.thinning import evenly_chosen
from raysim.results.runs import RunRecord

POINTS = 300
"""Most points of a curve: more cannot be distinguished in a chart."""
Values = npt.NDArray[Any]


class Curve(NamedTuple):
    """Points of a curve: ascending x [n] and values y [n], and the rounds [n] of a run's."""

    x: Values
    y: Values
    rounds: Values | None = None


class MeanCurve(NamedTuple):
    """Mean of curves at common x, and their sample deviation, all [n]."""

    x: Values
    mean: Values
    deviation: Values


def curve_of(record: RunRecord, column: str, against: str) -> Curve | None:
    """Return a run's curve of the finite values of a column, or None without any."""
    places = dict(record.points(against))
    points = [(places[n], value, n) for n, value in record.points(column) if n in places]
    finite = [point for point in points if np.isfinite(point[:2]).all()]
    return Curve(*np.array(finite, dtype=np.float64).T) if finite else None


def thinned(curve: Curve) -> Curve:
    """Return at most POINTS points of a curve, evenly chosen, with its first and last one."""
    chosen = evenly_chosen(len(curve.x), POINTS)
    rounds = curve.rounds if curve.rounds is None else curve.rounds[chosen]
    return Curve(curve.x[chosen], curve.y[chosen], rounds)


def mean_curve(curves: Sequence[Curve]) -> MeanCurve | None:
    """Return the mean of curves over the x that all of them cover; None without any."""
    low, high = max(c.x[0] for c in curves), min(c.x[-1] for c in curves)
    places = np.unique(np.concatenate([curve.x for curve in curves]))
    places = places[(places >= low) & (places <= high)]
    if not len(places):
        return None
    places = places[evenly_chosen(len(places), POINTS)]
    values = np.stack([np.interp(places, curve.x, curve.y) for curve in curves])  # [S, n]
    deviation = values.std(axis=0, ddof=1) if len(curves) > 1 else np.zeros(len(places))
    return MeanCurve(places, values.mean(axis=0), deviation)
