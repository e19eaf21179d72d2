"""One temperature in all rounds, as in the tables of FLex&Chill (Lee, Kim and Ko, 2024).

T_t = local.temperature
"""

from __future__ import annotations

from typing import ClassVar

from raysim.api.temperature import Temperature, TemperatureRound


class Constant(Temperature):
    """The setting `local.temperature`, in all rounds and on all clients.

    Costs nothing.
    """

    varies: ClassVar[bool] = False

    def choose(self, round_: TemperatureRound) -> float:
        """Return `local.temperature`."""
        return round_.temperature
