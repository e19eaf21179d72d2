"""A client's pass in plain PyTorch, as one writes it by hand: autograd and `torch.optim.SGD`.

What a method adds to plain SGD is a list of terms (`terms`); the loop takes the batches of
the engine's pass, in the same order and from the same tensors, so that both do the same arithmetic.

Legend: n samples of the client, B batch, F activations, C classes.
"""

from __future__ import annotations

import copy
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple

import numpy as np
import torch
import torch.nn.functional as F
from torch import Tensor, nn

from raysim.api.rules import LocalSteps, LocalWork, Upload, count_of
from raysim.config import LocalSettings
from raysim.numbers.tensors import Groups, Tensors
from raysim.training.job import ClientJob


@dataclass(frozen=True)
class Given:
    """What a client has at the start of a pass.

    Attributes:
        label: That of the pass.
        start: The tensors to start from.
        broadcast: What the server sent to every client.
        state: What the client has kept.
        trainable: Names of the parameters that are trained; None trains all.
        epochs: Local epochs, or steps of whole epochs.
        lr: Local learning rate.
        x: Inputs [n, ...].
        y: Labels [n].
        batches: Draws the order of the samples, epoch by epoch.
    """

    label: str
    start: Tensors
    broadcast: Groups
    state: Groups
    trainable: frozenset[str] | None
    epochs: LocalWork
    lr: float
    x: Tensor
    y: Tensor
    batches: np.random.Generator

    @classmethod
    def of(cls, job: ClientJob, label: str) -> Given:
        """Return what a job gives; tensors are contiguous, as those of a plain module are."""
        return cls(
            label=label,
            start=contiguous(job.rules.start(job.broadcast, job.state, job.personal)),
            broadcast={name: contiguous(group) for name, group in job.broadcast.items()},
            state={name: contiguous(group) for name, group in job.state.items()},
            trainable=job.trainable,
            epochs=job.epochs,
            lr=job.lr,
            x=job.data.x,
            y=job.data.y,
            batches=job.batches(),
        )


@dataclass(frozen=True)
class Client:
    """The client in training, as terms see it.

    Attributes:
        model: The network in training.
        frozen: Another network of the same kind in evaluation mode, for terms to fill.
        given: What the client has at the start.
    """

    model: nn.Module
    frozen: nn.Module
    given: Given

    def parameters(self) -> dict[str, nn.Parameter]:
        """Return the parameters that are trained."""
        return {n: p for n, p in self.model.named_parameters() if p.requires_grad}


class Step(NamedTuple):
    """Inputs x [B, ...], labels y [B], activations [B, F] and logits [B, C] of a step."""

    x: Tensor
    y: Tensor
    hidden: Tensor
    logits: Tensor


class Term:
    """What a method adds to plain SGD; this one adds nothing."""

    def __init__(self, method: Any, client: Client) -> None:
        """Prepare for the first step, with the method's settings."""
        self.method, self.client = method, client

    def objective(self, loss: Tensor, step: Step) -> Tensor:
        """Return what is minimised in place of a loss."""
        return loss

    def correct(self, step: Step) -> None:
        """Change the gradients of the parameters."""

    def finish(self, steps: int) -> Upload:
        """Return what the client sends and keeps beside its model."""
        return Upload()


class Loop:
    """The passes of one client.

    Args:
        model: The network, of stages `features`, `hidden` and `head`.
        local: Batch size, momentum and weight decay of SGD.
        terms: What the method adds; each makes a term for a client.
    """

    def __init__(
        self, model: nn.Module, local: LocalSettings, terms: Sequence[Callable[[Client], Term]]
    ) -> None:
        self.model, self.local, self.terms = model, local, terms
        self.trainable = {n for n, p in model.named_parameters() if p.requires_grad}
        self.frozen = copy.deepcopy(model).eval().requires_grad_(False)

    def run(self, given: Given) -> list[Upload]:
        """Train the model for a pass; return what its terms send and keep."""
        self.model.load_state_dict(given.start)
        self.unfreeze(given.trainable)
        client = Client(self.model, self.frozen, given)
        terms = [term(client) for term in self.terms]
        local, parameters = self.local, client.parameters().values()
        optimiser = torch.optim.SGD(
            parameters, given.lr, local.momentum, 0, local.weight_decay, local.nesterov
        )
        n, steps = len(given.y), 0
        size = n if local.batch_size == "full" else local.batch_size
        batches = -(-n // size) if isinstance(given.epochs, LocalSteps) else 1
        for _ in range(count_of(given.epochs) // batches):
            order = torch.from_numpy(given.batches.permutation(n))
            shuffled_x, shuffled_y = given.x[order], given.y[order]
            for first in range(0, n, size):
                rows = slice(first, first + size)
                self.step(optimiser, terms, shuffled_x[rows], shuffled_y[rows])
                steps += 1
        with torch.no_grad():
            return [term.finish(steps) for term in terms]

    def step(self, optimiser: torch.optim.SGD, terms: Sequence[Term], x: Tensor, y: Tensor) -> None:
        """Take a step on inputs x [B, ...] and labels y [B]."""
        optimiser.zero_grad()
        hidden = self.model.get_submodule("hidden")(self.model.get_submodule("features")(x))
        logits = self.model.get_submodule("head")(hidden)
        taken = Step(x, y, hidden, logits)
        loss = F.cross_entropy(logits, y)
        for term in terms:
            loss = term.objective(loss, taken)
        loss.backward()  # type: ignore[no-untyped-call]
        with torch.no_grad():
            for term in terms:
                term.correct(taken)
        optimiser.step()

    def unfreeze(self, trainable: frozenset[str] | None) -> None:
        """Let the named parameters train; layers that are frozen go into evaluation mode."""
        names = self.trainable if trainable is None else self.trainable & trainable
        for name, parameter in self.model.named_parameters():
            parameter.requires_grad_(name in names)
        self.model.train()
        for module in self.model.modules():
            own = [*module.parameters(recurse=False)]
            if own and not any(parameter.requires_grad for parameter in own):
                module.eval()


def contiguous(tensors: Tensors) -> dict[str, Tensor]:
    return {name: tensor.contiguous() for name, tensor in tensors.items()}


def outputs(model: nn.Module, x: Tensor) -> Tensor:
    """Return a model's outputs, without gradient."""
    with torch.no_grad():
        return model(x)  # type: ignore[no-any-return]


def hidden(model: nn.Module, x: Tensor) -> Tensor:
    """Return a model's activations, without gradient."""
    with torch.no_grad():
        return model.get_submodule("hidden")(model.get_submodule("features")(x))  # type: ignore[no-any-return]
