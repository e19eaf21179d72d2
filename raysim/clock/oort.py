"""Oort: selection of clients by what they are worth and how long they take.

Source: Lai, Zhu, Madhyastha and Chowdhury, "Oort: Efficient Federated Learning via Guided
Participant Selection", OSDI 2021, algorithm 1; what it leaves open, and all defaults, as in the
authors' code (github.com/SymbioticLab/Oort, commit 05a3aa1, oort/oort.py and argParser.py).

    U_i    = n_i * sqrt(mean over its samples of loss^2)
    score  = (min(U_i, clip) - min U) / (max U - min U) + sqrt(0.1 * log(R) / L_i)
    score <- score * (T / D_i)^alpha                  where D_i > T

R is the round from 1, L_i that of the client's last result, D_i the seconds that it takes, `clip`
the 98th percentile of U. A fraction 1 - epsilon of the cohort is drawn by score from the clients
above 70% of the score at the cut-off; the others have never taken part, and are drawn by their
samples times (T / D_i)^alpha from the largest. epsilon decays every round to `least`. T is the
duration at a percentile of all clients: every `pacer_step` rounds it rises by `pacer_delta` where
the utility of the exploited clients changed by less than 10% over the last so many, and falls
where it grew by five times and more. Deviations: n_i are all of a client's samples, their losses
those of its trained model, without noise; D_i is that of plain local training, which the server
knows from the first round on; nobody is blacklisted, as by the code's default.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from pydantic import Field

from raysim.clock.devices import Devices
from raysim.clock.draws import Floats, Integers
from raysim.core.given.limits import Count

CLIP, CUT_OFF, CONFIDENCE, WINDOW = 0.98, 0.7, 0.1, 5.0
FLAT, SHARP = 0.1, 5.0
LEAST_SCORE = 1e-4


@dataclass(frozen=True)
class Feedback:
    """Knowledge of the clients before a round.

    Attributes:
        number: Rounds committed.
        wanted: Clients to be selected.
        candidates: Clients that are available, ascending [n].
        seconds: Duration of each client's work [K].
        samples: Samples of each client [K].
        squared_losses: Mean squared loss of each client's last result [K]; NaN before the first.
        last: Round of that result, from 1 [K].
        utilities: Mean utility of the exploited clients of each round so far.
        generator: Source of the draws.
    """

    number: int
    wanted: int
    candidates: Integers
    seconds: Floats
    samples: Integers
    squared_losses: Floats
    last: Integers
    utilities: Sequence[float]
    generator: np.random.Generator

    @property
    def utility(self) -> Floats:
        """Statistical utility U_i of each client [K]; NaN before its first result."""
        found: Floats = self.samples.astype(np.float64) * np.sqrt(self.squared_losses)
        return found


class Oort(Devices):
    """Devices of which clients are selected by Oort: fast ones with large losses.

    Takes the place of the method's cohort. Helps where devices differ and data too. Costs a
    forward pass over a client's samples after its training, which no virtual time is charged for:
    the losses are those that training has anyway.
    """

    alpha: float = Field(default=2.0, ge=0, le=100, description="exponent of T / duration")
    epsilon: float = Field(default=0.9, ge=0, le=1, description="share of new clients, at first")
    decay: float = Field(default=0.95, gt=0, le=1, description="factor of epsilon per round")
    least: float = Field(default=0.2, ge=0, le=1, description="least epsilon")
    pacer_step: Count = Field(default=20, description="rounds between changes of T")
    pacer_delta: float = Field(default=5.0, ge=0, le=100, description="step of T's percentile")
    percentile: float = Field(
        default=10.0, gt=0, le=100, description="of the clients' durations: T at first; 100: none"
    )

    def select(self, found: Feedback) -> tuple[list[int], list[int]]:
        """Return the clients that are exploited, and those that are explored or fill the cohort."""
        utility, preferred = found.utility, self.preferred(found)
        heard = ~np.isnan(utility)
        penalty = np.minimum(preferred / found.seconds, 1) ** self.alpha
        known, new = (found.candidates[flags[found.candidates]] for flags in (heard, ~heard))
        epsilon = max(self.epsilon * self.decay ** (found.number + 1), self.least)
        count = min(int(found.wanted * (1 - (epsilon if not heard.all() else 0))), len(known))
        exploited = np.array([], dtype=np.int64)
        if count:
            scores = self._scores(found, known) * penalty[known]
            cut = np.sort(scores)[::-1][min(count, len(known) - 1)] * CUT_OFF
            pool = scores >= cut
            exploited = _drawn(found.generator, known[pool], scores[pool], count)
        explored = np.array([], dtype=np.int64)
        if count := min(found.wanted - len(exploited), len(new)):
            rewards = found.samples[new] * penalty[new]
            first = np.argsort(-rewards, kind="stable")[: int(WINDOW * count)]
            explored = _drawn(found.generator, new[first], rewards[first], count)
        left = np.setdiff1d(found.candidates, np.concatenate([exploited, explored]))
        count = min(found.wanted - len(exploited) - len(explored), len(left))
        more = found.generator.choice(left, count, replace=False) if count else left[:0]
        return exploited.tolist(), [*explored.tolist(), *more.tolist()]

    def preferred(self, found: Feedback) -> float:
        """Return T, the seconds beyond which a client's score is reduced."""
        threshold, step = self.percentile, self.pacer_step
        utilities = [0.0, *found.utilities]  # as the code has it, of a round before the first
        for number in range(2 * step, found.number + 2, step):
            before = sum(utilities[number - 2 * step : number - step])
            change = abs(sum(utilities[number - step : number]) - before)
            if change <= FLAT * before:
                threshold = min(100.0, threshold + self.pacer_delta)
            elif change >= SHARP * before:
                threshold = max(self.pacer_delta, threshold - self.pacer_delta)
        if threshold >= 100:
            return float("inf")
        clients = len(found.seconds)
        return float(np.sort(found.seconds)[min(int(clients * threshold / 100), clients - 1)])

    def _scores(self, found: Feedback, clients: Integers) -> Floats:
        """Return the scores of clients with results [n], without the penalty of slow ones."""
        utility, last = found.utility[clients], found.last[clients]
        ordered = np.sort(utility)
        clip = ordered[min(int(len(ordered) * CLIP), len(ordered) - 1)]
        least = 0.999 * ordered[0]
        value = (np.minimum(utility, clip) - least) / max(ordered[-1] - least, LEAST_SCORE)
        found_scores: Floats = value + np.sqrt(CONFIDENCE * np.log(found.number + 1) / last)
        return found_scores


def _drawn(
    generator: np.random.Generator, clients: Integers, weights: Floats, count: int
) -> Integers:
    """Draw distinct clients with probabilities in proportion to their weights."""
    shares = np.maximum(weights, LEAST_SCORE)
    return generator.choice(clients, count, replace=False, p=shares / shares.sum())
