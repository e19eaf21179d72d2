"""Checks of the down-link: its stages, and the method whose model it codes."""

from __future__ import annotations

from functools import partial

import torch
from torch import nn

from raysim.core.channel import Stages
from raysim.core.errors import SettingsError
from raysim.core.seeds import torch_generator
from raysim.core.tensors import Tensors
from raysim.driver.downlink import send_down
from raysim.driver.parts import RunParts


def check_downlink(parts: RunParts) -> None:
    """Check, before a run starts, that its down-link works.

    Args:
        parts: The run's parts.

    Raises:
        SettingsError: it does not.
    """
    stages, method = parts.settings.down_stages, parts.settings.method
    if not stages:
        return
    _try(stages, method.deployed(parts.initial.state), parts.network)


def _try(stages: Stages, model: Tensors, network: nn.Module) -> None:
    """Send a random change of a model through the stages.

    Raises:
        SettingsError: a stage fails, or keeps or reports anything.
    """
    draws = torch_generator(0, "downlink/check")
    known = {
        name: t + torch.randn(t.shape, generator=draws).to(t.dtype)
        if t.is_floating_point() or t.is_complex()
        else t
        for name, t in model.items()
    }
    _, sent = send_down(stages, model, known, partial(torch_generator, 0), network)
    if beside := [*sent.state, *sent.scalars]:
        raise SettingsError(
            f"downlink: a stage of the down-link must keep and report nothing of a client; has"
            f" {min(beside)!r}"
        )
    for name, stage in stages.items():
        if stage.init():
            raise SettingsError(
                f"downlink.{name}: the server keeps a state for it, which the down-link has not;"
                " leave it out"
            )
