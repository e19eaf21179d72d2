"""Checks of the stages of the channel, on random changes, before anything starts."""

from __future__ import annotations

from collections.abc import Mapping
from functools import partial
from typing import Any

import numpy as np
import torch
from torch import nn

from raysim.config import Settings
from raysim.core.channel import Received, Stages
from raysim.core.components import called, why_lost
from raysim.core.differences import Differences
from raysim.core.errors import RaysimError, SettingsError
from raysim.core.rules import CHANGE, Bases, Reduced, Upload, View
from raysim.core.seeds import torch_generator
from raysim.core.tensors import Groups, Tensors, buffer_names, frozen_names, nbytes, parameter_names
from raysim.core.withheld import WithheldError
from raysim.driver.channel import (
    at_state,
    check_order,
    first_states,
    of_stage,
    received_through,
    through_stages,
    updated_by,
)
from raysim.driver.hiding import COHORT, claiming_of, hidden_clients
from raysim.driver.listener import Listener
from raysim.driver.parts import RunParts
from raysim.driver.round_inputs import (
    UnselectedError,
    passes_of,
    round_inputs,
    run_round,
    run_without_clients,
)
from raysim.storage.client_states import owner_of


def check_stages(parts: RunParts) -> int:
    """Check the stages on a random change of what clients send in their first pass.

    Args:
        parts: The run's parts.

    Returns:
        The bytes that a client keeps for the stages.

    Raises:
        SettingsError: a stage fails, returns other groups than it was given, or keeps a state where
            rounds overlap; the method's round fails without clients, and a stage acts on it.
    """
    settings, stages = parts.settings, parts.settings.stages
    if not stages:
        return 0
    check_order(stages, "channel")
    states = first_states(stages)
    present = {name: at_state(stage, states.get(name)) for name, stage in stages.items()}
    draws = torch_generator(0, "channel/check")
    trial = partial(_tried, settings, present, parts.network, _sent(parts), draws=draws)
    kept = trial({})
    if kept:  # once more with it
        kept = trial(kept)
    if (kept or states) and settings.asynchrony:
        name = owner_of(min(kept), stages) if kept else min(states)
        who = "clients keep" if kept else "the server keeps"
        raise SettingsError(
            f"{called(stages[name])}: does not go with {called(settings.method)}, whose rounds"
            f" overlap: their order would change what {who} for it"
        )
    _check_rounds_without_clients(parts)
    return nbytes(kept)


def _sent(parts: RunParts) -> tuple[Groups, Bases]:
    """Return what clients receive in the first pass, and the bases of what they send.

    They are those of the model where a method's first pass has no differences.
    """
    if (work := parts.first) and work.moved_from:
        return work.broadcast, work.moved_from
    return {"model": parts.settings.method.deployed(parts.initial.state)}, {"model": "model"}


def _tried(
    settings: Settings,
    stages: Stages,
    network: nn.Module,
    sent: tuple[Groups, Bases],
    kept: Groups,
    *,
    draws: torch.Generator,
) -> Groups:
    """Send random changes through the stages; return what a client keeps for them.

    A change without a group of its name in the broadcast has the tensors of the model.
    """
    broadcast, bases = sent
    model = broadcast.get("model", {})
    names = {group: group if base == CHANGE else base for group, base in bases.items()}
    sums = {group: _moved(broadcast.get(name, model), draws) for group, name in names.items()}
    found = Differences.of(
        sums, bases, broadcast, frozen=frozen_names(network), params=sums.get("model", model)
    )
    view = View(
        params=sums.get("model", model),
        trainable=sorted(parameter_names(network)),
        start=model,
        broadcast=broadcast,
        state={},
        personal={},
        temperature=settings.local.temperature,
        generator=partial(torch_generator, 0),
        pass_generator=partial(torch_generator, 0),
        at=_not_here,
        gradient=_not_here,
        client=0,
        stages=kept,
        buffers=buffer_names(network),
    )
    source, expected = partial(torch_generator, 0), settings.expected_cohort
    now = Received(0, (0,), settings.clients, source, expected)
    named = tuple(stages.items()) if found.changes else ()
    given = Upload(sums=found.changes, samples=1)
    behind = through_stages(named, view, given, found.layout)
    _check_numbers(stages, behind.scalars)
    for name, stage in named:
        scalars = {n: np.array([v]) for n, v in of_stage(name, behind.scalars).items()}
        reduced = Reduced((0,), behind.changes, {}, scalars)
        received_through(stage, now, reduced)
        updated_by(stage, now, reduced)
    return {**kept, **behind.state}


def _check_numbers(stages: Stages, scalars: Mapping[str, float]) -> None:
    """Check that of the numbers that stages have clients send, sums do where they are masked.

    Raises:
        SettingsError: a stage reads them one by one.
    """
    masking = next((each for each in stages.values() if each.secure_sum), None)
    for name, stage in stages.items():
        if masking and not stage.sums_numbers and of_stage(name, scalars):
            raise SettingsError(
                f"{called(masking)}: does not go with {called(stage)}, which reads numbers of"
                f" single clients; leave it out{why_lost(stage, 'sums_numbers')}"
            )


def _moved(tensors: Tensors, draws: torch.Generator) -> dict[str, torch.Tensor]:
    """Return tensors that have moved at random; integers are left out."""
    return {
        name: tensor + torch.randn(tensor.shape, generator=draws).to(tensor.dtype)
        for name, tensor in tensors.items()
        if tensor.is_floating_point() or tensor.is_complex()
    }


def _not_here(*given: Any, **options: Any) -> Any:
    raise SettingsError("a stage of the channel must not run the network")


def _check_rounds_without_clients(parts: RunParts) -> None:
    """Check that a method's round runs without clients, where one may be and a stage acts on it.

    A round is without clients if none is selected, or if all drop out.

    Raises:
        SettingsError: it fails, or has passes over clients that were not selected.
    """
    settings, initial = parts.settings, parts.initial
    acting = [stage for stage in settings.stages.values() if stage.acts_on_empty_rounds]
    may_be_empty, may_be_lost = settings.selection.may_be_empty, settings.clock.has_time
    if not acting or not (may_be_empty or may_be_lost):
        return
    note = Listener().note
    given = (settings, parts.network, initial)
    now = round_inputs(*given, sizes=parts.sizes, note=note, cohort=())
    unseen = hidden_clients(settings, settings.method)
    passes = passes_of(settings.method, now, initial.state, unseen)
    try:
        for _ in run_round(passes, run_without_clients):
            pass
    except WithheldError:
        raise  # in a round with clients, too
    except RaysimError as error:
        others = ["selection.name=uniform"] * may_be_empty + ["clock.name=none"] * may_be_lost
        way = f"choose {' '.join(others)}"
        if isinstance(error, UnselectedError) and claiming_of(settings):  # refused in any round
            way = f"let it {COHORT}"
        raise SettingsError(
            f"{called(acting[0])}: acts on rounds without clients, in which"
            f" {called(settings.method)} fails: {error}; {way}"
        ) from error
