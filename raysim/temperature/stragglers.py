"""A lower temperature on the slowest clients of a round.

Source: FLex&Chill (Lee, Kim and Ko, 2024), section 5, "Supporting heterogeneous federated
learning": lower temperatures for potential stragglers, with a prior analysis of each device and a
consensus on the temperatures. The paper gives no formula and leaves it to further work. Chosen
here: the prior analysis is the expected duration of plain local training; the stragglers are the
`slowest` part of the clients of a pass, of equal durations the first by number.

    T_k = straggler_temperature for the floor(slowest * m) slowest of m clients, else the round's T

T changes no duration. A low T may make up for the work that a straggler leaves out, as under
`clock.policy=partial`.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import numpy as np
from pydantic import Field

from raysim.api.temperature import Temperature, TemperatureRound


class Stragglers(Temperature):
    """A lower temperature on the slowest clients, `local.temperature` on the others.

    `clock.name=devices` gives durations; without a clock they are samples times local epochs.
    """

    slowest: float = Field(default=0.25, gt=0, le=1, description="part of the clients of a pass")
    straggler_temperature: float = Field(default=0.25, gt=0, description="T of these clients")

    def choose(self, round_: TemperatureRound) -> float:
        """Return `local.temperature`."""
        return round_.temperature

    def by_client(
        self, round_: TemperatureRound, temperature: float, clients: Sequence[int]
    ) -> Mapping[int, float]:
        """Return the T of the slowest clients."""
        count = int(round(self.slowest * len(clients), 9))
        if not count:
            return {}
        asked = np.array(clients)
        slow = asked[np.argsort(-round_.seconds(asked), kind="stable")[:count]]
        return dict.fromkeys(slow.tolist(), self.straggler_temperature)
