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

from raysim.api.rules import Upload
from raysim.execution.partial_sum import PartialSum
from raysim.execution.pool.foreman import MOST_THREADS
from raysim.numbers.tensors.packed import PackedGroup
from tests.benchmarks.scaling.simulation import Costs

MODELS = {"2NN": 199_210, "ResNet-18": 11_181_642, "transformer of 110M": 110_000_000}
"""Parameters by model."""
NETWORK_BITS = 10e9
"""Bits a second of the driver's network, which is assumed."""
MODEL_BYTES, SUM_BYTES, NODE_SUM_BYTES = 4, 8, 6
"""Bytes of the model for each parameter, of an actor's sum, and of a foreman's."""
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
        call = actor.call.remote("train", [(shared, [(1,), (2,)])], False)
        sending.append(perf_counter() - begun)
        ray.wait([call], fetch_local=False)
        begun = perf_counter()
        ((ready,), _) = ray.wait([*waited, call], num_returns=1)
        ray.get(ready)
        receiving.append(perf_counter() - begun)
    ray.kill(actor)
    return Costs(send=statistics.median(sending), receive=statistics.median(receiving))


def sum_costs(parameters: int, messages: Costs, repeats: int = 5) -> tuple[Costs, Costs]:
    """Measure what handing over a sum of so many parameters costs, in this machine's object store.

    The transfer over the network is worked out.

    Returns:
        Costs where actors hand over to the driver, and where foremen do so.
    """
    total, found = PartialSum(), []
    _add(total, parameters)
    threads = torch.get_num_threads()
    for _ in range(FIRST_SUMS + repeats):
        found.append(_measured(total, parameters))
    torch.set_num_threads(threads)
    medians = map(statistics.median, zip(*found[FIRST_SUMS:], strict=True))
    pack, merge, node_merge, node_pack, merge_of_node = medians
    each = replace(messages, pack=pack, node_merge=node_merge, node_pack=node_pack)
    actor, foreman = (
        replace(each, merge=seconds, transfer=transfer_seconds(parameters * size))
        for seconds, size in ((merge, SUM_BYTES), (merge_of_node, NODE_SUM_BYTES))
    )
    return actor, foreman


def _measured(total: PartialSum, parameters: int) -> tuple[float, ...]:
    """Return the seconds to pack, to add up on one core and on all, and of a foreman's sum."""
    other = PartialSum()
    _add(other, parameters)
    torch.set_num_threads(1)
    packed, pack = _timed(lambda: ray.put(other))
    merge = _timed(lambda: total.merge(ray.get(packed)))[1]
    torch.set_num_threads(_cores())
    node_merge = _timed(lambda: total.merge(ray.get(packed)))[1]
    assert other.sum
    other.sum.leaves_node = True
    packed, node_pack = _timed(lambda: ray.put(other))
    torch.set_num_threads(1)
    return pack, merge, node_merge, node_pack, _timed(lambda: total.merge(ray.get(packed)))[1]


def between_rounds(parameters: int, repeats: int = 5) -> dict[str, float]:
    """Measure what the driver does on one core when a round is over, with a model of this size.

    Returns:
        Seconds to take the mean, to pack the model for the evaluation or the next round, to put it
        into the object store, and to compare it with that which lies there.
    """
    found = []
    for _ in range(repeats):
        total = PartialSum()
        _add(total, parameters)
        reduced, mean = _timed(lambda each=total: each.reduced(1, each.columns()))
        packed, pack = _timed(lambda means=reduced.means: PackedGroup.of(means["model"]))
        reference, put = _timed(lambda group=packed: ray.put(group))
        stored = ray.get(reference)
        same, compare = _timed(lambda group=packed, there=stored: group.equals(there))
        assert same
        found.append({"mean, s": mean, "pack, s": pack, "put, s": put, "compare, s": compare})
    return {name: statistics.median(each[name] for each in found) for name in found[0]}


def broadcast_seconds(parameters: int, nodes: int) -> float:
    """Return the seconds that a model takes through the driver's network to so many nodes."""
    return transfer_seconds(nodes * parameters * MODEL_BYTES)


def transfer_seconds(size: float) -> float:
    """Return the seconds that so many bytes take through the driver's network."""
    return size * 8 / NETWORK_BITS


def _cores() -> int:
    return min(os.cpu_count() or 1, MOST_THREADS)


def _add(total: PartialSum, parameters: int) -> None:
    """Add one client's upload of ones."""
    upload = Upload({"model": {"weight": torch.ones(parameters)}})
    total.add({"client": len(total.clients)}, total.check(upload)(), 1, 1)


def _timed(work: Callable[[], Any]) -> tuple[Any, float]:
    begun = perf_counter()
    result = work()
    return result, perf_counter() - begun
