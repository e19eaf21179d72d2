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
        # A stack of 8 has half the throughput on a CPU (tests/benchmarks/RESULTS.md).
        "engine.vectorize": 0,
    },
)

ONE_GPU = Profile(
    "one machine with GPUs: one actor per GPU, stacked training; on an H200, stacks of 128 take"
    " 18,600 local steps a second of the 2NN, 9,600 of a CNN, 855 of ResNet-18",
    {
        "engine.actors": "auto",
        "engine.threads_per_actor": 1,
        "engine.gpus_per_actor": 1.0,  # more actors on a GPU are not measured
        # One client at a time took 492, 445 and 124 steps (tests/benchmarks/RESULTS-GPU.md).
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
        # "auto" gives 16 too, but other stacks, and other rounding, while a node is down. Of
        # ResNet-18 a stack of 8 takes 419 steps a second on an H200, one of 32 697.
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
