"""Local training of several clients at once: their tensors stacked, one step for all of them.

For devices on which a small network's step is launch-bound: K clients cost about as many launches
as one. Steps and batches that a client lacks are padded and masked, so a client's result is that of
the sequential trainer up to rounding. With dropout it is another draw of the same distribution.

Legend: K clients, S steps, B batch, n samples.
"""

from __future__ import annotations

import copy
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from contextlib import nullcontext
from dataclasses import replace
from functools import partial
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn
from torch.func import grad, vmap

from raysim.core.layers import BATCH_NORMS
from raysim.core.rules import Batch, Outputs, Trained, Upload, View
from raysim.core.tensors import CPU, Tensors
from raysim.training.job import ClientJob, LocalLosses, batch_bounds, iterate_epochs, only_in_finish
from raysim.training.network import Network
from raysim.training.sequential import SequentialTrainer
from raysim.training.sgd import Sgd, objective, reported_objective
from raysim.training.stacked.batch_norm import Padding, sample_numbers, with_padding
from raysim.training.stacked.cuda_graphs import GraphedSteps, recorder_on
from raysim.training.stacked.stacks import (
    Tree,
    assign,
    learning_rates,
    split_by_layout,
    stack_sets,
    stack_trees,
)


def unsupported_reason(network: nn.Module) -> str | None:
    """Return why a network's clients cannot be stacked, or None if they can."""
    for name, module in network.named_modules():
        if isinstance(module, nn.RNNBase):
            return f"{type(module).__name__} ({name}) has no batched kernel with weights per client"
        if isinstance(module, BATCH_NORMS) and module.momentum is None:
            return f"{type(module).__name__} ({name}) has no momentum"
    return None


class _Stacked(Batch):
    """One client's batch among those of others; its loss needs no index, padded or not."""

    def loss(self, logits: Tensor) -> Tensor:
        return self.mean(self.losses(logits))


class StackedTrainer:
    """Trains clients stacked, on a copy of the sequential trainer's network."""

    def __init__(self, sequential: SequentialTrainer, note: Callable[[str], None]) -> None:
        self.sequential = sequential
        self.padding = Padding()
        module = with_padding(copy.deepcopy(sequential.network.module), self.padding)
        self.network = Network(module)
        device = next((p.device for p in module.parameters()), CPU)
        self.recorder = recorder_on(device, note)

    def run(self, jobs: Sequence[ClientJob]) -> list[tuple[Upload, LocalLosses]]:
        """Train clients of one pass; return what each gives back, with its figures."""
        before = self.sequential.rng_state()
        self.sequential.seed(jobs[0].torch_seed)
        results: dict[int, tuple[Upload, LocalLosses]] = {}
        try:
            with self.recorder.stream_context() if self.recorder else nullcontext():
                for numbers in split_by_layout(jobs):
                    if not jobs[numbers[0]].epochs:
                        results |= {n: self.sequential.run(jobs[n]) for n in numbers}
                        continue
                    group = _StackedTraining(self, [jobs[number] for number in numbers])
                    results |= zip(numbers, group.run(), strict=True)
            return [results[number] for number in range(len(jobs))]
        finally:
            self.sequential.set_rng_state(before)


class _StackedTraining:
    """The training of clients whose tensors have the same names and shapes."""

    def __init__(self, trainer: StackedTrainer, jobs: Sequence[ClientJob]) -> None:
        self.trainer, self.jobs = trainer, jobs
        job = self.job = jobs[0]
        self.rules, self.sequential = job.rules, trainer.sequential
        self.local = trainer.sequential.local
        trainer.network.train_only(job.trainable)
        self.names = trainer.network.trainable_names(job.trainable)
        self.starts = [job.rules.start(j.broadcast, j.state, j.personal) for j in jobs]
        self.fixed, self.axes = stack_trees(
            [
                {"start": start, "state": j.state, "personal": j.personal}
                for start, j in zip(self.starts, jobs, strict=True)
            ]
        )
        self.tensors = stack_sets(self.starts)
        self.sgd = Sgd(self.local, learning_rates(jobs))
        other = job.rules.criterion or job.rules.penalties or self.local.temperature != 1
        self.loss_is_objective = not other
        views = [self._view_of(k) for k in range(len(jobs))]
        self.states = {
            t.name: stack_sets([t.init(view) for view in views]) for t in self.rules.transforms
        }
        self.rng = self.sequential.rng_state()

    def run(self) -> list[tuple[Upload, LocalLosses]]:
        losses: list[Tensor] = []
        objectives: list[Tensor] = []
        batch_sizes: list[list[int]] = [[] for _ in self.jobs]
        step = GraphedSteps(self._step, self.trainer.recorder)
        for batch, sizes, repeats in self._batches():
            if self.rules.transforms:
                self.rng = self.sequential.rng_state()
            loss, value = step(batch, repeats)
            losses.append(loss)
            objectives.append(value)
            for own, size in zip(batch_sizes, sizes, strict=True):
                own.append(size)
        both = torch.stack([torch.stack(losses), torch.stack(objectives)]).cpu()  # [2, S, K]
        return [self._finish(k, both[:, :, k], batch_sizes[k]) for k in range(len(self.jobs))]

    def _finish(self, k: int, figures: Tensor, sizes: list[int]) -> tuple[Upload, LocalLosses]:
        own = [step for step, size in enumerate(sizes) if size]
        states = {
            name: {key: tensor[k] for key, tensor in state.items()}
            for name, state in self.states.items()
        }
        trained = Trained(len(own), self.jobs[k].lr, states, self.jobs[k].data)
        with torch.no_grad():
            upload = self.rules.finish(self._view_of(k), trained)
        loss, value = figures[:, own]
        return upload, LocalLosses.of(loss, value, [sizes[step] for step in own])

    def _batches(self) -> Iterator[tuple[dict[str, Tensor], Sequence[int], int]]:
        """Yield the batches [K, B, ...] of all steps, with each client's number of samples.

        Where clients have fewer samples than others there are `weights` [K, B], 1 for a sample;
        where they have none left in this epoch, `active` [K] is false for them. The last number
        that is yielded is how many batches of such shapes there are in all.
        """
        norm = self.trainer.sequential.network.has_batchnorm
        counts = [len(job.data.y) for job in self.jobs]
        bounds = [batch_bounds(n, self.local.batch_size, norm) for n in counts]
        sizes = np.zeros((max(map(len, bounds)), len(self.jobs)), dtype=np.int64)  # [S, K]
        for k, own in enumerate(bounds):
            sizes[: len(own), k] = [stop - start for start, stop in own]
        y = torch.cat([job.data.y for job in self.jobs])
        is_sample = np.arange(sizes.max()) < sizes[:, :, None]  # [S, K, B]
        weights = torch.from_numpy(is_sample).to(y.device, torch.float32)
        active = torch.from_numpy(sizes > 0).to(y.device)
        extreme_sizes = zip(sizes.min(1).tolist(), sizes.max(1).tolist(), strict=True)
        shapes = [
            (largest, smallest < largest, not smallest) for smallest, largest in extreme_sizes
        ]
        repeats = Counter(shapes)
        for epoch in zip(*map(iterate_epochs, self.jobs, bounds), strict=True):
            x = torch.cat([inputs for inputs, _ in epoch])
            index = sample_numbers([order for _, order in epoch], bounds, is_sample).to(y.device)
            del epoch
            for step, shape in enumerate(shapes):
                largest, padded, idle = shape
                rows = index[step, :, :largest]
                batch = {"x": x[rows], "y": y[rows]}
                if padded:
                    batch["weights"] = weights[step, :, :largest]
                if idle:
                    batch["active"] = active[step]
                yield batch, sizes[step].tolist(), self.job.epochs * repeats[shape]
            del x  # before the next epoch's are made

    def _step(self, inputs: Tensors) -> tuple[Tensor, Tensor]:
        """Take a step; clients that have no samples left in this epoch stay as they are."""
        batch = dict(inputs)
        active = batch.pop("active", None)
        if active is None:
            return self._update(batch)
        with torch.no_grad():
            before = [tensor.clone() for tensor in self._moving()]
        outcome = self._update(batch)
        with torch.no_grad():
            for now, then in zip(self._moving(), before, strict=True):
                now.copy_(torch.where(active.view(-1, *(1,) * (now.dim() - 1)), now, then))
        return outcome

    def _moving(self) -> list[Tensor]:
        states = [tensor for state in self.states.values() for tensor in state.values()]
        return [*self.tensors.values(), *states, *self.sgd.velocity]

    def _update(self, batch: Tree) -> tuple[Tensor, Tensor]:
        """Take one step of SGD; return the losses at T=1 and the objectives [K] before it."""
        for name in self.names:
            self.tensors[name].requires_grad_()
        params = [self.tensors[name] for name in self.names]
        values, figures, buffers = self._vmap(self._forward, batch)
        gradients = torch.autograd.grad(
            values.sum(), params, allow_unused=True, materialize_grads=True
        )
        with torch.no_grad():
            steps = self._transform(False, self.sgd.add_weight_decay([*gradients], params), batch)
            steps = self._transform(True, self.sgd.apply_momentum(steps), batch)
            self.sgd.step(params, steps)
            assign(self.tensors, buffers)
            losses, objectives = figures
            return losses, reported_objective(self.rules, self.states, objectives)

    def _transform(self, after: bool, gradients: list[Tensor], batch: Tree) -> list[Tensor]:
        """Apply the transforms behind the momentum, or those before it; assign their states."""
        transforms = [t for t in self.rules.transforms if t.after_momentum == after]
        if not transforms:
            return gradients

        def update(tensors: Tensors, fixed: Tree, batch: Tree, *given: Any) -> Any:
            gradients, states = given
            view, samples = self._view(tensors, fixed), self._samples(batch)
            changed = {}
            for each in transforms:
                state = states[each.name]
                gradients, changed[each.name] = each.update(view, gradients, samples, state)
            return gradients, changed

        named = dict(zip(self.names, gradients, strict=True))
        states = {each.name: self.states[each.name] for each in transforms}
        named, changed = self._vmap(update, batch, named, states)
        for name, state in changed.items():
            assign(self.states[name], state)
        return [named[name] for name in self.names]

    def _vmap(self, function: Callable[..., Any], *stacked: Tree) -> Any:
        axes = (0, self.axes, *(0 for _ in stacked))
        every = vmap(function, in_dims=axes, randomness="different")
        return every(self.tensors, self.fixed, *stacked)

    def _forward(self, tensors: Tensors, fixed: Tree, batch: Tree) -> tuple[Tensor, Any, Tensors]:
        """Return what is differentiated, the loss at T=1 and the objective, and new statistics."""
        samples, view = self._samples(batch), self._view(tensors, fixed)
        outputs, buffers = self._outputs(tensors, samples)
        value = objective(self.rules, view, outputs, samples)
        with torch.no_grad():
            found = value.detach()
            loss = found if self.loss_is_objective else samples.loss(outputs.logits)
            return value, (loss, found), buffers

    def _samples(self, batch: Tree) -> Batch:
        return _Stacked(**batch, scoring=self.job.data.scoring)

    def _outputs(self, tensors: Tensors, batch: Batch) -> tuple[Outputs, Tensors]:
        """Return outputs in training mode, and the statistics that BatchNorm would record."""
        with self.trainer.padding.of(batch.weights) as updates, self.sequential.autocast():
            return self.trainer.network.at(tensors, batch.x).in_float32(), updates

    def _view(self, tensors: Tensors, fixed: Tree) -> View:
        return View(
            params=tensors,
            trainable=self.names,
            start=fixed["start"],
            broadcast=self.job.broadcast,
            state=fixed["state"],
            personal=fixed["personal"],
            temperature=self.local.temperature,
            generator=only_in_finish,
            at=self.sequential.at,
            gradient=partial(self._gradient, fixed),
        )

    def _view_of(self, k: int) -> View:
        own = {"start": self.starts[k], "state": self.jobs[k].state}
        tensors = {name: tensor[k].detach() for name, tensor in self.tensors.items()}
        view = self._view(tensors, {**own, "personal": self.jobs[k].personal})
        gradient = partial(self.sequential.gradient, self.rules, view)
        return replace(view, generator=self.jobs[k].generator, gradient=gradient)

    def _gradient(self, fixed: Tree, tensors: Tensors, batch: Batch) -> Tensors:
        """Return the gradient of the objective at any tensors, with this step's random draws."""

        def value(points: dict[str, Tensor]) -> Tensor:
            everything = {**tensors, **points}
            outputs, _ = self._outputs(everything, batch)
            return objective(self.rules, self._view(everything, fixed), outputs, batch)

        points = {name: tensors[name] for name in self.names}
        before = self.sequential.rng_state()
        self.sequential.set_rng_state(self.rng)
        with torch.enable_grad():
            gradients = grad(value)(points)
        self.sequential.set_rng_state(before)
        decay = self.local.weight_decay
        return {n: g + decay * points[n] if decay else g for n, g in gradients.items()}
