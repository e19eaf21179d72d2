"""A temperature by the number of the round.

Source: FLex&Chill (Lee, Kim and Ko, 2024), algorithm 1, in which the server determines T at each
round; which T, it leaves to the server. Here the user gives T in some rounds, from 1:

    T_1 = local.temperature, unless round 1 is given
    hold       T_t = the last given one
    linear     T_t moves by equal steps from the last given one to the next
    geometric  T_t moves by equal factors, and so does 1/T, the factor of the step at the logits
"""

from __future__ import annotations

from typing import Annotated, Literal, Self

import numpy as np
from pydantic import Field, model_validator

from raysim.core.temperature import Temperature, TemperatureRound
from raysim.core.user_input.limits import MOST

Rounds = tuple[Annotated[int, Field(ge=1, le=MOST)], ...]
Values = tuple[Annotated[float, Field(gt=0)], ...]


class Schedule(Temperature):
    """Temperatures in given rounds, held or interpolated between them.

    Costs nothing. T depends on the number of the round alone, not on the number of rounds.
    """

    rounds: Rounds = Field(default=(), description="rounds with a given T, ascending, from 1")
    values: Values = Field(default=(), description="T in each of them")
    between: Literal["hold", "linear", "geometric"] = Field(
        default="hold", description="T between them: the one before, or by equal steps or factors"
    )

    @model_validator(mode="after")
    def _a_value_each(self) -> Self:
        if len(self.values) != len(self.rounds):
            shown = [*self.values]
            raise ValueError(f"values={shown}: must be one for each of rounds={[*self.rounds]}")
        if any(b <= a for a, b in zip(self.rounds, self.rounds[1:], strict=False)):
            raise ValueError(f"rounds={[*self.rounds]}: must be ascending")
        return self

    def choose(self, now: TemperatureRound) -> float:
        """Return the T of a round."""
        number, rounds, values = now.number + 1, [*self.rounds], [*self.values]
        if not rounds or rounds[0] > 1:
            rounds, values = [1, *rounds], [now.temperature, *values]
        if self.between == "hold":
            return values[int(np.searchsorted(rounds, number, side="right")) - 1]
        if number in rounds:
            return values[rounds.index(number)]
        if self.between == "linear":
            return float(np.interp(number, rounds, values))
        return float(np.exp(np.interp(number, rounds, np.log(values))))
