"""What is checked of a run before anything is started or written."""

from __future__ import annotations

import torch
from torch import Tensor, nn

from raysim.config import Settings
from raysim.core.errors import SettingsError
from raysim.core.method import Method, ServerState
from raysim.core.rules import Batch
from raysim.federation.federation import Federation
from raysim.federation.opened import OpenedSamples
from raysim.storage.checkpoints import Checkpoint
from raysim.storage.client_states import ClientStates
from raysim.training.network import STAGES, Network, lacking_stages


def first_checkpoint(settings: Settings, federation: Federation) -> Checkpoint:
    """Return the state before the first round.

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
    first = Checkpoint(-method.warmup, method.init(network))
    _try_sample(method, network, OpenedSamples(federation, torch.device("cpu")).test(0, 1))
    return first


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


def _try_sample(method: Method, module: nn.Module, sample: Batch) -> None:
    """Check that a network takes the data, and that its stages are all of it if a method asks."""
    network = Network(module).eval()
    try:
        with torch.no_grad():
            logits = network.forward(sample.x).logits
    except SettingsError:
        raise
    except Exception as error:  # a user's module may raise anything
        shape = "x".join(map(str, sample.x.shape[1:])) or "one number"
        cause = " ".join(str(error).split())
        raise SettingsError(f"the model does not take samples of {shape}: {cause}") from error
    if method.staged and not network.is_composition:
        _check_composition(method, network, sample, logits)


def _check_composition(method: Method, network: Network, sample: Batch, logits: Tensor) -> None:
    try:
        with torch.no_grad():
            composed = network.compose(sample.x)
            difference = float((composed - logits).abs().max())
    except Exception as error:  # a user's module may raise anything
        found = "they fail: " + " ".join(str(error).split())
    else:
        if torch.allclose(composed, logits, equal_nan=True):
            return
        found = f"their logits differ by {difference:.2g} on a sample"
    raise SettingsError(
        f"method.name={method.title}: needs a model whose forward is head(hidden(features(x)));"
        f" run as that, {found}"
    )
