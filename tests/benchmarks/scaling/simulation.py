"""A pool of any number of workers, simulated: the engine's own schedule on a clock of ours.

The schedule of `raysim.execution.pool`, which decides what the actors of a real pool do, decides it
here. Simulated are the seconds that clients take, the driver, which serves one message at a time,
and the way between the two. `DriverCosts` says what is assumed; `message_costs` measures the
driver's part of it on this machine.
"""

from __future__ import annotations

import heapq
import itertools
import statistics
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from time import perf_counter, thread_time
from typing import Any

import numpy as np
import numpy.typing as npt
import ray

from raysim.core.seeds import stream
from raysim.execution.pool.dealing import Speeds, assign
from raysim.execution.pool.schedule import IN_FLIGHT, Schedule

Item = tuple[int, ...]


@dataclass(frozen=True)
class DriverCosts:
    """Seconds that messages cost, for a model of the 2NN's size.

    Attributes:
        send: The driver, to hand out a chunk.
        receive: The driver, to learn that a call has returned.
        merge: The driver, to take a sum and add it up.
        latency: The way from driver to worker, or back.
        call: The worker, around what it does in a call.
        pack: The worker, to hand over its sum.
    """

    send: float = 0.25e-3
    receive: float = 0.15e-3
    merge: float = 1e-3
    latency: float = 0.5e-3
    call: float = 0.3e-3
    pack: float = 1e-3


@dataclass
class SimulatedRound:
    """What a round of W workers came to, in seconds of the simulated clock.

    Attributes:
        seconds: Until the last sum was added up.
        busy: Training, of all workers together.
        messages: Calls made.
        sums: Sums handed over.
        driver: The driver's own work, with the schedule's.
        deciding: The schedule's part of it, in CPU seconds that it took of this machine.
    """

    seconds: float = 0.0
    busy: float = 0.0
    messages: int = 0
    sums: int = 0
    driver: float = 0.0
    deciding: float = 0.0


class Play:
    """A round that is being played.

    Args:
        costs: The items, with the work of each as the schedule knows it.
        seconds_of: What an item takes a worker.
        speeds: What is known of the workers; the round adds to it.
        workers: Their number.
        driver: What messages cost.
    """

    def __init__(
        self,
        costs: Mapping[Item, float],
        seconds_of: Callable[[int, Item], float],
        speeds: Speeds,
        workers: int,
        driver: DriverCosts,
    ) -> None:
        self.result = SimulatedRound()
        self._seconds_of, self._driver = seconds_of, driver
        self._free = [0.0] * workers
        self._numbers = itertools.count()
        self._events: list[tuple[float, int, int, float]] = []
        with self._deciding():
            self._schedule = Schedule(costs, speeds)

    def to_the_end(self) -> SimulatedRound:
        """Play it to the end."""
        for worker in [*range(len(self._free))] * IN_FLIGHT:
            self._fill(worker)
        while not self._schedule.finished:
            self._hear()
        return self.result

    def _fill(self, worker: int) -> None:
        """Hand a worker what is due; note when it will be heard of."""
        with self._deciding():
            assignment = self._schedule.next(worker)
        if assignment is None:
            return
        result, driver, free = self.result, self._driver, self._free
        self._work(driver.send)
        result.messages += 1
        took = sum(self._seconds_of(worker, item) for item in assignment.items)
        around = driver.call + (driver.pack if assignment.hand_over else 0)
        free[worker] = max(result.seconds + driver.latency, free[worker]) + took + around
        result.busy += took
        arrives = free[worker] + driver.latency
        heapq.heappush(self._events, (arrives, next(self._numbers), worker, took))

    def _hear(self) -> None:
        """Serve the next call to return."""
        arrived, _, worker, took = heapq.heappop(self._events)
        self.result.seconds = max(self.result.seconds, arrived)
        with self._deciding():
            assignment = self._schedule.returned(worker, took)
        self._work(self._driver.receive + (self._driver.merge if assignment.hand_over else 0))
        self.result.sums += assignment.hand_over
        for _ in range(IN_FLIGHT):
            self._fill(worker)

    @contextmanager
    def _deciding(self) -> Iterator[None]:
        """Count what the schedule takes of this machine."""
        begun = thread_time()
        yield
        took = thread_time() - begun
        self.result.deciding += took
        self._work(took)

    def _work(self, seconds: float) -> None:
        """Have the driver work for so long."""
        self.result.driver += seconds
        self.result.seconds += seconds


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
    """Clients and workers of a simulation: log-normal work, unequal speeds, noise in both.

    Attributes:
        workers: Number of workers.
        cohort: Clients a round.
        mean: What a client takes the mean worker, in seconds on average.
        sigma: Standard deviation of the logarithm of the clients' work.
        spread: How far a worker's speed may be from the mean, as a part of it.
        noise: Standard deviation of the logarithm of what a client takes beyond what its work says.
        seed: Seed of all draws.
    """

    workers: int
    cohort: int
    mean: float
    sigma: float
    spread: float = 0.5
    noise: float = 0.1
    seed: int = 0

    def rounds(self, number: int, driver: DriverCosts) -> list[Played]:
        """Play rounds with other clients each; at first the workers' speeds are not known."""
        draws = stream(self.seed, "speeds", self.workers)
        pace = draws.uniform(1 - self.spread, 1 + self.spread, self.workers)
        speeds = Speeds(self.workers)
        results = []
        for index in range(number):
            work, taken = self._clients(index)
            play = Play(
                _numbered(work),
                lambda worker, item, taken=taken: float(taken[item[0]] / pace[worker]),
                speeds,
                self.workers,
                driver,
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


class _Stub:
    """An actor that does nothing, or never returns."""

    async def call(self, *_: Any) -> tuple[float, None]:
        return 0.0, None

    async def never(self) -> None:
        import asyncio

        await asyncio.Event().wait()


def message_costs(workers: int, repeats: int = 200) -> DriverCosts:
    """Measure what a message costs the driver while it waits for so many workers.

    One actor stands for all: the driver waits for `workers` calls that never return, beside the
    one that does. Ray must be running.
    """
    actor = ray.remote(num_cpus=0, max_concurrency=workers + 2)(_Stub).remote()
    waited = [actor.never.remote() for _ in range(workers - 1)]
    shared = [ray.put(0)]
    sending, receiving = [], []
    for _ in range(repeats):
        begun = perf_counter()
        call = actor.call.remote("train", shared, [(1,), (2,)], False)
        sending.append(perf_counter() - begun)
        ray.wait([call], fetch_local=False)
        begun = perf_counter()
        ((ready,), _) = ray.wait([*waited, call], num_returns=1)
        ray.get(ready)
        receiving.append(perf_counter() - begun)
    ray.kill(actor)
    return DriverCosts(send=statistics.median(sending), receive=statistics.median(receiving))
