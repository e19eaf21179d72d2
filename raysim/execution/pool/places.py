"""Places of a pool's actors: the workers and foremen of each node."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterator
from dataclasses import replace
from functools import partial
from typing import Any

from ray.util.placement_group import PlacementGroup

from raysim.errors import SettingsError
from raysim.execution.cluster_health import alive_node_ids, draining_node_ids
from raysim.execution.pool.actors import Actors
from raysim.execution.pool.demand import Demand
from raysim.execution.pool.foreman import NodeWorkers
from raysim.execution.resources import ActorPlan


class Places:
    """Nodes of the pool's actors, as far as the pool chooses them, and not Ray.

    Attributes:
        by_actor: Workers on a node, by the number of the actor.
    """

    def __init__(
        self,
        actors: Actors,
        replan: Callable[[], ActorPlan],
        demand: Demand | None,
        *,
        in_group: bool,
    ) -> None:
        """Begin without an actor.

        Args:
            actors: The actors.
            replan: Returns the plan for the present nodes.
            demand: The actors' placement groups, if nodes are started for them.
            in_group: Whether the run has its own nodes: a trial's placement group's.
        """
        self.by_actor: dict[int, NodeWorkers] = {}
        self._actors, self._replan, self._demand = actors, replan, demand
        self._in_group = in_group

    @property
    def workers(self) -> int:
        """Number of workers, which falls if a lost node's workers move to a node with less room."""
        places = map(self.by_actor.get, range(len(self._actors.handles)))
        return sum(place.workers if place else 1 for place in places)

    def have_foremen(self, plan: ActorPlan) -> bool:
        """Return whether nodes have foremen, as unless there is one node and no demand for more."""
        more = self._demand is not None and plan.actors < len(self._demand)
        return not self._in_group and (len(plan.by_node) > 1 or more)

    def lack_foreman(self, plan: ActorPlan) -> bool:
        """Return whether a single node with workers lacks a foreman, while a plan has several."""
        if plan.actors <= self.workers or not self.have_foremen(plan):
            return False
        handles = enumerate(self._actors.handles)
        alone = {handle.about.get("node", "") for n, handle in handles if n not in self.by_actor}
        return any(plan.by_node.get(node, 0) > 1 for node in alone)

    def missing(self, plan: ActorPlan) -> Iterator[NodeWorkers]:
        """Yield the planned workers that have not started; all of them must be added.

        The remaining room is computed for each, because an actor takes the room of another if its
        node is lost during its start.
        """
        for node in plan.by_node:
            while (workers := min(self._room(plan)[node], plan.actors - self.workers)) > 0:
                width = workers if self.have_foremen(plan) else 1
                groups = self._free(node)[:width]
                if self._demand:
                    width = len(groups)
                if width < 1:
                    break
                yield NodeWorkers(node, width, plan.cpus, plan.gpus, width > 1, groups)

    def add(self, place: NodeWorkers) -> Callable[[], Any | None]:
        """Note the place of the next actor; return a function that creates the actor there."""
        number = len(self._actors.handles)
        self.by_actor[number] = place
        return partial(self._make, number)

    def _make(self, number: int) -> Any | None:
        """Create the actor of a node's workers, elsewhere if they must leave; None without room."""
        if not self._actors.cluster.check():
            return None  # for now: the head is silent, and a call to it would hang
        place = self.by_actor[number]
        drained = place.node in draining_node_ids()
        if drained and self._demand:
            self._demand.renew(place.groups)
        if drained or self._actors.cluster.lost(place.node):
            self.by_actor[number] = replace(place, groups=())
            try:
                room = self._room(self._replan())
            except SettingsError:
                return None
            node = max(room, key=room.__getitem__, default="")
            if not node:
                return None
            workers = min(room[node], place.workers)
            groups = self._free(node)[:workers]
            self.by_actor[number] = replace(place, node=node, workers=workers, groups=groups)
        return self.by_actor[number].start()

    def _free(self, node: str) -> tuple[PlacementGroup, ...]:
        """Return the groups on a node without an actor."""
        on_node = [place for place in self.by_actor.values() if place.node == node]
        used = {group for place in on_node for group in place.groups}
        return self._demand.free(node, used) if self._demand else ()

    def _room(self, plan: ActorPlan) -> Counter[str]:
        """Return the room of each node, as a number of further workers."""
        room = Counter(plan.by_node)
        for number, handle in enumerate(self._actors.handles):
            if place := self.by_actor.get(number):
                room[place.node] -= place.workers
            else:
                room[handle.about.get("node", "")] -= 1
        alive = alive_node_ids()
        return +Counter({node: workers for node, workers in room.items() if node in alive})
