"""Stopping rule of a run: its rounds, a target, or patience with a metric.

It depends only on the rows and the settings, so a resumed run stops where an uninterrupted one
does, with the same best model.
"""

from __future__ import annotations

from collections.abc import Mapping

from raysim.api.columns import OF_ENGINE, Column, undeclared
from raysim.api.components import suggest
from raysim.config import Settings
from raysim.errors import SettingsError
from raysim.storage.declared import of_components
from raysim.storage.recorder import Row
from raysim.storage.summary import EPSILON, is_accuracy, is_counted, main_score

TRAINED = ("train_loss", "objective")
"""Columns of every round that patience may follow, besides those of evaluations and components."""


class Stopping:
    """Stopping rule of a run, and its best rounds.

    An equal value is no improvement, nor is a value that is not finite.

    Attributes:
        metric: The column that patience and the best model follow; None if nothing is evaluated.
        score: The main score, which a target applies to; None if nothing is evaluated.
        best: The best round; 0 before the first value.
        regular_best: The best of the rounds that are also evaluated if the run goes on longer.
    """

    def __init__(self, settings: Settings, columns: Mapping[str, Column], last: int) -> None:
        """Choose the metric.

        Args:
            settings: The run's settings.
            columns: Declared columns of the run's evaluations, or of its rows, by name.
            last: The last round that may run: `rounds`, or the last one within an epsilon.

        Raises:
            SettingsError: no round has the chosen metric, or the metric does not declare whether
                larger or smaller values are better.
        """
        self._settings, self._end = settings, last
        evaluated = {name: column for name, column in columns.items() if column.scored}
        trained = {name: OF_ENGINE[name] for name in TRAINED}
        columns = {**trained, **of_components(settings), **columns}
        chosen = main_score(evaluated, to_choose=True)
        self.score = main_score(evaluated)
        _check(settings, columns, self.score)
        self.metric = metric = columns.get(settings.patience_metric or "") or chosen
        if settings.patience_mode == "auto":
            larger = metric is not None and metric.larger
        else:
            larger = settings.patience_mode == "max"
        self._every = settings.evaluation.every if metric and metric.scored else 1
        self._sign = 1 if larger else -1
        self.best = self.regular_best = 0
        self._best_value = float("-inf")
        self._last = 0
        self._has_reached = False

    def add(self, row: Row) -> None:
        """Add the next round."""
        settings, number = self._settings, row["round"]
        every, target = settings.evaluation.every, settings.target_accuracy
        self._has_reached = False
        if number < 1:
            return
        if is_counted(number, every, self._end):
            value = row.get(self.score.name) if self.score else None
            self._has_reached = target is not None and value is not None and value >= target
        value = row.get(self.metric.name) if self.metric else None
        if value is None or not is_counted(number, self._every, self._end):
            return
        self._last = number
        if self._best_value < self._sign * value < float("inf"):
            self._best_value, self.best = self._sign * value, number
            if number % self._every == 0:
                self.regular_best = number

    def reason(self, number: int, *, ended: bool = False) -> str | None:
        """Return the setting that ends the run after a round; None if the run goes on.

        Args:
            number: The number of committed rounds; all are added.
            ended: Whether the caller has ended the run; the reason is then "finish".
        """
        settings = self._settings
        patience = settings.patience
        reasons = {
            "target_accuracy": self._has_reached,
            "rounds": number >= settings.rounds,
            EPSILON: number >= self._end,
            "patience": patience is not None and self._last - self.best >= patience,
            "finish": ended,
        }
        return next((name for name, applies in reasons.items() if applies), None)


def _check(settings: Settings, columns: Mapping[str, Column], score: Column | None) -> None:
    chosen, target = settings.patience_metric, settings.target_accuracy
    if target is not None and not is_accuracy(score):
        raise SettingsError(
            f"target_accuracy={target:g}: the run's main score is {score and score.name}, no"
            " accuracy; use target_accuracy=none"
        )
    if chosen is None:
        if settings.patience is not None and score is None:
            raise SettingsError(
                f"patience={settings.patience}: nothing is evaluated; give a test set,"
                " evaluation.holdout or patience_metric=train_loss"
            )
    elif chosen not in columns:
        known = [name for name, column in columns.items() if column.better]
        raise SettingsError(
            f"patience_metric={chosen}: not a column of this run's rounds; {suggest(chosen, known)}"
        )
    elif settings.patience_mode == "auto" and columns[chosen].better is None:
        how = undeclared(columns[chosen])
        raise SettingsError(f"patience_metric={chosen}: {how}, or give patience_mode")
