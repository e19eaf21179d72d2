"""What methods add to plain SGD, as one writes it by hand.

A penalty is a term of the loss that autograd differentiates; a correction changes the gradients
before the optimiser's step. What a client computes at the end of a pass, to send or to keep, is
part of it, but for its own model, which is there. Numbers are read from the method's settings;
formulas are those of its defaults. For FedNova, and with corrections (FSVRG, momentum, SCAFFOLD),
SGD is plain: momentum changes what a step is, or comes before or behind them in the engine.
"""

from __future__ import annotations

import copy
import math
from collections.abc import Sequence
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from raysim.api.rules import Upload
from raysim.numbers.tensors import Tensors
from tests.benchmarks.bare.loop import Client, Step, Term, hidden, outputs

SIGMAS = (*(10.0**power for power in range(-6, 1)), *range(5, 40, 5), *(10**p for p in range(2, 7)))
"""Widths of FedMMD's kernels."""
CLASSES = 10
MOST_CORRELATED = 1 - 1e-7


class ActivationNorm(Term):
    """Activation L2's norm of the batch's activations."""

    def objective(self, loss: Tensor, step: Step) -> Tensor:
        return add(loss, self.method.beta, step.hidden.norm())


class Entropy(Term):
    """FedMAX's distance of the activations from uniform ones."""

    def objective(self, loss: Tensor, step: Step) -> Tensor:
        uniform = torch.full_like(step.hidden, 1 / step.hidden.shape[1])
        divergence = F.kl_div(F.log_softmax(step.hidden, dim=1), uniform, reduction="none")
        return add(loss, self.method.beta, divergence.mean())


class Proximal(Term):
    """FedProx's pull towards the broadcast model; FedAsync's and FedAT's, too."""

    def __init__(self, method: Any, client: Client) -> None:
        super().__init__(method, client)
        self.pairs = paired(client, client.given.broadcast["model"])

    def objective(self, loss: Tensor, step: Step) -> Tensor:
        return add(loss, self.method.mu / 2, squared_distance(self.pairs))


class Personal(Term):
    """Ditto's tie of the personal model, in the pass that trains it, to the broadcast one."""

    def __init__(self, method: Any, client: Client) -> None:
        super().__init__(method, client)
        tied = client.given.label == "personal"
        self.pairs = paired(client, client.given.broadcast["model"]) if tied else []

    def objective(self, loss: Tensor, step: Step) -> Tensor:
        if not self.pairs:
            return loss
        return add(loss, self.method.lam / 2, squared_distance(self.pairs))


class Dynamic(Term):
    """FedDyn's linear and proximal terms."""

    def __init__(self, method: Any, client: Client) -> None:
        super().__init__(method, client)
        self.pairs = paired(client, client.given.broadcast["model"])
        self.h = client.given.state["h"]
        self.linear = paired(client, self.h)

    def objective(self, loss: Tensor, step: Step) -> Tensor:
        linear = torch.stack([(p * h).sum() for p, h in self.linear]).sum()
        return add(loss - linear, self.method.alpha / 2, squared_distance(self.pairs))

    def finish(self, steps: int) -> Upload:
        start = self.client.given.broadcast["model"]
        moved = {n: p - start[n] for n, p in self.client.parameters().items()}
        kept = {n: self.h[n] - self.method.alpha * change for n, change in moved.items()}
        return Upload(state={"h": kept})


class OutputDistance(Term):
    """Two-stream L2's distance to the broadcast model's logits."""

    def __init__(self, method: Any, client: Client) -> None:
        super().__init__(method, client)
        client.frozen.load_state_dict(client.given.broadcast["model"])

    def objective(self, loss: Tensor, step: Step) -> Tensor:
        apart = step.logits - outputs(self.client.frozen, step.x)
        return add(loss, self.method.lam / 2, apart.square().sum())


class Calibrated(Term):
    """FedLC's margins by the client's counts of classes."""

    def __init__(self, method: Any, client: Client) -> None:
        super().__init__(method, client)
        counts = torch.bincount(client.given.y, minlength=CLASSES)
        self.margins = method.tau * counts.clamp(min=1e-8).pow(-0.25)

    def objective(self, loss: Tensor, step: Step) -> Tensor:
        return F.cross_entropy(step.logits - self.margins, step.y)


class Contrast(Term):
    """MOON's contrast between the broadcast model and the client's last one."""

    def __init__(self, method: Any, client: Client) -> None:
        super().__init__(method, client)
        self.last = copy.deepcopy(client.frozen)
        client.frozen.load_state_dict(client.given.broadcast["model"])
        self.last.load_state_dict(client.given.state["previous_0"])

    def objective(self, loss: Tensor, step: Step) -> Tensor:
        others = [hidden(model, step.x) for model in (self.client.frozen, self.last)]
        alike = torch.stack([F.cosine_similarity(step.hidden, z) for z in others], 1)
        first = torch.zeros_like(step.y)
        return add(loss, self.method.mu, F.cross_entropy(alike / self.method.tau, first))


class BothHeads(Term):
    """FedRoD's balanced softmax of the generic head, and the loss of the client's own."""

    def __init__(self, method: Any, client: Client) -> None:
        super().__init__(method, client)
        counts = torch.bincount(client.given.y, minlength=CLASSES)
        self.prior = method.gamma * counts.log().clamp(min=-100)
        self.generic, self.own = client.model.get_submodule("head").children()

    def objective(self, loss: Tensor, step: Step) -> Tensor:
        g, p = self.generic(step.hidden), self.own(step.hidden.detach())
        return F.cross_entropy(g + self.prior, step.y) + F.cross_entropy(g.detach() + p, step.y)


class Prototypes(Term):
    """FedProto's pull of features to their class's prototype, and the means of the last epoch."""

    def __init__(self, method: Any, client: Client) -> None:
        super().__init__(method, client)
        given = client.given.broadcast["prototypes"]
        self.means, self.known = given["head.means"], given["head.known"]
        head: Any = client.model.get_submodule("head")
        self.sums, self.seen, self.passed = head.sums, head.seen, head.passed

    def objective(self, loss: Tensor, step: Step) -> Tensor:
        if self.passed == len(self.client.given.y):
            for each in (self.sums, self.seen, self.passed):
                each.zero_()
        self.sums.index_add_(0, step.y, step.hidden.detach())
        self.seen += torch.bincount(step.y, minlength=CLASSES)
        self.passed += len(step.y)
        apart = (step.hidden - self.means[step.y]) * self.known[step.y, None]
        return add(loss, self.method.lam, apart.square().mean())

    def finish(self, steps: int) -> Upload:
        means = self.sums / self.seen.clamp(min=1)[:, None]
        has = (self.seen > 0).float()
        return Upload(sums={"prototypes": {"head.means": means, "head.known": has}})


class MeanPull(Term):
    """FedDBE's pull of the features' running mean to the mean of all clients."""

    def __init__(self, method: Any, client: Client) -> None:
        super().__init__(method, client)
        means = client.given.broadcast.get("mean", {})  # none in the pass that gathers it
        self.mean = means.get("z")
        self.running: Any = client.model.get_submodule("head").running

    def objective(self, loss: Tensor, step: Step) -> Tensor:
        if self.mean is None:
            return loss
        running = self.running * (1 - self.method.momentum)
        running = running + self.method.momentum * step.hidden.mean(0)
        self.running.copy_(running.detach())
        return add(loss, self.method.kappa / 2, (running - self.mean).square().mean())


class Discrepancy(OutputDistance):
    """FedMMD's discrepancy from the broadcast model's logits."""

    def objective(self, loss: Tensor, step: Step) -> Tensor:
        n, joint = len(step.x), torch.cat([outputs(self.client.frozen, step.x), step.logits])
        squares = (joint[:, None] - joint).square().sum(-1)
        kernels = torch.stack([torch.exp(-squares / (2 * sigma)) for sigma in SIGMAS]).sum(0)
        squared = kernels[:n, :n].mean() + kernels[n:, n:].mean() - 2 * kernels[:n, n:].mean()
        return add(loss, self.method.lam, squared.clamp(min=1e-4))


class Mutual(Term):
    """MIFL's distance from the client's own last model, and the MI of the trained one."""

    def __init__(self, method: Any, client: Client) -> None:
        super().__init__(method, client)
        self.own = client.given.state.get("model")
        if self.own:
            client.frozen.load_state_dict(self.own)

    def objective(self, loss: Tensor, step: Step) -> Tensor:
        if not self.own:
            return loss
        own = outputs(self.client.frozen, step.x)
        loss_g, loss_k = loss.detach(), F.cross_entropy(own, step.y)
        c_v = (loss_g - loss_k).abs() / (math.sqrt(2) * (loss_g + loss_k))
        lam = torch.where(loss_g == loss_k, 0.5, torch.minimum(c_v, 1 - c_v))
        apart = step.logits.softmax(1) - own.softmax(1)
        return loss - lam / 2 * apart.square().sum(1).mean()

    def finish(self, steps: int) -> Upload:
        self.client.model.eval()
        self.client.frozen.load_state_dict(self.client.given.start)
        x = self.client.given.x
        both = torch.stack(
            [m(x).double().flatten() for m in (self.client.model, self.client.frozen)]
        )
        rho = torch.corrcoef(both)[0, 1].clamp(-MOST_CORRELATED, MOST_CORRELATED)
        return Upload(scalars={"mi": float(-0.5 * torch.log(1 - rho.square()))})


class Acceleration(Term):
    """The momentum that MFA broadcasts."""

    def __init__(self, method: Any, client: Client) -> None:
        super().__init__(method, client)
        self.d = {name: d.clone() for name, d in client.given.broadcast["d"].items()}
        self.pairs = paired(client, self.d)

    def correct(self, step: Step) -> None:
        for p, d in self.pairs:
            d.mul_(self.method.gamma).add_(gradient(p))
            gradient(p).copy_(d)

    def finish(self, steps: int) -> Upload:
        return Upload(sums={"d": self.d})


class Control(Term):
    """SCAFFOLD's correction c - c_k."""

    def __init__(self, method: Any, client: Client) -> None:
        super().__init__(method, client)
        self.c, self.c_k = client.given.broadcast["c"], client.given.state["c"]
        self.server, self.own = paired(client, self.c), paired(client, self.c_k)

    def correct(self, step: Step) -> None:
        for (p, c), (_, c_k) in zip(self.server, self.own, strict=True):
            gradient(p).add_(c).sub_(c_k)

    def finish(self, steps: int) -> Upload:
        scale, start = 1 / (steps * self.client.given.lr), self.client.given.start
        moved = {n: (start[n] - p) * scale for n, p in self.client.parameters().items()}
        change = {n: m - self.c[n] for n, m in moved.items()}
        kept = {n: self.c_k[n] + each for n, each in change.items()}
        return Upload(sums={"c": change}, state={"c": kept})


class VarianceReduction(Term):
    """FSVRG's full gradient, less the batch's gradient at the broadcast model."""

    def __init__(self, method: Any, client: Client) -> None:
        super().__init__(method, client)
        client.frozen.load_state_dict(client.given.broadcast["model"])
        client.frozen.train().requires_grad_()
        self.at_start = dict(client.frozen.named_parameters())
        self.pairs = paired(client, client.given.broadcast["full"])
        self.others = paired(client, self.at_start)

    def correct(self, step: Step) -> None:
        frozen = self.client.frozen
        with torch.enable_grad():
            frozen.zero_grad()
            F.cross_entropy(frozen(step.x), step.y).backward()  # type: ignore[no-untyped-call]
        for (p, full), (_, q) in zip(self.pairs, self.others, strict=True):
            gradient(p).sub_(gradient(q)).add_(full)


class MeanStep(Term):
    """FedNova's change per step of plain SGD."""

    def finish(self, steps: int) -> Upload:
        start = self.client.given.start
        mean = {n: (start[n] - p) / steps for n, p in self.client.parameters().items()}
        return Upload(sums={"d": mean, "steps": {"tau_eff": torch.tensor(float(steps))}})


class Change(Term):
    """FedBuff's change of parameters and counts, and the buffers themselves, in float64."""

    def finish(self, steps: int) -> Upload:
        model, start = self.client.model.state_dict(), self.client.given.start
        trained = {n: p.detach() for n, p in self.client.parameters().items()}
        buffers = {n: t for n, t in model.items() if n not in trained and t.is_floating_point()}
        change = {n: t.double() - start[n].double() for n, t in trained.items()}
        counts = {n: t - start[n] for n, t in model.items() if n not in {**trained, **buffers}}
        sums = {"change": {**counts, **change}}
        if buffers:
            sums["buffers"] = {n: t.double() for n, t in buffers.items()}
            sums["share"] = {"share": torch.tensor(1.0)}
        return Upload(sums=sums)


def add(loss: Tensor, strength: float, penalty: Tensor) -> Tensor:
    """Return the loss plus a penalty of some strength."""
    return loss + strength * penalty


def paired(client: Client, others: Tensors) -> Sequence[tuple[nn.Parameter, Tensor]]:
    """Return the parameters that are trained, each with the tensor of its name."""
    return [(parameter, others[name]) for name, parameter in client.parameters().items()]


def squared_distance(pairs: Sequence[tuple[Tensor, Tensor]]) -> Tensor:
    """Return the sum of the squared differences."""
    return torch.stack([(p - q).square().sum() for p, q in pairs]).sum()


def gradient(parameter: Tensor) -> Tensor:
    """Return the gradient of a parameter, which backward has set."""
    assert parameter.grad is not None
    return parameter.grad
