"""Opening of asynchronous rounds: the checks before a run, and the plan that it goes on with."""

from __future__ import annotations

from collections.abc import Collection

import numpy as np
import numpy.typing as npt

from raysim.config import Settings
from raysim.core.errors import SettingsError
from raysim.core.method import Sampling, ServerState
from raysim.core.seeds import stream
from raysim.driver.asynchronous.arrivals import Clock, Queue
from raysim.driver.asynchronous.draws import Draws, always
from raysim.driver.asynchronous.plan import Plan
from raysim.driver.asynchronous.rounds import AsynchronousRounds
from raysim.driver.passes import PassContext
from raysim.storage.checkpoints import Checkpoint


def check_asynchrony(settings: Settings, state: ServerState, parts: Collection[str]) -> None:
    """Check that a run's settings go with asynchronous rounds, if its method has them.

    Args:
        settings: The run's settings.
        state: The server's initial state.
        parts: Analyses that measure clients as they end their training.

    Raises:
        SettingsError: one does not.
    """
    method, clients = settings.method, settings.clients
    found = method.asynchrony(settings.cohort_size)
    if found is None:
        return
    if found.concurrency > clients:
        raise SettingsError(
            f"method.concurrency={found.concurrency}: must be at most the number of clients,"
            f" {clients}"
        )
    if found.buffer > found.concurrency:
        raise SettingsError(
            f"method.buffer={found.buffer}: must be at most the concurrency, {found.concurrency}"
        )
    key = f"method.name={method.title}: asynchronous rounds need"
    if method.client_init(state):
        raise SettingsError(f"{key} clients without state, which their order would change")
    if not all(_draws_uniformly(settings, state, number) for number in range(3)):
        raise SettingsError(f"{key} clients that are drawn uniformly; it has a cohort of its own")
    if parts:
        raise SettingsError(
            f"analysis={min(parts)}: measures the cohort of a round; with"
            f" method.name={method.title} clients of several rounds overlap"
        )


def _draws_uniformly(settings: Settings, state: ServerState, number: int) -> bool:
    """Return whether a method leaves the draw of one client of a round as it is."""
    losses = np.full(settings.clients, np.nan)
    given, expected = (
        Sampling(number, settings.clients, 1, losses, stream(settings.seed, "cohort", number))
        for _ in range(2)
    )
    return [*settings.method.cohort(given, state)] == expected.uniform()


def asynchronous_rounds(context: PassContext, committed: Checkpoint) -> AsynchronousRounds | None:
    """Return the rounds of a run from a checkpoint on; None if they do not overlap."""
    settings, under_way = context.settings, committed.in_flight
    asynchrony = settings.method.asynchrony(settings.cohort_size)
    if asynchrony is None:
        return None
    queue = Queue.from_json(under_way.queue) if under_way else Queue()
    plan = Plan(asynchrony, _equal_devices(settings, context.sizes), queue, settings.rounds)
    return AsynchronousRounds(context, plan, under_way)


def _equal_devices(settings: Settings, sizes: npt.NDArray[np.int64]) -> Clock:
    """Return the clock of devices that are always available: a tick a sample and local epoch."""
    return Clock(
        draw=Draws(settings.seed, settings.clients, always),
        fly=lambda client, tick: (tick + settings.local.epochs * int(sizes[client]), False),
        wake=lambda tick, busy: None,
    )
