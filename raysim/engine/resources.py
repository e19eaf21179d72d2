"""How many actors fit, and what each of them reserves."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

from raysim.config import EngineSettings
from raysim.core.errors import SettingsError


@dataclass(frozen=True)
class Node:
    """What one node of the cluster declares."""

    cpus: float
    gpus: float


@dataclass(frozen=True)
class ActorPlan:
    """Number of actors, and what each reserves."""

    actors: int
    cpus: float
    gpus: float


def plan_actors(engine: EngineSettings, nodes: Sequence[Node], cohort: int) -> ActorPlan:
    """Fit a pool of actors on the nodes.

    Args:
        engine: The engine's settings.
        nodes: The nodes' declared resources.
        cohort: Clients per round; more actors than that would wait for ever.

    Raises:
        SettingsError: the settings ask for more than there is.
    """
    cpus = sum(node.cpus for node in nodes)
    share = engine.gpus_per_actor
    fits = sum(_actors_on(node.gpus, share) for node in nodes) if share else max(int(cpus), 1)
    if share and not fits:
        most = max((node.gpus for node in nodes), default=0.0)
        raise SettingsError(
            f"engine.gpus_per_actor={share:g}: at most {most:g} GPUs are declared on a node"
            " (use 0 to train on cores)"
        )
    actors = min(fits, cohort) if engine.actors == "auto" else engine.actors
    if share and actors > fits:
        raise SettingsError(
            f"engine.actors={actors}: at most {fits} with engine.gpus_per_actor={share:g}"
        )
    asked = engine.cpus_per_actor
    each = min(1.0, math.floor(cpus / actors * 1e4) / 1e4) if asked == "auto" else asked
    if each * actors > cpus:
        raise SettingsError(
            f"engine.cpus_per_actor={each}: {actors} actors need {each * actors:g} CPUs,"
            f" {cpus:g} are declared"
        )
    return ActorPlan(actors, each, share)


def _actors_on(gpus: float, share: float) -> int:
    """Return how many actors fit on a node; a fraction never straddles two GPUs."""
    if share <= 1:
        return int(gpus) * math.floor(1 / share + 1e-9)
    return int(gpus // share)
