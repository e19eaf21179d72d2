"""Draws of tests: those of clients that start, and of clocks that start them."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np

import raysim
from raysim.driver.asynchronous.arrivals import Clock
from raysim.driver.asynchronous.draws import Draws
from raysim.driver.asynchronous.times import DeviceTimes

SETTINGS = raysim.load_config("mnist-fedavg")


def seeded(seed: int) -> raysim.Settings:
    return SETTINGS.model_copy(update={"seed": seed})


def uniform_draws(seed: int, members: Any, available: Callable[[Any, int], Any]) -> Draws:
    """Return the draws of a tier, of clients with one sample each."""
    ones = np.ones(int(max(members)) + 1, dtype=np.int64)
    return Draws(seeded(seed), ones, members, ones, available)


def clocks_of(times: DeviceTimes, seed: int, tiers: int) -> list[Clock]:
    return times.clocks(seeded(seed), np.ones_like(times.ticks), tiers)
