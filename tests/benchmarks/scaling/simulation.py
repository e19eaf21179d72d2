"""A pool of any number of workers, simulated: the engine's own schedule on a clock of ours.

`raysim.engine.placement.Schedule`, which decides what the actors of a real pool do, decides it
here. Simulated are the seconds that clients take, the driver, which serves one message at a time,
and the way between the two. `DriverCosts` says what is assumed; `message_costs` measures the
driver's part of it on this machine.
"""

from __future__ import annotations

import heapq
import itertools
import statistics
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from time import perf_counter
from typing import Any

import ray

from raysim.core.seeds import stream
from raysim.engine.placement import IN_FLIGHT, Schedule, Speeds

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
        driver: The driver's own work.
        deciding: What the schedule itself took of this machine, on the real clock.
    """

    seconds: float = 0.0
    busy: float = 0.0
    messages: int = 0
    sums: int = 0
    driver: float = 0.0
    deciding: float = 0.0


def simulate(
    costs: Mapping[Item, float],
    seconds_of: Callable[[int, Item], float],
    speeds: Speeds,
    workers: int,
    driver: DriverCosts,
) -> SimulatedRound:
    """Play a round.

    Args:
        costs: The items, with the work of each as the schedule knows it.
        seconds_of: What an item takes a worker.
        speeds: What is known of the workers; the round adds to it.
        workers: Their number.
        driver: What messages cost.
    """
    begun = perf_counter()
    schedule = Schedule(costs, speeds)
    result = SimulatedRound(deciding=perf_counter() - begun)
    free = [0.0] * workers
    numbers = itertools.count()
    events: list[tuple[float, int, int, float]] = []

    def fill(worker: int) -> None:
        begun = perf_counter()
        handout = schedule.next(worker)
        result.deciding += perf_counter() - begun
        if handout is None:
            return
        result.seconds += driver.send
        result.driver += driver.send
        result.messages += 1
        took = sum(seconds_of(worker, item) for item in handout.items)
        around = driver.call + (driver.pack if handout.give else 0)
        free[worker] = max(result.seconds + driver.latency, free[worker]) + took + around
        result.busy += took
        heapq.heappush(events, (free[worker] + driver.latency, next(numbers), worker, took))

    for worker in [*range(workers)] * IN_FLIGHT:
        fill(worker)
    while not schedule.finished:
        arrived, _, worker, took = heapq.heappop(events)
        begun = perf_counter()
        handout = schedule.returned(worker, took)
        result.deciding += perf_counter() - begun
        own = driver.receive + (driver.merge if handout.give else 0)
        result.seconds = max(result.seconds, arrived) + own
        result.driver += own
        result.sums += handout.give
        for _ in range(IN_FLIGHT):
            fill(worker)
    return result


@dataclass(frozen=True)
class Population:
    """Clients and workers of a simulation: log-normal work, unequal speeds, noise in both.

    Attributes:
        workers: Number of workers; each is between half and one and a half times as fast as the
            mean.
        cohort: Clients a round.
        mean: What a client takes the mean worker, in seconds on average.
        sigma: Standard deviation of the logarithm of the clients' work.
        noise: The same of what a client takes beyond what its work says.
        seed: Seed of all draws.
    """

    workers: int
    cohort: int
    mean: float
    sigma: float
    noise: float = 0.1
    seed: int = 0

    def rounds(self, number: int, driver: DriverCosts) -> list[tuple[SimulatedRound, float]]:
        """Play rounds with other clients each; return each with its longest-first bound.

        The bound is the larger of all work on all workers, and the longest client on the fastest.
        """
        pace = stream(self.seed, "speeds", self.workers).uniform(0.5, 1.5, self.workers)
        speeds = Speeds(self.workers)
        results = []
        for index in range(number):
            work, taken = self._clients(index)
            costs = {(client,): float(each) for client, each in enumerate(work)}
            played = simulate(
                costs,
                lambda worker, item, taken=taken: float(taken[item[0]] / pace[worker]),
                speeds,
                self.workers,
                driver,
            )
            bound = max(taken.sum() / pace.sum(), taken.max() / pace.max())
            results.append((played, float(bound)))
        return results

    def _clients(self, index: int) -> tuple[Any, Any]:
        """Return the clients' work [C] as it is known, and as it turns out."""
        generator = stream(self.seed, "clients", index)
        work = generator.lognormal(-(self.sigma**2) / 2, self.sigma, self.cohort) * self.mean
        noise = generator.lognormal(-(self.noise**2) / 2, self.noise, self.cohort)
        return work, work * noise


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
