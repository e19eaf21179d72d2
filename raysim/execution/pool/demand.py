"""Demand of a pool for nodes: a placement group for each requested actor of a run.

Ray places the groups, and its autoscaler starts nodes for groups without a place. Each actor runs
in its own group, so that no other run takes the node that was started for it. Ray removes the
groups when the run's connection ends, even if its driver is killed; if a node is lost, Ray places
its group again.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Container, Iterable, Iterator
from contextlib import closing
from functools import partial
from time import perf_counter, sleep
from typing import Any

from ray.util.placement_group import (
    PlacementGroup,
    get_current_placement_group,
    placement_group,
    placement_group_table,
    remove_placement_group,
)

from raysim.config import EngineSettings
from raysim.errors import MachineError, SettingsError
from raysim.execution.autoscaler import autoscaler_runs, nodes_start, unmet
from raysim.execution.cluster_health import ClusterHealth, alive_nodes, draining_node_ids
from raysim.execution.resources import (
    ACCELERATOR,
    ActorPlan,
    bundle_of,
    crowding,
    plan_actors,
    with_whole_cores,
)
from raysim.process.exits import delay_signals

LOOK_SECONDS = 0.5
"""Seconds within which Ray places all groups that have room."""
NOTE_SECONDS = 2.0
"""Seconds of waiting for a node before a note."""
JOIN_SECONDS = 300.0
"""Seconds of waiting for a node to join a head without resources, if no autoscaler runs."""
REFUSAL_SECONDS = 5.0
"""Seconds between queries to the autoscaler, which updates as often by default."""


class Demand:
    """Placement groups of a run's requested actors, one each."""

    def __init__(
        self, engine: EngineSettings, actors: int, cpus: float, note: Callable[[str], None]
    ) -> None:
        """Request the groups.

        Args:
            engine: The engine's settings.
            actors: Number of actors.
            cpus: CPUs that each actor reserves.
            note: Shows the user a line.
        """
        self._engine, self._cpus, self._note, self._noted = engine, cpus, note, False
        self._asked = f"engine.actors={engine.actors}"
        self.bundle = bundle_of(engine, cpus)
        self._unmet_before = unmet(self.bundle)
        self._cluster = ClusterHealth()
        self._groups: list[PlacementGroup] = []
        try:
            for _ in range(actors):
                with delay_signals():  # else a group might be created but not listed
                    self._groups.append(self._ask())
        except BaseException:
            self.close()
            raise

    def __len__(self) -> int:
        """Return the number of requested actors."""
        return len(self._groups)

    def plan(self) -> ActorPlan:
        """Return the plan of the actors with a place, without draining nodes."""
        table: dict[str, Any] = placement_group_table()
        draining = draining_node_ids()
        self._placed: dict[str, list[PlacementGroup]] = {}
        for group in self._groups:
            entry = table.get(group.id.hex(), {})
            node = entry["bundles_to_node_id"][0] if entry.get("state") == "CREATED" else None
            if node and node not in draining:
                self._placed.setdefault(node, []).append(group)
        by_node = {node: len(groups) for node, groups in self._placed.items()}
        self._noted &= not by_node
        gpus = self._engine.gpus_per_actor
        return ActorPlan(sum(by_node.values()), self._cpus, gpus, by_node)

    def free(self, node: str, used: Container[PlacementGroup]) -> tuple[PlacementGroup, ...]:
        """Return the unused groups on a node in the last plan."""
        return tuple(group for group in self._placed.get(node, []) if group not in used)

    def renew(self, groups: Iterable[PlacementGroup]) -> None:
        """Replace groups on a draining node by new ones."""
        for group in groups:
            with delay_signals():
                remove_placement_group(group)
                self._groups[self._groups.index(group)] = self._ask()

    def wait(self) -> None:
        """Wait until Ray has placed an actor, and all others that have room.

        A note tells of long waiting, and of actors without room.

        Raises:
            SettingsError: no node type of the cluster holds such an actor.
            NodeLostError: the cluster is lost.
        """
        begun = looked = perf_counter()
        placed, before = self.plan().actors, 0
        while placed < len(self) and (not placed or placed > before):
            moment = perf_counter()
            if not placed and moment - begun >= NOTE_SECONDS:
                self._note_waiting()
            if not placed and moment - looked >= REFUSAL_SECONDS:
                looked = moment
                said = unmet(self.bundle) - self._unmet_before
                if bool(said) and not self._held_by_a_node() and not nodes_start():
                    raise SettingsError(
                        f"{self._asked}: no node with {self._needs} can be started: no node type of"
                        " the cluster has that, or its most nodes are there"
                    )
            _pause(self._cluster)
            placed, before = self.plan().actors, placed
        if placed < len(self):
            self._note(
                f"{self._asked}: {placed} have room; Ray is asked to start nodes for the others"
            )

    def await_room(self) -> None:
        """Note, once, that a run without actors waits for a node."""
        if not self.plan().actors:
            self._note_waiting()

    def _note_waiting(self) -> None:
        if not self._noted:
            self._noted = True
            self._note(f"{self._asked}: waiting for a node with room for an actor, {self._needs}")

    @property
    def _needs(self) -> str:
        return ", ".join(self._each_need())

    def _each_need(self) -> Iterator[str]:
        """Yield an actor's needs of its node: resources, and settings besides CPU and GPU."""
        for name, amount in self.bundle.items():
            if not name.startswith(ACCELERATOR):
                yield f"{amount:g} {name}"
        if kind := self._engine.accelerator_type:
            yield f"engine.accelerator_type={kind}"
        if labels := self._engine.node_labels:
            yield f"engine.node_labels={json.dumps(labels)}"

    def _held_by_a_node(self) -> bool:
        """Return whether a node could hold an actor, if others left it room."""
        one = self._engine.model_copy(update={"actors": 1, "cpus_per_actor": self._cpus})
        try:
            return plan_actors(one, alive_nodes(), 1).actors > 0
        except SettingsError:
            return False

    def close(self) -> None:
        """Remove the groups, unless the head is silent: then Ray does at the run's end."""
        with delay_signals():
            if not self._cluster.silent():
                for group in self._groups:
                    remove_placement_group(group)
            self._cluster.close()

    def _ask(self) -> PlacementGroup:
        labels = dict(self._engine.node_labels)
        selectors = [labels] if labels else None
        group: PlacementGroup = placement_group([self.bundle], bundle_label_selector=selectors)
        return group


def plan_pool(
    engine: EngineSettings, cohort: int, note: Callable[[str], None]
) -> tuple[Callable[[], ActorPlan], Demand | None]:
    """Return the planner of a pool's actors and, if nodes are started for it, its demand.

    A trial of a study has its own nodes: its placement group's. With engine.actors=auto a
    run uses the present nodes, and requests only the first one.

    Args:
        engine: The engine's settings.
        cohort: Clients per round.
        note: Shows the user a line.

    Raises:
        SettingsError: no node type of the cluster holds an actor.
        MachineError: no node for actors has joined the cluster, or the cluster is lost.
    """
    if get_current_placement_group() is not None:
        return partial(_plan, engine, cohort), None
    with closing(ClusterHealth()) as cluster:
        _await_nodes(cluster, note)
        if not autoscaler_runs():
            if engine.actors != "auto":
                asked = f"engine.actors={engine.actors}"
                for line in crowding(asked, engine.actors, engine, alive_nodes()):
                    note(line)
            return partial(_plan, engine, cohort), None
    engine = with_whole_cores(engine)
    actors = 1 if engine.actors == "auto" else engine.actors
    demand = Demand(engine, actors, float(engine.cpus_per_actor), note)
    try:
        demand.wait()
    except BaseException:
        demand.close()
        raise
    if engine.actors != "auto":
        return demand.plan, demand
    demand.close()
    return partial(_plan, engine, cohort), None


def _plan(engine: EngineSettings, cohort: int) -> ActorPlan:
    return plan_actors(engine, alive_nodes(), cohort)


def _await_nodes(cluster: ClusterHealth, note: Callable[[str], None]) -> None:
    """Wait a while if the cluster is only a head without resources for actors.

    Raises:
        MachineError: no node has joined the cluster, or the cluster is lost.
    """
    begun, noted = perf_counter(), False
    while not any(node.cpus or node.gpus for node in alive_nodes()) and not autoscaler_runs():
        if not noted:
            note("no node has cores or GPUs yet: waiting for one to join the cluster")
        noted = True
        if perf_counter() - begun > JOIN_SECONDS:
            raise MachineError(
                f"no node with cores or GPUs has joined the Ray cluster for {JOIN_SECONDS:g}"
                " seconds: start one"
            )
        _pause(cluster)


def _pause(cluster: ClusterHealth) -> None:
    """Wait a little, and as long as the head is silent, as a call to it would hang.

    Raises:
        NodeLostError: the cluster is lost.
    """
    sleep(LOOK_SECONDS)
    while not cluster.check():
        sleep(LOOK_SECONDS)
