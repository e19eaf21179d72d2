"""Aggregation of a pass: the updates that the pass keeps, and the factor of the mean."""

from __future__ import annotations

from contextlib import suppress
from dataclasses import replace
from functools import partial
from typing import Any

import numpy as np
import torch

from raysim.api.aggregation import Aggregation, ArrivedUpdates, Updates
from raysim.api.components import call
from raysim.api.rules import Reduced
from raysim.config import Settings
from raysim.driver.start.parts import RunParts
from raysim.driver.uploads.dispatch import Dispatch, UploadStep
from raysim.errors import SettingsError
from raysim.execution.update_blocks import combined, decided, measured


def with_aggregation(aggregation: Aggregation, expected: float, dispatch: Dispatch) -> Dispatch:
    """Return a pass that keeps its updates if the aggregation sees them.

    Args:
        aggregation: The run's aggregation.
        expected: The expected clients of a round.
        dispatch: The pass.
    """
    sees = aggregation.sees_updates
    stored = dispatch.moved_from if sees else dispatch.stored_groups
    weighting = (dispatch.epochs and aggregation.weights) or dispatch.weighting
    dispatch = replace(dispatch, stored_groups=stored, weighting=weighting)
    return dispatch.with_step(
        UploadStep(server=partial(_received, aggregation, expected, dispatch))
    )


def _received(
    aggregation: Aggregation, expected: float, dispatch: Dispatch, reduced: Reduced
) -> Reduced:
    """Return the result with its mean differences times the aggregation's factor.

    Raises:
        SettingsError: the aggregation fails.
    """
    factor = call(aggregation, Aggregation.factor, len(reduced.clients), expected)
    if factor == 1 or not dispatch.epochs:
        return reduced
    moved = dispatch.differences(reduced)
    changed = {
        g: {n: factor * d for n, d in tensors.items()} for g, tensors in moved.changes.items()
    }
    return replace(reduced, means=moved.means_with(changed))


def check_aggregation(parts: RunParts, *_: Any) -> None:
    """Check an aggregation before a run starts.

    Args:
        parts: The run's parts.

    Raises:
        SettingsError: the aggregation fails, or the cohort is too small for it.
    """
    settings, aggregation = parts.settings, parts.settings.aggregation
    call(aggregation, Aggregation.factor, settings.cohort_size, settings.expected_cohort)
    call(aggregation, Aggregation.tolerates, settings.cohort_size)
    if aggregation.sees_updates:
        _check_steps(aggregation, settings.cohort_size)


def _check_steps(aggregation: Aggregation, cohort: int) -> None:
    """Run the steps of an aggregation on made-up updates of a cohort.

    Raises:
        SettingsError: a step fails, or the cohort is too small.
    """
    draws = torch.Generator().manual_seed(0)
    differences = torch.randn(cohort, 5, generator=draws, dtype=torch.float64)
    clients = np.arange(cohort)
    updates = Updates(differences, clients + 1, clients)
    if aggregation.keeps_last:
        updates = replace(updates, last=torch.zeros_like(differences[0]))
    if aggregation.root_samples:
        updates = replace(updates, root=differences.mean(dim=0))
    arrived = ArrivedUpdates(clients, clients + 1, np.full(cohort, 1 / cohort))
    if aggregation.measures:
        numbers = torch.from_numpy(measured(aggregation, updates))
        arrived = replace(arrived, measured=numbers)
    plan = decided(aggregation, arrived)
    if plan.weights is not None:
        updates = replace(updates, weights=plan.weights.double())
    combined(aggregation, updates)


def fewest_clients(settings: Settings, least: int) -> int:
    """Return the fewest clients with which a round works, `least` or more.

    An attack that knows updates needs a bad client and an honest one.

    Args:
        settings: The run's settings.
        least: The lower bound.
    """
    aggregation, cohort = settings.aggregation, settings.cohort_size
    if settings.attack.knows_updates:
        least = max(least, 2)
    while aggregation.sees_updates and least < cohort:
        with suppress(SettingsError):
            _check_steps(aggregation, least)
            break
        least *= 2
    return min(least, cohort)
