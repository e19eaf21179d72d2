"""Steps of an aggregation over kept updates, each on a block of coordinates and checked.

A worker reads a block of all clients' updates from their files; `measure`, `decide` and `combine`
of a user's own aggregation may fail in any way, and fail in one line.

Legend: m clients of a pass, n coordinates of a block.
"""

from __future__ import annotations

import numpy as np
import torch
from torch import Tensor

from raysim.api.aggregation import Aggregation, AggregationPlan, ArrivedUpdates, Updates
from raysim.api.components import Component, call, called
from raysim.errors import SettingsError
from raysim.execution.messages import AggregationMessage
from raysim.numbers.arrays import Floats
from raysim.storage.updates import BLOCK, Place, UpdateFiles


def read_block(files: UpdateFiles, message: AggregationMessage, block: int) -> Updates:
    """Return the updates of a pass in a block.

    Args:
        files: The files of updates.
        message: The clients of the pass, and their updates.
        block: Number of the block.

    Raises:
        MachineError: an update is damaged or missing.
    """
    part = slice(block * BLOCK, (block + 1) * BLOCK)
    start = message.start[part].astype(np.float64)
    differences = np.empty((len(message.clients), len(start)))
    for row, client, digests in zip(differences, message.clients, message.digests, strict=True):
        place = Place(message.round_number, message.pass_number, client)
        row[:] = files.read(place, block, digests[block], message.start.dtype)
    differences -= start
    return Updates(
        torch.from_numpy(differences),
        message.samples,
        np.array(message.clients),
        last=torch.from_numpy(message.last[part].copy()),
        root=torch.from_numpy(message.root[part].copy()),
        weights=torch.from_numpy(message.weights.copy()),
    )


def measured(aggregation: Aggregation, updates: Updates) -> Floats:
    """Return the numbers of a block of updates that add up over blocks.

    Raises:
        SettingsError: the aggregation fails, or returns something else.
    """
    return finite(aggregation, "measure", call(aggregation, Aggregation.measure, updates))


def decided(aggregation: Aggregation, arrived: ArrivedUpdates) -> AggregationPlan:
    """Return an aggregation's plan for the updates that have arrived.

    Raises:
        SettingsError: too few have arrived; the aggregation fails, or returns something else.
    """
    plan = call(aggregation, Aggregation.decide, arrived)
    if plan.weights is not None:
        finite(aggregation, "decide", plan.weights)
    return plan


def combined(aggregation: Aggregation, updates: Updates) -> Floats:
    """Return the aggregate of a block of updates [n].

    Raises:
        SettingsError: the aggregation fails, or returns something else.
    """
    return finite(aggregation, "combine", call(aggregation, Aggregation.combine, updates))


def finite(component: Component, step: str, returned: Tensor) -> Floats:
    """Return the result of a component's step as an array.

    Raises:
        SettingsError: a value is not finite.
    """
    values: Floats = returned.detach().double().numpy()
    if not np.isfinite(values).all():
        raise SettingsError(f"{called(component)}: {step} returned a value that is not finite")
    return values
