"""Steps of aggregation and attack over kept updates, each on a block of coordinates and checked.

A worker reads a block of all clients' updates from their files; `measure`, `decide` and `combine`
of a user's own aggregation may fail in any way, and fail in one line.

Legend: m clients of a pass, n coordinates of a block.
"""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import numpy as np
import torch
from torch import Tensor

from raysim.api.aggregation import Aggregation, AggregationPlan, ArrivedUpdates, Floats, Updates
from raysim.api.attack import Attack, KnownUpdates
from raysim.api.components import Component, call, called
from raysim.api.selection import Flags
from raysim.errors import SettingsError
from raysim.execution.messages import AggregationMessage
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


def known_to(updates: Updates, message: AggregationMessage, block: int) -> KnownUpdates:
    """Return the updates of a block as bad clients know them."""
    rows, bad = updates.differences, torch.from_numpy(message.bad)
    part = slice(block * BLOCK, (block + 1) * BLOCK)
    return KnownUpdates(
        rows[~bad],
        rows[bad],
        torch.from_numpy(message.decided.copy()),
        torch.from_numpy(message.kept[:, part].copy()),
    )


def attacked(attack: Attack, updates: Updates, known: KnownUpdates, bad: Flags) -> Updates:
    """Return the updates of a block with the updates of bad clients [m] replaced.

    Raises:
        SettingsError: the attack fails, or returns something else.
    """
    rows = updates.differences.clone()
    forged = finite(attack, "forge", call(attack, Attack.forge, known))
    rows[torch.from_numpy(bad)] = torch.from_numpy(forged)
    return replace(updates, differences=rows)


def kept_by(attack: Attack, known: KnownUpdates) -> Floats:
    """Return the vectors that an attack keeps of a block [vectors, n].

    Raises:
        SettingsError: the attack fails, or returns something else.
    """
    return finite(attack, "keep", call(attack, Attack.keep, known))


def measured(component: Aggregation | Attack, updates: Updates | KnownUpdates) -> Floats:
    """Return the numbers of a block of updates that add up over blocks.

    Args:
        component: The aggregation, or the attack.
        updates: The updates, as it sees them.

    Raises:
        SettingsError: it fails, or returns something else.
    """
    kind: Any = Attack if isinstance(component, Attack) else Aggregation
    return finite(component, "measure", call(component, kind.measure, updates))


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
