"""Ray's autoscaler: told from nodes that were started by hand, and what it has no node type for."""

from __future__ import annotations

import json
from types import SimpleNamespace
from typing import Any

import pytest
from ray.util.state.exception import RayStateApiException

from raysim.execution import autoscaler

ID = "0f" * 28


@pytest.fixture
def reported(monkeypatch: pytest.MonkeyPatch) -> Any:
    """Return what sets the reports of both versions of the autoscaler."""
    context = SimpleNamespace(gcs_address="127.0.0.1:1")
    monkeypatch.setattr(autoscaler, "ray", SimpleNamespace(get_runtime_context=lambda: context))

    def report(first: Any, second: tuple[str, list[str]] = ("0", []), **pending: list[str]) -> None:
        status = json.dumps(first).encode() if first is not None else None
        nodes = [SimpleNamespace(ray_node_type_name=name) for name in second[1]]
        stats = SimpleNamespace(autoscaler_version=second[0])
        starting = {"pending_launches": [], "pending_nodes": []} | pending
        found = SimpleNamespace(
            active_nodes=nodes[:1], idle_nodes=nodes[1:], stats=stats, **starting
        )
        monkeypatch.setattr(autoscaler, "_internal_kv_get", lambda key: status)
        monkeypatch.setattr(autoscaler, "get_cluster_status", lambda address: found)

    return report


def types(*names: str) -> dict[str, Any]:
    mapping = {f"10.0.0.{number}": name for number, name in enumerate(names)}
    return {"autoscaler_report": {"node_type_mapping": mapping}}


@pytest.mark.parametrize(
    ("first", "second", "expected"),
    [
        (types("ray.head.default"), ("0", []), True),
        (types(f"node_{ID}", f"node_{ID}"), ("0", []), False),
        (types("node_a"), ("0", []), True),
        ({"autoscaler_report": None}, ("0", []), False),
        (None, ("0", [f"node_{ID}"]), False),
        (None, ("7", [f"node_{ID}"]), False),
        (None, ("7", [f"node_{ID}", "workers"]), True),
        (None, ("0", ["workers"]), False),  # Kubernetes names types also without an autoscaler
        (None, (None, ["workers"]), False),
    ],
)
def test_nodes_started_by_hand_are_of_types_of_their_own(reported, first, second, expected):
    reported(first, second)
    assert autoscaler.autoscaler_runs() is expected


@pytest.mark.parametrize(
    ("pending", "expected"),
    [({}, False), ({"pending_launches": ["a"]}, True), ({"pending_nodes": ["a"]}, True)],
)
def test_nodes_are_launched_and_then_pending(reported, pending, expected):
    reported(None, ("7", ["workers"]), **pending)
    assert autoscaler.nodes_start() is expected


SAID = {
    "a": "Error: No available node types can fulfill resource request {'CPU': 64.0}. Add suitable",
    "b": "No available node types can fulfill placement group requests (detail=1f:PACK|PENDING):"
    " {'CPU': 1.0, 'GPU': 0.3333}*2. Add suitable node types",
    "c": "Adding 1 node(s) of type {'CPU': 64.0}.",
}


@pytest.mark.parametrize(
    ("bundle", "expected"),
    [
        ({"CPU": 64.0}, {"a"}),
        ({"CPU": 1.0, "GPU": 1 / 3}, {"b"}),
        ({"CPU": 1.0}, set()),
        ({"CPU": 63.0}, set()),
    ],
)
def test_what_no_node_type_holds_is_read_from_the_events(reported, monkeypatch, bundle, expected):
    reported(None)
    events = [{"event_id": key, "message": text} for key, text in SAID.items()]
    monkeypatch.setattr("ray.util.state.list_cluster_events", lambda **_: events)
    assert autoscaler.unmet(bundle) == expected


def test_without_a_dashboard_nothing_is_known_of_events(reported, monkeypatch):
    def fails(**_: Any) -> Any:
        raise RayStateApiException("no dashboard")

    reported(None)
    monkeypatch.setattr("ray.util.state.list_cluster_events", fails)
    assert autoscaler.unmet({"CPU": 64.0}) == set()
