"""Plans of actors: their number, what each reserves, and refusals."""

from __future__ import annotations

from math import floor

import pytest
from hypothesis import given
from hypothesis import strategies as st

from raysim.config import EngineSettings
from raysim.errors import SettingsError
from raysim.execution.resources import ActorPlan, Node, plan_actors, unused_gpus


def plan(nodes, cohort=100, **engine):
    return plan_actors(EngineSettings(**engine), [Node(*node) for node in nodes], cohort)


def refusal(nodes, **engine):
    with pytest.raises(SettingsError) as caught:
        plan(nodes, **engine)
    text = str(caught.value)
    assert len(text.splitlines()) == 1
    return text


THIRD = 1 / 3
FITS = {
    "an actor a core": ([(4, 0)], {}, ActorPlan(4, 1.0, 0.0)),
    "half a core is none": ([(2.5, 0)], {}, ActorPlan(2, 1.0, 0.0)),
    "at least one": ([(0.5, 0)], {}, ActorPlan(1, 0.5, 0.0)),
    "a head without cores": ([(0, 0), (2, 0)], {}, ActorPlan(2, 1.0, 0.0)),
    "cores of all nodes": ([(2, 0), (3, 0)], {}, ActorPlan(5, 1.0, 0.0)),
    "more actors than cores": ([(2, 0)], {"actors": 8}, ActorPlan(8, 0.25, 0.0)),
    "rounded down": ([(2, 0)], {"actors": 3}, ActorPlan(3, 0.6666, 0.0)),
    "cores as asked": ([(8, 0)], {"actors": 4, "cpus_per_actor": 2.0}, ActorPlan(4, 2.0, 0.0)),
    "eight on two GPUs": ([(2, 2)], {"gpus_per_actor": 0.25}, ActorPlan(8, 0.25, 0.25)),
    "thirds": ([(8, 1)], {"gpus_per_actor": THIRD}, ActorPlan(3, 1.0, THIRD)),
    "thirds, rounded": ([(8, 2)], {"gpus_per_actor": 0.333}, ActorPlan(6, 1.0, 0.333)),
    "93rds": (
        [(128, 1)],
        {"gpus_per_actor": 1 / 93},
        ActorPlan(93, 1.0, 1 / 93),
    ),  # 1 / (1 / 93) < 93
    "no straddling": ([(8, 2)], {"gpus_per_actor": 0.4}, ActorPlan(4, 1.0, 0.4)),
    "one GPU for one": ([(8, 3)], {"gpus_per_actor": 0.6}, ActorPlan(3, 1.0, 0.6)),
    "each node for itself": ([(8, 1.5), (8, 1.5)], {"gpus_per_actor": 1.0}, ActorPlan(2, 1.0, 1.0)),
    "a node without GPUs": ([(8, 0), (8, 2)], {"gpus_per_actor": 0.5}, ActorPlan(4, 1.0, 0.5)),
    "fewer than fit": ([(8, 2)], {"gpus_per_actor": 0.25, "actors": 3}, ActorPlan(3, 1.0, 0.25)),
}


@pytest.mark.parametrize("case", FITS)
def test_plans_by_hand(case):
    nodes, engine, expected = FITS[case]
    assert plan(nodes, **engine) == expected


def test_no_more_actors_than_clients_in_a_round():
    assert plan([(16, 0)], cohort=3) == ActorPlan(3, 1.0, 0.0)
    assert plan([(2, 4)], cohort=5, gpus_per_actor=0.25) == ActorPlan(5, 0.4, 0.25)


def test_the_actors_asked_for_may_outnumber_the_cohort():
    assert plan([(4, 0)], cohort=1, actors=4) == ActorPlan(4, 1.0, 0.0)


REFUSED = {
    "no GPU": (
        [(8, 0)],
        {"gpus_per_actor": 0.25},
        "engine.gpus_per_actor=0.25: at most 0 GPUs are declared on a node"
        " (use 0 to train on cores)",
    ),
    "no node": ([], {"gpus_per_actor": 1.0}, "engine.gpus_per_actor=1: at most 0 GPUs"),
    "halves of two nodes": (
        [(8, 0.5), (8, 0.5)],
        {"gpus_per_actor": 1.0},
        "engine.gpus_per_actor=1: at most 0.5 GPUs are declared on a node",
    ),
    "too many for the GPUs": (
        [(8, 2)],
        {"gpus_per_actor": 0.5, "actors": 5},
        "engine.actors=5: at most 4 with engine.gpus_per_actor=0.5",
    ),
    "too few cores": (
        [(2, 0), (1, 0)],
        {"actors": 2, "cpus_per_actor": 2.0},
        "engine.cpus_per_actor=2: 2 actors do not fit on the CPUs declared (2, 1 a node)",
    ),
}


@pytest.mark.parametrize("case", REFUSED)
def test_refusals_name_the_setting_its_value_and_what_there_is(case):
    nodes, engine, text = REFUSED[case]
    assert refusal(nodes, **engine).startswith(text)


MIXED = [
    Node(8, 2, "0", frozenset({"A100"}), {"ray.io/market-type": "spot", "zone": "a"}),
    Node(8, 4, "1", frozenset({"T4"}), {"ray.io/market-type": "spot"}),
    Node(8, 0, "2"),
]


@pytest.mark.parametrize(
    ("engine", "by_node"),
    [
        ({"gpus_per_actor": 1.0}, {"0": 2, "1": 4}),
        ({"gpus_per_actor": 1.0, "accelerator_type": "T4"}, {"1": 4}),
        ({"node_labels": {"zone": "a"}}, {"0": 8}),
        ({"node_labels": {"ray.io/market-type": "spot"}}, {"0": 8, "1": 8}),
        (
            {
                "gpus_per_actor": 0.5,
                "accelerator_type": "A100",
                "node_labels": {"zone": "a", "ray.io/market-type": "spot"},
            },
            {"0": 4},
        ),
    ],
)
def test_actors_are_planned_on_the_nodes_that_suit(engine, by_node):
    assert plan_actors(EngineSettings(**engine), MIXED, 100).by_node == by_node


@pytest.mark.parametrize(
    ("engine", "text"),
    [
        (
            {"gpus_per_actor": 1.0, "accelerator_type": "H100"},
            "engine.accelerator_type=H100: no node has it; there is A100, T4",
        ),
        (
            {"node_labels": {"zone": "b"}},
            'engine.node_labels={"zone": "b"}: no node has these labels',
        ),
        (
            {"gpus_per_actor": 1.0, "accelerator_type": "T4", "node_labels": {"zone": "a"}},
            'engine.node_labels={"zone": "a"}: no node has these labels',
        ),
    ],
)
def test_nodes_that_there_are_not_are_refused(engine, text):
    with pytest.raises(SettingsError) as caught:
        plan_actors(EngineSettings(**engine), MIXED, 100)
    assert str(caught.value) == text


@pytest.mark.parametrize(
    ("engine", "actors"),
    [
        ({"cpus_per_actor": 2.0}, 3),
        ({"cpus_per_actor": 0.5}, 8),
        ({"cpus_per_actor": 2.0, "gpus_per_actor": 0.5}, 2),
        ({"cpus_per_actor": 1.0, "gpus_per_actor": 0.5}, 4),
    ],
)
def test_automatic_actors_are_as_many_as_reserve_the_cores_asked_for(engine, actors):
    assert plan([(5, 2), (3, 0)], **engine).actors == actors


def hold(nodes, found):
    """Return how many actors of a plan the nodes hold, each node for itself, as Ray places them."""
    return sum(
        min(
            floor(node[0] / found.cpus + 1e-9) if found.cpus else 10**9,
            floor(node[1] / found.gpus + 1e-9) if found.gpus else 10**9,
        )
        for node in nodes
    )


@pytest.mark.parametrize(("actors", "named"), [("auto", "auto: 1"), (3, "3: 3")])
def test_a_head_without_cores_names_the_setting_as_it_was_typed(actors, named):
    text = f"engine.actors={named} do not fit on the CPUs and GPUs that the nodes declare"
    assert refusal([(0, 0)], actors=actors) == text


def holds_all_or_refuses(nodes, **engine):
    try:
        found = plan(nodes, **engine)
    except SettingsError:
        return True
    return hold(nodes, found) >= found.actors


@given(st.integers(1, 16), st.integers(0, 4), st.sampled_from([0.0, 0.25, 0.5, 1.0]))
def test_one_node_holds_every_actor_of_its_plan(cpus, gpus, share):
    assert holds_all_or_refuses([(cpus, gpus)], gpus_per_actor=share)


SEVERAL = {
    "GPUs where the cores are few": ([(2, 4), (32, 0)], {"gpus_per_actor": 0.25}),
    "a head node with no cores": ([(0, 0), (4, 1)], {"gpus_per_actor": 0.25}),
    "odd shares of cores": ([(1, 0), (1, 0)], {"actors": 3}),
    "cores asked for that no node has": ([(1, 0)] * 4, {"actors": 2, "cpus_per_actor": 2.0}),
    "fractions of cores": ([(1.5, 0), (1.5, 0)], {}),
}


@pytest.mark.parametrize("case", SEVERAL)
def test_several_nodes_hold_every_actor_of_their_plan(case):
    """An actor that no node can hold would be waited for, for ever."""
    nodes, engine = SEVERAL[case]
    assert holds_all_or_refuses(nodes, **engine)


@pytest.mark.parametrize(
    ("nodes", "engine", "by_node"),
    [
        ([(2, 0), (3, 0)], {}, {"0": 2, "1": 3}),
        ([(0, 0), (2, 0)], {}, {"1": 2}),
        ([(4, 0), (4, 0)], {"actors": 3}, {"0": 2, "1": 1}),
        ([(1, 0), (4, 0)], {"actors": 4}, {"0": 1, "1": 3}),
        ([(2, 0), (2, 0)], {"actors": 8}, {"0": 4, "1": 4}),
        ([(8, 2), (8, 1), (8, 0)], {"gpus_per_actor": 0.5}, {"0": 4, "1": 2}),
    ],
)
def test_actors_are_spread_over_the_nodes(nodes, engine, by_node):
    named = [Node(*node, id=str(number)) for number, node in enumerate(nodes)]
    assert plan_actors(EngineSettings(**engine), named, 100).by_node == by_node


def test_gpus_are_unused_on_nodes_that_actors_may_use_where_none_is_asked_for():
    nodes = [Node(8, 4, "a", labels={"zone": "one"}), Node(2, 1, "b"), Node(2, 0, "c")]
    assert unused_gpus(EngineSettings(), nodes) == 5
    assert unused_gpus(EngineSettings(node_labels={"zone": "one"}), nodes) == 4
    assert unused_gpus(EngineSettings(node_labels={"zone": "two"}), nodes) == 0  # to be started
    assert unused_gpus(EngineSettings(gpus_per_actor=0.5), nodes) == 0
    assert unused_gpus(EngineSettings(), nodes[2:]) == 0
