"""The fake Ray, where the modules of the pool look for Ray."""

from __future__ import annotations

import pytest

from raysim.execution.pool import actor, actors, broadcasts, foreman, places, ray_pool
from tests.execution.pool.fake_ray import HERE, A, B, C, D, FakeCluster, FakeRay


@pytest.fixture
def fake_ray(monkeypatch: pytest.MonkeyPatch) -> FakeRay:
    fake = FakeRay()
    monkeypatch.setattr(ray_pool, "ray", fake)
    monkeypatch.setattr(actor, "ray", fake)
    monkeypatch.setattr(actors, "ray", fake)
    monkeypatch.setattr(foreman, "ray", fake)
    monkeypatch.setattr(broadcasts, "ray", fake)
    monkeypatch.setattr(places, "alive_node_ids", lambda: {A, B, C, D, HERE})
    monkeypatch.setattr(ray_pool, "draining_node_ids", set)
    monkeypatch.setattr(places, "draining_node_ids", set)
    monkeypatch.setattr(actors, "ClusterHealth", FakeCluster)
    monkeypatch.setattr(ray_pool, "get_current_placement_group", lambda: None)
    return fake
