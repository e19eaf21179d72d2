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
        cohort: Clients per round; more actors than that would wait for ever.

    Raises:
        SettingsError: the settings ask for more than there is.
    """
    share = engine.gpus_per_actor
    room = [_actors_on(node.gpus, share) if share else int(node.cpus) for node in nodes]
    fits = sum(room) if share else max(sum(room), 1)
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
    limits = room if share else [actors] * len(nodes)
    if engine.cpus_per_actor == "auto":
        return ActorPlan(actors, _widest(nodes, limits, actors), share)
    each = engine.cpus_per_actor
    if (most_actors := _held(nodes, limits, each)) < actors:
        raise SettingsError(
            f"engine.cpus_per_actor={each:g}: {actors} actors do not fit on the CPUs declared"
            f" ({', '.join(f'{node.cpus:g}' for node in nodes)} a node); {most_actors} do"
        )
    return ActorPlan(actors, each, share)


def _widest(nodes: Sequence[Node], limits: Sequence[int], actors: int) -> float:
    """Return the most CPUs, at most 1, that every one of the actors can reserve."""
    shares = {math.floor(node.cpus / n * 1e4) / 1e4 for node in nodes for n in range(1, actors + 1)}
    for each in sorted({1.0, *(share for share in shares if 0 < share < 1)}, reverse=True):
        if _held(nodes, limits, each) >= actors:
            return each
    raise SettingsError(f"engine.actors={actors}: they do not fit on the CPUs and GPUs declared")


def _held(nodes: Sequence[Node], limits: Sequence[int], each: float) -> int:
    """Return how many actors of `each` CPUs the nodes hold, at most `limits` on each node."""
    return sum(
        min(int(node.cpus / each + 1e-9), limit) for node, limit in zip(nodes, limits, strict=True)
    )


def _actors_on(gpus: float, share: float) -> int:
    """Return how many actors fit on a node; a fraction never straddles two GPUs."""
    if share <= 1:
        return int(gpus) * math.floor(1 / share + 1e-9)
    return int(gpus // share)
