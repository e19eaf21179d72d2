"""Metrics: one figure of a run, from a column of its rounds.

A metric is written `name(column)` or `name(column, target)`, as `rounds_to(test_accuracy, 0.9)`.
Columns are those of `metrics.parquet`, and two more: `bytes`, sent and received so far, and
`total_seconds`, with evaluation and checkpoints, so far.
"""

from __future__ import annotations

import math
import re
from collections.abc import Mapping
from dataclasses import dataclass

from raysim.core.components import suggest
from raysim.core.errors import SettingsError, visible
from raysim.results.runs import RunRecord
from raysim.storage.summary import reached_at

LAST = 10
FIGURES: Mapping[str, str] = {
    "final": "the last value of {column}",
    "best": "the {best} {column} over the rounds",
    "last_ten": "the mean of {column} over the last ten rounds",
}
TARGETS: Mapping[str, tuple[str, str]] = {
    "rounds_to": ("round", "rounds"),
    "bytes_to": ("bytes", "bytes sent both ways"),
    "seconds_to": ("total_seconds", "seconds, with evaluation and checkpoints,"),
}
"""Per name, the column that is read where a target is reached, and its words."""
NAMES = (*FIGURES, *TARGETS)
SHAPE = re.compile(r"\s*(\w+)\s*\(\s*([\w.-]+)\s*(?:,\s*([^\s,()]+)\s*)?\)\s*")
SMALLER = re.compile(r"loss|objective|seconds|bytes|error|mae|mse|divergence")
"""Parts of the names of columns of which less is better."""


@dataclass(frozen=True)
class Metric:
    """A figure of a run.

    Attributes:
        name: One of NAMES.
        column: The column of which it is a figure.
        target: The value to be reached, of those in TARGETS.
    """

    name: str
    column: str
    target: float | None = None

    def __str__(self) -> str:
        end = "" if self.target is None else f", {self.target:g}"
        return f"{self.name}({self.column}{end})"

    @property
    def larger_is_better(self) -> bool:
        """True where the better of two figures is the larger one."""
        return self.target is None and self._is_gain

    @property
    def definition(self) -> str:
        """One sentence for the page of a table."""
        best = "largest" if self._is_gain else "smallest"
        if self.target is None:
            text = FIGURES[self.name].format(column=self.column, best=best)
        else:
            text = (
                f"{TARGETS[self.name][1]} until the {best} {self.column} so far reaches"
                f" {self.target:g}, interpolated between evaluations"
            )
        return f"{self}: {text}."

    def of(self, record: RunRecord) -> float | None:
        """Return the figure of a run; None where it has none yet, or the target is not reached.

        Raises:
            SettingsError: the run has no such column.
        """
        columns = record.metrics.column_names
        if record.rounds and self.column not in columns:
            raise SettingsError(
                f"{self}: {record.path} has no column {self.column!r}; "
                + suggest(self.column, columns)
            )
        points = record.points(self.column)
        found = self._reached(record, points) if self.target is not None else self._figure(points)
        return found if found is None or math.isfinite(found) else None

    @property
    def _is_gain(self) -> bool:
        return not SMALLER.search(self.column)

    def _figure(self, points: list[tuple[int, float]]) -> float | None:
        if not points:
            return None
        if self.name == "final":
            return float(points[-1][1])
        if self.name == "last_ten":
            last = [value for number, value in points if number > points[-1][0] - LAST]
            return math.fsum(last) / len(last)
        finite = [value for _, value in points if math.isfinite(value)]
        choose = max if self._is_gain else min
        return choose(finite, default=None)

    def _reached(self, record: RunRecord, points: list[tuple[int, float]]) -> float | None:
        if self.target is None:
            return None
        places = dict(record.points(TARGETS[self.name][0]))
        sign = 1 if self._is_gain else -1
        signed = ((places[number], sign * value) for number, value in points if number in places)
        return reached_at(signed, sign * self.target)


def parse_metric(text: str) -> Metric:
    """Return the metric that a text names.

    Raises:
        SettingsError: it names none.
    """
    shape = SHAPE.fullmatch(text)
    if shape is None:
        raise SettingsError(
            f"metric={visible(repr(text))}: must be name(column) or name(column, target)"
        )
    name, column, given = shape.groups()
    if name not in NAMES:
        raise SettingsError(f"metric={text}: no such metric; {suggest(name, list(NAMES))}")
    if name in FIGURES:
        if given is not None:
            raise SettingsError(f"metric={text}: {name} takes no target")
        return Metric(name, column)
    try:
        target = float(given or "")
    except ValueError:
        target = math.nan
    if not math.isfinite(target):
        raise SettingsError(f"metric={text}: needs a target, as in {name}({column}, 0.9)")
    return Metric(name, column, target)
