"""Metrics: one value of a run, from a column of its rounds.

A metric is written `name(column)` or `name(column, target)`, as `rounds_to(test_accuracy, 0.9)`, or
with a second column, as `at_best(test_accuracy, holdout_accuracy)`.
Columns are those of `metrics.parquet`, and sums over the rounds so far: `bytes`, sent and received,
`total_bytes_up`, `total_seconds`, with evaluation and checkpoints, and of a run with a virtual
clock `total_virtual_seconds`, `total_virtual_joules` and `total_lost_clients`, of one under attack
`total_bad_clients_beyond_bound`.

Metrics of an analysis, as `analysis(cka, layer_2)`, `analysis(new_client, epochs)` and
`analysis(new_client, epochs_4)`, are values of its rows of the last evaluated round.
"""

from __future__ import annotations

import math
import re

from raysim.api.components import suggest
from raysim.errors import SettingsError, visible
from raysim.results.analysis_metrics import parse_analysis
from raysim.results.column_metrics import AT_BEST, NAMES, OF_COLUMN, Metric
from raysim.storage.recorder import ANALYSIS

__all__ = ["NAMES", "Metric", "parse_metric"]

SHAPE = re.compile(r"\s*(\w+)\s*\(\s*([\w.-]+)\s*(?:,\s*([^\s,()]+)\s*)?\)\s*")


def parse_metric(text: str) -> Metric:
    """Return the metric that a text names.

    Raises:
        SettingsError: the text names no metric.
    """
    shape = SHAPE.fullmatch(text)
    if shape is None:
        raise SettingsError(
            f"metric={visible(repr(text))}: must be name(column) or name(column, target)"
        )
    name, column, argument = shape.groups()
    if name == ANALYSIS:
        return parse_analysis(text, column, argument or "")
    if name not in NAMES:
        raise SettingsError(f"metric={text}: no such metric; {suggest(name, [*NAMES, ANALYSIS])}")
    if name in OF_COLUMN:
        if argument is not None:
            raise SettingsError(f"metric={text}: {name} takes no target")
        return Metric(name, column)
    if name == AT_BEST:
        if argument is None:
            raise SettingsError(
                f"metric={text}: needs a second column, as in"
                f" {AT_BEST}(test_accuracy, holdout_accuracy)"
            )
        return Metric(name, column, by=argument)
    try:
        target = float(argument or "")
    except ValueError:
        target = math.nan
    if not math.isfinite(target):
        raise SettingsError(f"metric={text}: needs a target, as in {name}({column}, 0.9)")
    return Metric(name, column, target)
