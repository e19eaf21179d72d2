"""Values of a column of a run's rounds, and the base of all metrics."""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping
from dataclasses import dataclass

from raysim.api.columns import (
    BAD,
    BEYOND,
    OF_ENGINE,
    SUCCESS,
    Column,
    Scored,
    by_scored,
    undeclared,
)
from raysim.api.components import suggest
from raysim.api.scoring import (
    CLIENT_ACCURACY,
    FINETUNED,
    GAIN,
    HOLDOUT,
    LOCAL_TEST,
    NEW,
    SEEN,
    TEST,
    TRAIN_SET,
    TRAINED_ACCURACY,
    UNEQUAL,
    UNSEEN,
)
from raysim.config import Settings
from raysim.errors import SettingsError
from raysim.results.runs import RunRecord
from raysim.samples.data import may_have_own_tests
from raysim.storage.declared import column_in, columns_of, is_main_score
from raysim.storage.summary import VIRTUAL, reached_at

LAST = 10
OVER_LOCAL = "over_local"
"""Name of the gain over local training: a table with a row of it subtracts that row's value."""
OF_COLUMN: Mapping[str, str] = {
    "final": "the last value of {column}",
    "best": "the {best} {column} over the rounds",
    "last_ten": "the mean of {column} over the last ten rounds",
    OVER_LOCAL: "the last {column} less that of local training, the row of method local with the"
    " same settings and seed",
}
"""Per name, the words for the value of a column."""
TARGETS: Mapping[str, tuple[str, str]] = {
    "rounds_to": ("round", "rounds"),
    "bytes_to": ("bytes", "bytes sent both ways"),
    "bytes_up_to": ("total_bytes_up", "bytes sent up"),
    "seconds_to": ("total_seconds", "seconds, with evaluation and checkpoints,"),
    "virtual_seconds_to": ("total_virtual_seconds", "virtual seconds"),
    "hours_to": ("total_virtual_seconds", "virtual hours"),
    "joules_to": ("total_virtual_joules", "joules of all clients"),
}
"""Per name, the column to read where a target is reached, and its words."""
UNITS: Mapping[str, float] = {"hours_to": 3600.0}
"""Per name, the divisor of values of that column."""
AT_BEST = "at_best"
"""Name of the value of a column in the best round by another one."""
NAMES = (*OF_COLUMN, AT_BEST, *TARGETS)
COSTS = (
    *("train_loss", "bytes_up", "bytes_down", "bytes"),
    *("total_bytes_up", "total_bytes_down", "total_seconds"),
)
"""Columns of every run, besides the scores."""
OF_CLOCK = (*VIRTUAL, *(OF_ENGINE[name].total.name for name in VIRTUAL))
"""Columns of runs in virtual time."""
OF_BOUND = (BEYOND, OF_ENGINE[BEYOND].total.name)
OF_ATTACK: Mapping[str, str] = {
    BAD: "an attack; attack.name is none",
    **dict.fromkeys(OF_BOUND, "an attack, and an aggregation that states a bound, as trimmed_mean"),
    SUCCESS: "an attack with a trigger, as backdoor, and evaluation.test=true",
}
"""Columns of runs under attack, and the settings that they need."""


@dataclass(frozen=True)
class Metric:
    """One value of a run.

    Attributes:
        name: One of NAMES.
        column: The column of the value.
        target: The value to be reached, for the names in TARGETS.
        by: The column that chooses the round, for AT_BEST.
    """

    name: str
    column: str
    target: float | None = None
    by: str = ""

    def __str__(self) -> str:
        end = f", {self.by}" if self.by else ""
        end += "" if self.target is None else f", {self.target:g}"
        return f"{self.name}({self.column}{end})"

    def column_in(self, record: RunRecord) -> Column:
        """Return the metric's column as a run declares it."""
        return record.column(self.column)

    def column_before(self, settings: Settings) -> Column:
        """Return the metric's column as a run with some settings will declare it."""
        return column_in(columns_of(settings), self.column) or Column(self.column)

    def values_in(self, column: Column) -> Column:
        """Return which of the metric's values is better, and their unit, from its column's."""
        if self.target is None:
            return column.named(str(self))
        unit = "rounds" if self.counts_rounds else OF_ENGINE[self._place].unit
        return Column(str(self), "smaller", "" if self.name in UNITS else unit)

    @property
    def counts_rounds(self) -> bool:
        """True where a value is a number of rounds."""
        return self.name == "rounds_to"

    @property
    def analysis(self) -> str:
        """Name of the analysis that a run needs; empty if it needs none."""
        return ""

    @property
    def takes_reference(self) -> bool:
        """True where a value compares the run with its reference."""
        return False

    def definition(self, column: Column | None) -> str:
        """Return one sentence for the page of a table.

        Args:
            column: The metric's column as runs declare it; None before the first run.
        """
        better = column.better if column else None
        best = {None: "best", "larger": "largest", "smaller": "smallest"}[better]
        if self.by:
            text = f"{self.column} in the first round with the best {self.by}"
        elif self.target is None:
            text = OF_COLUMN[self.name].format(column=self.column, best=best)
        else:
            text = (
                f"{TARGETS[self.name][1]} until the {best} {self.column} so far reaches"
                f" {self.target:g}, interpolated between evaluations"
            )
        return f"{self}: {text}."

    def of(self, record: RunRecord) -> float | None:
        """Return the value of a run; None before the first, or if the target is not reached.

        Raises:
            SettingsError: the run has no such column, or the metric needs to know which of its
                values are better, and this is not declared.
        """
        columns = record.metrics.column_names
        for column in self._columns:
            if record.rounds and column not in columns:
                clock = "; run it with clock.name=devices" if column in OF_CLOCK else ""
                raise SettingsError(
                    f"{self}: {record.path} has no column {column!r}{clock}; "
                    + suggest(column, columns)
                )
        points = record.points(self.column)
        if self._chooses_by:
            self._check_declared(record.column(self._chooses_by))
        if self.by:
            value = _at_best(points, record.points(self.by), record.column(self.by))
        elif self.target is not None:
            value = self._reached(record, points)
        else:
            value = self._value(points, record.column(self.column))
        return value if value is None or math.isfinite(value) else None

    def nearest(self, record: RunRecord) -> float | None:
        """Return the best value of the column in a run that does not reach the target; else None.

        Raises:
            SettingsError: the run has no such column.
        """
        missed = self.target is not None and self.of(record) is None
        return Metric("best", self.column).of(record) if missed else None

    def is_in(self, record: RunRecord) -> bool:
        """Return whether a run has the metric's columns."""
        return {*self._columns} <= {*record.metrics.column_names}

    def check(self, settings: Settings) -> None:
        """Check before its start that a run will have the metric's columns and reach its target.

        Raises:
            SettingsError: the run will lack a column, or stop before the target.
        """
        stop = settings.target_accuracy
        is_past = stop is not None and (self.target or 0) > stop
        if is_past and is_main_score(settings, self.column):
            raise SettingsError(
                f"target_accuracy={stop:g}: runs stop there, before {self}; must be at least"
                f" {self.target:g}, or none"
            )
        known = columns_of(settings)
        for column in (self.column, *([self.by] if self.by else [])):
            self._check_column(settings, known, column)
        if self._chooses_by:
            self._check_declared(column_in(known, self._chooses_by) or Column(self._chooses_by))

    def is_declared(self, record: RunRecord) -> bool:
        """Return whether a run declares the columns that the metric needs to choose a round."""
        return not self._chooses_by or record.column(self._chooses_by).better is not None

    @property
    def _chooses_by(self) -> str:
        """The column to take the best value or the target of; "" for none."""
        if self.by:
            return self.by
        return self.column if self.name == "best" or self.target is not None else ""

    def _check_declared(self, column: Column) -> None:
        """Check that it is declared which values of a column are better.

        Raises:
            SettingsError: it is not.
        """
        if column.better is None:
            raise SettingsError(f"{self}: {undeclared(column)}")

    def _check_column(self, settings: Settings, known: Mapping[str, Column], name: str) -> None:
        scored = {column.name: score for score, column in by_scored(known.values()).items()}
        if {name, self._place} & {*OF_CLOCK} and not settings.clock.has_time:
            needs = "clock.name=devices; it is none"
        elif name in OF_ATTACK:
            needs = "" if name in _columns_of_attack(settings) else OF_ATTACK[name]
        else:
            needs = _needs(settings, scored[name]) if name in scored else ""
        if needs:
            raise SettingsError(f"{self}: needs {needs}")
        clock = OF_CLOCK if settings.clock.has_time else ()
        more = [*OF_ATTACK, *COSTS, *clock, *(n for n in known if n not in OF_ENGINE)]
        is_later = name not in known and column_in(known, name) is not None
        if name not in (*scored, *more) and not is_later:
            here = [column for column, score in scored.items() if not _needs(settings, score)]
            here = [column for column in (*here, *more) if column not in OF_ATTACK]
            raise SettingsError(
                f"{self}: a run on {settings.dataset.title} has no column {name!r};"
                f" {suggest(name, [*scored, *more], listed=here)}"
            )

    @property
    def _columns(self) -> tuple[str, ...]:
        """Columns to read."""
        return (self.column, self._place, *([self.by] if self.by else []))

    @property
    def _place(self) -> str:
        """Column to read where the target is reached; without a target, the metric's own."""
        return self.column if self.target is None else TARGETS[self.name][0]

    def _value(self, points: list[tuple[int, float]], column: Column) -> float | None:
        if not points:
            return None
        if self.name in ("final", OVER_LOCAL):
            return float(points[-1][1])
        if self.name == "last_ten":
            last = [value for number, value in points if number > points[-1][0] - LAST]
            return math.fsum(last) / len(last)
        return column.best(value for _, value in points if math.isfinite(value))

    def _reached(self, record: RunRecord, points: list[tuple[int, float]]) -> float | None:
        if self.target is None:
            return None
        places = dict(record.points(self._place))
        sign = 1 if record.column(self.column).larger else -1
        signed = ((places[number], sign * value) for number, value in points if number in places)
        reached = reached_at(signed, sign * self.target)
        return None if reached is None else reached / UNITS.get(self.name, 1.0)


def _columns_of_attack(settings: Settings) -> Iterator[str]:
    """Yield the columns of OF_ATTACK that a run has."""
    attack = settings.attack
    if attack.acts:
        yield BAD
        if settings.aggregation.tolerates(settings.cohort_size) is not None:
            yield from OF_BOUND
    if attack.triggers and settings.evaluation.test:
        yield SUCCESS


def _needs(settings: Settings, score: Scored) -> str:
    """Return the setting that a score of an evaluation needs and a run lacks; "" for none."""
    evaluation = settings.evaluation
    tunes = "evaluation.finetune_epochs or .finetune_steps above 0"
    needed = {tunes: score.model == FINETUNED and not evaluation.finetuning}
    if score.samples == LOCAL_TEST.samples:
        needed = _needed_for_own_tests(settings, score, needed)
    elif score.samples in (CLIENT_ACCURACY.name, TRAINED_ACCURACY.name):
        trained = score.samples == TRAINED_ACCURACY.name
        needed["evaluation.clients=true"] = not evaluation.clients
        needed["evaluation.trained=true"] = trained and not evaluation.trained
    else:
        needed |= {
            "evaluation.test=true": score.samples == TEST.samples and not evaluation.test,
            "evaluation.holdout above 0": (
                score.samples == HOLDOUT.samples and not evaluation.holdout
            ),
            "evaluation.train_set=true": (
                score.samples == TRAIN_SET.samples and not evaluation.train_set
            ),
        }
    return next((need for need, lacking in needed.items() if lacking), "")


def _needed_for_own_tests(
    settings: Settings, score: Scored, tuned: Mapping[str, bool]
) -> dict[str, bool]:
    """Return settings that a score of clients' own tests needs, and whether a run lacks them.

    Args:
        settings: The settings of the run.
        score: The score.
        tuned: The same for the score's model.
    """
    evaluation, cut = settings.evaluation, settings.evaluation.local_test > 0
    or_cut = ", or evaluation.local_test above 0"
    has_own = may_have_own_tests(type(settings.partition))
    is_wide = score.clients in (SEEN, UNSEEN) or score.spread in (*UNEQUAL, GAIN)
    return {
        "evaluation.test=true": not evaluation.test,
        **tuned,
        "evaluation.new_clients above 0": score.clients == NEW and not evaluation.new_clients,
        "evaluation.local_test above 0": is_wide and not cut,
        f"evaluation.clients=true{or_cut}": not (cut or evaluation.clients),
        f"a partition whose clients have own test samples, such as by_key{or_cut}": (
            not (cut or has_own)
        ),
    }


def _at_best(
    points: list[tuple[int, float]], by: list[tuple[int, float]], column: Column
) -> float | None:
    """Return the value in the best round by other values, the first of equal ones."""
    sign = 1 if column.larger else -1
    finite = [(sign * value, -number) for number, value in by if math.isfinite(value)]
    return dict(points).get(-max(finite)[1]) if finite else None
