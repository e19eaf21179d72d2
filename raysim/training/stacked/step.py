"""The part of a stack's step that comes before the momentum, as a function of tensors.

All that differs between groups of one kind lies in tensors, so what was recorded for one group can
be played for the next ones, once their tensors are copied to where it reads them. The momentum and
the move itself, by a rate that rounds change, are a few launches and not part of it.

Legend: K clients.
"""

from __future__ import annotations

from collections.abc import Callable, Hashable, Sequence
from contextlib import suppress
from dataclasses import dataclass, field, replace
from functools import partial
from typing import Any

import torch
from torch import Tensor
from torch.func import grad, vmap

from raysim.core.rules import Batch, Outputs, Rules, View
from raysim.core.scoring import Scoring
from raysim.core.tensors import Tensors
from raysim.training.job import only_in_finish
from raysim.training.network import Network
from raysim.training.rule_keys import functions_of_step, key_of_rules
from raysim.training.sequential import SequentialTrainer
from raysim.training.sgd import objective
from raysim.training.stacked.batch_norm import Padding
from raysim.training.stacked.cuda_graphs import NO_MEMORY, GraphedSteps, GraphRecorder
from raysim.training.stacked.numbers import Step, StepNumbers
from raysim.training.stacked.sgd import StackedSgd
from raysim.training.stacked.stacks import Tree, assign, copy_tree, leaves

MAX_KINDS = 8
"""Kinds of steps whose tensors and recordings are kept."""


class _Stacked(Batch):
    """One client's batch among those of others; its loss needs no index, padded or not."""

    def loss(self, logits: Tensor) -> Tensor:
        return self.mean(self.losses(logits))


@dataclass
class StackedStep:
    """The tensors of K clients, and what a step does with them before the momentum.

    Attributes:
        sequential: Runs networks at any tensors, and has the generators of a step.
        network: The network, without its own BatchNorm.
        padding: What its layers share in a pass.
        rules: The rules of one of the clients.
        numbers: The rules and settings of all.
        trainable: What is trained, and the names of that.
        names: See `trainable`.
        sgd: Adds the weight decay.
        momentum: Whether transforms behind the momentum are left to the caller.
        scoring: Compares outputs with targets.
        loss_is_objective: Whether the loss at T=1 is what is minimised.
        tensors: Parameters and buffers, each [K, ...].
        fixed: What no step changes.
        axes: The axes along which that is stacked.
        states: Those of the transforms.
        buffers: Names of the buffers whose new values a step returns.
    """

    sequential: SequentialTrainer
    network: Network
    padding: Padding
    rules: Rules
    numbers: StepNumbers
    trainable: frozenset[str] | None
    names: Sequence[str]
    sgd: StackedSgd
    momentum: bool
    scoring: Scoring
    loss_is_objective: bool
    tensors: dict[str, Tensor]
    fixed: dict[str, Any]
    axes: dict[str, Any]
    states: dict[str, dict[str, Tensor]] = field(default_factory=dict)
    buffers: Sequence[str] = ()

    def key(self) -> Hashable | None:
        """Return what is equal for steps that differ in values of tensors alone, or None."""
        rules = key_of_rules(self.rules, self.rules.transforms)
        if rules is None or self.numbers.columns:
            return None
        order: dict[int, int] = {}
        layout = tuple(
            (path, t.dtype, t.shape, t.stride(), order.setdefault(id(t), len(order)))
            for path, t in leaves(self._trees())
        )
        return rules, self.trainable, layout, repr(self.axes)

    def _trees(self) -> Tree:
        return {"tensors": self.tensors, "fixed": self.fixed, "states": self.states}

    def on_its_own(self) -> StackedStep:
        """Return this step on tensors that nothing else reads."""
        return replace(
            self,
            tensors=copy_tree(self.tensors),
            fixed=copy_tree(self.fixed),
            states=copy_tree(self.states),
        )

    def take_in(self, other: StackedStep) -> None:
        """Copy the tensors of another step with the same key."""
        with torch.no_grad():
            for (_, own), (_, its) in zip(
                leaves(self._trees()), leaves(other._trees()), strict=True
            ):
                own.copy_(its)

    def direction(self, batch: Tree) -> tuple[Tensor, ...]:
        """Return the losses at T=1 and the objectives [K], the directions, and new buffers."""
        rng = self._rng_at_start()
        for name in self.names:
            self.tensors[name].requires_grad_()
        params = [self.tensors[name] for name in self.names]
        values, (losses, objectives), buffers = self._vmap(self._forward, batch)
        gradients = torch.autograd.grad(
            values.sum(), params, allow_unused=True, materialize_grads=True
        )
        with torch.no_grad():
            steps = self.sgd.add_weight_decay([*gradients], params)
            steps = self.transform(False, steps, batch, rng)
            if not self.momentum:
                steps = self.transform(True, steps, batch, rng)
        self.buffers = [*buffers]
        return losses, objectives, *steps, *buffers.values()

    def _rng_at_start(self) -> list[Tensor]:
        """Return the states of the generators; in a recording they count from its beginning."""
        if self.rules.transforms:
            with suppress(RuntimeError):  # torch before 2.10 tells none there, nor to `_gradient`
                return self.sequential.rng_state()
        return []

    def transform(
        self, after: bool, gradients: list[Tensor], batch: Tree, rng: Sequence[Tensor]
    ) -> list[Tensor]:
        """Apply the transforms behind the momentum, or those before it; assign their states.

        The generators had the states `rng` at the start of the step.
        """
        names = {t.name for t in self.rules.transforms if t.after_momentum == after}
        if not names:
            return gradients

        def update(tensors: Tensors, fixed: Tree, batch: Tree, *given: Any) -> Any:
            gradients, states = given
            step, samples = self._step_of(fixed), self._samples(batch)
            view, changed = self.view(tensors, fixed, step, rng), {}
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
        value = objective(step.rules, self.view(tensors, fixed, step), outputs, samples)
        with torch.no_grad():
            found = value.detach()
            loss = found if self.loss_is_objective else samples.loss(outputs.logits)
            return value, (loss, found), buffers

    def _samples(self, batch: Tree) -> Batch:
        return _Stacked(**batch, scoring=self.scoring)

    def _outputs(self, tensors: Tensors, batch: Batch) -> tuple[Outputs, Tensors]:
        """Return outputs in training mode, and what BatchNorm records or `forward` binds anew."""
        with self.padding.of(batch.weights) as updates, self.sequential.autocast():
            reads = functions_of_step(self.rules, self.rules.transforms)  # `forward` may change x
            x = batch.x.clone() if reads else batch.x
            outputs, rebound = self.network.at_with_rebound(tensors, x)
            # Copies, as one may be another buffer's tensor before this step.
            copies = {name: tensor.detach().clone() for name, tensor in rebound.items()}
            return outputs.in_float32(), updates | copies

    def _step_of(self, fixed: Tree) -> Step:
        return self.numbers.at(fixed["numbers"])

    def view(self, tensors: Tensors, fixed: Tree, step: Step, rng: Sequence[Tensor] = ()) -> View:
        """Return a client's view, of its part of the tensors."""
        return View(
            params=tensors,
            trainable=self.names,
            start=fixed["start"],
            broadcast=fixed["broadcast"],
            state=fixed["state"],
            personal=fixed["personal"],
            temperature=step.temperature,
            generator=only_in_finish,
            at=self._at,
            gradient=partial(self._gradient, fixed, rng),
            frozen=self.sequential.network.frozen_names,
        )

    def _at(self, tensors: Tensors, x: Tensor) -> Outputs:
        """Return the outputs at any tensors, as `SequentialTrainer.at`.

        Not in a memory layout of their own: tensors of a stack cannot be copied into another.
        """
        frozen = self.sequential.frozen
        with torch.no_grad(), self.sequential.autocast():
            return frozen.at(frozen.aside(tensors), x.clone()).in_float32()

    def _gradient(
        self, fixed: Tree, rng: Sequence[Tensor], tensors: Tensors, batch: Batch
    ) -> Tensors:
        """Return the gradient of the objective at any tensors, with this step's random draws."""
        step = self._step_of(fixed)

        def value(points: dict[str, Tensor]) -> Tensor:
            everything = {**self.network.aside(tensors), **points}
            outputs, _ = self._outputs(everything, batch)
            view = self.view(everything, fixed, step)
            return objective(step.rules, view, outputs, batch)

        points = {name: tensors[name] for name in self.names}
        before = self.sequential.rng_state()
        self.sequential.set_rng_state(rng)
        with torch.enable_grad():
            gradients: Tensors = grad(value)(points)
        self.sequential.set_rng_state(before)
        decay = step.weight_decay
        if not isinstance(decay, Tensor) and not decay:
            return gradients
        return {name: gradient + decay * points[name] for name, gradient in gradients.items()}


class KeptSteps:
    """Steps whose tensors stay where they are, from group to group, with their recordings."""

    def __init__(self, recorder: GraphRecorder | None) -> None:
        self._recorder = recorder
        self._kinds: dict[Hashable, tuple[StackedStep, GraphedSteps]] = {}

    def of(self, step: StackedStep) -> tuple[StackedStep, GraphedSteps]:
        """Return a step that does the same on tensors of the same values, and what takes it.

        It is the step itself where nothing is recorded, or its rules have no key.
        """
        if self._recorder and not self._recorder.works:
            self._kinds.clear()
            return step, GraphedSteps(step.direction, None)
        key = step.key() if self._recorder else None
        if key is None:
            return step, GraphedSteps(step.direction, self._recorder)
        if key in self._kinds:
            self._kinds[key][0].take_in(step)
        else:
            if len(self._kinds) == MAX_KINDS:
                self._kinds.clear()
            kept = step.on_its_own()
            self._kinds[key] = kept, GraphedSteps(kept.direction, self._recorder)
        return self._kinds[key]

    def give_up(self) -> bool:
        """Free what is kept and record no more: memory is short. Return whether that may help."""
        if self._recorder is None or not (self._kinds or self._recorder.works):
            return False
        self._kinds.clear()
        if self._recorder.works:
            self._recorder.give_up(NO_MEMORY)
        return True
