"""Plan of the actors: their number, and the CPUs and GPUs that each reserves."""

from __future__ import annotations

import json
import math
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field

from raysim.config import EngineSettings
from raysim.errors import SettingsError

ACCELERATOR = "accelerator_type:"
"""Beginning of the name of a resource that Ray gives once to a node with GPUs of a type."""
ACCELERATOR_SHARE = 0.001
"""Amount of it that an actor reserves, as by Ray's option `accelerator_type`."""
ABSENT_GPUS = "GPUs are declared to Ray that torch cannot use: training on the CPU"


@dataclass(frozen=True)
class Node:
    """Declared resources of one node of the cluster, its id, types of GPUs and labels."""

    cpus: float
    gpus: float
    id: str = ""
    accelerators: frozenset[str] = frozenset()
    labels: Mapping[str, str] = field(default_factory=dict)


@dataclass(frozen=True)
class ActorPlan:
    """Number of actors, resources of each, and number of actors by id of the node."""

    actors: int
    cpus: float
    gpus: float
    by_node: Mapping[str, int] = field(default_factory=dict)


def plan_actors(engine: EngineSettings, nodes: Sequence[Node], cohort: int) -> ActorPlan:
    """Fit a pool of actors on the nodes.

    Args:
        engine: The engine's settings.
        nodes: The nodes' declared resources.
        cohort: Clients per round; limits the number of actors.

    Raises:
        SettingsError: the settings need more than the nodes have.
    """
    nodes = _suitable(engine, nodes)
    gpus_each, cpus_each = engine.gpus_per_actor, engine.cpus_per_actor
    capacity = [_actors_on(node.gpus, gpus_each) if gpus_each else int(node.cpus) for node in nodes]
    fits = sum(capacity) if gpus_each else max(sum(capacity), 1)
    if gpus_each and not fits:
        most = max((node.gpus for node in nodes), default=0.0)
        raise SettingsError(
            f"engine.gpus_per_actor={gpus_each:g}: at most {most:g} GPUs are declared on a node"
            " (use 0 to train on cores)"
        )
    actors = min(fits, cohort) if engine.actors == "auto" else engine.actors
    if engine.actors == "auto" and cpus_each != "auto":
        actors = max(min(actors, _capacity(nodes, capacity, cpus_each)), 1)
    if gpus_each and actors > fits:
        raise SettingsError(
            f"engine.actors={actors}: at most {fits} with engine.gpus_per_actor={gpus_each:g}"
        )
    limits = capacity if gpus_each else [actors] * len(nodes)
    if cpus_each == "auto":
        cpus_each = _cpus_each(nodes, limits, actors, engine.actors)
        return _planned(actors, cpus_each, gpus_each, nodes, limits)
    if (most_actors := _capacity(nodes, limits, cpus_each)) < actors:
        raise SettingsError(
            f"engine.cpus_per_actor={cpus_each:g}: {actors} actors do not fit on the CPUs declared"
            f" ({', '.join(f'{node.cpus:g}' for node in nodes)} a node); {most_actors} do"
        )
    return _planned(actors, cpus_each, gpus_each, nodes, limits)


def with_whole_cores(engine: EngineSettings) -> EngineSettings:
    """Return the settings for nodes started for actors, where `cpus_per_actor=auto` is 1."""
    if engine.cpus_per_actor != "auto":
        return engine
    return engine.model_copy(update={"cpus_per_actor": 1.0})


def bundle_of(engine: EngineSettings, cpus: float) -> dict[str, float]:
    """Return the resources that an actor reserves, by Ray's names."""
    bundle = {"CPU": cpus}
    if engine.gpus_per_actor:
        bundle["GPU"] = engine.gpus_per_actor
    if engine.accelerator_type:
        bundle[f"{ACCELERATOR}{engine.accelerator_type}"] = ACCELERATOR_SHARE
    return bundle


def unused_gpus(engine: EngineSettings, nodes: Sequence[Node]) -> float:
    """Return the GPUs of the nodes for actors, if the settings use none."""
    return 0 if engine.gpus_per_actor else sum(node.gpus for node in nodes if _suits(engine, node))


def crowding(
    asked: str, actors: int, engine: EngineSettings, nodes: Sequence[Node]
) -> Iterator[str]:
    """Yield a line if actors on the CPU are more than the cores of the nodes.

    Args:
        asked: The setting or option that asks for them, with its value.
        actors: Number of actors.
        engine: The engine's settings.
        nodes: The nodes' declared resources.
    """
    cores = int(sum(node.cpus for node in nodes if _suits(engine, node)))
    if not engine.gpus_per_actor and actors > max(cores, 1):
        yield (
            f"{asked}: {actors} actors share {cores} core{'s' * (cores != 1)}: more than one actor"
            " on a core does not train faster, and each takes memory"
        )


def _suits(engine: EngineSettings, node: Node) -> bool:
    """Return whether actors may use a node."""
    kind, labels = engine.accelerator_type, engine.node_labels
    of_kind = kind is None or kind in node.accelerators
    return of_kind and labels.items() <= node.labels.items()


def _suitable(engine: EngineSettings, nodes: Sequence[Node]) -> list[Node]:
    """Return the nodes that actors may use.

    Raises:
        SettingsError: there is no such node.
    """
    kind, labels = engine.accelerator_type, engine.node_labels
    suitable = [node for node in nodes if _suits(engine, node)]
    if suitable or not nodes:
        return suitable
    if not any(kind in node.accelerators for node in nodes) and kind:
        types = sorted({name for node in nodes for name in node.accelerators})
        raise SettingsError(
            f"engine.accelerator_type={kind}: no node has it; there is {', '.join(types) or 'none'}"
        )
    raise SettingsError(f"engine.node_labels={json.dumps(labels)}: no node has these labels")


def _planned(
    actors: int, cpus: float, gpus: float, nodes: Sequence[Node], limits: Sequence[int]
) -> ActorPlan:
    """Spread actors over the nodes with room, one to each in turn."""
    room = {n.id: _fit(n, limit, cpus) for n, limit in zip(nodes, limits, strict=True) if n.id}
    by_node = dict.fromkeys(room, 0)
    for _ in range(min(actors, sum(room.values()))):
        node = min((n for n in room if by_node[n] < room[n]), key=by_node.__getitem__)
        by_node[node] += 1
    return ActorPlan(actors, cpus, gpus, {node: n for node, n in by_node.items() if n})


def _cpus_each(
    nodes: Sequence[Node], limits: Sequence[int], actors: int, asked: int | str
) -> float:
    """Return the most CPUs, at most 1, that each of the actors can reserve."""
    candidates = {
        math.floor(node.cpus / n * 1e4) / 1e4 for node in nodes for n in range(1, actors + 1)
    }
    for cpus_each in sorted({1.0, *(cpus for cpus in candidates if 0 < cpus < 1)}, reverse=True):
        if _capacity(nodes, limits, cpus_each) >= actors:
            return cpus_each
    raise SettingsError(
        f"engine.actors={asked}: {actors} do not fit on the CPUs and GPUs that the nodes declare"
    )


def _capacity(nodes: Sequence[Node], limits: Sequence[int], cpus_each: float) -> int:
    """Return the number of actors of `cpus_each` CPUs on the nodes, at most `limits` per node."""
    return sum(_fit(node, limit, cpus_each) for node, limit in zip(nodes, limits, strict=True))


def _fit(node: Node, limit: int, cpus_each: float) -> int:
    """Return the number of actors of `cpus_each` CPUs on a node, at most `limit`."""
    return min(int(node.cpus / cpus_each + 1e-9), limit) if cpus_each else limit


def _actors_on(gpus: float, gpus_each: float) -> int:
    """Return the number of actors that fit on a node; a fraction never spans two GPUs."""
    return int(gpus) * math.floor(1 / gpus_each + 1e-9)
