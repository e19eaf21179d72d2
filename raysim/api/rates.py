"""Schedules by round: of learning rates, of clients and of the server, and of the temperature.

A rate is a function of the round's number and, for a plateau, of a state in checkpoints:

    table     r_t = the value of the last given round, or interpolated to the next given one
    plateau   torch's ReduceLROnPlateau: after more than `patience` rounds in a row without
              improvement, r <- max(factor * r, least)

    improved: metric < (1 - threshold) * best, or of an accuracy metric > (1 + threshold) * best

Rounds without a value of the metric, such as rounds without an evaluation, are skipped. No metric
is of the test set, because the test set must choose nothing.
"""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Mapping, Sequence
from itertools import pairwise
from math import cos, pi
from typing import Annotated, Any, ClassVar, Literal, NamedTuple, Self

import numpy as np
from pydantic import BeforeValidator, Field, model_validator

from raysim.api.columns import OF_ENGINE, by_name
from raysim.api.scoring import ACCURACY, HOLDOUT, LOSS
from raysim.api.state import State
from raysim.user_input import as_typed
from raysim.user_input.group import SettingsGroup
from raysim.user_input.limits import MOST

Metric = Literal["train_loss", "holdout_loss", "holdout_accuracy"]
"""Metric of rounds that a plateau watches."""
WATCHED = by_name(
    [OF_ENGINE["train_loss"], *(s.of(HOLDOUT._replace(score=s.name)) for s in (LOSS, ACCURACY))]
)
METRIC_NEEDS = "needs evaluation.holdout above 0, and for an accuracy a task that has one"
Between = Literal["hold", "linear", "geometric"]
Rounds = tuple[Annotated[int, Field(ge=1, le=MOST)], ...]
Values = tuple[Annotated[float, Field(gt=0)], ...]
OF_TABLE = ("lr_rounds", "lr_values", "lr_between")
OF_PLATEAU = ("lr_metric", "lr_factor", "lr_patience", "lr_threshold")
ENDING = ("cosine", "linear")
"""Schedules that end with the rounds that a run was planned for."""


class PlateauRule(NamedTuple):
    """Rule for a metric that no longer improves.

    Attributes:
        metric: The metric.
        patience: Rounds in a row without improvement before the rate falls.
        threshold: Least relative improvement.
    """

    metric: Metric
    patience: int
    threshold: float

    def after(self, state: State, row: Mapping[str, Any]) -> tuple[dict[str, float], bool]:
        """Return the best value and the rounds since, and whether these exceed the patience.

        Args:
            state: Both after the round before; empty before the first.
            row: The round's row of `metrics.parquet`.
        """
        best, waited = float(state.get("best", np.nan)), int(state.get("waited", 0))
        value = row[self.metric]
        if value is not None and self._is_better(value, best):
            best, waited = value, 0
        elif value is not None:
            waited += 1
        ended = waited > self.patience
        return {"best": best, "waited": 0 if ended else waited}, ended

    def _is_better(self, value: float, best: float) -> bool:
        if np.isnan(best):
            return True
        if WATCHED[self.metric].larger:
            return value > best + self.threshold * abs(best)
        return value < best - self.threshold * abs(best)


def check_table(rounds: Rounds, values: Values, prefix: str = "") -> None:
    """Check that a table has a value for each of its rounds, which ascend.

    Args:
        rounds: The rounds, from 1.
        values: The value of each round.
        prefix: Prefix of the settings `rounds` and `values`.

    Raises:
        ValueError: a value is missing, or the rounds do not ascend.
    """
    if len(values) != len(rounds):
        raise ValueError(
            f"{prefix}values={[*values]}: must be one for each of {prefix}rounds={[*rounds]}"
        )
    if any(b <= a for a, b in pairwise(rounds)):
        raise ValueError(f"{prefix}rounds={[*rounds]}: must be ascending")


def table_value(
    number: int, first: float, rounds: Sequence[int], values: Sequence[float], between: Between
) -> float:
    """Return the value of a round.

    Args:
        number: The round, from 1.
        first: The value before the first given round.
        rounds: The given rounds, ascending.
        values: Their values.
        between: How values between given rounds follow.
    """
    rounds, values = [*rounds], [*values]
    if not rounds or rounds[0] > 1:
        rounds, values = [1, *rounds], [first, *values]
    if between == "hold":
        return values[int(np.searchsorted(rounds, number, side="right")) - 1]
    if number in rounds:
        return values[rounds.index(number)]
    if between == "linear":
        return float(np.interp(number, rounds, values))
    return float(np.exp(np.interp(number, rounds, np.log(values))))


def _as_tuple(value: Any) -> Any:
    return tuple(value) if isinstance(value, list) else value


class RateSettings(SettingsGroup):
    """Schedule of a learning rate by round."""

    _of: ClassVar[str]
    """The group's name in settings."""

    schedule: Literal["constant", "cosine", "linear", "table", "plateau"] = Field(
        default="constant",
        description="learning rate by round: constant, with lr_decay; cosine or linear, down to"
        " lr_min at the last round; table, by lr_rounds and lr_values; plateau, lower"
        " where lr_metric no longer improves",
    )
    warmup_rounds: Annotated[int, Field(ge=0, le=MOST)] = Field(
        default=0, description="rounds in which the learning rate rises to its full value"
    )
    lr_decay: float = Field(
        default=1.0,
        gt=0,
        le=1,
        description="factor of the learning rate per round, of schedule=constant",
    )
    lr_min: float = Field(
        default=0.0,
        ge=0,
        description="of constant: the first decayed rate at or below it stays; the end of cosine"
        " and linear; the least of plateau",
    )
    lr_rounds: Annotated[Rounds, BeforeValidator(_as_tuple)] = Field(
        default=(),
        description="rounds with a given rate, ascending, from 1, of schedule=table; earlier rounds"
        " have the full rate",
    )
    lr_values: Annotated[Values, BeforeValidator(_as_tuple)] = Field(
        default=(), description="the rate in each of them"
    )
    lr_between: Between = Field(
        default="hold",
        description="rate between them: hold the one before, or change by equal steps (linear) or"
        " factors (geometric)",
    )
    lr_metric: Metric = Field(
        default="train_loss",
        description="metric of rounds that plateau watches; holdout_... need evaluation.holdout",
    )
    lr_factor: float = Field(
        default=0.5,
        gt=0,
        lt=1,
        description="factor of the rate where the metric no longer improves",
    )
    lr_patience: Annotated[int, Field(ge=0, le=MOST)] = Field(
        default=10, description="rounds in a row without improvement before the rate falls"
    )
    lr_threshold: float = Field(
        default=1e-4, ge=0, lt=1, description="least relative improvement of lr_metric"
    )

    @property
    def scheduled(self) -> dict[str, Any]:
        """The settings of the schedule that differ from their defaults."""
        fields = RateSettings.model_fields.items()
        return {name: getattr(self, name) for name, f in fields if getattr(self, name) != f.default}

    @property
    def plateau(self) -> PlateauRule | None:
        """The plateau that lowers the rate; None if the rate follows the number of rounds."""
        if self.schedule != "plateau":
            return None
        return PlateauRule(self.lr_metric, self.lr_patience, self.lr_threshold)

    def rate_at(self, number: int, rounds: int, lr: float, state: State | None = None) -> float:
        """Return the rate of a round, counted from 0.

        Args:
            number: The round; one after the last has the rate of the last.
            rounds: Rounds of the run.
            lr: The full rate.
            state: State of a plateau before the present round; all rounds then have its rate.
        """
        warmup = self.warmup_rounds
        if number < warmup:
            return lr * (number + 1) / (warmup + 1)
        if self.schedule == "constant":
            return self._decayed(number - warmup, lr)
        if self.schedule == "plateau":
            return float(state["lr"]) if state else lr
        if self.schedule == "table":
            return table_value(number + 1, lr, self.lr_rounds, self.lr_values, self.lr_between)
        passed = (min(number, rounds - 1) - warmup) / (rounds - warmup)
        left = 1 - passed if self.schedule == "linear" else (1 + cos(pi * passed)) / 2
        return self.lr_min + (lr - self.lr_min) * left

    def after(self, number: int, lr: float, state: State, row: Mapping[str, Any]) -> State:
        """Return the state after a round; empty where the rate has none.

        Args:
            number: The round, counted from 0; rounds of the warm-up are skipped.
            lr: The full rate.
            state: The state before it.
            row: The round's row of `metrics.parquet`.
        """
        if self.plateau is None or number < self.warmup_rounds:
            return {}
        kept, ended = self.plateau.after(state, row)
        rate = self.rate_at(number, 0, lr, state)
        if ended:
            rate = min(rate, max(self.lr_factor * rate, self.lr_min))
        return {name: np.asarray(value, np.float64) for name, value in {"lr": rate, **kept}.items()}

    def _decayed(self, number: int, lr: float) -> float:
        def is_least(number: int) -> bool:
            return lr * self.lr_decay**number <= self.lr_min

        reached = bisect_left(range(number), True, key=is_least)
        return lr * self.lr_decay**reached

    def check_rate(self, rounds: int, lr: float | None, key: str) -> None:
        """Check that the warm-up ends, and that the least rate is below the full one.

        Args:
            rounds: Rounds of the run.
            lr: The full rate; None without one.
            key: Words before the full rate in the error.

        Raises:
            ValueError: the warm-up does not end, or the least rate is not below the full one.
        """
        if (warmup := self.warmup_rounds) and warmup >= rounds:
            raise ValueError(f"{self._of}.warmup_rounds={warmup}: must be below rounds={rounds}")
        if lr is not None and self.schedule in (*ENDING, "plateau") and self.lr_min >= lr:
            raise ValueError(f"{self._of}.lr_min={self.lr_min}: must be below {key}{lr}")

    @model_validator(mode="after")
    def _of_its_schedule(self) -> Self:
        key = f"{self._of}.schedule={self.schedule}"
        if self.schedule != "constant" and self.lr_decay != 1:
            raise ValueError(f"lr_decay={self.lr_decay}: must be 1.0 with {key}")
        if self.schedule == "table":
            for name in ("lr_min", "warmup_rounds"):
                if value := getattr(self, name):
                    raise ValueError(f"{name}={value}: must be 0 with {key}, which gives all rates")
            if not self.lr_rounds:
                raise ValueError(
                    "schedule=table: needs rounds and their rates, such as"
                    f" {self._of}.lr_rounds=[1,50] {self._of}.lr_values=[0.1,0.01]"
                )
        check_table(self.lr_rounds, self.lr_values, "lr_")
        for needed, names in (("table", OF_TABLE), ("plateau", OF_PLATEAU)):
            for name in names:
                value = getattr(self, name)
                if self.schedule != needed and value != type(self).model_fields[name].default:
                    raise ValueError(
                        f"{name}={as_typed(value)}: needs {self._of}.schedule={needed}"
                    )
        return self
