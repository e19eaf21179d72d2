"""Reshuffled selection: clients are drawn without replacement for some rounds, then again.

Source: the shuffled clients that DP-FTRL's privacy rests on: Kairouz, McMahan, Song, Thakkar,
Thakurta and Xu, "Practical and Private (Deep) Learning without Sampling or Shuffling", ICML 2021.

In `rounds` rounds each client takes part at most once; in K // m, all but K mod m of them do. If a
client's result did not count, because it failed or was late, the client may be drawn again.
"""

from __future__ import annotations

from typing import ClassVar

from pydantic import Field

from raysim.api.components import called
from raysim.api.privacy import Draw
from raysim.api.selection import Sampling, Selection
from raysim.errors import SettingsError
from raysim.user_input.limits import Count


class Reshuffled(Selection):
    """Draw of clients that have not taken part in the last few rounds: an epoch over clients.

    Covers the clients evenly. Costs time in proportion to the population. Clients that are away
    take part only if the server waits for them, and `clock.extra` adds none.
    """

    draw: ClassVar[Draw | None] = "once"
    may_be_empty: ClassVar[bool] = True

    rounds: Count | None = Field(
        default=None,
        description="rounds that a client takes part in at most once; none: K // m, all clients",
    )

    def select(self, sampling: Sampling) -> list[int]:
        """Return clients without replacement, among those that earlier rounds have left.

        Raises:
            SettingsError: there are too few clients for so many rounds.
        """
        most = sampling.clients // sampling.size
        rounds = self.rounds or most
        if rounds > most:
            raise SettingsError(
                f"{called(self)}: rounds={rounds}: must be at most {most}, as each client takes"
                f" part at most once in them, {sampling.size} of {sampling.clients} a round"
            )
        begun = sampling.number - sampling.number % rounds
        clients = sampling.candidates
        left = clients[sampling.last_round[clients] <= begun]
        count = min(sampling.size, len(left))
        drawn: list[int] = sampling.generator().choice(left, count, replace=False).tolist()
        return drawn
