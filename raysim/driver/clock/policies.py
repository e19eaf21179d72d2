"""Policies of the server: the clients of a pass that count, and the end of the pass.

The functions are pure functions of the clients' work in ticks.

    wait            until the last client has arrived or dropped out
    deadline        until `clock.deadline`, or until all have arrived; late clients do not count
    partial         as deadline, but a client takes as many of its epochs as the deadline allows
                    (FedProx's stragglers; FedNova's unequal work); one without a whole epoch is
                    late
    over_selection  `clock.extra` more clients are selected, and the first m that arrive count

Of the clients that arrive at the same tick, extra ones come last; other ties are broken by client.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np

from raysim.clock.availability import TICKS_PER_SECOND
from raysim.clock.base import Policy
from raysim.clock.fleet import Fleet
from raysim.clock.profiles import Profiles
from raysim.driver.clock.costs import PassCosts
from raysim.numbers.arrays import Flags, Floats, Integers

NEVER = np.iinfo(np.int64).max


@dataclass(frozen=True)
class Outcome:
    """Outcome of a pass in virtual time.

    Attributes:
        end: Tick at which the server goes on.
        counts: Clients whose results count [n].
        epochs: Epochs of each client; of a late client, the epochs that it began [n].
        starts: Ticks at which the clients begin [n].
        ticks: Ticks of work until each client arrives or drops out, or the pass ends [n].
        share: Fraction of each client's work in these ticks [n].
    """

    end: int
    counts: Flags
    epochs: Integers
    starts: Integers
    ticks: Integers
    share: Floats


def outcome_of(
    policy: Policy,
    fleet: Fleet,
    costs: PassCosts,
    *,
    begin: int,
    starts: Integers,
    dropouts: Floats,
    extra: Flags,
    wanted: int,
) -> Outcome:
    """Return the outcome of a pass.

    Args:
        policy: The policy.
        fleet: The devices.
        costs: The costs of the pass's clients.
        begin: Tick at which the pass begins.
        starts: Ticks from which the clients can work [n].
        dropouts: Fraction of its work after which each client drops out [n]; inf for never.
        extra: Whether clients are extra ones [n].
        wanted: With over_selection, the number of arrivals that ends the pass.
    """
    limit = _deadline(policy, begin)
    epochs = costs.epochs
    if policy.name == "partial":
        begun = np.minimum(costs.epochs, 1)  # a client without a whole epoch works until the limit
        epochs = np.maximum(affordable_epochs(fleet, costs, limit - starts), begun)
    whole = _ticks(fleet, costs, epochs)
    drops = dropouts < 1
    arrivals = np.where(drops, NEVER, starts + whole)
    ends = np.where(drops, starts + np.ceil(whole * np.where(drops, dropouts, 0)), starts + whole)
    ends = ends.astype(np.int64)
    counts = ~drops & (arrivals <= limit)
    end = min(int(ends.max()), limit)
    if policy.name == "over_selection" and counts.sum() >= wanted:
        first = np.lexsort((costs.clients, extra, arrivals))[:wanted]
        counts = np.zeros(len(counts), dtype=bool)
        counts[first] = True
        end = int(arrivals[first].max())
    worked = np.clip(np.minimum(ends, end) - starts, 0, None)
    return Outcome(end, counts, epochs, starts, worked, worked / np.maximum(whole, 1))


def sent_in_vain(fleet: Fleet, costs: PassCosts, outcome: Outcome) -> tuple[int, int]:
    """Return the bytes that clients send and receive although their results do not count.

    Such clients send and receive until they drop out or the server goes on.
    """
    lost = ~outcome.counts
    whole, device = _ticks(fleet, costs, outcome.epochs), fleet.profiles(costs.clients[lost])
    device = device._replace(latency=costs.trips * device.latency)
    up, down = costs.bytes_up[lost], costs.bytes_down[lost]
    return moved_until(outcome.ticks[lost], whole[lost], device, up, down)


def moved_until(
    ticks: Any, whole: Any, device: Profiles, bytes_up: Integers, bytes_down: Integers
) -> tuple[int, int]:
    """Return the total bytes that clients send and receive in a part of their work.

    A client's work is half of the latency, the download, the steps, the upload, and the other half
    of the latency. Its connection has a constant rate.

    Args:
        ticks: Ticks of each client's work so far [n].
        whole: Ticks of each client's whole work [n].
        device: The clients' devices [n].
        bytes_up: Bytes that each client sends in its whole work [n].
        bytes_down: Bytes that each client receives in its whole work [n].
    """
    worked = ticks / TICKS_PER_SECOND - device.latency / 2
    left = (whole - ticks) / TICKS_PER_SECOND - device.latency / 2
    down = np.clip(worked * device.down, 0, bytes_down)
    up = np.clip(bytes_up - left * device.up, 0, bytes_up)
    return int(up.sum()), int(down.sum())


def affordable_epochs(fleet: Fleet, costs: PassCosts, budget: Integers) -> Integers:
    """Return the epochs [n] that fit into `budget` [n] ticks, at most the pass's epochs."""
    speed = fleet.profiles(costs.clients).speed
    spare = (budget - _ticks(fleet, costs, np.zeros_like(costs.epochs))) / TICKS_PER_SECOND
    with np.errstate(over="ignore"):  # `fleet.ticks` refuses such an epoch below
        epoch = np.maximum(costs.epoch / speed, 1 / TICKS_PER_SECOND)
    epochs = np.clip(np.floor(spare / epoch), 0, costs.epochs).astype(np.int64)
    # Ticks are rounded up, so the quotient may be wrong by one epoch.
    one_more = np.minimum(epochs + 1, costs.epochs)
    epochs = np.where(_ticks(fleet, costs, one_more) <= budget, one_more, epochs)
    late: Flags = _ticks(fleet, costs, epochs) > budget
    return np.where(late, np.maximum(epochs - 1, 0), epochs)


def _deadline(policy: Policy, begin: int) -> int:
    if policy.deadline is not None:
        return begin + round(policy.deadline * TICKS_PER_SECOND)
    return int(NEVER)


def _ticks(fleet: Fleet, costs: PassCosts, epochs: Integers) -> Integers:
    traffic = costs.bytes_up, costs.bytes_down
    return fleet.ticks(costs.clients, costs.flops(epochs), *traffic, trips=costs.trips)
