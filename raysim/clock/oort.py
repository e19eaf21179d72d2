"""Oort: selection of clients by what they are worth and how long they take.

Source: Lai, Zhu, Madhyastha and Chowdhury, "Oort: Efficient Federated Learning via Guided
Participant Selection", OSDI 2021, algorithm 1; what it leaves open, all defaults and the pacer, as
in the authors' code (github.com/SymbioticLab/Oort, commit 05a3aa1: oort/oort.py, training/
argParser.py and training/helper/clientSampler.py).

    U_i    = n_i * sqrt(mean over its samples of loss^2), or n_i before its first result
    score  = (min(U_i, clip) - min U) / (max U - min U) + sqrt(0.1 * log(R) / L_i)
    score <- score * (T / D_i)^alpha                  where D_i > T

R is the round from 1, L_i that of the client's last result, D_i the seconds that it takes; min U
(less 0.1%), max U and `clip`, the 98th percentile, are those of all available clients, of new ones
too. The first cohort is uniform. In round R, epsilon is `epsilon * decay^(R-1)`, at least `least`:
a fraction 1 - epsilon of the cohort is drawn by score from the clients above 70% of the score at
the cut-off; the others have no result yet, and are drawn by their samples times (T / D_i)^alpha
from the largest; where these are too few, uniformly from all. Epsilon is 0 from the second round on
in which nobody is new. T is the duration at a percentile of all clients: every `pacer_step` rounds
it rises by `pacer_delta` where the utility of the exploited clients over the last so many rounds
differs by at most 10% from that of as many before, and falls where it grew by five times and more;
algorithm 1 raises it where this utility has fallen, and never lowers it.

Deviations from the code:

- R and L_i count the same rounds, as in algorithm 1; the code's R counts selections by score, so it
  is behind.
- n_i are all of a client's samples, as local epochs see all of them; the code's clients take a
  number of steps, and their n_i are at most the samples of these.
- Losses are those of the trained model, without noise; the code's are a moving average over batches
  of the first epoch.
- D_i is that of plain local training, of all clients known from the first round on, as in the code;
  there it is that of a number of steps.
- A client whose result does not count stays as it was; the code gives the mean utility of the round
  to those that it asked on top.
- Clients that fill a cohort are not exploited ones; in the code they are, in the one round in which
  nobody is new any more and epsilon is not 0 yet.
- A round in which all available clients are asked counts as any other; the code skips it.
- min U is over utilities of 0 too, and weights of draws are at least 1e-4; the code's draws fail at
  negative scores, and where too few weights are above 0.
- Nobody is blacklisted, as by the code's default.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import ClassVar

import numpy as np
from pydantic import Field

from raysim.clock.availability import Flags
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
        newest: Last round in which a client had its first result, from 1; 0: none had.
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
    newest: int
    utilities: Sequence[float]
    generator: np.random.Generator

    @property
    def heard(self) -> Flags:
        """Return whether each client has had a result [K]."""
        return ~np.isnan(self.squared_losses)

    @property
    def utility(self) -> Floats:
        """Utility U_i of each client [K]: n_i before its first result."""
        roots = np.where(self.heard, np.sqrt(self.squared_losses), 1.0)
        found: Floats = self.samples.astype(np.float64) * roots
        return found


class Oort(Devices):
    """Devices of which clients are selected by Oort: fast ones with large losses.

    Takes the place of the method's cohort. Helps where devices differ and data too. Costs a
    forward pass over a client's samples after its training, which no virtual time is charged for:
    the losses are those that training has anyway.
    """

    revision: ClassVar[int] = 2
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
        if not found.number:
            return [], _uniform(found, found.candidates, found.wanted).tolist()
        heard = found.heard
        penalty = np.minimum(self.preferred(found) / found.seconds, 1) ** self.alpha
        known, new = (found.candidates[flags[found.candidates]] for flags in (heard, ~heard))
        count = min(int(found.wanted * (1 - self._epsilon(found))), len(known))
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
        more = _uniform(found, left, found.wanted - len(exploited) - len(explored))
        return exploited.tolist(), [*explored.tolist(), *more.tolist()]

    def preferred(self, found: Feedback) -> float:
        """Return T, the seconds beyond which a client's score is reduced."""
        threshold, step = self.percentile, self.pacer_step
        utilities = found.utilities
        for number in range(2 * step, found.number + 1, step):
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

    def _epsilon(self, found: Feedback) -> float:
        """Return the share of the cohort that is not exploited."""
        if found.heard.all() and found.newest < found.number:  # nobody was new a round ago
            return 0.0
        return max(self.epsilon * self.decay**found.number, self.least)

    def _scores(self, found: Feedback, clients: Integers) -> Floats:
        """Return the scores of clients with results [n], without the penalty of slow ones."""
        utility, last = found.utility[clients], found.last[clients]
        ordered = np.sort(found.utility[found.candidates])
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


def _uniform(found: Feedback, clients: Integers, count: int) -> Integers:
    """Draw distinct clients uniformly, all of them where they are fewer."""
    return found.generator.choice(clients, min(count, len(clients)), replace=False)
