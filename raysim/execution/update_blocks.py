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

from raysim.core.aggregation import Aggregation, AggregationPlan, ArrivedUpdates, Floats, Updates
from raysim.core.attack import Attack, KnownUpdates, MeasuredUpdates
from raysim.core.components import Component, ask, called
from raysim.core.errors import SettingsError
from raysim.core.selection import Flags
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
    """Return the updates of a block with those of bad clients [m] replaced."""
    rows = updates.differences.clone()
    rows[torch.from_numpy(bad)] = forged(attack, known)
    return replace(updates, differences=rows)


def kept_by(attack: Attack, known: KnownUpdates) -> Floats:
    """Return the vectors that an attack keeps of a block [vectors, n].

    Raises:
        SettingsError: the attack fails, or returns something else.
    """
    shape = (attack.vectors, known.own.shape[1])
    found: Tensor = ask(
        attack,
        "keep",
        known,
        returns=lambda found: (
            isinstance(found, Tensor) and found.dtype == torch.float64 and found.shape == shape
        ),
        expected=f"a tensor in float64 of the shape {[*shape]}",
    )
    return _finite(attack, "keep", found)


def forged(attack: Attack, known: KnownUpdates) -> Tensor:
    """Return the updates of bad clients in a block [f, n], or one for them all [n].

    Raises:
        SettingsError: the attack fails, or returns something else.
    """
    shapes = known.own.shape, known.own.shape[1:]
    found: Tensor = ask(
        attack,
        "forge",
        known,
        returns=lambda found: (
            isinstance(found, Tensor) and found.dtype == torch.float64 and found.shape in shapes
        ),
        expected=f"a tensor in float64 of the shape {[*shapes[0]]} or {[*shapes[1]]}",
    )
    _finite(attack, "forge", found)
    return found


def decided_by(attack: Attack, measured: MeasuredUpdates) -> Tensor:
    """Return what an attack decides from what it has measured.

    Raises:
        SettingsError: the attack fails, or returns something else.
    """
    found: Tensor = ask(
        attack,
        "decide",
        measured,
        returns=lambda found: (
            isinstance(found, Tensor) and found.dtype == torch.float64 and found.dim() == 1
        ),
        expected="a tensor in float64 of one dimension",
    )
    _finite(attack, "decide", found)
    return found


def measured(component: Aggregation | Attack, updates: Updates | KnownUpdates) -> Floats:
    """Return the numbers of a block of updates that add up over blocks.

    Args:
        component: The aggregation, or the attack.
        updates: The updates, as it sees them.

    Raises:
        SettingsError: it fails, or returns something else.
    """
    found: Tensor = ask(
        component,
        "measure",
        updates,
        returns=lambda found: isinstance(found, Tensor) and found.dtype == torch.float64,
        expected="a tensor in float64",
    )
    return _finite(component, "measure", found)


def decided(aggregation: Aggregation, arrived: ArrivedUpdates) -> AggregationPlan:
    """Return an aggregation's plan for the updates that have arrived.

    Raises:
        SettingsError: too few have arrived; the aggregation fails, or returns something else.
    """
    shape = arrived.clients.shape
    plan: AggregationPlan = ask(
        aggregation,
        "decide",
        arrived,
        returns=lambda plan: (
            isinstance(plan, AggregationPlan)
            and (plan.weights is None or plan.weights.shape == shape)
            and all(np.shape(column) == shape for column in plan.columns.values())
            and all(np.asarray(column).dtype.kind in "biuf" for column in plan.columns.values())
            and all(np.isfinite(float(number)) for number in plan.metrics.values())
        ),
        expected="an AggregationPlan, with a number for each client in weights and columns",
    )
    if plan.weights is not None:
        _finite(aggregation, "decide", plan.weights)
    return plan


def factor_of(aggregation: Aggregation, arrived: int, expected: float) -> float:
    """Return an aggregation's factor of the mean differences.

    Raises:
        SettingsError: the aggregation fails, or returns no finite number.
    """
    factor: float = ask(
        aggregation, "factor", arrived, expected, returns=_is_number, expected="a finite number"
    )
    return factor


def bound_of(aggregation: Aggregation, arrived: int) -> int | None:
    """Return the bad clients that an aggregation bears with; None: no bound.

    Raises:
        SettingsError: the aggregation fails, or returns something else.
    """
    bound: int | None = ask(
        aggregation,
        "bears_with",
        arrived,
        returns=lambda found: found is None or _is_number(found),
        expected="a number of clients, or None",
    )
    return bound


def _is_number(value: Any) -> bool:
    return isinstance(value, int | float | np.number) and bool(np.isfinite(value))


def combined(aggregation: Aggregation, updates: Updates) -> Floats:
    """Return the aggregate of a block of updates [n].

    Raises:
        SettingsError: the aggregation fails, or returns something else.
    """
    shape = updates.differences.shape[1:]
    found: Tensor = ask(
        aggregation,
        "combine",
        updates,
        returns=lambda found: (
            isinstance(found, Tensor) and found.is_floating_point() and found.shape == shape
        ),
        expected=f"a tensor of real numbers of the shape {[*shape]}",
    )
    return _finite(aggregation, "combine", found)


def _finite(component: Component, step: str, found: Tensor) -> Floats:
    values: Floats = found.detach().double().numpy()
    if not np.isfinite(values).all():
        raise SettingsError(f"{called(component)}: {step} returned a value that is not finite")
    return values
