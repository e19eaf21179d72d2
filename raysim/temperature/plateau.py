"""A temperature that the server lowers where training no longer improves.

Source: FLex&Chill (Lee, Kim and Ko, 2024), algorithm 1: the server determines T at each round; the
paper leaves the choice of T to the server. The rule chosen here is torch's ReduceLROnPlateau:

    improved:  metric < (1 - threshold) * best, or of an accuracy metric > (1 + threshold) * best
    T <- max(factor * T, least) after more than `patience` rounds in a row without improvement

A lower T is a larger step as well (1/T at the logits), so that the rule also raises the step size;
a `factor` above 1 raises T, up to `most`. Rounds without a value of the metric, such as rounds
without an evaluation, are skipped. No metric is of the test set, which must choose nothing.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Annotated, Self

import numpy as np
from pydantic import Field, model_validator

from raysim.api.rates import METRIC_NEEDS, Metric, PlateauRule
from raysim.api.state import State
from raysim.api.temperature import Temperature, TemperatureRound
from raysim.user_input.limits import MOST


class Plateau(Temperature):
    """A temperature that changes by a factor where a metric of the rounds no longer improves.

    Begins at `local.temperature`. Costs nothing: clients report the train loss anyway.
    """

    metric: Metric = Field(
        default="train_loss", description="metric of rounds; holdout_... need evaluation.holdout"
    )
    factor: float = Field(default=0.5, gt=0, description="factor of T; above 1, T rises")
    patience: Annotated[int, Field(ge=0, le=MOST)] = Field(
        default=10, description="rounds in a row without improvement that T outlasts"
    )
    threshold: float = Field(default=1e-4, ge=0, lt=1, description="least relative improvement")
    least: float = Field(default=0.05, gt=0, description="smallest T")
    most: float = Field(default=4.0, gt=0, description="largest T")

    @model_validator(mode="after")
    def _least_is_below_most(self) -> Self:
        if self.least > self.most:
            raise ValueError(f"least={self.least}: must be at most most={self.most}")
        return self

    @property
    def reads(self) -> Mapping[str, str]:
        """The metric, and the cause of its absence in words."""
        return {self.metric: f"temperature.metric={self.metric}: {METRIC_NEEDS}"}

    def choose(self, round_: TemperatureRound) -> float:
        """Return T after the changes so far."""
        return float(round_.state["temperature"]) if round_.state else round_.temperature

    def update(
        self, round_: TemperatureRound, temperature: float, row: Mapping[str, float | None]
    ) -> State:
        """Return T of the next round, the best value, and the rounds without a better one."""
        rule = PlateauRule(self.metric, self.patience, self.threshold)
        kept, ended = rule.after(round_.state, row)
        if ended:
            changed = min(max(self.factor * temperature, self.least), self.most)
            # A T outside of the limits at first, by local.temperature, is not moved back.
            closer = changed < temperature if self.factor < 1 else changed > temperature
            temperature = changed if closer else temperature
        state = {"temperature": temperature, **kept}
        return {name: np.asarray(value, dtype=np.float64) for name, value in state.items()}
