"""Resource profiles: `engine.*` settings for a kind of machine.

A profile is a set of overrides. They replace the settings of a preset or file and are replaced by
the overrides of the command line. All profiles set `engine.actors=auto`, as many actors as fit on
the cores or GPUs: a cluster of another size needs no other profile, and `raysim tune` turns each
actor into a slot.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from raysim.api.components import look_up


@dataclass(frozen=True)
class Profile:
    """Overrides by dotted key, for a kind of machine.

    Attributes:
        about: The machine and its use, in one line.
        overrides: Values by dotted key.
    """

    about: str
    overrides: Mapping[str, Any]


LAPTOP = Profile(
    "CPU only: one actor with one thread per core, no stacked training",
    {
        "engine.actors": "auto",
        "engine.threads_per_actor": 1,  # more threads would compete with the other actors
        "engine.gpus_per_actor": 0.0,
        "engine.vectorize": 0,  # stacked training is slower on a CPU
    },
)

ONE_GPU = Profile(
    "one machine with GPUs: two actors per GPU, stacked training",
    {
        "engine.actors": "auto",
        "engine.threads_per_actor": 1,
        "engine.gpus_per_actor": 0.5,  # one actor computes while the other gathers batches
        "engine.vectorize": "auto",
    },
)

EIGHT_BY_EIGHT_GPUS = Profile(
    "eight nodes with eight GPUs each: one actor per GPU, stacks of 16 clients",
    {
        "engine.actors": "auto",
        "engine.threads_per_actor": 1,
        "engine.gpus_per_actor": 1.0,  # large networks need a whole GPU's memory
        # A stack is trained on one actor: stacks of 16 of a cohort of 1000 occupy 63 of 64 GPUs.
        # "auto" gives 16 too, but other stacks, and other rounding, while a node is down.
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
