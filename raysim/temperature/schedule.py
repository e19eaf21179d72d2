"""A temperature by the number of the round.

Source: FLex&Chill (Lee, Kim and Ko, 2024), algorithm 1: the server determines T at each round; the
paper leaves the choice of T to the server. Here the user gives T in some rounds, from 1:

    T_1 = local.temperature, unless round 1 is given
    hold       T_t = the last given one
    linear     T_t moves by equal steps from the last given one to the next
    geometric  T_t moves by equal factors, and so does 1/T, the factor of the step at the logits
"""

from __future__ import annotations

from typing import Self

from pydantic import Field, model_validator

from raysim.api.rates import Between, Rounds, Values, check_table, table_value
from raysim.api.temperature import Temperature, TemperatureRound


class Schedule(Temperature):
    """Temperatures in given rounds, held or interpolated between them.

    Costs nothing. T depends on the number of the round alone, not on the number of rounds.
    """

    rounds: Rounds = Field(default=(), description="rounds with a given T, ascending, from 1")
    values: Values = Field(default=(), description="T in each of them")
    between: Between = Field(
        default="hold", description="T between them: the one before, or by equal steps or factors"
    )

    @model_validator(mode="after")
    def _a_value_each(self) -> Self:
        check_table(self.rounds, self.values)
        return self

    def choose(self, round_: TemperatureRound) -> float:
        """Return the T of a round."""
        first, table = round_.temperature, (self.rounds, self.values)
        return table_value(round_.number + 1, first, *table, self.between)
