"""Measured costs of messages and of sums, for the simulated pools; Ray must be running."""

from __future__ import annotations

import os
import statistics
from collections.abc import Callable
from dataclasses import replace
from time import perf_counter
from typing import Any

import ray
import torch

from raysim.core.rules import Upload
from raysim.execution.partial_sum import PartialSum
from raysim.execution.pool.foreman import MOST_THREADS
from tests.benchmarks.scaling.simulation import Costs

NETWORK_BITS = 10e9
"""Bits a second of the driver's network, which is assumed."""
SUM_BYTES = 8
"""Bytes of a sum for each parameter."""
FIRST_SUMS = 20
"""Sums that are left out: the object store's memory is new, as in the first rounds of a run."""


class _Stub:
    """An actor that does nothing, or never returns."""

    async def call(self, *_: Any) -> tuple[float, None]:
        return 0.0, None

    async def never(self) -> None:
        import asyncio

        await asyncio.Event().wait()


def message_costs(workers: int, repeats: int = 200) -> Costs:
    """Measure what a message costs the driver while it waits for so many workers.

    One actor stands for all: the driver waits for `workers` calls that never return, beside the
    one that does.
    """
    actor = ray.remote(num_cpus=0, max_concurrency=workers + 2)(_Stub).remote()
    waited = [actor.never.remote() for _ in range(workers - 1)]
    shared = [ray.put(0)]
    sending, receiving = [], []
    for _ in range(repeats):
        begun = perf_counter()
        call = actor.call.remote("train", shared, [(1,), (2,)], False)
        sending.append(perf_counter() - begun)
        ray.wait([call], fetch_local=False)
        begun = perf_counter()
        ((ready,), _) = ray.wait([*waited, call], num_returns=1)
        ray.get(ready)
        receiving.append(perf_counter() - begun)
    ray.kill(actor)
    return Costs(send=statistics.median(sending), receive=statistics.median(receiving))


def sum_costs(parameters: int, messages: Costs, repeats: int = 5) -> Costs:
    """Measure what handing over a sum of so many parameters costs, in this machine's object store.

    The transfer over the network is worked out.
    """
    total = PartialSum()
    _add(total, parameters)
    packing, merging, merging_on_node = [], [], []
    threads = torch.get_num_threads()
    for _ in range(FIRST_SUMS + repeats):
        other = PartialSum()
        _add(other, parameters)
        packed, seconds = _timed(lambda other=other: ray.put(other))
        packing.append(seconds)
        for found, number in ((merging, 1), (merging_on_node, _cores())):
            torch.set_num_threads(number)
            found.append(_timed(lambda packed=packed: total.merge(ray.get(packed)))[1])
    torch.set_num_threads(threads)
    pack, merge, on_node = (
        statistics.median(each[FIRST_SUMS:]) for each in (packing, merging, merging_on_node)
    )
    transfer = transfer_seconds(parameters * SUM_BYTES)
    return replace(messages, pack=pack, merge=merge, node_merge=on_node, transfer=transfer)


def transfer_seconds(size: float) -> float:
    """Return the seconds that so many bytes take through the driver's network."""
    return size * 8 / NETWORK_BITS


def _cores() -> int:
    return min(os.cpu_count() or 1, MOST_THREADS)


def _add(total: PartialSum, parameters: int) -> None:
    """Add one client's upload of ones."""
    upload = Upload({"model": {"weight": torch.ones(parameters)}})
    total.add({"client": len(total.clients)}, upload, total.check(upload), 1, 1)


def _timed(work: Callable[[], Any]) -> tuple[Any, float]:
    begun = perf_counter()
    result = work()
    return result, perf_counter() - begun
