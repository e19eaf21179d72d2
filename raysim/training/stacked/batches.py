"""Batches of several clients as one, padded for clients with fewer samples.

Legend: K clients, S steps, B batch, n samples.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Sequence

import numpy as np
import torch
from torch import Tensor

from raysim.api.rules import Batching, LocalSteps, padded_length
from raysim.numbers.arrays import Flags, Integers
from raysim.numbers.tensors.later import sent_to
from raysim.training.job import Bounds, ClientJob, batch_bounds, iterate_epochs


def stacked_batches(
    jobs: Sequence[ClientJob], batching: Batching, join_single: bool
) -> Iterator[tuple[dict[str, Tensor], Integers, int]]:
    """Yield the batches [K, B, ...] of all steps, with each client's number of samples [K].

    If some clients have fewer samples, `weights` [K, B] is 1 for a sample and 0 for padding; if
    some have none left in this epoch, `active` [K] is false for these. The last yielded number
    counts the batches of the same shapes in all.

    Args:
        jobs: The clients' jobs, of the same number of epochs.
        batching: See `batch_bounds`.
        join_single: See `batch_bounds`.
    """
    bounds = [batch_bounds(len(job.data.y), batching, join_single) for job in jobs]
    if isinstance(work := jobs[0].epochs, LocalSteps):
        yield from _batches_of_steps(jobs, bounds, work.count)
        return
    sizes = batch_sizes(bounds)
    y = torch.cat([job.data.y for job in jobs])
    is_sample = np.arange(sizes.max()) < sizes[:, :, None]  # [S, K, B]
    weights = sent_to(y.device, is_sample.astype(np.float32))
    active = sent_to(y.device, sizes > 0)
    shapes = batch_shapes(sizes)
    repeats = Counter(shapes)
    for epoch in zip(*map(iterate_epochs, jobs, bounds), strict=True):
        x = torch.cat([inputs for inputs, _ in epoch])
        numbers = sample_numbers([order for _, order in epoch], bounds, is_sample)
        index = sent_to(y.device, numbers)
        del epoch
        longest = _longest(jobs, numbers)
        for step, shape in enumerate(shapes):
            largest, padded, idle = shape
            chosen = index[step, :, :largest]
            batch = {"x": _cut(x, longest, step)[chosen], "y": y[chosen]}
            if padded:
                batch["weights"] = weights[step, :, :largest]
            if idle:
                batch["active"] = active[step]
            yield batch, sizes[step], work * repeats[shape]
        del x  # before the next epoch's inputs are allocated


def _batches_of_steps(
    jobs: Sequence[ClientJob], bounds: Sequence[Bounds], count: int
) -> Iterator[tuple[dict[str, Tensor], Integers, int]]:
    """Yield the batches of `count` steps; clients end their epochs at different steps."""
    device, epochs = jobs[0].data.y.device, [*map(iterate_epochs, jobs, bounds)]
    taken = [[own[step % len(own)] for step in range(count)] for own in bounds]
    sizes = batch_sizes(taken)
    is_sample = np.arange(sizes.max()) < sizes[:, :, None]  # [S, K, B]
    weights = sent_to(device, is_sample.astype(np.float32))
    shapes = batch_shapes(sizes)
    repeats = Counter(shapes)
    y = torch.cat([job.data.y for job in jobs])
    places = np.cumsum([0, *(len(job.data.y) for job in jobs)])
    inputs, orders = map(list, zip(*(next(epoch) for epoch in epochs), strict=True))
    x = torch.cat(inputs)
    for step, shape in enumerate(shapes):
        for k, client_bounds in enumerate(bounds):
            if step and step % len(client_bounds) == 0:
                x[places[k] : places[k + 1]], orders[k] = next(epochs[k])
        step_numbers = [[own[step]] for own in taken]
        numbers = sample_numbers(orders, step_numbers, is_sample[step : step + 1])
        chosen = sent_to(device, numbers)[0, :, : shape[0]]
        batch = {"x": _cut(x, _longest(jobs, numbers), 0)[chosen], "y": y[chosen]}
        if shape[1]:
            batch["weights"] = weights[step, :, : shape[0]]
        yield batch, sizes[step], repeats[shape]


def _longest(jobs: Sequence[ClientJob], numbers: Integers) -> list[int]:
    """Return the length of the sequences of each step, longest of all clients; empty for others.

    Args:
        jobs: The clients' jobs.
        numbers: Numbers of the samples [S, K, B].
    """
    lengths = [job.data.lengths for job in jobs if job.data.lengths is not None]
    return (
        [padded_length(of_step) for of_step in np.concatenate(lengths)[numbers]] if lengths else []
    )


def _cut(x: Tensor, longest: Sequence[int], step: int) -> Tensor:
    return x[:, : longest[step]] if longest else x


def padded_twice(jobs: Sequence[ClientJob]) -> Iterator[dict[str, Tensor]]:
    """Yield a batch [K, 2 B, ...] of B samples of each client twice, padded with other samples.

    One padding repeats the sample of all clients with the smallest sum of inputs, the other one
    that with the largest, which is left out of the B samples where a client has others: so that a
    mean, an extreme or an order over the batch differs.
    """
    x, y = (torch.cat([getattr(job.data, name) for job in jobs]) for name in ("x", "y"))
    sizes = x.abs() if x.is_complex() else x.double().abs()
    sums = torch.nan_to_num(sizes.reshape(len(x), -1).sum(1))
    ascending, first, chosen = sums.argsort(), 0, []
    for job in jobs:
        positions = ascending[(ascending >= first) & (ascending < first + len(job.data.y))]
        chosen.append(positions[: max(1, min(len(each.data.y) for each in jobs) - 1)])
        first += len(job.data.y)
    samples = torch.stack(chosen)  # [K, B]
    weights = torch.ones(samples.shape, device=y.device)
    weights = torch.cat([weights, torch.zeros_like(weights)], dim=1)
    for other in (ascending[0], ascending[-1]):
        index = torch.cat([samples, other.expand(samples.shape)], dim=1)
        yield {"x": x[index], "y": y[index], "weights": weights}


def batch_sizes(bounds: Sequence[Bounds]) -> Integers:
    """Return the number of samples [S, K] in each client's batches; 0 after its last."""
    sizes = np.zeros((max(map(len, bounds)), len(bounds)), dtype=np.int64)
    for k, client_bounds in enumerate(bounds):
        sizes[: len(client_bounds), k] = [stop - start for start, stop in client_bounds]
    return sizes


def batch_shapes(sizes: Integers) -> list[tuple[int, bool, bool]]:
    """Return, for each step, B, whether clients have fewer samples, and whether some have none.

    Args:
        sizes: Numbers of samples [S, K].
    """
    extreme_sizes = zip(sizes.min(1).tolist(), sizes.max(1).tolist(), strict=True)
    return [(largest, smallest < largest, not smallest) for smallest, largest in extreme_sizes]


def sample_numbers(
    orders: Sequence[Integers],
    bounds: Sequence[Bounds],
    is_sample: Flags,
) -> Integers:
    """Return the numbers [S, K, B] of the samples in the batches of an epoch.

    Args:
        orders: Per client, the order of its samples [n].
        bounds: Per client, its batches. Samples are numbered client after client.
        is_sample: False for padding [S, K, B], which repeats the client's first sample, so that a
            value that is not finite stays within its client.
    """
    index = np.zeros(is_sample.shape, dtype=np.int64)
    first = 0
    for k, (order, client_bounds) in enumerate(zip(orders, bounds, strict=True)):
        index[:, k] = first
        used = order[client_bounds[0][0] : client_bounds[-1][1]]  # batches follow one another
        index[:, k][is_sample[:, k]] = first + used
        first += len(order)
    return index
