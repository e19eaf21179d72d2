"""Preflight checks: everything that is checked before a run starts or writes anything."""

from __future__ import annotations

import json
from dataclasses import replace
from typing import Any

import numpy as np
from torch import Tensor, nn

from raysim.config import Settings
from raysim.core.components import ask
from raysim.core.errors import SettingsError
from raysim.core.method import Method, ServerState
from raysim.core.selection import History, State
from raysim.core.tensors import CPU, nbytes
from raysim.driver.checks.model import check_model
from raysim.driver.checks.samples import (
    check_labels,
    check_samples,
    check_scoring,
    check_without_test,
)
from raysim.driver.selecting import are_arrays
from raysim.federation.federation import Federation, sample_dtype
from raysim.federation.opened import OpenedSamples
from raysim.federation.task import Task
from raysim.storage.checkpoints import Checkpoint
from raysim.storage.client_states import NEVER, ClientStates
from raysim.training.network import STAGES, lacking_stages


def initial_checkpoint(settings: Settings, federation: Federation) -> tuple[nn.Module, Checkpoint]:
    """Build the network; return it and the checkpoint before the first round.

    Raises:
        SettingsError: the method does not suit the network, or the network not the data.
    """
    method = settings.method
    samples = OpenedSamples(federation, CPU)
    samples.check()
    model = federation.network(settings.seed)
    check_model(settings, model)
    if method.staged and (lacking := lacking_stages(model, STAGES)):
        raise SettingsError(
            f"method.name={method.title}: needs a model with the stages {', '.join(STAGES)};"
            f" this one lacks {', '.join(lacking)}"
        )
    network: nn.Module = ask(
        method,
        "network",
        model,
        returns=lambda found: isinstance(found, nn.Module),
        expected="a torch.nn.Module",
    )
    clients = len(federation.training_sizes)
    never = np.full((clients, len(NEVER)), NEVER)
    state, selection = _initial_state(method, network), _selection_state(settings, clients)
    initial = Checkpoint(0, state, History.empty(clients), never, selection=selection)
    check_scoring(settings, federation.scoring)
    if not federation.has_test:
        check_without_test(settings)
    inputs = replace(federation.inputs, dtype=sample_dtype(network))
    samples = OpenedSamples(replace(federation, inputs=inputs), CPU)
    outputs = check_samples(method, network, samples.first(2))
    if federation.scoring.classifies:
        check_labels(federation, outputs.shape[-1])
    return network, initial


def _selection_state(settings: Settings, clients: int) -> State:
    """Return the selection's state before the first round; it must be of arrays.

    Raises:
        SettingsError: it is not.
    """
    found = ask(
        settings.selection,
        "init",
        clients,
        returns=are_arrays,
        expected="a dict of arrays of numbers",
    )
    return {name: np.array(value) for name, value in found.items()}


def _initial_state(method: Method, network: nn.Module) -> ServerState:
    """Return the server's initial state; what the method makes of it must be of the right types.

    Raises:
        SettingsError: it is not.
    """
    named = {name for name, _ in (*network.named_parameters(), *network.named_buffers())}
    state: ServerState = ask(
        method,
        "init",
        network,
        returns=lambda found: (
            isinstance(found, ServerState)
            and _are_groups(found.groups)
            and bool(json.dumps(dict(found.info)))
        ),
        expected="a ServerState of groups of tensors, and of info that JSON can hold",
    )
    ask(
        method,
        "deployed",
        state,
        returns=lambda found: _are_tensors(found) and named <= {*found},
        expected="the network's tensors by name",
    )
    ask(
        method,
        "client_init",
        state,
        returns=_are_groups,
        expected="groups of tensors, none of clients that keep nothing",
    )
    ask(
        method,
        "client_bytes",
        state,
        returns=lambda found: isinstance(found, int) and found >= 0,
        expected="a number of bytes",
    )
    return state


def _are_tensors(found: Any) -> bool:
    return all(isinstance(tensor, Tensor) for tensor in found.values())


def _are_groups(found: Any) -> bool:
    return all(map(_are_tensors, found.values()))


def with_cohort(settings: Settings, task: Task | None) -> Settings:
    """Return the settings with the number of the task's clients, if there is a task.

    Raises:
        SettingsError: without one, the fraction of the clients is no client.
    """
    if task:
        return settings.model_copy(update={"clients": len(task.clients)})
    if not round(settings.fraction * settings.clients):
        raise SettingsError(
            f"fraction={settings.fraction}: of clients={settings.clients} that is no client; must"
            f" be at least {1 / settings.clients:g}"
        )
    return settings


def check_space(
    settings: Settings, states: ClientStates, state: ServerState, of_stages: int = 0
) -> None:
    """Check that the disk has room for what clients keep.

    Args:
        settings: The run's settings.
        states: The files of the clients' states.
        state: The server's state before the first round.
        of_stages: Bytes that a client keeps for the stages of the channel.

    Raises:
        RunError: it has not.
    """
    method, cohort, clients = settings.method, settings.cohort_size, settings.clients
    expected = round(clients * (1 - (1 - cohort / clients) ** settings.rounds))
    versions = min(2 * settings.checkpoint_every, settings.rounds) * cohort
    in_round = cohort * method.round_state_bytes(state)
    if settings.aggregation.sees_updates:
        in_round += cohort * nbytes({"model": method.deployed(state)})
    of_client = method.client_bytes(state) + of_stages
    states.check_space((expected + versions) * of_client + in_round)
