"""Draws keyed by client: one value per key, without a generator or a loop per client.

`numbers.seeds.stream` makes a generator per key, which takes 20 us; a fleet draws for a million
clients at once. A value is a hash of its key by the finaliser of SplitMix64 (Steele, Lea and
Flood, "Fast splittable pseudorandom number generators", OOPSLA 2014), so it depends on its key
alone.
"""

from __future__ import annotations

from typing import Any

import numpy as np
import numpy.typing as npt

from raysim.numbers.arrays import Floats
from raysim.numbers.seeds import torch_seed

_STEP = np.uint64(0x9E3779B97F4A7C15)
_FACTORS = (np.uint64(0xBF58476D1CE4E5B9), np.uint64(0x94D049BB133111EB))
_SHIFTS = (np.uint64(30), np.uint64(27), np.uint64(31))


def uniforms(seed: int, purpose: str, *keys: Any) -> Floats:
    """Return uniform numbers in (0, 1), one for each key.

    Args:
        seed: The run's seed.
        purpose: Name of the stream.
        keys: Whole numbers from 0, or arrays [n] of them: clients, days, ...
    """
    state = np.array([torch_seed(seed, f"clock/{purpose}")], dtype=np.uint64)
    for key in keys:
        state = _mixed(
            state + (np.atleast_1d(np.asarray(key)).astype(np.uint64) + np.uint64(1)) * _STEP
        )
    return ((state >> np.uint64(11)).astype(np.float64) + 0.5) * 2.0**-53


def normals(seed: int, purpose: str, *keys: Any) -> Floats:
    """Return standard normal numbers, one for each key; arguments as of `uniforms`."""
    from scipy.special import ndtri  # 0.2 s, for runs with a clock

    values: Floats = ndtri(uniforms(seed, purpose, *keys))
    return values


def _mixed(state: npt.NDArray[np.uint64]) -> npt.NDArray[np.uint64]:
    for shift, factor in zip(_SHIFTS, _FACTORS, strict=False):
        state = (state ^ (state >> shift)) * factor
    return state ^ (state >> _SHIFTS[-1])
