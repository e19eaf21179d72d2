"""What is checked of a run before anything is started or written."""

from __future__ import annotations

import numpy as np
import torch
from torch import nn

from raysim.config import Settings
from raysim.core.errors import SettingsError
from raysim.core.method import ServerState
from raysim.core.rules import Batch
from raysim.federation.federation import Federation
from raysim.federation.opened import OpenedSamples
from raysim.storage.checkpoints import Checkpoint
from raysim.storage.client_states import ClientStates
from raysim.training.network import STAGES, Network, lacking_stages


def first_checkpoint(settings: Settings, federation: Federation) -> tuple[nn.Module, Checkpoint]:
    """Build the network; return it and the checkpoint of a run without one.

    Raises:
        SettingsError: the method does not suit the network, or the network not the data.
    """
    method = settings.method
    model = federation.network(settings.seed)
    if method.staged and (lacking := lacking_stages(model, STAGES)):
        raise SettingsError(
            f"method.name={method.title}: needs a model with the stages {', '.join(STAGES)};"
            f" this one lacks {', '.join(lacking)}"
        )
    network = method.network(model)
    never_trained = np.full(len(federation.shares.sizes), np.nan)
    first = Checkpoint(0, method.init(network), never_trained)
    _try_sample(network, OpenedSamples(federation, torch.device("cpu")).test(0, 1))
    return network, first


def check_space(settings: Settings, states: ClientStates, state: ServerState) -> None:
    """Check that the disk has room for what clients keep.

    Raises:
        RunError: it has not.
    """
    size = settings.method.client_bytes(state)
    cohort, clients = settings.cohort_size, settings.clients
    expected = clients * (1 - (1 - cohort / clients) ** settings.rounds)
    versions = min(2 * settings.checkpoint_every, settings.rounds) * cohort
    states.check_space(round(expected), versions, size)


def _try_sample(network: nn.Module, sample: Batch) -> None:
    """Check that a network takes the data, before anything starts."""
    try:
        with torch.no_grad():
            Network(network).eval().forward(sample.x)
    except SettingsError:
        raise
    except Exception as error:  # a user's module may raise anything
        shape = "x".join(map(str, sample.x.shape[1:])) or "one number"
        cause = " ".join(str(error).split())
        raise SettingsError(f"the model does not take samples of {shape}: {cause}") from error
