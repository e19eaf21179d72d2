"""Clients and workers of the simulated pools: log-normal work, unequal speeds, noise in both."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from raysim.execution.scheduling.dealing import Speeds, assign
from raysim.execution.scheduling.worker_items import Item
from raysim.numbers.seeds import stream
from tests.benchmarks.scaling.simulation import Costs, Play, SimulatedRound


@dataclass(frozen=True)
class Played:
    """A round that was played, and what it could have come to.

    Attributes:
        round: The round.
        bound: Its longest-first bound: the larger of all work on all workers, and the longest
            client on the fastest.
        ideal: Busy share if the clients, which are whole, were dealt longest first with all speeds
            and all that they will take known, and messages cost nothing.
    """

    round: SimulatedRound
    bound: float
    ideal: float


@dataclass(frozen=True)
class Population:
    """Clients and workers of a simulation.

    Attributes:
        workers: Number of workers.
        cohort: Clients a round.
        mean: What a client takes the mean worker, in seconds on average.
        sigma: Standard deviation of the logarithm of the clients' work.
        spread: How far a worker's speed may be from the mean, as a part of it.
        noise: Standard deviation of the logarithm of what a client takes beyond what its work says.
        node: Workers of a node, which a foreman schedules; 0: the driver schedules all.
        seed: Seed of all draws.
    """

    workers: int
    cohort: int
    mean: float
    sigma: float
    spread: float = 0.5
    noise: float = 0.1
    node: int = 0
    seed: int = 0

    def rounds(self, number: int, each: Costs) -> list[Played]:
        """Play rounds with other clients each; at first the workers' speeds are not known."""
        draws = stream(self.seed, "speeds", self.workers)
        pace = draws.uniform(1 - self.spread, 1 + self.spread, self.workers)
        nodes = [Speeds(self.node) for _ in range(self.workers // self.node if self.node else 0)]
        speeds = Speeds(0 if nodes else self.workers)
        for own in nodes:
            speeds.join(len(own.widths))
        results = []
        for index in range(number):
            work, taken = self._clients(index)
            play = Play(
                _numbered(work),
                lambda worker, item, taken=taken: float(taken[item[0]] / pace[worker]),
                speeds,
                nodes,
                each,
            )
            bound = max(taken.sum() / pace.sum(), taken.max() / pace.max())
            dealt = assign(_numbered(taken), pace.tolist())
            ends = [sum(taken[c] for (c,) in each) / p for each, p in zip(dealt, pace, strict=True)]
            results.append(
                Played(play.to_the_end(), float(bound), float(np.mean(ends) / max(ends)))
            )
        return results

    def _clients(self, index: int) -> tuple[npt.NDArray[np.float64], npt.NDArray[np.float64]]:
        """Return the clients' work [C] as it is known, and as it turns out."""
        generator = stream(self.seed, "clients", index)
        work = generator.lognormal(-(self.sigma**2) / 2, self.sigma, self.cohort) * self.mean
        noise = generator.lognormal(-(self.noise**2) / 2, self.noise, self.cohort)
        return work, work * noise


def _numbered(values: npt.NDArray[np.float64]) -> dict[Item, float]:
    """Return values [C] by item, one client each."""
    return {(client,): float(each) for client, each in enumerate(values)}
