"""Local training of several clients at once: their tensors stacked, one step for all of them.

For devices on which a small network's step is launch-bound: K clients cost about as many launches
as one. Steps and batches that a client lacks are padded and masked, so a client's result is that of
the sequential trainer up to rounding. With dropout it is another draw of the same distribution.

Legend: K clients, S steps, B batch.
"""

from __future__ import annotations

import copy
from collections.abc import Callable, Sequence
from contextlib import nullcontext
from dataclasses import replace
from functools import partial
from typing import Any

import torch
from torch import Tensor
from torch.func import grad, vmap

from raysim.core.rules import Batch, Outputs, Trained, Upload, View
from raysim.core.tensors import CPU, Tensors
from raysim.training.job import ClientJob, LocalLosses, only_in_finish
from raysim.training.network import Network
from raysim.training.sequential import SequentialTrainer
from raysim.training.sgd import objective, reported_objective
from raysim.training.stacked.batch_norm import Padding, with_padding
from raysim.training.stacked.batches import stacked_batches
from raysim.training.stacked.cuda_graphs import GraphedSteps, recorder_on
from raysim.training.stacked.numbers import Step, StepNumbers, UnstackableError
from raysim.training.stacked.sgd import StackedSgd
from raysim.training.stacked.stacks import (
    Shape,
    Tree,
    assign,
    split_by_layout,
    spread,
    stack_sets,
    stack_trees,
)


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

    def run(
        self,
        jobs: Sequence[ClientJob],
        trainers: Sequence[SequentialTrainer] = (),
        *,
        shape: Shape | None = None,
    ) -> list[tuple[Upload, LocalLosses]]:
        """Train clients; return what each gives back, with its figures.

        Args:
            jobs: Those of one pass, or of passes of several runs that differ in numbers alone.
            trainers: The trainer of each client's run, which has its local settings; none where all
                are of the run of this one.
            shape: One shape of all stacks, so that no client's bits depend on those beside it.

        Raises:
            UnstackableError: rules or local settings differ in more than numbers, or steps of
                stacks of one shape draw random numbers.
        """
        trainers = trainers or [self.sequential] * len(jobs)
        before = self.sequential.rng_state()
        self.sequential.seed(jobs[0].torch_seed)
        seeded = self.sequential.rng_state()
        results: dict[int, tuple[Upload, LocalLosses]] = {}
        try:
            with self.recorder.stream_context() if self.recorder else nullcontext():
                for numbers in split_by_layout(jobs):
                    if not jobs[numbers[0]].epochs:
                        results |= {n: trainers[n].run(jobs[n]) for n in numbers}
                        continue
                    own = [(jobs[number], trainers[number]) for number in numbers]
                    places = [shape.places[n] if shape else i for i, n in enumerate(numbers)]
                    own = spread(own, places, shape.clients if shape else len(own))
                    group = _StackedTraining(self, *zip(*own, strict=True), shape=shape)
                    results |= zip(numbers, group.run(places), strict=True)
            if shape and not all(map(torch.equal, seeded, self.sequential.rng_state())):
                raise UnstackableError("random numbers are drawn in a step, as by dropout")
            return [results[number] for number in range(len(jobs))]
        finally:
            self.sequential.set_rng_state(before)


class _StackedTraining:
    """The training of clients whose tensors have the same names and shapes."""

    def __init__(
        self,
        trainer: StackedTrainer,
        jobs: Sequence[ClientJob],
        trainers: Sequence[SequentialTrainer],
        *,
        shape: Shape | None,
    ) -> None:
        equal, self.rows = shape is not None, shape.rows if shape else 0
        self.trainer, self.jobs, self.trainers = trainer, jobs, trainers
        job = self.job = jobs[0]
        self.rules, self.sequential = job.rules, trainer.sequential
        self.local = trainer.sequential.local
        trainer.network.train_only(job.trainable)
        self.names = trainer.network.trainable_names(job.trainable)
        local, device = [each.local for each in trainers], job.data.y.device
        self.numbers = StepNumbers([each.rules for each in jobs], local, device, equal)
        self.starts = [j.rules.start(j.broadcast, j.state, j.personal) for j in jobs]
        self.given = [
            {"start": start, "broadcast": j.broadcast, "state": j.state, "personal": j.personal}
            for start, j in zip(self.starts, jobs, strict=True)
        ]
        self.fixed, self.axes = stack_trees(self.given, equal)
        self.fixed["numbers"], self.axes["numbers"] = self.numbers.columns, 0
        self.tensors = stack_sets(self.starts)
        self.sgd = StackedSgd(local, [each.lr for each in jobs], device, equal)
        scaled = equal or any(each.temperature != 1 for each in local)
        self.loss_is_objective = not (job.rules.criterion or job.rules.penalties or scaled)
        views = [self._view_of(k) for k in range(len(jobs))]
        self.states = {
            t.name: stack_sets(
                [j.rules.transforms[n].init(v) for j, v in zip(jobs, views, strict=True)]
            )
            for n, t in enumerate(job.rules.transforms)
        }
        self.rng = self.sequential.rng_state()

    def run(self, places: Sequence[int]) -> list[tuple[Upload, LocalLosses]]:
        losses: list[Tensor] = []
        objectives: list[Tensor] = []
        batch_sizes: list[list[int]] = [[] for _ in self.jobs]
        step = GraphedSteps(self._step, self.trainer.recorder)
        norm = self.sequential.network.has_batchnorm
        size = self.local.batch_size
        for batch, sizes, repeats in stacked_batches(self.jobs, size, norm, self.rows):
            if self.rules.transforms:
                self.rng = self.sequential.rng_state()
            loss, value = step(batch, repeats)
            losses.append(loss)
            objectives.append(value)
            for own, size in zip(batch_sizes, sizes, strict=True):
                own.append(size)
        both = torch.stack([torch.stack(losses), torch.stack(objectives)]).cpu()  # [2, S, K]
        return [self._finish(k, both[:, :, k], batch_sizes[k]) for k in places]

    def _finish(self, k: int, figures: Tensor, sizes: list[int]) -> tuple[Upload, LocalLosses]:
        own = [step for step, size in enumerate(sizes) if size]
        states = {
            name: {key: tensor[k] for key, tensor in state.items()}
            for name, state in self.states.items()
        }
        trained = Trained(len(own), self.jobs[k].lr, states, self.jobs[k].data)
        with torch.no_grad():
            upload = self.jobs[k].rules.finish(self._view_of(k), trained)
        loss, value = figures[:, own]
        return upload, LocalLosses.of(loss, value, [sizes[step] for step in own])

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
        names = {t.name for t in self.rules.transforms if t.after_momentum == after}
        if not names:
            return gradients

        def update(tensors: Tensors, fixed: Tree, batch: Tree, *given: Any) -> Any:
            gradients, states = given
            step, samples = self._step_of(fixed), self._samples(batch)
            view, changed = self._view(tensors, fixed, step), {}
            for each in step.rules.transforms:
                if each.name in names:
                    state = states[each.name]
                    gradients, changed[each.name] = each.update(view, gradients, samples, state)
            return gradients, changed

        named = dict(zip(self.names, gradients, strict=True))
        states = {name: self.states[name] for name in names}
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
        samples, step = self._samples(batch), self._step_of(fixed)
        outputs, buffers = self._outputs(tensors, samples)
        value = objective(step.rules, self._view(tensors, fixed, step), outputs, samples)
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

    def _step_of(self, fixed: Tree) -> Step:
        return self.numbers.at(fixed["numbers"])

    def _view(self, tensors: Tensors, fixed: Tree, step: Step) -> View:
        return View(
            params=tensors,
            trainable=self.names,
            start=fixed["start"],
            broadcast=fixed["broadcast"],
            state=fixed["state"],
            personal=fixed["personal"],
            temperature=step.temperature,
            generator=only_in_finish,
            at=self.sequential.at,
            gradient=partial(self._gradient, fixed),
        )

    def _view_of(self, k: int) -> View:
        job, own = self.jobs[k], self.trainers[k]
        step = Step(job.rules, own.local.temperature, own.local.weight_decay)
        tensors = {name: tensor[k].detach() for name, tensor in self.tensors.items()}
        view = self._view(tensors, self.given[k], step)
        gradient = partial(own.gradient, job.rules, view)
        return replace(view, generator=job.generator, gradient=gradient)

    def _gradient(self, fixed: Tree, tensors: Tensors, batch: Batch) -> Tensors:
        """Return the gradient of the objective at any tensors, with this step's random draws."""
        step = self._step_of(fixed)

        def value(points: dict[str, Tensor]) -> Tensor:
            everything = {**tensors, **points}
            outputs, _ = self._outputs(everything, batch)
            view = self._view(everything, fixed, step)
            return objective(step.rules, view, outputs, batch)

        points = {name: tensors[name] for name in self.names}
        before = self.sequential.rng_state()
        self.sequential.set_rng_state(self.rng)
        with torch.enable_grad():
            gradients: Tensors = grad(value)(points)
        self.sequential.set_rng_state(before)
        decay = step.weight_decay
        if not isinstance(decay, Tensor) and not decay:
            return gradients
        return {name: gradient + decay * points[name] for name, gradient in gradients.items()}
