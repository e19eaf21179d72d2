"""Inputs of a round: cohort, learning rate, and generators of the server; check of its result."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from functools import partial
from typing import Any

import numpy as np
import numpy.typing as npt
from torch import Generator, nn

from raysim.config import LocalSettings, Settings
from raysim.core.components import ask, checked
from raysim.core.errors import RunError
from raysim.core.method import Method, Metrics, Round, Sampling, ServerState
from raysim.core.rules import Pass, Reduced
from raysim.core.seeds import sample_cohort, stream, torch_generator
from raysim.storage.checkpoints import Checkpoint
from raysim.training.job import batch_bounds
from raysim.training.network import has_batch_norm


def round_inputs(
    settings: Settings,
    network: nn.Module,
    before: Checkpoint,
    *,
    sizes: npt.NDArray[np.int64],
    run: Callable[[Pass], Reduced],
    note: Callable[[str], None],
    cohort: tuple[int, ...] | None = None,
) -> Round:
    """Return the input of `Method.round`; it depends on seed, round and committed state alone.

    Args:
        settings: The run's settings.
        network: The network as it was built.
        before: The committed state before the round.
        sizes: Samples that each client trains on [K].
        run: Runs a pass.
        note: Shows the user one line.
        cohort: The clients that start, where rounds overlap; None draws the method's cohort.

    Raises:
        RunError: the method's cohort is empty, or not of distinct clients.
    """
    number = before.number
    return Round(
        number=number,
        cohort=draw_cohort(settings, before) if cohort is None else cohort,
        clients=len(before.losses),
        epochs=settings.local.epochs,
        lr=settings.local.lr_at(number),
        lr_at=settings.local.lr_at,
        weighting=settings.weighting,
        network=network,
        steps=partial(_steps, settings.local, sizes, has_batch_norm(network)),
        run=run,
        sample=partial(_sample, settings, before),
        generator=partial(_generator, settings.seed, number),
        note=note,
    )


def _steps(local: LocalSettings, sizes: npt.NDArray[np.int64], joins: bool, client: int) -> int:
    return local.epochs * len(batch_bounds(int(sizes[client]), local.batch_size, joins))


def _sample(settings: Settings, before: Checkpoint, *keys: int) -> tuple[int, ...]:
    generator = stream(settings.seed, "sample", before.number, *keys)
    return tuple(sample_cohort(generator, len(before.losses), settings.cohort_size))


def _generator(seed: int, number: int, purpose: str) -> Generator:
    return torch_generator(seed, f"server/{purpose}", number)


def checked_next(method: Method, found: Any) -> tuple[ServerState, Metrics]:
    """Return what a method's round returned.

    Raises:
        SettingsError: it is not the next state and metrics.
    """

    def is_next_state(found: Any) -> bool:
        state, metrics = found
        return isinstance(state, ServerState) and isinstance(metrics, Mapping)

    expected = "the next ServerState and a dict of metrics"
    result: tuple[ServerState, Metrics] = checked(method, "round", found, is_next_state, expected)
    return result


def draw_cohort(settings: Settings, before: Checkpoint) -> tuple[int, ...]:
    """Return the method's cohort of the round after a committed state, ascending.

    Raises:
        RunError: it is empty, or not of distinct clients.
        SettingsError: the method fails.
    """
    losses = before.losses.view()
    losses.flags.writeable = False
    sampling = Sampling(
        round_number=before.number,
        clients=len(losses),
        size=settings.cohort_size,
        losses=losses,
        generator=stream(settings.seed, "cohort", before.number),
    )
    found = ask(
        settings.method,
        "cohort",
        *(sampling, before.state),
        returns=lambda found: all(int(client) == client for client in found),
        expected="a list of clients' numbers",
    )
    drawn = [int(client) for client in found]
    cohort = tuple(sorted(set(drawn)))
    if not cohort or len(cohort) < len(drawn) or cohort[0] < 0 or cohort[-1] >= len(losses):
        raise RunError(
            f"method.name={settings.method.title}: the cohort of round {before.number + 1} must be"
            f" distinct clients from 0 to {len(losses) - 1}, at least one; it is {drawn[:10]}"
        )
    return cohort
