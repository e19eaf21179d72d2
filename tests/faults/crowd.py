"""Leaves no room in a cluster's object stores: `python -m tests.faults.crowd`, see `crowded`."""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import numpy as np
import ray
from ray.util.scheduling_strategies import NodeAffinitySchedulingStrategy

PIECES = 16


class Crowd:
    """Holds what cannot leave a node's object store, because it is being read."""

    def fill(self, size: int) -> int:
        """Fill a store of `size` bytes; return how many are held."""
        self._held = [ray.get(ray.put(np.zeros(size // PIECES, np.uint8))) for _ in range(PIECES)]
        return sum(array.nbytes for array in self._held)


@contextmanager
def crowded(address: str) -> Iterator[None]:
    """Leave no room in any object store of a cluster: what else is put there goes to the disk."""
    process = subprocess.Popen(
        [sys.executable, "-m", "tests.faults.crowd"],
        env={**os.environ, "RAY_ADDRESS": address},
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
    )
    with process:
        assert process.stdin and process.stdout
        assert process.stdout.readline() == "full\n"
        try:
            yield
        finally:
            process.stdin.close()


def main() -> None:
    ray.init(log_to_driver=False, logging_level="ERROR")
    nodes: list[dict[str, Any]] = ray.nodes()  # type: ignore[no-untyped-call]
    stores = {
        node["NodeID"]: int(node["Resources"]["object_store_memory"])
        for node in nodes
        if node["Alive"]
    }
    crowds = {}
    for node in stores:
        where = NodeAffinitySchedulingStrategy(node, soft=False)
        crowds[node] = ray.remote(num_cpus=0, scheduling_strategy=where)(Crowd).remote()
    held = ray.get([crowds[node].fill.remote(size) for node, size in stores.items()])
    assert all(room - there < PIECES for room, there in zip(stores.values(), held, strict=True))
    print("full", flush=True)
    sys.stdin.read()


if __name__ == "__main__":
    main()
