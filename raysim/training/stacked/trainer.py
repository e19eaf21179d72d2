"""Local training of several clients at once, with stacked tensors and common steps.

On some devices a small network's step is launch-bound: there K clients cost about as many launches
as one. Missing steps and batches of a client are padded and masked, so its result equals the
sequential trainer's up to rounding. With dropout it is another draw of the same distribution.

Legend: K clients, S steps, B batch.
"""

from __future__ import annotations

import copy
from collections.abc import Callable, Sequence
from contextlib import nullcontext
from dataclasses import replace
from functools import cached_property, partial
from typing import Any

import torch
from torch import Tensor

from raysim.api.rules import LocalValues, Trained, Upload, View
from raysim.numbers.given import Given
from raysim.numbers.tensors import CPU, Tensors
from raysim.training.companions import Beside
from raysim.training.job import ClientJob, LocalLosses, batch_bounds, steps_of
from raysim.training.network import Network
from raysim.training.objective import reported_objective
from raysim.training.sequential import SequentialTrainer
from raysim.training.stacked.batch_norm import Padding, with_padding
from raysim.training.stacked.batches import padded_twice, stacked_batches
from raysim.training.stacked.cuda_graphs import recorder_on
from raysim.training.stacked.stacks import (
    assign,
    copy_tree,
    leaves,
    split_by_layout,
    stack_sets,
    stack_trees,
)
from raysim.training.stacked.step import KeptSteps, StackedStep
from raysim.training.stacked.update import StackedUpdate
from raysim.training.tail_average import TailAverage


class UnstackableError(Exception):
    """Error of a loss or a step that cannot be stacked."""


class StackedTrainer:
    """Trains clients stacked, on a copy of the sequential trainer's network."""

    def __init__(self, sequential: SequentialTrainer, note: Callable[[str], None]) -> None:
        self.sequential = sequential
        self.padding = Padding()
        module = with_padding(copy.deepcopy(sequential.network.module), self.padding)
        self.network = Network(module)
        device = next((p.device for p in module.parameters()), CPU)
        self.recorder = recorder_on(device, note)
        self.kept = KeptSteps(self.recorder)

    def run(self, jobs: Sequence[ClientJob]) -> list[tuple[Upload, LocalLosses]]:
        """Train the clients of one pass; return each one's upload and losses.

        Raises:
            UnstackableError: the loss is of whole batches.
        """
        if jobs[0].data.scoring.whole_batch:
            raise UnstackableError("the task's loss is of whole batches, which a stack pads")
        jobs = [job.with_samples_read() for job in jobs]
        before = self.sequential.rng_state()
        self.sequential.seed(jobs[0].torch_seed)
        results: dict[int, tuple[Upload, LocalLosses]] = {}
        try:
            with self.recorder.stream_context() if self.recorder else nullcontext():
                for numbers in split_by_layout(jobs):
                    of_stack = [jobs[number] for number in numbers]
                    train = self._train if of_stack[0].epochs else partial(map, self.sequential.run)
                    results |= zip(numbers, train(of_stack), strict=True)
            return [results[number] for number in range(len(jobs))]
        finally:
            self.sequential.set_rng_state(before)

    def check_padding(self, jobs: Sequence[ClientJob]) -> None:
        """Check that a step does not depend on the samples that pad a batch.

        Two paddings of real samples must give the same bits. Values that are not finite would not
        do: they pass through a weight of 0.

        Args:
            jobs: Jobs as of `run`, which are left as they were.

        Raises:
            UnstackableError: a step depends on them.
        """
        before = self.sequential.rng_state()
        for numbers in split_by_layout(jobs):
            if jobs[numbers[0]].epochs:
                of_stack = [jobs[n].with_samples_read() for n in numbers]
                training, outcomes = _StackedTraining(self, of_stack), []
                for batch in padded_twice(of_stack):
                    try:
                        outcomes.append(training.outcome(batch))
                    finally:
                        self.sequential.set_rng_state(before)
                if not all(map(_have_same_values, *outcomes)):
                    raise UnstackableError(
                        "the model or a rule of the method looks at all samples of a batch, which"
                        " a stack pads"
                    )

    def _train(self, jobs: Sequence[ClientJob]) -> list[tuple[Upload, LocalLosses]]:
        """Train a group; if memory is short, again without kept steps."""
        drawn = [copy.deepcopy(job.batches) for job in jobs]
        rng = self.sequential.rng_state()
        try:
            return _StackedTraining(self, jobs).run()
        except torch.OutOfMemoryError:
            if not self.kept.give_up():
                raise
        torch.cuda.empty_cache()
        self.sequential.set_rng_state(rng)
        again = [replace(job, batches=own) for job, own in zip(jobs, drawn, strict=True)]
        return _StackedTraining(self, again).run()


class _StackedTraining:
    """Training of clients with the same tensor names and shapes."""

    def __init__(self, trainer: StackedTrainer, jobs: Sequence[ClientJob]) -> None:
        self.jobs, job = jobs, jobs[0]
        self.rules, self.sequential = job.rules, trainer.sequential
        trainer.network.train_only(job.trainable)
        self.given = [_given_to(each) for each in jobs]
        self.left = [Given.of_view(given) for given in self.given]
        fixed, axes = stack_trees(self.given)
        fixed["values"], axes["values"] = self._values()
        self.update = self._updates()
        other = job.data.scoring.reported or not all(j.values.keeps_loss for j in jobs)
        self.tensors = stack_sets(
            [given["start"] for given in self.given]
        )  # the views below are views of these
        step = self.step = StackedStep(
            sequential=self.sequential,
            network=trainer.network,
            padding=trainer.padding,
            rules=job.rules,
            trainable=job.trainable,
            names=trainer.network.trainable_names(job.trainable),
            update=self._updates(),
            momentum=not self.update.optimizer.keeps_gradient,
            scoring=job.data.scoring,
            loss_is_objective=job.rules.are_plain and not other,
            tensors=self.tensors,
            fixed=fixed,
            axes=axes,
        )
        step.states, self.beside = self._first_states(), self._companions()
        self.step, self.steps = trainer.kept.of(step)
        self.is_kept = self.step is not step
        self.stacked = Given.of_view(self.step.fixed)
        self.tensors, self.states = self.step.tensors, self.step.states
        params = [self.tensors[name].detach() for name in step.names]
        self.update.start_each(params, step.names, [each.optimizer for each in jobs])

    def _updates(self) -> StackedUpdate:
        """Return the updates of tensors of all clients."""
        local, optimizer = self.sequential.local, self.sequential.optimizer
        return StackedUpdate(local, optimizer, [job.lr for job in self.jobs], self._device)

    def _values(self) -> tuple[dict[str, float | Tensor], dict[str, int | None]]:
        """Return values of local training, of all clients or of each [K], and their axes."""
        values: dict[str, float | Tensor] = {}
        axes: dict[str, int | None] = {}
        for name in LocalValues._fields:
            by_job = [getattr(job.values, name) for job in self.jobs]
            alike = len({*by_job}) == 1
            stacked = partial(torch.tensor, by_job, dtype=torch.float32, device=self._device)
            values[name], axes[name] = (by_job[0], None) if alike else (stacked(), 0)
        return values, axes

    @property
    def _device(self) -> torch.device:
        return self.jobs[0].data.y.device

    def _first_states(self) -> dict[str, dict[str, Tensor]]:
        """Return the states of the transforms before the first step."""
        views = [(job.rules, self._view_of(k)) for k, job in enumerate(self.jobs)]
        return {
            transform.name: stack_sets([rules.transforms[n].init(view) for rules, view in views])
            for n, transform in enumerate(self.rules.transforms)
        }

    def _companions(self) -> dict[str, Beside]:
        """Return the rules' companions at their start, by name."""
        views = [self._view_of(k) for k in range(len(self.jobs))] if self.rules.companions else []
        return {
            companion.name: Beside(
                stack_sets([companion.start(view) for view in views]),
                stack_sets([companion.init(view) for view in views]),
                self._updates(),
            )
            for companion in self.rules.companions
        }

    @cached_property
    def _rates(self) -> Tensor:
        """Learning rate of each client [K]."""
        rates = [job.lr for job in self.jobs]
        return torch.tensor(rates, dtype=torch.float32, device=self._device)

    def run(self) -> list[tuple[Upload, LocalLosses]]:
        losses: list[Tensor] = []
        objectives: list[Tensor] = []
        batch_sizes: list[list[int]] = [[] for _ in self.jobs]
        norm = self.sequential.network.has_batchnorm
        batching = self.sequential.local.batching
        tail = self._tail_average()
        for batch, sizes, repeats in stacked_batches(self.jobs, batching, norm):
            loss, value = self._take(batch, repeats)
            if tail:
                with torch.no_grad():
                    tail.after_step([size > 0 for size in sizes])
            losses.append(loss)
            objectives.append(value)
            for client_sizes, size in zip(batch_sizes, sizes, strict=True):
                client_sizes.append(size)
        if tail:
            with torch.no_grad():
                tail.settle()
        self.stacked.check_left("a rule of local training")
        if self.is_kept:  # the next group overwrites them
            self.tensors, self.states = copy_tree(self.tensors), copy_tree(self.states)
        both = torch.stack([torch.stack(losses), torch.stack(objectives)]).cpu()  # [2, S, K]
        return [self._finish(k, both[:, :, k], batch_sizes[k]) for k in range(len(self.jobs))]

    def _tail_average(self) -> TailAverage | None:
        """Return the running means over each client's last steps, if some are averaged."""
        share = self.sequential.local.tail_average
        if not share:
            return None
        norm, batching = self.sequential.network.has_batchnorm, self.sequential.local.batching
        batches = [len(batch_bounds(len(job.data.y), batching, norm)) for job in self.jobs]
        steps = [steps_of(job.epochs, n) for job, n in zip(self.jobs, batches, strict=True)]
        params = [self.step.tensors[name].detach() for name in self.step.names]
        return TailAverage(params, steps, share)

    def _finish(self, k: int, figures: Tensor, sizes: list[int]) -> tuple[Upload, LocalLosses]:
        taken = [step for step, size in enumerate(sizes) if size]
        beside = {name: each.state for name, each in self.beside.items()}
        states = {
            name: {key: tensor[k] for key, tensor in state.items()}
            for name, state in {**self.states, **beside}.items()
        }
        kept = self.update.kept_of(k, self.step.names)
        job = self.jobs[k]
        trained = Trained(
            steps=len(taken),
            lr=job.lr,
            states=states,
            samples=job.data,
            optimizer=kept,
            solver=self.sequential.optimizer,
            transforms=job.rules.transforms,
            batching=self.sequential.local.batching,
            companions={
                name: {key: tensor[k] for key, tensor in each.tensors.items()}
                for name, each in self.beside.items()
            },
        )
        with torch.no_grad():
            upload = job.rules.finish(self._view_of(k), trained)
        self.left[k].check_left("finish")
        loss, value = figures[:, taken]
        return upload, LocalLosses.of(loss, value, [sizes[step] for step in taken])

    def outcome(self, batch: Tensors) -> list[Tensor]:
        """Return all that a step on a batch changes, before the momentum; change nothing."""
        step, count = self.step.on_its_own(), len(self.step.names)
        rng = self.sequential.rng_state()
        losses, objectives, *more = step.direction(batch)
        with torch.no_grad():
            directions = more[:count]
            if step.momentum:
                directions = step.transform(True, directions, batch, rng)
            beside = {}
            if self.beside:
                trees = {name: each.tree() for name, each in self.beside.items()}
                stepped = step.beside(trees, batch, rng, self._rates)
                beside = {name: dict(enumerate(each)) for name, each in stepped.items()}
        changed = {"tensors": step.tensors, "states": step.states, "beside": beside}
        moved = [tensor.detach() for _, tensor in leaves(changed)]
        return [losses, objectives, *directions, *more[count:], *moved]

    def _take(self, inputs: Tensors, repeats: int) -> tuple[Tensor, Tensor]:
        """Take a step; clients without samples left in this epoch do not change."""
        batch = dict(inputs)
        active = batch.pop("active", None)
        if active is None:
            return self._update(batch, repeats)
        with torch.no_grad():
            before = [tensor.clone() for tensor in self._moving()]
        outcome = self._update(batch, repeats)
        with torch.no_grad():
            for now, then in zip(self._moving(), before, strict=True):
                now.copy_(torch.where(active.view(-1, *(1,) * (now.dim() - 1)), now, then))
        return outcome

    def _moving(self) -> list[Tensor]:
        states = [tensor for state in self.step.states.values() for tensor in state.values()]
        beside = [tensor for own in self.beside.values() for tensor in own.moving()]
        return [*self.step.tensors.values(), *states, *self.update.moving(), *beside]

    def _update(self, batch: Tensors, repeats: int) -> tuple[Tensor, Tensor]:
        """Take one step; return the losses at T=1 and the objectives [K] before it."""
        step, count = self.step, len(self.step.names)
        rng = self.sequential.rng_state() if step.momentum or self.beside else []
        losses, objectives, *more = self.steps(batch, repeats)
        with torch.no_grad():
            directions = self.update.directions(more[:count])
            if step.momentum:
                directions = step.transform(True, directions, batch, rng)
            params = [step.tensors[name] for name in step.names]
            self.update.move(params, self.update.add_decoupled_decay(directions, params))
            assign(step.tensors, dict(zip(step.buffers, more[count:], strict=True)))
            if self.beside:
                own = {name: each.tree() for name, each in self.beside.items()}
                for name, found in step.beside(own, batch, rng, self._rates).items():
                    self.beside[name].step(*found)
            return losses.clone(), reported_objective(self.rules, step.states, objectives).clone()

    def _view_of(self, k: int) -> View:
        job = self.jobs[k]
        tensors = {name: tensor[k].detach() for name, tensor in self.tensors.items()}
        view = self.step.view(tensors, {**self.given[k], "values": job.values._asdict()})
        gradient = partial(self.sequential.gradient, job.rules, view)
        return replace(job.finishing(view, gradient), at=self.sequential.at)


def _given_to(job: ClientJob) -> dict[str, Any]:
    """Return the parts of a client's view that it reads."""
    start = job.rules.start(job.broadcast, job.state, job.personal)
    groups = {"broadcast": job.broadcast, "state": job.state, "personal": job.personal}
    return {"start": start, **groups}


def _have_same_values(first: Tensor, second: Tensor) -> bool:
    """Return whether tensors are equal; a gradient of padding may be 0 or -0."""
    return torch.allclose(first, second, rtol=0, atol=0, equal_nan=True)
