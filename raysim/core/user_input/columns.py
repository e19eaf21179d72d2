"""Columns of the engine's files, whose names methods and tasks must not use."""

from __future__ import annotations

import numbers
import re
from collections.abc import Iterable, Mapping
from typing import Any

import numpy as np

from raysim.core.columns import OF_ENGINE
from raysim.core.errors import SettingsError

OF_ROUNDS = re.compile(
    f"{'|'.join(OF_ENGINE)}"
    r"|(client|trained)_accuracy_(mean|d[1-9])"
    r"|(test|holdout|train_set)_(loss(_at_temperature)?|accuracy|macro_f1)"
    r"|(worker|driver)_.*_seconds|bad_clients_.*"
)
"""Columns of `metrics.parquet`, including derived ones."""
OF_CLIENTS = re.compile(
    r"round|client|name|samples|steps|train_loss|objective|pass|version|staleness|temperature"
    r"|virtual_(start|seconds|joules)|aggregation_weight|bad"
)
"""Columns of `clients.parquet`."""
OF_ANALYSES = re.compile("round")
"""Columns of `analysis/NAME.parquet` that the engine adds."""


def check_metrics(given: Mapping[str, Any], row: Iterable[str], whose: str) -> None:
    """Check that a method's metrics of a round are numbers, under names other than the engine's.

    Args:
        given: The metrics.
        row: Names of the engine's columns of the round.
        whose: The setting that names the method.

    Raises:
        SettingsError: a name is no text, or the engine's; a value is no number.
    """
    check_names(given, OF_ROUNDS, row, f"{whose}: the metric")
    for name, value in given.items():
        if value is not None and not isinstance(value, numbers.Real | np.bool_):
            raise SettingsError(f"{whose}: the metric {name!r} is {value!r:.80}; must be a number")


def check_names(given: Iterable[Any], own: re.Pattern[str], more: Iterable[str], what: str) -> None:
    """Check that names of columns are not the engine's.

    Args:
        given: The names.
        own: Pattern of the engine's names.
        more: Further names of the engine.
        what: The named thing, for the error.

    Raises:
        SettingsError: a name is the engine's, or no text.
    """
    known = {*more}
    for name in given:
        if not isinstance(name, str) or not name:
            raise SettingsError(f"{what} {name!r} has no name of a column; must be a text")
        if name in known or own.fullmatch(name):
            raise SettingsError(
                f"{what} {name!r} has the name of a column of the engine; choose another name"
            )
