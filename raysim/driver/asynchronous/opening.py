"""Opening of asynchronous rounds: checks before a run, and the plan."""

from __future__ import annotations

from dataclasses import replace

import numpy as np

from raysim.api.components import called
from raysim.api.method import Asynchrony, Method
from raysim.api.rules import Pass
from raysim.driver.asynchronous.arrivals import Queue
from raysim.driver.asynchronous.checks import check_alike, check_pass
from raysim.driver.asynchronous.draws import Draws, always
from raysim.driver.asynchronous.plan import Plan
from raysim.driver.asynchronous.rounds import AsynchronousRounds
from raysim.driver.asynchronous.times import DeviceTimes, equal_devices
from raysim.driver.clock.clock import VirtualClock
from raysim.driver.rounds.local_values import RoundValues
from raysim.driver.rounds.passes import PassContext, RoundRunner
from raysim.driver.start.context import RunContext
from raysim.driver.start.parts import RunParts
from raysim.driver.uploads.dispatch import Dispatch
from raysim.errors import SettingsError
from raysim.storage.run_state import RunState


def check_asynchrony(parts: RunParts) -> None:
    """Check that settings go with asynchronous rounds, if the method has them.

    Args:
        parts: The run's parts.

    Raises:
        SettingsError: a setting does not go with them.
    """
    settings, initial = parts.settings, parts.initial
    method, asynchrony = settings.method, settings.asynchrony
    if asynchrony is None:
        return
    _check_numbers(method, asynchrony, len(settings.participants))
    key = f"method.name={method.title}: asynchronous rounds need"
    if method.client_bytes(initial.state):
        raise SettingsError(f"{key} clients without state, which their order would change")
    ones = np.ones_like(parts.sizes)
    draws = Draws(settings, parts.sizes, settings.participants.numbers, ones, always)
    if not draws(0, 0, asynchrony.concurrency, (), 0):
        raise SettingsError(f"{called(settings.selection)}: selects no client that may start")
    first = _first_pass(parts)
    for number in (1, settings.rounds - 1):
        later = _first_pass(replace(parts, initial=replace(initial, number=number)))
        check_alike(method, first, later, number)


def _check_numbers(method: Method, asynchrony: Asynchrony, clients: int) -> None:
    """Check K, M and the number of tiers."""
    limits = {
        "concurrency": (asynchrony.concurrency, clients, "number of clients"),
        "buffer": (asynchrony.buffer, asynchrony.concurrency, "concurrency"),
        "tiers": (asynchrony.tiers, asynchrony.concurrency, "concurrency"),
    }
    for name, (value, most, whose) in limits.items():
        if value is not None and not 1 <= value <= most:
            is_field = name in type(method).model_fields
            key = f"method.{name}" if is_field else f"method.name={method.title}: its {name}"
            raise SettingsError(f"{key}={value}: must be from 1 to the {whose}, {most}")


def asynchronous_rounds(
    run: RunContext, passes: PassContext, committed: RunState
) -> AsynchronousRounds | None:
    """Return the rounds of a run from a checkpoint on; None if they do not overlap.

    Args:
        run: The run.
        passes: Context of the passes of all rounds.
        committed: The checkpoint.
    """
    settings, under_way = run.settings, committed.in_flight
    asynchrony = settings.asynchrony
    if asynchrony is None:
        return None
    times = _device_times(run, run.clock, passes) if run.clock else None
    tiers = (
        times.clocks(settings, passes.sizes, asynchrony.tiers)
        if times
        else equal_devices(settings, passes.sizes, asynchrony.tiers)
    )
    queue = Queue.from_json(under_way.queue) if under_way else Queue()
    plan = Plan(asynchrony, tiers, queue, settings.rounds)
    return AsynchronousRounds(passes, plan, times, under_way, _first_pass(run))


def _device_times(run: RunContext, clock: VirtualClock, passes: PassContext) -> DeviceTimes:
    """Return the times of all clients in the first round's pass, in resumed runs, too."""
    initial = run.initial
    dispatch = Dispatch.of(replace(_first_pass(run), clients=range(run.settings.clients)))
    values = RoundValues.of(run.settings, run.sampling(initial), initial)
    runner = RoundRunner(passes, initial.number, initial.state, initial.versions, 0, values)
    return DeviceTimes.of(clock, dispatch, runner)


def _first_pass(parts: RunParts) -> Pass:
    """Return the first pass of a run, over client 0.

    Raises:
        SettingsError: the round has no pass, or its pass does not suit asynchronous rounds.
    """
    if (pass_ := parts.first) is None:
        raise SettingsError(
            f"{called(parts.settings.method)}: asynchronous rounds have one pass; it runs none"
        )
    check_pass(parts.settings.method, pass_, (0,))
    return pass_
