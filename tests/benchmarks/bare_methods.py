"""The local steps of methods in plain PyTorch, as one writes them by hand.

A penalty is a term of the loss that autograd differentiates; a correction changes the gradients
before the optimiser's step. Every method takes the steps of `peers.work.train` beside its own
arithmetic, with a frozen copy of the model where it needs another one.

Legend: B batch, F activations, C classes.
"""

from __future__ import annotations

import copy
from collections.abc import Callable
from functools import partial

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from raysim.methods.fedmmd import FLOOR, sigmas
from tests.benchmarks.peers import work
from tests.benchmarks.peers.work import Case

Penalty = Callable[[nn.Module, nn.Module, Tensor, Tensor, Tensor], Tensor]
"""Of the model, the frozen one, inputs x, activations [B, F] and logits [B, C]."""
Correction = Callable[[nn.Module, nn.Module, Tensor, Tensor], None]
"""Of the model, whose gradients it changes, the frozen one, inputs x and labels y."""
SIGMAS = sigmas(torch.zeros(())).tolist()


def activation_norm(
    model: nn.Module, frozen: nn.Module, x: Tensor, hidden: Tensor, logits: Tensor
) -> Tensor:
    """Return activation L2's term."""
    return 1e-3 * hidden.norm()


def entropy(
    model: nn.Module, frozen: nn.Module, x: Tensor, hidden: Tensor, logits: Tensor
) -> Tensor:
    """Return FedMAX's term."""
    uniform = torch.full_like(hidden, 1 / hidden.shape[1])
    return 1500 * F.kl_div(F.log_softmax(hidden, dim=1), uniform, reduction="none").mean()


def proximal(
    model: nn.Module, frozen: nn.Module, x: Tensor, hidden: Tensor, logits: Tensor
) -> Tensor:
    """Return FedProx's term."""
    return work.proximal(model.parameters(), frozen.parameters())


def output_distance(
    model: nn.Module, frozen: nn.Module, x: Tensor, hidden: Tensor, logits: Tensor
) -> Tensor:
    """Return two-stream L2's term."""
    return 0.005 * (logits - outputs(frozen, x)).square().sum()


def discrepancy(
    model: nn.Module, frozen: nn.Module, x: Tensor, hidden: Tensor, logits: Tensor
) -> Tensor:
    """Return FedMMD's term."""
    n, joint = len(x), torch.cat([outputs(frozen, x), logits])
    squares = (joint[:, None] - joint).square().sum(-1)
    kernels = torch.stack([torch.exp(-squares / (2 * sigma)) for sigma in SIGMAS]).sum(0)
    squared = kernels[:n, :n].mean() + kernels[n:, n:].mean() - 2 * kernels[:n, n:].mean()
    return 0.1 * squared.clamp(min=FLOOR)


def accelerate(model: nn.Module, frozen: nn.Module, x: Tensor, y: Tensor) -> None:
    """Add to the momentum, which the frozen model's parameters stand for."""
    for p, d in zip(model.parameters(), frozen.parameters(), strict=True):
        d.mul_(0.5).add_(gradient(p))
        gradient(p).copy_(d)


def control(model: nn.Module, frozen: nn.Module, x: Tensor, y: Tensor) -> None:
    """Add SCAFFOLD's c - c_k; the frozen model's parameters stand for both."""
    work.control(model.parameters(), frozen.parameters())


def reduce_variance(model: nn.Module, frozen: nn.Module, x: Tensor, y: Tensor) -> None:
    """Add FSVRG's full gradient, less the gradient at the frozen model."""
    with torch.enable_grad():
        frozen.requires_grad_().zero_grad()
        F.cross_entropy(frozen(x), y).backward()  # type: ignore[no-untyped-call]
    for p, q in zip(model.parameters(), frozen.parameters(), strict=True):
        gradient(p).sub_(gradient(q)).add_(q, alpha=1e-3)


PENALTIES: dict[str, Penalty] = {
    "activation_l2": activation_norm,
    "fedmax": entropy,
    "fedmmd": discrepancy,
    "fedprox": proximal,
    "two_stream_l2": output_distance,
}
CORRECTIONS: dict[str, Correction] = {
    "fsvrg": reduce_variance,
    "momentum": accelerate,
    "scaffold": control,
}


def bare_epoch(method: str, case: Case, x: Tensor, y: Tensor) -> Callable[[], None] | None:
    """Return a function that takes a client's epoch by a method; None where there is none here."""
    if method not in {"fedavg", *PENALTIES, *CORRECTIONS}:
        return None
    model = case.build().train()
    frozen = copy.deepcopy(model).eval().requires_grad_(False)
    return partial(epoch, method, model, frozen, x, y, case)


def epoch(
    method: str, model: nn.Module, frozen: nn.Module, x: Tensor, y: Tensor, case: Case
) -> None:
    """Take the local steps of an epoch."""
    optimiser = torch.optim.SGD(model.parameters(), lr=case.lr)
    penalty, correct = PENALTIES.get(method), CORRECTIONS.get(method)
    order = torch.randperm(len(y))
    shuffled_x, shuffled_y = x[order], y[order]
    for first in range(0, len(y), case.batch):
        rows = slice(first, first + case.batch)
        inputs, labels = shuffled_x[rows], shuffled_y[rows]
        optimiser.zero_grad()
        hidden = model.get_submodule("hidden")(model.get_submodule("features")(inputs))
        logits = model.get_submodule("head")(hidden)
        loss = F.cross_entropy(logits, labels)
        if penalty:
            loss = loss + penalty(model, frozen, inputs, hidden, logits)
        loss.backward()  # type: ignore[no-untyped-call]
        if correct:
            with torch.no_grad():
                correct(model, frozen, inputs, labels)
        optimiser.step()


def outputs(frozen: nn.Module, x: Tensor) -> Tensor:
    """Return the frozen model's logits, without gradient."""
    with torch.no_grad():
        return frozen(x)  # type: ignore[no-any-return]


def gradient(parameter: Tensor) -> Tensor:
    """Return the gradient of a parameter, which backward has set."""
    assert parameter.grad is not None
    return parameter.grad
