"""Oort: selection of clients by their utility and duration.

Source: Lai, Zhu, Madhyastha and Chowdhury, "Oort: Efficient Federated Learning via Guided
Participant Selection", OSDI 2021, algorithm 1; what it leaves open, all defaults and the pacer, as
in the authors' code (github.com/SymbioticLab/Oort, commit 05a3aa1: oort/oort.py, training/
argParser.py and training/helper/clientSampler.py).

    U_i    = n_i * sqrt(mean over its samples of loss^2), or n_i before its first result
    score  = (min(U_i, clip) - min U) / (max U - min U) + sqrt(0.1 * log(R) / L_i)
    score <- score * (T / D_i)^alpha                  where D_i > T

R is the round from 1, L_i the round of the client's last result, D_i its duration in seconds; min U
(less 0.1%), max U and `clip`, the 98th percentile, are over all available clients, new ones, too.
The first cohort is uniform. In round R, epsilon is `epsilon * decay^(R-1)`, at least `least`:
a fraction 1 - epsilon of the cohort is drawn by score from the clients above 70% of the score at
the cut-off. The others have no result yet, and are drawn by their samples times (T / D_i)^alpha
from the largest; if these are too few, uniformly from all. Epsilon is 0 from the second round on
without a new client. T is the duration at a percentile of all clients. Every `pacer_step` rounds it
rises by `pacer_delta` if the utility of the exploited clients over the last `pacer_step` rounds
differs by at most 10% from the utility over as many before, and falls if it grew by five times and
more; algorithm 1 raises it where this utility has fallen, and never lowers it.

Deviations from the code:

- R and L_i count the same rounds, as in algorithm 1; the code's R counts selections by score, so it
  lags.
- n_i are all of a client's samples, as local epochs see all of them; the code's clients take a
  number of steps, and their n_i are at most the samples of these.
- Losses are the trained model's, without noise; the code's are a moving average over batches of the
  first epoch.
- D_i is the duration of plain local training, for all clients known from the first round on, as in
  the code; there it is the duration of a number of steps.
- If a client's result does not count, the client stays as it was; the code gives the mean utility
  of the round to the extra ones.
- Clients that fill a cohort are not exploited ones; in the code they are, in the one round without
  new clients in which epsilon is not 0 yet.
- A round that selects all available clients counts as any other; the code skips it.
- min U is over utilities of 0 too, and weights of draws are at least 1e-4; the code's draws fail at
  negative scores, and where too few weights are above 0.
- No client is blacklisted, as by the code's default.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import ClassVar

import numpy as np
from pydantic import Field

from raysim.api.columns import Column
from raysim.api.rules import Trained, View
from raysim.api.scoring import FORWARD_ROWS
from raysim.api.selection import Results, Sampling, Selection
from raysim.api.state import State
from raysim.numbers.arrays import Flags, Floats, Integers
from raysim.user_input.limits import Count

CLIP, CUT_OFF, CONFIDENCE, WINDOW = 0.98, 0.7, 0.1, 5.0
FLAT, SHARP = 0.1, 5.0
LEAST_SCORE = 1e-4
SQUARED_LOSS = "squared_loss"
"""Column of `clients.parquet`: mean squared loss of the trained model on the client's samples."""
UTILITY = "exploited_utility"
"""Column of `metrics.parquet`: mean utility of the exploited clients whose results counted."""


class Oort(Selection):
    """Selection of fast, available clients with large losses.

    Helps where devices differ (`clock.name=devices`) and data too. Costs a forward pass over a
    client's samples after its training, which takes no virtual time, as training computes the
    losses anyway.
    """

    needs_sample_losses: ClassVar[bool] = True
    columns: ClassVar[Sequence[Column]] = (Column(UTILITY),)
    alpha: float = Field(default=2.0, ge=0, le=100, description="exponent of T / duration")
    epsilon: float = Field(default=0.9, ge=0, le=1, description="share of new clients, at first")
    decay: float = Field(default=0.95, gt=0, le=1, description="factor of epsilon per round")
    least: float = Field(default=0.2, ge=0, le=1, description="least epsilon")
    pacer_step: Count = Field(default=20, description="rounds between changes of T")
    pacer_delta: float = Field(default=5.0, ge=0, le=100, description="step of T's percentile")
    percentile: float = Field(
        default=10.0, gt=0, le=100, description="of the clients' durations: T at first; 100: none"
    )

    def init(self, clients: int) -> State:
        """Return the state of K clients before the first round."""
        return {
            "squared_losses": np.full(clients, np.nan),
            "last": np.ones(clients, dtype=np.int64),
            "newest": np.array(0),
            "utilities": np.empty(0),
        }

    def select(self, sampling: Sampling) -> list[int]:
        """Return the exploited clients, then the explored ones and those that fill the cohort."""
        everyone = np.arange(sampling.clients)
        here = everyone[sampling.available(everyone)]
        if not sampling.number:
            first: list[int] = _uniform(sampling.generator(), here, sampling.wanted).tolist()
            return first
        generator, heard = sampling.generator(), _heard(sampling)
        seconds = sampling.seconds(everyone)
        penalty = np.minimum(self.preferred(sampling, seconds) / seconds, 1) ** self.alpha
        known, new = here[heard[here]], here[~heard[here]]
        exploited = np.array([], dtype=np.int64)
        if count := self._exploited(sampling, len(known)):
            scores = self._scores(sampling, known, here) * penalty[known]
            cut = np.sort(scores)[::-1][min(count, len(known) - 1)] * CUT_OFF
            pool = scores >= cut
            exploited = _drawn(generator, known[pool], scores[pool], count)
        explored = np.array([], dtype=np.int64)
        if count := min(sampling.wanted - len(exploited), len(new)):
            rewards = sampling.samples[new] * penalty[new]
            best = np.argsort(-rewards, kind="stable")[: int(WINDOW * count)]
            explored = _drawn(generator, new[best], rewards[best], count)
        left = np.setdiff1d(here, np.concatenate([exploited, explored]))
        more = _uniform(generator, left, sampling.wanted - len(exploited) - len(explored))
        return [*exploited.tolist(), *explored.tolist(), *more.tolist()]

    def report(self, view: View, trained: Trained) -> Mapping[str, float]:
        """Return the mean squared loss of the trained model."""
        data, squares = trained.data, []
        for start in range(0, len(data.y), FORWARD_ROWS):
            rows = slice(start, start + FORWARD_ROWS)
            part = data._replace(x=data.x[rows], y=data.y[rows])
            losses = part.reported.losses(view.at(view.params, part.x).logits)
            squares.append(losses.double().square().sum())
        return {SQUARED_LOSS: float(sum(squares)) / len(data.y)}

    def update(
        self, sampling: Sampling, selected: Sequence[int], results: Results
    ) -> tuple[State, Mapping[str, float]]:
        """Add the squared losses of a round; return its utility as a metric."""
        heard = np.isfinite(values := results.reports.get(SQUARED_LOSS, np.empty(0)))
        clients, number = results.clients[heard], sampling.number + 1
        squared, last = (sampling.state[name].copy() for name in ("squared_losses", "last"))
        is_new = np.isnan(squared[clients]).any()
        squared[clients], last[clients] = values[heard], number
        known = int(_heard(sampling)[[*selected]].sum())
        exploited = [c for c in selected[: self._exploited(sampling, known)] if last[c] == number]
        worth = sampling.samples[exploited] * np.sqrt(squared[exploited])
        utility = float(np.nanmean(worth)) if len(worth) else 0.0
        state = {
            "squared_losses": squared,
            "last": last,
            "newest": np.array(number) if is_new else sampling.state["newest"],
            "utilities": np.append(sampling.state["utilities"], utility),
        }
        return state, {UTILITY: utility}

    def preferred(self, sampling: Sampling, seconds: Floats) -> float:
        """Return T, the seconds beyond which a client's score is reduced.

        Args:
            sampling: The input of `select`.
            seconds: Duration of each client's work [K].
        """
        threshold, step = self.percentile, self.pacer_step
        utilities = sampling.state["utilities"].tolist()
        for number in range(2 * step, sampling.number + 1, step):
            before = sum(utilities[number - 2 * step : number - step])
            change = abs(sum(utilities[number - step : number]) - before)
            if change <= FLAT * before:
                threshold = min(100.0, threshold + self.pacer_delta)
            elif change >= SHARP * before:
                threshold = max(self.pacer_delta, threshold - self.pacer_delta)
        if threshold >= 100:
            return float("inf")
        clients = len(seconds)
        return float(np.sort(seconds)[min(int(clients * threshold / 100), clients - 1)])

    def _exploited(self, sampling: Sampling, known: int) -> int:
        """Return the number of exploited clients, of `known` available ones with results."""
        return (
            min(int(sampling.wanted * (1 - self._epsilon(sampling))), known)
            if sampling.number
            else 0
        )

    def _epsilon(self, sampling: Sampling) -> float:
        """Return the share of the cohort that is not exploited."""
        if (
            _heard(sampling).all() and sampling.state["newest"] < sampling.number
        ):  # no new one in the last round
            return 0.0
        return max(self.epsilon * self.decay**sampling.number, self.least)

    def _scores(self, sampling: Sampling, clients: Integers, here: Integers) -> Floats:
        """Return the scores of clients with results [n], without the penalty of slow ones."""
        roots = np.where(_heard(sampling), np.sqrt(sampling.state["squared_losses"]), 1.0)
        utility = sampling.samples.astype(np.float64) * roots
        ordered = np.sort(utility[here])
        clip = ordered[min(int(len(ordered) * CLIP), len(ordered) - 1)]
        least = 0.999 * ordered[0]
        value = np.minimum(utility[clients], clip) - least
        last = sampling.state["last"][clients]
        scores: Floats = value / max(ordered[-1] - least, LEAST_SCORE) + np.sqrt(
            CONFIDENCE * np.log(sampling.number + 1) / last
        )
        return scores


def _heard(sampling: Sampling) -> Flags:
    """Return whether each client has had a result [K]."""
    return ~np.isnan(sampling.state["squared_losses"])


def _drawn(
    generator: np.random.Generator, clients: Integers, weights: Floats, count: int
) -> Integers:
    """Draw distinct clients with probabilities in proportion to their weights."""
    shares = np.maximum(weights, LEAST_SCORE)
    return generator.choice(clients, count, replace=False, p=shares / shares.sum())


def _uniform(generator: np.random.Generator, clients: Integers, count: int) -> Integers:
    """Draw distinct clients uniformly, all of them if they are fewer."""
    return generator.choice(clients, min(count, len(clients)), replace=False)
