"""Step of a stack, as a function of tensors that changes them in place.

Groups of one kind differ only in tensors, among them learning rates and values of local training.
So the recording of one group can be replayed for the next ones, once their tensors are copied into
the recorded ones.

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

from raysim.api.rules import Batch, LocalValues, Outputs, Rules, View, only_in_finish
from raysim.api.scoring import Scoring
from raysim.numbers.tensors import Tensors
from raysim.training.companions import Beside
from raysim.training.network import Network
from raysim.training.objective import inner_product, objective, reported_objective
from raysim.training.rule_keys import functions_of_step, key_of_rules
from raysim.training.sequential import SequentialTrainer
from raysim.training.stacked.batch_norm import Padding
from raysim.training.stacked.cuda_graphs import GraphedSteps, GraphRecorder
from raysim.training.stacked.stacks import Tree, assign, copy_tree, leaves
from raysim.training.tensor_update import TensorUpdate
from raysim.training.update import coupled_decay

MAX_KINDS = 8
"""Most kinds of steps to keep, with their tensors and recordings."""


class _Stacked(Batch):
    """One client's batch in a stack; its loss needs no indexing, padded or not."""

    def loss(self, logits: Tensor) -> Tensor:
        return self.mean_of_losses(logits)


@dataclass
class StackedStep:
    """Tensors of K clients, and their step.

    Attributes:
        sequential: Runs networks at given tensors, and has the generators of a step.
        network: The network, with BatchNorm replaced.
        padding: Padding and statistics that its layers share in a forward pass.
        rules: The rules of local training.
        trainable: Setting of the trained parameters, as of a pass.
        names: Names of the trained parameters.
        update: The updates of the parameters.
        scoring: Compares outputs with targets.
        loss_is_objective: Whether the loss at T=1 is the objective.
        tensors: Parameters and buffers, each [K, ...].
        fixed: Tensors that no step changes, and values of local training: one for all, or each
            client's [K].
        axes: The axes along which `fixed` is stacked.
        rates: Learning rates times -1: [], or [K] where they differ, or a number.
        states: States of the transforms.
        beside: The rules' companions, by name.
    """

    sequential: SequentialTrainer
    network: Network
    padding: Padding
    rules: Rules
    trainable: frozenset[str] | None
    names: Sequence[str]
    update: TensorUpdate
    scoring: Scoring
    loss_is_objective: bool
    tensors: dict[str, Tensor]
    fixed: dict[str, Any]
    axes: dict[str, Any]
    rates: float | Tensor
    states: dict[str, dict[str, Tensor]] = field(default_factory=dict)
    beside: dict[str, Beside[TensorUpdate]] = field(default_factory=dict)

    def key(self) -> Hashable | None:
        """Return a key that is equal for steps that differ only in values of tensors, or None."""
        rules = key_of_rules(self.rules, self.rules.transforms)
        if rules is None:
            return None
        order: dict[int, int] = {}
        layout = tuple(
            (path, t.dtype, t.shape, t.stride(), order.setdefault(id(t), len(order)))
            for path, t in leaves(self._trees())
        )
        numbers = (v for v in self.fixed["values"].values() if not isinstance(v, Tensor))
        return rules, self.trainable, layout, repr(self.axes), *numbers

    def _trees(self) -> Tree:
        return {**self.changing(), "fixed": self.fixed, "rates": self.rates}

    def changing(self) -> Tree:
        """Return the tensors that a step changes."""
        beside = {
            name: {**own.tree(), "update": own.update.tree()} for name, own in self.beside.items()
        }
        own = {"tensors": self.tensors, "update": self.update.tree(), "states": self.states}
        return {**own, "beside": beside}

    def on_its_own(self) -> StackedStep:
        """Return this step on copies of its tensors."""
        trees = copy_tree(self._trees())
        rates = trees["rates"]
        return replace(
            self,
            tensors=trees["tensors"],
            fixed=trees["fixed"],
            states=trees["states"],
            rates=rates,
            update=self.update.on(trees["update"], rates),
            beside={
                name: Beside(
                    trees["beside"][name]["tensors"],
                    trees["beside"][name]["state"],
                    own.update.on(trees["beside"][name]["update"], rates),
                )
                for name, own in self.beside.items()
            },
        )

    def with_own_tensors(self) -> StackedStep:
        """Return this step on copies of the tensors that it starts from."""
        return replace(self, tensors=copy_tree(self.tensors))

    def take_in(self, other: StackedStep) -> None:
        """Copy the tensors of another step with the same key into this step's."""
        with torch.no_grad():
            assign(self._trees(), other._trees())

    def take(self, batch: Tree) -> tuple[Tensor, Tensor]:
        """Take a step; return the losses at T=1 and the objectives [K] before it.

        Args:
            batch: The batches, see `stacked_batches`; clients that are not `active` do not change.
        """
        samples = {name: tensor for name, tensor in batch.items() if name != "active"}
        rng = self._rng_at_start()
        changing = [tensor for _, tensor in leaves(self.changing())] if "active" in batch else []
        with torch.no_grad():
            before = [tensor.detach().clone() for tensor in changing]
        losses, objectives, directions, buffers = self.direction(samples, rng)
        with torch.no_grad():
            directions = self.update.directions(directions)
            directions = self.transform(True, directions, samples, rng)
            params = [self.tensors[name] for name in self.names]
            self.update.move(params, self.update.add_decoupled_decay(directions, params))
            assign({name: self.tensors[name] for name in buffers}, buffers)
            for name, found in self.companions_step(samples, rng).items():
                self.beside[name].step(*found)
            reported = reported_objective(self.rules, self.states, objectives)
            for now, then in zip(changing, before, strict=True):
                active = batch["active"].view(-1, *(1,) * (now.dim() - 1))
                torch.where(active, now.detach(), then, out=now.detach())
            return losses, reported

    def direction(
        self, batch: Tree, rng: Sequence[Tensor]
    ) -> tuple[Tensor, Tensor, list[Tensor], Tensors]:
        """Return the losses at T=1 and the objectives [K], the directions, and new buffers.

        The directions are those before the momentum.
        """
        for name in self.names:
            self.tensors[name].requires_grad_()
        params = [self.tensors[name] for name in self.names]
        values, (losses, objectives), found = self._vmap(self._forward, batch)
        buffers = self.padding.moved(self.tensors, found)
        gradients = torch.autograd.grad(
            values.sum(), params, allow_unused=True, materialize_grads=True
        )
        with torch.no_grad():
            steps = self.update.clip([*gradients])
            steps = self.update.add_weight_decay(steps, params)
            steps = self.transform(False, steps, batch, rng)
        return losses, objectives, steps, buffers

    def _rng_at_start(self) -> list[Tensor]:
        """Return the states of the generators; in a recording, relative to its beginning."""
        if self.rules.transforms or self.rules.companions:
            with suppress(RuntimeError):  # torch before 2.10 has none there, nor in `_gradient`
                return self.sequential.rng_state()
        return []

    def transform(
        self, after: bool, gradients: list[Tensor], batch: Tree, rng: Sequence[Tensor]
    ) -> list[Tensor]:
        """Apply the transforms before or after the momentum, and assign their states.

        The generators had the states `rng` at the start of the step.
        """
        names = {t.name for t in self.rules.transforms if t.after_momentum == after}
        if not names:
            return gradients

        def update(tensors: Tensors, fixed: Tree, batch: Tree, *changing: Any) -> Any:
            gradients, states = changing
            samples = self._samples(batch)
            view, changed = self.view(tensors, fixed, rng), {}
            for transform in self.rules.transforms:
                if transform.name in names:
                    state = states[transform.name]
                    gradients, changed[transform.name] = transform.update(
                        view, gradients, samples, state
                    )
            return gradients, changed

        named = dict(zip(self.names, gradients, strict=True))
        states = {name: self.states[name] for name in names}
        named, changed = self._vmap(update, batch, named, states)
        assign({name: self.states[name] for name in changed}, changed)
        return [named[name] for name in self.names]

    def companions_step(
        self, batch: Tree, rng: Sequence[Tensor]
    ) -> dict[str, tuple[Tensors, Tensors]]:
        """Return the gradients and next states of companions, by name.

        Args:
            batch: The batches.
            rng: States of the generators at the start of the step.
        """
        if not self.beside:
            return {}
        companions = {name: own.tree() for name, own in self.beside.items()}
        first = self.tensors[self.names[0]]
        rates = -torch.as_tensor(self.rates, device=first.device).expand(len(first))

        def gradients(tensors: Tensors, fixed: Tree, batch: Tree, *changing: Any) -> Any:
            companions, lr = changing
            samples, view = self._samples(batch), self.view(tensors, fixed, rng)
            return {
                companion.name: companion.gradient(
                    view, beside["tensors"], samples, beside["state"], lr
                )
                for companion in self.rules.companions
                for beside in (companions[companion.name],)
            }

        taken: dict[str, tuple[Tensors, Tensors]] = self._vmap(gradients, batch, companions, rates)
        return taken

    def _vmap(self, function: Callable[..., Any], *stacked: Tree | Tensor) -> Any:
        axes = (0, self.axes, *(0 for _ in stacked))
        every = vmap(function, in_dims=axes, randomness="different")
        return every(self.tensors, self.fixed, *stacked)

    def _forward(self, tensors: Tensors, fixed: Tree, batch: Tree) -> tuple[Tensor, Any, Tensors]:
        """Return the value to differentiate, loss at T=1 and objective, and new statistics."""
        samples = self._samples(batch)
        outputs, buffers = self._outputs(tensors, samples)
        value = objective(self.rules, self.view(tensors, fixed), outputs, samples)
        with torch.no_grad():
            detached = value.detach()
            loss = detached if self.loss_is_objective else samples.reported.loss(outputs.logits)
            return value, (loss, detached), buffers

    def _samples(self, batch: Tree) -> Batch:
        return _Stacked(**batch, scoring=self.scoring)

    def _outputs(self, tensors: Tensors, batch: Batch) -> tuple[Outputs, Tensors]:
        """Return outputs in training mode, and the batch's statistics or buffers that are bound."""
        with self.padding.of(batch.weights) as found, self.sequential.autocast():
            reads = functions_of_step(self.rules, self.rules.transforms)  # `forward` may change x
            x = batch.x.clone() if reads else batch.x
            outputs, rebound = self.network.at_with_rebound(tensors, x)
            # Copies, as a new value may be the old tensor of another buffer.
            copies = {name: tensor.detach().clone() for name, tensor in rebound.items()}
            return outputs.in_float32(), found | copies

    def view(self, tensors: Tensors, fixed: Tree, rng: Sequence[Tensor] = ()) -> View:
        """Return a client's view of its slice of the tensors."""
        return View(
            params=tensors,
            trainable=self.names,
            start=fixed["start"],
            broadcast=fixed["broadcast"],
            state=fixed["state"],
            personal=fixed["personal"],
            values=LocalValues(**fixed["values"]),
            generator=only_in_finish,
            at=self._at,
            gradient=partial(self._gradient, fixed, rng),
            buffers=self.sequential.network.buffer_names,
        )

    def _at(self, tensors: Tensors, x: Tensor) -> Outputs:
        """Return the outputs at given tensors, as `SequentialTrainer.at`.

        The memory layout stays: tensors of a stack cannot be copied into another.
        """
        frozen = self.sequential.frozen
        with torch.no_grad(), self.sequential.autocast():
            return frozen.at(frozen.aside(tensors), x.clone()).in_float32()

    def _gradient(
        self,
        fixed: Tree,
        rng: Sequence[Tensor],
        tensors: Tensors,
        batch: Batch,
        *,
        along: Tensors | None = None,
        change_outputs: Callable[[Outputs], Outputs] | None = None,
    ) -> Tensors:
        """Return `View.gradient` of a step: with its random draws."""

        def value(points: dict[str, Tensor]) -> Tensor:
            everything = {**self.network.aside(tensors), **points}
            outputs, _ = self._outputs(everything, batch)
            outputs = change_outputs(outputs) if change_outputs else outputs
            return objective(self.rules, self.view(everything, fixed), outputs, batch)

        def product(points: dict[str, Tensor]) -> Tensor:
            gradients: Tensors = grad(value)(points)
            return inner_product([gradients[n] for n in names], [vector[n] for n in names])

        names = self.names
        points = {name: tensors[name] for name in names}
        vector = points if along is None else along
        before = self.sequential.rng_state()
        self.sequential.set_rng_state(rng)
        with torch.enable_grad():
            gradients: Tensors = grad(value if along is None else product)(points)
        self.sequential.set_rng_state(before)
        if not (decay := coupled_decay(self.sequential.local, self.sequential.optimizer)):
            return gradients
        return {name: gradient + decay * vector[name] for name, gradient in gradients.items()}


class KeptSteps:
    """Steps kept from group to group, with their tensors and recordings."""

    def __init__(self, recorder: GraphRecorder | None) -> None:
        self._recorder = recorder
        self._kinds: dict[Hashable, tuple[StackedStep, GraphedSteps]] = {}

    def of(self, step: StackedStep) -> tuple[StackedStep, GraphedSteps]:
        """Return a kept step with this step's values, and the `GraphedSteps` that takes it.

        It is a step of this group alone if nothing is recorded, or its rules have no key.
        """
        if self._recorder and not self._recorder.works:
            self._kinds.clear()
            return (own := step.with_own_tensors()), GraphedSteps(own.take, None)
        key = step.key() if self._recorder else None
        if key is None:
            return (own := step.with_own_tensors()), GraphedSteps(own.take, self._recorder)
        if key in self._kinds:
            self._kinds[key][0].take_in(step)
        else:
            if len(self._kinds) == MAX_KINDS:
                self._kinds.clear()
            kept = step.on_its_own()
            self._kinds[key] = kept, GraphedSteps(kept.take, self._recorder)
        return self._kinds[key]

    def give_up(self) -> bool:
        """Free the kept steps and stop recording; return whether that may free memory."""
        if self._recorder is None or not (self._kinds or self._recorder.works):
            return False
        self._kinds.clear()
        if self._recorder.works:
            self._recorder.give_up()
        return True
