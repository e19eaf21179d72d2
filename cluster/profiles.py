"""Resource profiles: what to say of `engine.*` on a kind of machine.

A profile is a set of overrides. It comes before the overrides that are typed, which win, and after
a preset or file, which it overrules. `engine.actors=auto` is in all of them: as many actors as the
cores or the GPUs found hold, so a cluster of another size needs no other profile, and `raysim tune`
makes each of them a slot for a trial.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from raysim.core.components import look_up


@dataclass(frozen=True)
class Profile:
    """Overrides by dotted key, and what they are for."""

    about: str
    overrides: Mapping[str, Any]


LAPTOP = Profile(
    "cores alone: one actor of one thread a core, clients one at a time",
    {
        "engine.actors": "auto",
        "engine.threads_per_actor": 1,  # more would compete with the other actors
        "engine.gpus_per_actor": 0.0,
        "engine.vectorize": 0,  # on a CPU clients one at a time are faster
    },
)

ONE_GPU = Profile(
    "one machine with a GPU: two actors share it, each trains its part of a cohort together",
    {
        "engine.actors": "auto",
        "engine.threads_per_actor": 1,
        "engine.gpus_per_actor": 0.5,  # the kernels of one run while the other gathers its batches
        "engine.vectorize": "auto",
    },
)

EIGHT_BY_EIGHT_GPUS = Profile(
    "eight nodes of eight GPUs: an actor on each GPU, sixteen clients together",
    {
        "engine.actors": "auto",
        "engine.threads_per_actor": 1,
        "engine.gpus_per_actor": 1.0,  # a whole GPU's memory for large networks
        # A stack never leaves its actor: in stacks of 16 a cohort of 1000 keeps 63 of the 64 GPUs
        # busy. "auto" finds 16 too, but other stacks, and other roundings, while a node is down.
        "engine.vectorize": 16,
    },
)

PROFILES: Mapping[str, Profile] = {
    "laptop": LAPTOP,
    "one-gpu": ONE_GPU,
    "8x8-gpus": EIGHT_BY_EIGHT_GPUS,
}


def find(name: str) -> Profile:
    """Return a profile.

    Raises:
        SettingsError: there is no such profile.
    """
    return look_up("profile", name, PROFILES)
