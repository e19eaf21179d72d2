"""Queries to Ray's autoscaler: whether one runs, and which requests no node type can hold.

Ray has no public calls for them. The output of `ray status` lies in the head's key-value store
(version 1 of the autoscaler) or in the head itself (version 2). In both, a node that was started by
hand has its own type, `node_ID`.
"""

from __future__ import annotations

import json
import re
from ast import literal_eval
from collections.abc import Iterable, Mapping
from math import isclose

import ray
from ray._private.ray_constants import DEBUG_AUTOSCALING_STATUS
from ray.autoscaler.v2.sdk import get_cluster_status
from ray.experimental.internal_kv import _internal_kv_get

BY_HAND = re.compile(r"node_[0-9a-f]{56}")
"""Pattern of the type of a node that no autoscaler has started."""
UNMET = "No available node types can fulfill"
"""Beginning of the autoscaler's message about a request that no node type can hold."""
MOST_EVENTS = 10_000


def autoscaler_runs() -> bool:
    """Return whether Ray starts nodes for actors without room; Ray must be running."""
    return any(not BY_HAND.fullmatch(kind) for kind in _node_types())


def _node_types() -> Iterable[str]:
    """Return the types of the nodes as an autoscaler reports them; empty without autoscaler."""
    status = _internal_kv_get(DEBUG_AUTOSCALING_STATUS)
    if status:
        report = json.loads(status).get("autoscaler_report") or {}
        return (report.get("node_type_mapping") or {}).values()
    cluster = get_cluster_status(ray.get_runtime_context().gcs_address)
    nodes = [*cluster.active_nodes, *cluster.idle_nodes]
    reported = cluster.stats.autoscaler_version not in {None, "0"}
    return [node.ray_node_type_name for node in nodes] if reported else []


def nodes_start() -> bool:
    """Return whether nodes are being started, which only version 2 of the autoscaler reports."""
    status = get_cluster_status(ray.get_runtime_context().gcs_address)
    return bool(status.pending_launches or status.pending_nodes)


def unmet(bundle: Mapping[str, float]) -> set[str]:
    """Return the ids of events in which the autoscaler has no node type for a bundle.

    Version 2 also reports bundles beyond the most nodes that it may start. Only a dashboard keeps
    the events; without it there are none.
    """
    from ray.util.state import list_cluster_events  # 60 ms, only for clusters that grow
    from ray.util.state.exception import RayStateApiException

    try:
        events = list_cluster_events(
            address=ray.get_runtime_context().gcs_address,
            limit=MOST_EVENTS,
            raise_on_missing_output=False,
        )
    except (RayStateApiException, OSError):
        return set()
    said = ((event["event_id"], event["message"]) for event in events)
    return {event for event, text in said if UNMET in text and _names(text, bundle)}


def _names(text: str, bundle: Mapping[str, float]) -> bool:
    """Return whether a message is about a bundle."""
    for literal in re.findall(r"\{[^{}]*\}", text):
        asked = literal_eval(literal)
        if asked.keys() == bundle.keys() and all(
            isclose(asked[name], bundle[name], abs_tol=1e-4) for name in bundle
        ):
            return True
    return False
