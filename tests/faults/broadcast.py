"""Objects that a call of the pool sends, on a cluster; for a process of its own.

Prints as JSON how often the message was put into the object store, the nodes on which it lay when
four actors had read it, and whether what they read could be written to.
"""

from __future__ import annotations

import json
import sys
from pathlib import Path
from types import SimpleNamespace
from typing import Any
from unittest import mock

import numpy as np
import ray
import ray.experimental

from raysim.execution.pool.actor import ClientActor
from raysim.execution.pool.ray_pool import ActorPool
from raysim.execution.resources import ActorPlan
from raysim.execution.worker import WorkerSpec
from raysim.federation.task import from_task
from raysim.storage.trace import Stopwatch
from tests.tasks import EQUAL, long_settings, make_task


class Reader(ClientActor):
    """Says what it was sent instead of training on it."""

    def call(self, name, parts, give):
        self.arrays = [ray.get(shared[0]) for shared, _ in parts] or self.arrays
        array = self.arrays[0]
        read = SimpleNamespace(failing=False, writable=array.flags.writeable)
        return 0.1, read if give else None


def main() -> None:
    """Use the folder that the command line names."""
    folder = Path(sys.argv[1])
    ray.init(log_to_driver=False, logging_level="ERROR")
    settings = long_settings(folder, **{"engine.backend": "ray", "engine.actors": 4})
    spec = WorkerSpec(settings, from_task(make_task(EQUAL)), folder / "clients", folder / "updates")
    with mock.patch("raysim.execution.pool.actor.ClientActor", Reader):
        pool = ActorPool(spec, lambda: ActorPlan(4, 0.5, 0.0), Stopwatch(False))
    pool.describe()
    puts, put = [], ray.put

    def noted(value):
        reference = put(value)
        if isinstance(value, np.ndarray):
            puts.append(reference)
        return reference

    with mock.patch("ray.put", noted):
        costs = {(client,): 1.0 for client in range(40)}
        pool.submit("train", np.zeros(2**20), costs)
        read: list[Any] = list(pool.results("train"))
        lies = ray.experimental.get_object_locations(puts)[puts[0]]["node_ids"]
    pool.close()
    writable = [each.writable for each in read]
    print(json.dumps({"puts": len(puts), "nodes": lies, "writable": writable}))
