"""The part of the scale benchmarks that plays asynchronous rounds on a simulated clock."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from itertools import accumulate

import numpy as np
import numpy.typing as npt

import raysim
from raysim.api.method import Asynchrony
from raysim.driver.asynchronous.arrivals import Clock, Flight, Queue
from raysim.driver.asynchronous.draws import Draws, always
from raysim.driver.asynchronous.plan import Plan
from raysim.execution.scheduling.dealing import Speeds
from raysim.execution.scheduling.holding import AT_ONCE
from raysim.execution.scheduling.line import latest_starts
from raysim.execution.scheduling.worker_items import Item
from raysim.numbers.seeds import stream
from tests.benchmarks.report import heading, line
from tests.benchmarks.scaling.costs import message_costs
from tests.benchmarks.scaling.output import Options, percent
from tests.benchmarks.scaling.placement import NODE, described
from tests.benchmarks.scaling.simulation import (
    Costs,
    Play,
    SimulatedDriver,
    SimulatedForeman,
    SimulatedRound,
    SimulatedWorker,
)

WORKERS = (64, 512)
CLIENTS_AN_ACTOR = 8
"""Clients at work, M, for each actor."""
BUFFERS = (2, 16)
"""M / K: K updates make a version."""
CASES = ((0.5, 0.0), (0.5, 0.5), (0.5, 1.0))
"""Sigma of the logarithm of the clients' work, and of their simulated devices' speeds."""
WORK = 96
"""Clients that each actor trains, on average."""
VERSION_SECONDS = 5e-3
"""Seconds of the driver for each version, beside its sums: assumed."""
NAMES = (
    *("sigma", "devices", "actors", "foremen", "M", "K", "versions", "seconds"),
    *("over the bound", "busy", "driver's share"),
)


@dataclass(frozen=True)
class Fleet:
    """Clients of asynchronous rounds; one takes the mean actor a second on average.

    Attributes:
        workers: Number of actors.
        buffer: K.
        concurrency: M.
        sigma: Standard deviation of the logarithm of the clients' work.
        devices: That of the logarithm of their devices' speeds, in virtual time.
        node: Actors of a node, which a foreman schedules; 0: the driver schedules all.
    """

    workers: int
    buffer: int
    concurrency: int
    sigma: float
    devices: float
    node: int = 0

    def plan(self, rounds: int) -> tuple[list[list[Flight]], list[list[Flight]]]:
        """Return for each round who starts, of those whose updates count, and who arrives."""
        clients = 4 * self.concurrency
        speeds = stream(0, "devices").lognormal(0, self.devices, clients)
        ticks = np.ceil(1e6 * self._work(clients) / speeds).astype(int)
        settings = raysim.load_config("mnist-fedavg")
        clock = Clock(
            Draws(settings, ticks, np.arange(clients), ticks, always),
            lambda c, tick: (tick + int(ticks[c]), False),
            lambda t, b: 0,
        )
        plan = Plan(Asynchrony(self.buffer, self.concurrency), [clock], Queue(), rounds)
        planned = [plan.round(number) for number in range(rounds)]
        started = [[f for f in p.started if plan.target(f) is not None] for p in planned]
        return started, [[*p.arrived] for p in planned]

    def _work(self, clients: int) -> npt.NDArray[np.float64]:
        return stream(0, "work").lognormal(-(self.sigma**2) / 2, self.sigma, clients)

    def played(self, rounds: int, each: Costs) -> tuple[SimulatedRound, float]:
        """Play rounds; return what they came to, and the bound of their seconds.

        The bound is the larger of all work on all actors, and of the longest chain of clients, each
        of which starts from a version to which the one before is added, on the fastest actor.
        """
        started, arrived = self.plan(rounds)
        numbers = {f: n for n, f in enumerate(f for each in started for f in each)}
        clients = self._work(4 * self.concurrency)
        work = clients[[flight.client for flight in numbers]]
        seconds = work * stream(0, "noise").lognormal(-0.005, 0.1, len(work))
        pace = stream(0, "speeds", self.workers).uniform(0.5, 1.5, self.workers)
        exists = [0.0]
        for flights in arrived:
            ends = (exists[f.version] + seconds[numbers[f]] / pace.max() for f in flights)
            exists.append(max(exists[-1], *ends))
        nodes = [Speeds(self.node) for _ in range(self.workers // self.node if self.node else 0)]
        speeds = Speeds(0 if nodes else self.workers)
        for own in nodes:
            speeds.join(len(own.widths))
        play = Stream(
            {(n,): float(work[n]) for n in numbers.values()},
            lambda worker, item: float(seconds[item[0]] / pace[worker]),
            speeds,
            nodes,
            each,
        )
        play.streaming.begin(
            [
                ([(numbers[f],) for f in begun], [(numbers[f],) for f in ended])
                for begun, ended in zip(started, arrived, strict=True)
            ],
            float(clients.mean()),
            self.workers,
        )
        return play.to_the_end(), max(float(seconds.sum() / pace.sum()), exists[-1])


class StreamingDriver(SimulatedDriver):
    """The driver of asynchronous rounds, which adds the clients of each version as it exists."""

    def begin(self, rounds: list[tuple[list[Item], list[Item]]], mean: float, workers: int) -> None:
        """Begin rounds: who starts in each, and whose updates it aggregates; mean work of all."""
        self._rounds, self._version = rounds, 0
        self._round_of = {item: at for at, (_, ended) in enumerate(rounds) for item in ended}
        self._left = [len(ended) for _, ended in rounds]
        updates = [*accumulate(self._left)]
        due = {item: mean * updates[at] for item, at in self._round_of.items()}
        self._play.order |= latest_starts(due, self._play.costs, workers)
        self.book.hold_seconds = AT_ONCE
        self._add()

    def hear(
        self, arrived: float, number: int, seconds: float, handed_over: Sequence[Item]
    ) -> None:
        """Serve the return of a call; make the versions whose updates are all there."""
        for item in handed_over:
            self._left[self._round_of[item]] -= 1
        super().hear(arrived, number, seconds, handed_over)
        while self._version < len(self._rounds) and not self._left[self._version]:
            self._version += 1
            self._work(VERSION_SECONDS)
            if self._version < len(self._rounds):
                self._add()

    def _add(self) -> None:
        """Add who starts from the newest version, with the rounds that aggregate the updates."""
        begun, _ = self._rounds[self._version]
        with self._decides():
            order = {item: self._play.order[item] for item in begun}
            self.book.add({item: self._play.costs[item] for item in begun}, order=order)
        self.fill_all()


class Stream(Play):
    """Asynchronous rounds that are being played."""

    def _make_driver(
        self, managed: Sequence[SimulatedWorker | SimulatedForeman], speeds: Speeds
    ) -> StreamingDriver:
        for foreman in self.foremen:
            foreman.book.answer_seconds = foreman.book.hold_seconds = AT_ONCE
        self.streaming = StreamingDriver(self, managed, speeds, {})
        return self.streaming


def streaming(options: Options) -> Iterator[str]:
    """Asynchronous rounds of many actors: time over the schedule's bound, busy actors.

    The bound is the larger of all work on all actors, and of the longest chain of clients whose
    versions wait for each other, on the fastest actor.
    """
    for workers in WORKERS:
        each = message_costs(workers, 20 if options.tiny else 200)
        yield f"{described(each, workers)}\n"
        yield heading(*NAMES)
        for sigma, devices in CASES[: 1 if options.tiny else None]:
            for share in BUFFERS:
                yield row(workers, share, sigma, devices, each)
        yield ""


def row(workers: int, share: int, sigma: float, devices: float, each: Costs) -> str:
    """Return the line of a case in which K is such a share of M."""
    concurrency = CLIENTS_AN_ACTOR * workers
    node = min(NODE, workers // 2)
    fleet = Fleet(workers, concurrency // share, concurrency, sigma, devices, node)
    rounds = WORK * workers // fleet.buffer
    played, bound = fleet.played(rounds, each)
    cells: Sequence[object] = [
        *(f"{sigma:g}", f"{devices:g}", workers, workers // node, concurrency, fleet.buffer),
        *(rounds, f"{played.seconds:.3g}", f"{played.seconds / bound:.3f}"),
        percent(played.busy / (workers * played.seconds)),
        percent(played.driver / played.seconds),
    ]
    return line(cells)
