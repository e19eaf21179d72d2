"""Demand for nodes: placement groups on a Ray that places them where the test says."""

from __future__ import annotations

import os
import signal
from collections.abc import Callable
from types import SimpleNamespace
from typing import Any

import pytest
from ray.exceptions import RaySystemError

from raysim.config import EngineSettings
from raysim.errors import MachineError, SettingsError
from raysim.execution.cluster_health import ClusterHealth, NodeLostError
from raysim.execution.pool import demand as module
from raysim.execution.pool.demand import Demand, plan_pool
from raysim.execution.resources import ActorPlan, Node
from raysim.process.exits import interruptible

A, B = "aa", "bb"


class FakeGroups:
    """Placement groups of a fake Ray.

    Attributes:
        asked: Bundles and labels of the groups, in the order in which they were asked for.
        places: Node of a group by its number; the others have none.
        removed: Numbers of the groups that were given back.
        draining: Nodes that are drained.
        unmet: Events in which the autoscaler has no node type.
        nodes: The nodes.
        runs: Whether there is an autoscaler.
        starting: Whether it is starting nodes.
        check: Stands in for `ClusterHealth.check`.
    """

    silent = ClusterHealth.silent

    def __init__(self) -> None:
        self.asked: list[tuple[Any, Any]] = []
        self.places: dict[int, str] = {}
        self.removed: list[int] = []
        self.draining: set[str] = set()
        self.unmet: list[set[str]] = []
        self.nodes: list[Node] = []
        self.runs, self.starting = True, False
        self.looks: Callable[[], None] = lambda: None
        self.check: Callable[[], bool] = lambda: True

    def placement_group(self, bundles: Any, bundle_label_selector: Any) -> Any:
        self.asked.append((bundles, bundle_label_selector))
        return SimpleGroup(len(self.asked) - 1)

    def placement_group_table(self) -> dict[str, Any]:
        self.looks()
        return {
            str(number): {
                "state": "CREATED" if number in self.places else "PENDING",
                "bundles_to_node_id": {0: self.places.get(number, "")},
            }
            for number in range(len(self.asked))
        }

    def remove_placement_group(self, group: Any) -> None:
        self.removed.append(group.number)

    def close(self) -> None:
        pass

    def install(self, monkeypatch: pytest.MonkeyPatch) -> None:
        for name in ("placement_group", "placement_group_table", "remove_placement_group"):
            monkeypatch.setattr(module, name, getattr(self, name))
        monkeypatch.setattr(module, "draining_node_ids", lambda: self.draining)
        monkeypatch.setattr(module, "unmet", lambda bundle: (self.unmet or [set()])[0])
        monkeypatch.setattr(module, "alive_nodes", lambda: self.nodes)
        monkeypatch.setattr(module, "autoscaler_runs", lambda: self.runs)
        monkeypatch.setattr(module, "nodes_start", lambda: self.starting)
        monkeypatch.setattr(module, "get_current_placement_group", lambda: None)
        monkeypatch.setattr(module, "ClusterHealth", lambda: self)
        for name in ("LOOK_SECONDS", "NOTE_SECONDS", "REFUSAL_SECONDS"):
            monkeypatch.setattr(module, name, 0.0)


class SimpleGroup(SimpleNamespace):
    """Handle of a fake placement group."""

    def __init__(self, number: int) -> None:
        super().__init__(number=number, id=SimpleNamespace(hex=lambda: str(number)))


@pytest.fixture
def groups(monkeypatch: pytest.MonkeyPatch) -> FakeGroups:
    fake = FakeGroups()
    fake.install(monkeypatch)
    return fake


def engine(**settings: Any) -> EngineSettings:
    return EngineSettings(**settings)


def numbers(found: Any) -> list[int]:
    return [group.number for group in found]


def test_one_group_an_actor_is_asked_for_and_given_back(groups):
    asked = engine(gpus_per_actor=0.5, accelerator_type="A100", node_labels={"zone": "b"})
    demand = Demand(asked, 3, 1.0, pytest.fail)
    bundle = {"CPU": 1.0, "GPU": 0.5, "accelerator_type:A100": 0.001}
    assert groups.asked == [([bundle], [{"zone": "b"}])] * 3 and len(demand) == 3
    assert demand.plan() == ActorPlan(0, 1.0, 0.5)
    demand.close()
    assert groups.removed == [0, 1, 2]


def end_asking(fake: FakeGroups, number: int, ends: str) -> Callable[..., Any]:
    """Return what asks for a group, until a group's number; there Ray fails or a signal comes."""

    def ask(*arguments: Any, **options: Any) -> Any:
        if len(fake.asked) == number and ends == "error":
            raise RaySystemError("no answer")
        found = FakeGroups.placement_group(fake, *arguments, **options)
        if found.number == number:
            os.kill(os.getpid(), signal.SIGINT)
        return found

    return ask


@pytest.mark.parametrize(("ends", "held"), [("error", [0, 1]), ("signal", [0, 1, 2])])
def test_what_was_asked_for_is_given_back_where_asking_ends(groups, monkeypatch, ends, held):
    """In a user's own Ray session, no end of a connection would give it back."""
    monkeypatch.setattr(module, "placement_group", end_asking(groups, 2, ends))
    with interruptible(), pytest.raises((RaySystemError, KeyboardInterrupt)):
        plan_pool(engine(actors=5), 10, pytest.fail)
    assert groups.removed == held == [*range(len(groups.asked))]


def test_a_signal_does_not_part_a_group_that_is_asked_for_anew(groups, monkeypatch):
    demand = Demand(engine(), 2, 1.0, pytest.fail)
    groups.places = {0: A, 1: A}
    demand.plan()
    monkeypatch.setattr(module, "placement_group", end_asking(groups, 2, "signal"))
    with interruptible(), pytest.raises(KeyboardInterrupt):
        demand.renew(demand.free(A, []))
    demand.close()
    assert sorted(groups.removed) == [0, 1, 2]


def test_a_signal_comes_when_all_is_given_back(groups, monkeypatch):
    demand = Demand(engine(), 3, 1.0, pytest.fail)

    def remove(group: Any) -> None:
        groups.remove_placement_group(group)
        os.kill(os.getpid(), signal.SIGINT)

    monkeypatch.setattr(module, "remove_placement_group", remove)
    with interruptible(), pytest.raises(KeyboardInterrupt):
        demand.close()
    assert groups.removed == [0, 1, 2]


def test_the_plan_is_what_ray_has_placed(groups):
    demand = Demand(engine(), 4, 1.0, pytest.fail)
    groups.places = {0: A, 2: B, 3: B}
    assert demand.plan() == ActorPlan(3, 1.0, 0.0, {A: 1, B: 2})
    assert numbers(demand.free(B, [])) == [2, 3]
    assert numbers(demand.free(B, demand.free(B, [])[:1])) == [3]
    assert demand.free("none", []) == ()


def test_a_node_that_is_drained_is_asked_for_anew(groups):
    demand = Demand(engine(), 3, 1.0, pytest.fail)
    groups.places = {0: A, 1: B, 2: B}
    demand.plan()
    there = demand.free(B, [])
    groups.draining = {B}
    assert demand.plan().by_node == {A: 1} and not groups.removed
    demand.renew(there)
    assert groups.removed == [1, 2] and len(groups.asked) == 5 and len(demand) == 3
    groups.places |= {3: A, 4: A}
    assert demand.plan().by_node == {A: 3}


def test_one_line_says_for_what_the_run_waits(groups):
    lines: list[str] = []

    def place() -> None:
        if len(lines) == 1:
            groups.places = {1: A}

    groups.looks = place
    plan, demand = plan_pool(engine(actors=2), 10, lines.append)
    assert lines == [
        "engine.actors=2: waiting for a node with room for an actor, 1 CPU",
        "engine.actors=2: 1 have room; Ray is asked to start nodes for the others",
    ]
    assert demand is not None and plan() == ActorPlan(1, 1.0, 0.0, {A: 1})
    assert not groups.removed


@pytest.mark.parametrize(
    ("nodes", "starting", "refused"),
    [
        ([], False, True),
        ([Node(2, 0, A)], False, True),
        ([Node(64, 0, A)], False, False),
        ([Node(2, 0, A)], True, False),
    ],
)
def test_what_no_node_type_holds_is_refused_unless_a_node_does_or_starts(
    groups, nodes, starting, refused
):
    """Version 2 of the autoscaler says the same of what would be beyond its most nodes."""
    groups.nodes, groups.starting = nodes, starting
    looks = iter(range(20))

    def look() -> None:
        now = next(looks)
        groups.unmet = [{"new"}] if now > 3 else []
        groups.places = {0: A} if now > 15 else {}

    groups.looks = look
    asked = engine(actors=3, cpus_per_actor=64.0)
    if not refused:
        assert plan_pool(asked, 10, lambda line: None)[1]
        return
    with pytest.raises(SettingsError) as caught:
        plan_pool(asked, 10, lambda line: None)
    assert str(caught.value) == (
        "engine.actors=3: no node with 64 CPU can be started: no node type of the cluster has that,"
        " or its most nodes are there"
    )
    assert groups.removed == [0, 1, 2]


def test_what_no_node_type_has_is_named_as_it_was_set(groups):
    looks = iter(range(20))
    groups.looks = lambda: setattr(groups, "unmet", [{"new"}] if next(looks) > 3 else [])
    asked = engine(actors=3, gpus_per_actor=0.5, accelerator_type="A100", node_labels={"zone": "b"})
    lines: list[str] = []
    with pytest.raises(SettingsError) as caught:
        plan_pool(asked, 10, lines.append)
    needs = '1 CPU, 0.5 GPU, engine.accelerator_type=A100, engine.node_labels={"zone": "b"}'
    assert lines == [f"engine.actors=3: waiting for a node with room for an actor, {needs}"]
    assert str(caught.value).startswith(f"engine.actors=3: no node with {needs} can be started: ")


def test_a_run_starts_when_ray_has_placed_all_that_it_can(groups):
    steps = iter([{}, {0: A}, {0: A, 1: A, 2: B}, {0: A, 1: A, 2: B, 3: B}])
    groups.looks = lambda: groups.places.update(next(steps, {}))
    plan, demand = plan_pool(engine(actors=6), 10, lambda line: None)
    assert demand is not None and plan().by_node == {A: 2, B: 2}


def test_events_of_earlier_runs_refuse_nobody(groups):
    groups.unmet = [{"old"}]
    looks = iter(range(10))
    groups.looks = lambda: groups.places.update({0: A} if next(looks) == 5 else {})
    assert plan_pool(engine(actors=1), 10, lambda line: None)[1]


def test_automatic_actors_ask_for_the_first_node_alone(groups):
    groups.looks = lambda: groups.places.update({0: A})
    groups.nodes = [Node(0, 0, B), Node(3, 0, A)]
    plan, demand = plan_pool(engine(), 10, lambda line: None)
    assert demand is None and groups.removed == [0]
    assert plan() == ActorPlan(3, 1.0, 0.0, {A: 3})


@pytest.mark.parametrize("nodes", [[Node(2, 0, A)], [Node(0, 0, A), Node(2, 1, B)]])
def test_where_nodes_are_started_by_hand_nothing_is_asked_for(groups, nodes):
    groups.runs, groups.nodes = False, nodes
    plan, demand = plan_pool(engine(actors=8), 10, lambda line: None)
    assert demand is None and not groups.asked
    assert plan().actors == 8 and plan().cpus == 0.25


def test_a_bare_head_is_given_time_for_nodes_to_join(groups, monkeypatch):
    groups.runs, groups.nodes = False, [Node(0, 0, A)]
    lines: list[str] = []

    def note(line: str) -> None:
        lines.append(line)
        groups.nodes = [Node(0, 0, A), Node(2, 0, B)]

    plan, _ = plan_pool(engine(), 10, note)
    assert plan().by_node == {B: 2}
    assert lines == ["no node has cores or GPUs yet: waiting for one to join the cluster"]
    groups.nodes = [Node(0, 0, A)]
    monkeypatch.setattr(module, "JOIN_SECONDS", 0.0)
    with pytest.raises(MachineError, match=r"^no node with cores or GPUs has joined the Ray"):
        plan_pool(engine(), 10, lambda line: None)


@pytest.mark.parametrize("runs", [True, False])
def test_a_head_that_falls_silent_is_asked_nothing_more(groups, monkeypatch, runs):
    """A call to it would not return, and Ray would end this process with 1 after a minute."""
    groups.runs, groups.nodes = runs, [Node(0, 0, A)]
    silence = iter([False, False])
    monkeypatch.setattr(module, "remove_placement_group", lambda group: pytest.fail("it was asked"))

    def check() -> bool:
        groups.looks = lambda: pytest.fail("it was asked")
        groups.nodes = None
        for answers in silence:
            return answers
        raise NodeLostError("the head does not answer")

    groups.check = check
    with pytest.raises(NodeLostError, match="the head does not answer"):
        plan_pool(engine(actors=2), 10, lambda line: None)


@pytest.mark.parametrize("answers", [True, False])
def test_a_demand_is_given_back_to_a_head_that_answers(groups, answers):
    demand = Demand(engine(), 2, 1.0, pytest.fail)
    groups.check = lambda: answers
    demand.close()
    assert groups.removed == ([0, 1] if answers else [])


def test_a_run_that_has_lost_all_nodes_says_once_that_it_waits(groups):
    lines: list[str] = []
    demand = Demand(engine(actors=2), 2, 1.0, lines.append)
    for places in ({0: A}, {}, {}, {1: B}, {}, {}):
        groups.places = places
        demand.await_room()
    waiting = "engine.actors=2: waiting for a node with room for an actor, 1 CPU"
    assert lines == [waiting, waiting]


@pytest.mark.parametrize(
    ("nodes", "more", "said"),
    [
        ([Node(2, 0, A)], {}, "engine.actors=3: 3 actors share 2 cores: "),
        ([Node(1, 0, A)], {}, "engine.actors=3: 3 actors share 1 core: "),
        ([Node(2, 0, A), Node(1, 0, B)], {}, None),
        ([Node(2, 2, A)], {"gpus_per_actor": 0.5}, None),
        ([Node(2, 0, A)], {"actors": "auto"}, None),
    ],
)
def test_more_actors_than_cores_are_noted_where_no_autoscaler_runs(groups, nodes, more, said):
    lines: list[str] = []
    groups.nodes, groups.runs = nodes, False
    plan_pool(engine(**{"actors": 3, **more}), 10, lines.append)
    assert [line.startswith(said or "") for line in lines] == [True] * bool(said)
