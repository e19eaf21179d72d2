"""State: arrays that a component keeps between rounds, in every checkpoint of a run."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np

from raysim.numbers.arrays import Array

State = Mapping[str, Array]
"""Arrays, by name, that a component keeps between rounds; a number is an array []."""


def are_arrays(state: Mapping[str, Any], *_: object) -> bool:
    """Return whether the values of a state are numbers, or arrays of numbers."""
    return all(np.asarray(value).dtype.kind in "biuf" for value in state.values())


def as_arrays(state: Mapping[str, Any]) -> State:
    """Return a state of numbers, or arrays of numbers, as copies that are arrays."""
    return {name: np.array(value) for name, value in state.items()}


def read_only(state: State) -> State:
    """Return a state with read-only arrays."""
    views = {name: array.view() for name, array in state.items()}
    for view in views.values():
        view.flags.writeable = False
    return views
