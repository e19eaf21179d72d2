"""Local training, one client at a time: the loop trainer.

A real module with autograd, in-place updates of all parameters at once and one gather an epoch.
The network stays resident; a client costs a copy of the broadcast model into it.

Legend: n samples of the client, B batch.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import nullcontext
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
import torch
from torch import Tensor

from raysim.config import LocalSettings
from raysim.core.rules import Batch, Outputs, Rules, Trained, Upload, View
from raysim.core.tensors import Groups, Tensors
from raysim.engine.network import Network


@dataclass(frozen=True)
class Job:
    """One client's work in a pass: its rules, samples, groups and random draws."""

    rules: Rules
    epochs: int
    lr: float
    trainable: frozenset[str] | None
    data: Batch
    broadcast: Groups
    state: Groups
    personal: Groups
    batches: np.random.Generator
    torch_seed: int


@dataclass(frozen=True)
class LocalLog:
    """Figures of one client's training, averaged over examples and local steps."""

    steps: int
    train_loss: float
    objective: float


def batch_bounds(n: int, size: int, join_single: bool) -> list[tuple[int, int]]:
    """Return (start, stop) of the batches of n samples.

    Args:
        n: Number of samples.
        size: Batch size B; the last batch may be smaller.
        join_single: Whether a trailing batch of one sample joins the one before it, which
            BatchNorm needs.
    """
    starts = list(range(0, n, size))
    if join_single and len(starts) > 1 and n - starts[-1] == 1:
        starts.pop()
    return list(zip(starts, [*starts[1:], n], strict=True))


class LoopTrainer:
    """Trains clients one after another on one resident network."""

    def __init__(self, network: Network, local: LocalSettings, precision: str) -> None:
        self.network = network
        self.local = local
        self._frozen: Network | None = None
        self._buffer: Batch | None = None
        self._device = next((p.device for p in network.parameters()), torch.device("cpu"))
        self._bf16 = precision == "bf16"
        # The generators that a module may draw from. Not torch.manual_seed: where there is no
        # CUDA it keeps a record of every call, for the day when CUDA is there.
        self._generators = [torch.default_generator]
        if self._device.type == "cuda":
            self._generators.append(torch.cuda.default_generators[torch.cuda.current_device()])

    def run(self, job: Job) -> tuple[Upload, LocalLog]:
        """Train one client and return what its rules give back, with its figures."""
        before = self.rng_state()
        for generator in self._generators:
            generator.manual_seed(job.torch_seed)
        try:
            return _Client(self, job).run()
        finally:
            self.set_rng_state(before)

    def outputs(self, x: Tensor) -> Outputs:
        """Return the resident network's outputs; logits are in float32 whatever the precision."""
        if not self._bf16:
            return self.network.forward(x)  # not __call__: a wrapper of ours has no hooks
        with self.autocast():
            return self.network(x).in_float32()  # type: ignore[no-any-return]

    def autocast(self) -> Any:
        """Return the context in which forward passes run."""
        return torch.autocast(self._device.type, torch.bfloat16) if self._bf16 else nullcontext()

    def buffer(self, data: Batch) -> Batch:
        """Return a resident buffer for samples like these, in which each epoch is laid out."""
        n = len(data.y)
        if self._buffer is None or len(self._buffer.y) < n:
            self._buffer = Batch(torch.empty_like(data.x), torch.empty_like(data.y))
        return Batch(self._buffer.x[:n], self._buffer.y[:n])

    def at(self, tensors: Tensors, x: Tensor) -> Outputs:
        """Return the outputs at any tensors, in evaluation mode, without gradient."""
        if self._frozen is None:
            self._frozen = self.network.frozen()
        with torch.no_grad(), self.autocast():
            return self._frozen.at(tensors, x).in_float32()

    def rng_state(self) -> list[Tensor]:
        """Return the states of the generators that dropout may draw from."""
        return [generator.get_state() for generator in self._generators]

    def set_rng_state(self, states: list[Tensor]) -> None:
        """Set the states of the generators that dropout may draw from."""
        for generator, state in zip(self._generators, states, strict=True):
            generator.set_state(state)


class _Client:
    """The training of one client."""

    def __init__(self, trainer: LoopTrainer, job: Job) -> None:
        self.trainer, self.job, self.rules = trainer, job, job.rules
        start = job.rules.start(job.broadcast, job.state, job.personal)
        network = trainer.network
        if start:
            network.load(start)
        network.train_only(job.trainable)
        live = network.tensors()
        self.names = [
            name
            for name, tensor in live.items()
            if tensor.requires_grad and (job.trainable is None or name in job.trainable)
        ]
        self.params = [live[name] for name in self.names]
        self.view = View(
            params=live,
            trained=self.names,
            start=start,
            broadcast=job.broadcast,
            state=job.state,
            personal=job.personal,
            temperature=trainer.local.temperature,
            at=trainer.at,
            gradient=self.gradient,
        )
        self.carry: Tensors = self.rules.carry(self.view) if self.rules.carry else {}
        self.velocity: list[Tensor] = []
        self.plain = not (
            self.rules.criterion or self.rules.penalties or trainer.local.temperature != 1
        )
        self.rng = trainer.rng_state()

    def run(self) -> tuple[Upload, LocalLog]:
        losses: list[Tensor] = []
        objectives: list[Tensor] = []
        sizes: list[int] = []
        for batch in self.batches():
            loss, objective = self.step(batch)
            losses.append(loss)
            objectives.append(objective)
            sizes.append(len(batch.y))
        trained = Trained(len(sizes), self.job.lr, self.carry, self.job.data)
        with torch.no_grad():
            upload = self.rules.finish(self.view, trained)
        return upload, LocalLog(
            len(sizes), _weighted_mean(losses, sizes), _weighted_mean(objectives, sizes)
        )

    def batches(self) -> Iterator[Batch]:
        data, size = self.job.data, self.trainer.local.batch_size
        n = len(data.y)
        bounds = batch_bounds(n, n if size == "full" else size, self.trainer.network.has_batchnorm)
        buffer = self.trainer.buffer(data)
        for _ in range(self.job.epochs):
            order = np.arange(n) if len(bounds) == 1 else self.job.batches.permutation(n)
            index = torch.from_numpy(order).to(data.y.device)
            x = torch.index_select(data.x, 0, index, out=buffer.x)
            y = torch.index_select(data.y, 0, index, out=buffer.y)
            for start, stop in bounds:
                yield Batch(x[start:stop], y[start:stop])

    def step(self, batch: Batch) -> tuple[Tensor, Tensor]:
        """Take one step of SGD; return the plain loss and the objective before it."""
        if self.rules.direction:
            self.rng = self.trainer.rng_state()
        outputs = self.trainer.outputs(batch.x)
        objective = self.objective(self.view, outputs, batch)
        gradients = self._descent(
            torch.autograd.grad(objective, self.params, allow_unused=True, materialize_grads=True)
        )
        with torch.no_grad():
            if self.rules.direction:
                named = dict(zip(self.names, gradients, strict=True))
                directed, self.carry = self.rules.direction(self.view, named, batch, self.carry)
                gradients = [directed[name] for name in self.names]
            self._update(gradients)
            loss = objective if self.plain else batch.loss(outputs.logits)
        return loss.detach(), objective.detach()

    def objective(self, view: View, outputs: Outputs, batch: Batch) -> Tensor:
        """Return what is minimised: the criterion at logits / T, plus the penalties."""
        scaled = outputs.scaled(view.temperature) if view.temperature != 1 else outputs
        criterion = self.rules.criterion
        value = criterion(view, scaled, batch) if criterion else batch.loss(scaled.logits)
        for penalty in self.rules.penalties:
            value = value + penalty(view, outputs, batch)
        return value

    def gradient(self, tensors: Tensors, batch: Batch) -> dict[str, Tensor]:
        """Return the gradient of the objective at any tensors, with this step's random draws."""
        network, before = self.trainer.network, self.trainer.rng_state()
        copies = {name: tensor.detach().clone() for name, tensor in tensors.items()}
        points = [copies[name].requires_grad_() for name in self.names]
        self.trainer.set_rng_state(self.rng)
        with torch.enable_grad():
            with self.trainer.autocast():
                outputs = network.at(copies, batch.x).in_float32()
            objective = self.objective(replace(self.view, params=copies), outputs, batch)
            gradients = torch.autograd.grad(
                objective, points, allow_unused=True, materialize_grads=True
            )
        self.trainer.set_rng_state(before)
        return dict(zip(self.names, self._descent(gradients, points), strict=True))

    def _descent(
        self, gradients: tuple[Tensor, ...], points: list[Tensor] | None = None
    ) -> list[Tensor]:
        decay = self.trainer.local.weight_decay
        if not decay:
            return list(gradients)
        with torch.no_grad():
            return list(torch._foreach_add(gradients, points or self.params, alpha=decay))

    def _update(self, gradients: list[Tensor]) -> None:
        local = self.trainer.local
        if local.momentum:
            if self.velocity:
                torch._foreach_mul_(self.velocity, local.momentum)
                torch._foreach_add_(self.velocity, gradients)
            else:
                self.velocity = [g.clone() for g in gradients]
            gradients = (
                list(torch._foreach_add(gradients, self.velocity, alpha=local.momentum))
                if local.nesterov
                else self.velocity
            )
        torch._foreach_add_(self.params, gradients, alpha=-self.job.lr)


def _weighted_mean(values: list[Tensor], sizes: list[int]) -> float:
    if not values:
        return float("nan")
    stacked = torch.stack(values).double().cpu().numpy()
    return float(np.dot(stacked, sizes) / sum(sizes))
