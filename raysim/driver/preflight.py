"""Preflight checks: everything that is checked before a run starts or writes anything."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn

from raysim.config import Settings
from raysim.core.components import ask
from raysim.core.errors import DataError, SettingsError
from raysim.core.method import Method, ServerState
from raysim.core.rules import Batch
from raysim.core.scoring import Scoring
from raysim.core.tensors import CPU, at_least_float32
from raysim.driver.model_checks import check_model
from raysim.driver.round_inputs import draw_cohort
from raysim.federation.federation import Federation, open_samples, sample_dtype
from raysim.federation.opened import OpenedSamples
from raysim.federation.samples import problem_of
from raysim.federation.task import Task
from raysim.storage.checkpoints import Checkpoint
from raysim.storage.client_states import NEVER, ClientStates
from raysim.training.network import STAGES, Network, lacking_stages


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
    never_trained, never = np.full(clients, np.nan), np.full((clients, len(NEVER)), NEVER)
    initial = Checkpoint(0, _initial_state(method, network), never_trained, never)
    _check_scoring(settings, federation.scoring)
    if not federation.has_test:
        _check_without_test(settings)
    draw_cohort(settings, initial)
    inputs = replace(federation.inputs, dtype=sample_dtype(network))
    samples = OpenedSamples(replace(federation, inputs=inputs), CPU)
    outputs = _check_samples(method, network, samples.first(2))
    if federation.scoring.classifies:
        _check_labels(federation, outputs.shape[-1])
    return network, initial


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


def _check_labels(federation: Federation, outputs: int) -> None:
    """Check that targets are class numbers that the network has outputs for.

    Raises:
        DataError: they are not.
    """
    classes = max(outputs, 2)  # one output tells two classes apart
    own = federation.local_test.samples if federation.local_test else None
    for split in (federation.train, federation.test, *([own] if own else [])):
        name = split if isinstance(split, Path) else "the samples"
        y = open_samples(split).y
        if y.ndim != 1 or y.dtype.kind not in "iu":
            raise DataError(f"{name}: targets {y.dtype}{[*y.shape]} are no class numbers [N]")
        if len(wrong := y[(y < 0) | (y >= classes)]):
            raise DataError(
                f"{name}: label {wrong[0]} of {len(wrong)} samples; the model has outputs for"
                f" classes 0 to {classes - 1}"
            )


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


def check_space(settings: Settings, states: ClientStates, state: ServerState) -> None:
    """Check that the disk has room for what clients keep.

    Raises:
        RunError: it has not.
    """
    method, cohort, clients = settings.method, settings.cohort_size, settings.clients
    expected = round(clients * (1 - (1 - cohort / clients) ** settings.rounds))
    versions = min(2 * settings.checkpoint_every, settings.rounds) * cohort
    in_round = cohort * method.round_state_bytes(state)
    states.check_space((expected + versions) * method.client_bytes(state) + in_round)


def _check_scoring(settings: Settings, scoring: Scoring) -> None:
    """Check that the scoring has what the settings need.

    Raises:
        SettingsError: it has not.
    """
    if "loss" in scoring.metrics:
        raise SettingsError("scoring.metrics: no metric may be named loss")
    target, given = settings.target_accuracy, ", ".join(scoring.metrics) or "none"
    if target is not None and "accuracy" not in scoring.metrics:
        raise SettingsError(
            f"target_accuracy={target}: the task's metrics are {given}; use target_accuracy=none"
        )
    needs_classes = {
        f"local.temperature={settings.local.temperature}": settings.local.temperature != 1,
        "evaluation.clients=true": settings.evaluation.clients,
        f"method.{settings.method.needs_classes}": settings.method.needs_classes,
    }
    for setting, needed in needs_classes.items():
        if needed and not scoring.classifies:
            raise SettingsError(f"{setting}: the task is no classification; leave it out")


def _check_without_test(settings: Settings) -> None:
    """Check that nothing needs a test set, which a task may lack.

    Raises:
        SettingsError: a setting does.
    """
    needs = {
        f"target_accuracy={settings.target_accuracy}": settings.target_accuracy is not None,
        "evaluation.clients=true": settings.evaluation.clients,
        f"analysis={','.join(settings.analysis)}": settings.analysis,
    }
    for setting, needed in needs.items():
        if needed:
            raise SettingsError(f"{setting}: needs a test set; give Task.test, or leave it out")


def _check_samples(method: Method, module: nn.Module, samples: Batch) -> Tensor:
    """Check that a network takes the data, and the scoring its outputs; return these.

    Where a method looks into stages, these must be all of the network.

    Raises:
        DataError: the samples are not finite.
        SettingsError: they do not.
    """
    if problem := problem_of(samples):
        raise DataError(f"the first samples of the test set: {problem}")
    network = Network(module).eval()
    outputs = _outputs_of(network, samples)
    if method.staged:
        _check_composition(method, network, samples)
    if outputs.dim() < 2 or len(outputs) != len(samples.y) or not outputs.shape[-1]:
        raise SettingsError(
            f"the model's outputs have shape {[*outputs.shape]}: must be [B, ...] with two"
            f" dimensions or more, here B={len(samples.y)}"
        )
    if not outputs.isfinite().all():
        raise SettingsError(
            "the model's outputs are not finite, on the first samples of the test set"
        )
    whole_batch = _losses(samples, outputs)
    rows = [slice(row, row + 1) for row in range(len(samples.y))]
    alone = [_losses(samples._replace(y=samples.y[row]), outputs[row]) for row in rows]
    # [B, 1] minus [B] is [B, B]: its mean per row has the right shape but mixes samples.
    if not torch.allclose(whole_batch, torch.cat(alone), 1e-3, 1e-5, equal_nan=True):
        raise SettingsError(
            "scoring.losses: a sample's loss depends on other samples of its batch; compare"
            f" outputs {[*outputs.shape]} with targets {[*samples.y.shape]} row by row"
        )
    return outputs


def _losses(samples: Batch, outputs: Tensor) -> Tensor:
    """Return the losses of a few samples [B]."""
    shapes = f"outputs {[*outputs.shape]} and targets {[*samples.y.shape]}"
    try:
        losses = torch.as_tensor(samples.losses(outputs))
    except Exception as error:  # a user's function may raise anything
        raise SettingsError(f"scoring.losses: {shapes}: {' '.join(str(error).split())}") from error
    if losses.shape != samples.y.shape[:1]:
        raise SettingsError(
            f"scoring.losses: must return one loss per sample [{len(samples.y)}]; of {shapes} it"
            f" returned {[*losses.shape]}"
        )
    return losses


def _outputs_of(network: Network, sample: Batch) -> Tensor:
    """Return a network's outputs for a few samples."""
    try:
        with torch.no_grad():
            outputs = network.forward(sample.x.clone()).logits
    except SettingsError:
        raise
    except Exception as error:  # a user's module may raise anything
        shape = "x".join(map(str, sample.x.shape[1:])) or "one number"
        cause = " ".join(str(error).split())
        raise SettingsError(f"the model does not take samples of {shape}: {cause}") from error
    return at_least_float32(_checked(outputs))


def _checked(outputs: object) -> Tensor:
    """Return a module's outputs.

    Raises:
        SettingsError: they are no tensor.
    """
    if isinstance(outputs, Tensor) and not outputs.is_complex():
        return outputs
    found = (
        f"are {outputs.dtype}; must be real"
        if isinstance(outputs, Tensor)
        else f"are of type {type(outputs).__name__}; must be a tensor"
    )
    raise SettingsError(f"the model's outputs {found}")


def _check_composition(method: Method, network: Network, sample: Batch) -> None:
    """Check that a module's own forward is its three stages.

    Raises:
        SettingsError: it is not.
    """
    try:
        with torch.no_grad():
            logits = network.module(sample.x.clone())
            composed = network.compose(sample.x.clone())
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
