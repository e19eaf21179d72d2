"""Ray's autoscaler as a run sees it: whether there is one, and what no node type of it can hold.

Ray has no public calls for either. What `ray status` prints lies in the head's key-value store
(version 1 of the autoscaler) or in the head itself (version 2). Where nodes are started by hand,
both name a type of its own for each node, `node_ID`.
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
"""Type of a node that no autoscaler has started."""
UNMET = "No available node types can fulfill"
"""Beginning of what the autoscaler says of a request that no node type can hold."""
MOST_EVENTS = 10_000


def autoscaler_runs() -> bool:
    """Return whether Ray starts nodes where actors have no room; Ray must be running."""
    return any(not BY_HAND.fullmatch(kind) for kind in _node_types())


def _node_types() -> Iterable[str]:
    """Return the types of the nodes, as an autoscaler reports them; none where none has."""
    status = _internal_kv_get(DEBUG_AUTOSCALING_STATUS)
    if status:
        report = json.loads(status).get("autoscaler_report") or {}
        return (report.get("node_type_mapping") or {}).values()
    found = get_cluster_status(ray.get_runtime_context().gcs_address)
    nodes = [*found.active_nodes, *found.idle_nodes]
    reported = found.stats.autoscaler_version not in {None, "0"}
    return [node.ray_node_type_name for node in nodes] if reported else []


def nodes_start() -> bool:
    """Return whether nodes are being started; only version 2 of the autoscaler says so."""
    found = get_cluster_status(ray.get_runtime_context().gcs_address)
    return bool(found.pending_launches or found.pending_nodes)


def unmet(bundle: Mapping[str, float]) -> set[str]:
    """Return the ids of the events in which the autoscaler has no node type for a bundle.

    Version 2 says so, too, of bundles beyond the most nodes that it may start. There are none where
    the cluster has no dashboard, which keeps them.
    """
    from ray.util.state import list_cluster_events  # 60 ms, for clusters that grow alone
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
    for found in re.findall(r"\{[^{}]*\}", text):
        asked = literal_eval(found)
        if asked.keys() == bundle.keys() and all(
            isclose(asked[name], bundle[name], abs_tol=1e-4) for name in bundle
        ):
            return True
    return False
