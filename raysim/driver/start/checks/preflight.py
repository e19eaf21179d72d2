"""Preflight checks, before a run starts or writes anything."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace

import numpy as np
from torch import nn

from raysim.api.components import call, called, calling
from raysim.api.method import Method, ServerState
from raysim.api.next_state import ASKED, check_deployed, check_state, given_state, with_kept
from raysim.api.selection import History, Selection
from raysim.api.server import ServerRule
from raysim.api.state import as_arrays
from raysim.config import Settings
from raysim.driver.rounds.local_values import first_values
from raysim.driver.start.checks.model import check_model
from raysim.driver.start.checks.samples import (
    check_class_weights,
    check_labels,
    check_predictions,
    check_samples,
    check_scoring,
    check_tokens,
    check_without_test,
)
from raysim.driver.start.parts import RunParts
from raysim.errors import SettingsError
from raysim.federation.federation import Federation, network_of, sample_dtype
from raysim.federation.opened import OpenedSamples
from raysim.federation.several_inputs import LAYOUT, SeveralInputs
from raysim.federation.task import Task
from raysim.numbers.tensors import CPU, nbytes
from raysim.storage.client_states import NEVER, ClientStates
from raysim.storage.run_state import RunState
from raysim.training.network import STAGES, lacking_stages


def initial_checkpoint(settings: Settings, federation: Federation) -> tuple[nn.Module, RunState]:
    """Build the network; return it with the checkpoint before the first round.

    Raises:
        SettingsError: the method does not suit the network, or the network does not suit the data.
        DataError: samples are not finite, or labels do not suit the network.
    """
    method = settings.method
    samples = OpenedSamples(federation, CPU)
    samples.check()
    model = federation.network(settings.seed, method)
    check_model(model, method, settings.engine.precision)
    if method.staged:
        _check_stages(method, model)
    network = network_of(model, method, settings.seed)
    clients, participants = len(federation.training_sizes), len(settings.participants)
    never = np.full((clients, len(NEVER)), NEVER)
    state, history = _initial_state(method, settings.server_rule, network), History.empty(clients)
    initial = RunState(
        *(0, state, history, never),
        components={
            "selection": as_arrays(call(settings.selection, Selection.init, participants)),
            **first_values(settings, clients),
        },
    )
    check_scoring(settings, federation.scoring)
    if not federation.has_test:
        check_without_test(settings)
    inputs = replace(federation.inputs, dtype=sample_dtype(network))
    samples = OpenedSamples(replace(federation, inputs=inputs), CPU)
    outputs = check_samples(method, network, samples.first(2))
    check_predictions(settings.evaluation, federation.scoring, outputs)
    if federation.scoring.classifies:
        check_labels(federation, outputs.shape[-1])
        check_class_weights(settings.local, outputs.shape[-1])
    if federation.scoring.columns_after_tokens is not None:
        check_tokens(federation, outputs)
    return network, initial


def _check_stages(method: Method, model: nn.Module) -> None:
    """Check that a model is composed of stages.

    Raises:
        SettingsError: the model has several inputs, or lacks a stage.
    """
    inputs: SeveralInputs | None = getattr(model, LAYOUT, None)
    if inputs:
        raise SettingsError(
            f"method.name={method.title}: needs a model that is head(hidden(features(x))) of one"
            f" array x; this one takes {inputs.named}: give them as one array, or use a method"
            " that needs no stages, such as fedavg"
        )
    if lacking := lacking_stages(model, STAGES):
        raise SettingsError(
            f"method.name={method.title}: needs a model with the stages {', '.join(STAGES)};"
            f" this one lacks {', '.join(lacking)}"
        )


def _initial_state(method: Method, rule: ServerRule, network: nn.Module) -> ServerState:
    """Return the server's initial state.

    Raises:
        SettingsError: the state, or a value that the method derives from it, is of another type.
        RunError: a value of the state is not finite.
    """
    with calling(method, "init"):
        state = method.init(network)
    check_state(method, "init", state)
    state = with_kept(rule, method, network, state)
    check_deployed(method, state, network)
    left = given_state(state)
    call(method, Method.client_init, state)
    call(method, Method.client_bytes, state)
    left.check_left(ASKED, called(method))
    return state.in_order


def with_cohort(settings: Settings, task: Task | None) -> Settings:
    """Return settings with the number of the task's clients; without a task, check `fraction`.

    Raises:
        SettingsError: `fraction` of the clients rounds to none.
    """
    if task:
        return settings.model_copy(update={"clients": len(task.clients)})
    clients = len(settings.participants)
    if not round(settings.fraction * clients):
        who = f"clients={settings.clients}"
        if clients < settings.clients:
            who = f"the {clients} of {who} that are not evaluation.new_clients"
        raise SettingsError(
            f"fraction={settings.fraction}: rounds to no client of {who}; must be at least"
            f" {1 / clients:g}"
        )
    return settings


def check_actors(parts: RunParts, note: Callable[[str], None]) -> None:
    """Check that no actor would always be idle, for lack of clients.

    Args:
        parts: The run's parts.
        note: Called with a line if there are no actors although their number is set.

    Raises:
        SettingsError: there are more actors than clients that train or are tested at once.
    """
    settings, actors = parts.settings, parts.settings.engine.actors
    if actors == "auto":
        return
    if settings.engine.backend == "inline":
        note(
            f"engine.actors={actors}: not used with engine.backend=inline, which trains in this"
            " process; actors need engine.backend=ray"
        )
        return
    everyone, evaluation = len(settings.participants), settings.evaluation
    overlap = settings.asynchrony
    most = overlap.concurrency if overlap else settings.cohort_size
    most += settings.clock.server_policy.extra
    if settings.selection.may_be_empty or evaluation.local_test or evaluation.clients:
        most = everyone
    if actors > most and parts.first:
        most = max(most, len(parts.first.clients))
    if actors > most:
        raise SettingsError(
            f"engine.actors={actors}: must be at most {most}, the clients of a round; other actors"
            " would have no clients"
        )


def check_space(
    settings: Settings, states: ClientStates, state: ServerState, of_stages: int = 0
) -> None:
    """Check that the disk has room for the states and updates of clients.

    With `local.keep`, the optimizer's state of one training pass is counted: the number of these
    passes is known only after a round. Models in checkpoints are not counted.

    Args:
        settings: The run's settings.
        states: Files of the clients' states.
        state: The server's state before the first round.
        of_stages: Bytes that a client keeps for stages of the channel.

    Raises:
        RunError: the disk does not have room.
    """
    method, cohort, clients = settings.method, settings.cohort_size, len(settings.participants)
    expected = round(clients * (1 - (1 - cohort / clients) ** settings.rounds))
    versions = min(2 * settings.checkpoint_every, settings.rounds) * cohort
    in_round = cohort * method.round_state_bytes(state)
    if settings.aggregation.sees_updates or settings.attack.knows_updates:
        in_round += cohort * nbytes({"model": method.deployed(state)})
    if settings.keep_clients:  # those of the round and of the round before
        in_round += 2 * cohort * nbytes({"model": method.deployed(state)})
    of_client = method.client_bytes(state) + of_stages
    if settings.local.keep:
        slots = len(settings.local.build_optimizer().slots)
        of_client += slots * nbytes({"model": method.deployed(state)})
    states.check_space((expected + versions) * of_client + in_round)
