"""Columns of the engine's files; methods and tasks must not use their names."""

from __future__ import annotations

import numbers
from collections.abc import Collection, Iterable, Mapping
from typing import Any

import numpy as np

from raysim.api.columns import OF_ENGINE
from raysim.api.rules import LocalValues
from raysim.api.scoring import (
    CLASSIFICATION,
    LOSSES,
    REGRESSION,
    evaluated_columns,
    multiple_choice,
)
from raysim.errors import SettingsError
from raysim.storage.trace import COLUMNS as TRACED

_SCORES = {**CLASSIFICATION.scores, **REGRESSION.scores, **multiple_choice().scores, **LOSSES}
OF_SCORES = evaluated_columns((*_SCORES.values(),))
"""Columns of evaluations by the engine's own scores."""
OF_ROUNDS: Collection[str] = {**OF_ENGINE, **TRACED, **OF_SCORES}
"""Columns of `metrics.parquet`, including derived ones."""
COUNTS = (
    *("client", "samples", "local_test_samples", "steps", "pass", "version", "staleness"),
    *("participations", "is_new", "bad"),
)
"""Columns of `clients.parquet` and `client_accuracy.parquet` with whole numbers."""
OF_CLIENTS: Collection[str] = (
    *("round", "name", "train_loss", "objective", "aggregation_weight", *LocalValues._fields),
    *("virtual_start", "virtual_seconds", "virtual_joules", *COUNTS),
)
"""All columns of them that the engine writes, without scores."""
OF_ANALYSES: Collection[str] = ("round",)
"""Columns of `analysis/NAME.parquet` that the engine adds."""


def check_metrics(metrics: Mapping[str, Any], row: Iterable[str], whose: str) -> None:
    """Check that a method's metrics of a round are numbers, under names other than the engine's.

    Args:
        metrics: The metrics.
        row: Names of the engine's columns of the round.
        whose: The setting that names the method.

    Raises:
        SettingsError: a name is no text, or the engine's; a value is no number.
    """
    check_names(metrics, OF_ROUNDS, row, f"{whose}: the metric")
    for name, value in metrics.items():
        if value is not None and not isinstance(value, numbers.Real | np.bool_):
            raise SettingsError(f"{whose}: the metric {name!r} is {value!r:.80}; must be a number")


def check_names(
    names: Iterable[Any], of_engine: Collection[str], more: Iterable[str], what: str
) -> None:
    """Check that names of columns are not the engine's.

    Args:
        names: The names.
        of_engine: The engine's names.
        more: Names of further columns.
        what: The named thing, for the error.

    Raises:
        SettingsError: a name is that of another column, or no text.
    """
    known = {*more}
    for name in names:
        if not isinstance(name, str) or not name:
            raise SettingsError(f"{what} {name!r} has no name of a column; must be a text")
        if name in known or name in of_engine:
            whose = "a column of the engine" if name in of_engine else "another column"
            raise SettingsError(f"{what} {name!r} has the name of {whose}; choose another name")
