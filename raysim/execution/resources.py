"""Plan of the actors: their number, and the CPUs and GPUs that each reserves."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

from raysim.config import EngineSettings
from raysim.core.errors import SettingsError


@dataclass(frozen=True)
class Node:
    """Resources that one node of the cluster declares."""

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
        cohort: Clients per round; limits the number of actors.

    Raises:
        SettingsError: the settings ask for more than there is.
    """
    gpus_each = engine.gpus_per_actor
    capacity = [_actors_on(node.gpus, gpus_each) if gpus_each else int(node.cpus) for node in nodes]
    fits = sum(capacity) if gpus_each else max(sum(capacity), 1)
    if gpus_each and not fits:
        most = max((node.gpus for node in nodes), default=0.0)
        raise SettingsError(
            f"engine.gpus_per_actor={gpus_each:g}: at most {most:g} GPUs are declared on a node"
            " (use 0 to train on cores)"
        )
    actors = min(fits, cohort) if engine.actors == "auto" else engine.actors
    if gpus_each and actors > fits:
        raise SettingsError(
            f"engine.actors={actors}: at most {fits} with engine.gpus_per_actor={gpus_each:g}"
        )
    limits = capacity if gpus_each else [actors] * len(nodes)
    if engine.cpus_per_actor == "auto":
        return ActorPlan(actors, _cpus_each(nodes, limits, actors), gpus_each)
    each = engine.cpus_per_actor
    if (most_actors := _capacity(nodes, limits, each)) < actors:
        raise SettingsError(
            f"engine.cpus_per_actor={each:g}: {actors} actors do not fit on the CPUs declared"
            f" ({', '.join(f'{node.cpus:g}' for node in nodes)} a node); {most_actors} do"
        )
    return ActorPlan(actors, each, gpus_each)


def _cpus_each(nodes: Sequence[Node], limits: Sequence[int], actors: int) -> float:
    """Return the most CPUs, at most 1, that every one of the actors can reserve."""
    candidates = {
        math.floor(node.cpus / n * 1e4) / 1e4 for node in nodes for n in range(1, actors + 1)
    }
    for each in sorted({1.0, *(cpus for cpus in candidates if 0 < cpus < 1)}, reverse=True):
        if _capacity(nodes, limits, each) >= actors:
            return each
    raise SettingsError(f"engine.actors={actors}: they do not fit on the CPUs and GPUs declared")


def _capacity(nodes: Sequence[Node], limits: Sequence[int], each: float) -> int:
    """Return how many actors of `each` CPUs the nodes hold, at most `limits` on each node."""
    return sum(
        min(int(node.cpus / each + 1e-9), limit) for node, limit in zip(nodes, limits, strict=True)
    )


def _actors_on(gpus: float, gpus_each: float) -> int:
    """Return how many actors fit on a node; a fraction never straddles two GPUs."""
    return int(gpus) * math.floor(1 / gpus_each + 1e-9)
