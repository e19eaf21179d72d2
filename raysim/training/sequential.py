"""Local training, one client at a time.

A real module with autograd, in-place updates of all parameters at once and one gather per epoch; on
a CPU, repeated steps run as scripts, and on a GPU as CUDA graphs, which do the same without
autograd; several steps on batches of one size share a graph. The network stays
resident; a client costs a copy of the broadcast model into it.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import nullcontext
from dataclasses import replace
from functools import cached_property, partial
from itertools import islice
from typing import Any, cast
from weakref import proxy

import torch
from torch import Tensor

from raysim.api.rules import (
    Batch,
    LocalValues,
    Outputs,
    Rules,
    Trained,
    Transform,
    Upload,
    View,
    only_in_finish,
)
from raysim.config import LocalSettings
from raysim.numbers.given import Given
from raysim.numbers.tensors import CPU, Tensors, as_real
from raysim.numbers.tensors.later import read_later, sent_to
from raysim.numbers.tensors.sets import ALIGNMENT
from raysim.numbers.tensors.torch_private import can_record_steps, gradients_of
from raysim.training.companions import Beside
from raysim.training.job import (
    Bounds,
    ClientJob,
    LocalLosses,
    batch_bounds,
    iterate_epochs,
    steps_of,
)
from raysim.training.network import Network
from raysim.training.objective import derivatives, objective, reported_objective
from raysim.training.recorded_steps import ClientSteps, RecordedSteps
from raysim.training.rule_keys import functions_of_step
from raysim.training.stacked.cuda_graphs import GraphRecorder
from raysim.training.stacked.stacks import Tree, assign
from raysim.training.tail_average import TailAverage
from raysim.training.tensor_update import TensorUpdate
from raysim.training.update import Update

JOINED = (16, 4)
"""Numbers of steps on batches of one size that one CUDA graph may take, the largest first.

A launch is shared by them: a small network's step takes less time than a launch.
"""
MINUS_LR = "minus_lr"
"""Name of the learning rate times -1 among the numbers of a step."""


class SequentialTrainer:
    """Trains clients one after another on one resident network."""

    def __init__(
        self,
        network: Network,
        local: LocalSettings,
        precision: str,
        recorder: GraphRecorder | None = None,
    ) -> None:
        """Train clients on a network.

        Args:
            network: The network, on its device.
            local: The settings of local training.
            precision: `engine.precision`.
            recorder: Records steps as CUDA graphs, on a GPU; None records none there.
        """
        self.network, self._recorder = network, recorder
        self.local, self.optimizer = local, local.build_optimizer()
        self._frozen: Network | None = None
        self._buffer: Batch | None = None
        self._device = next((p.device for p in network.parameters()), CPU)
        self._bf16 = precision == "bf16"
        # The generators that a module may draw from. Not torch.manual_seed, which without CUDA
        # records every call for a later initialisation of CUDA.
        self._generators = [torch.default_generator]
        if self._device.type == "cuda":
            self._generators.append(torch.cuda.default_generators[torch.cuda.current_device()])
        # Numbers of the present client's steps, which CUDA graphs read where they are.
        dtype = type_of_numbers(network.parameters())
        self._numbers = {
            name: torch.zeros((), dtype=dtype, device=self._device)
            for name in (MINUS_LR, *LocalValues._fields)
        }
        self._written = dict.fromkeys(self._numbers, 0.0)
        records = recorder or (self._device.type == "cpu" and can_record_steps())
        self._modules = [*network.modules()]
        self.recorded = (
            RecordedSteps(
                self._modules, self._generators, recorder, [*network.bindings.base.values()]
            )
            if records
            else None
        )

    def run(self, job: ClientJob) -> tuple[Upload, LocalLosses]:
        """Train one client; return its upload and its losses."""
        before = self.rng_state()
        self.seed(job.torch_seed)
        try:
            with self._recorder.stream_context() if self._recorder else nullcontext():
                return self.training(job.with_samples_read()).run()
        except torch.OutOfMemoryError:
            self.give_up()  # the client is tried again
            raise
        finally:
            self.set_rng_state(before)

    def training(self, job: ClientJob) -> ClientTraining:
        """Return the training of a client."""
        return ClientTraining(self, job)

    def give_up(self) -> bool:
        """Free the CUDA graphs, and record none from now on; return whether there were any."""
        return bool(self._recorder and self.recorded and self.recorded.give_up())

    @property
    def on_gpu(self) -> bool:
        """True if the network is on a GPU, where a step's numbers are tensors."""
        return self._device.type == "cuda"

    def update(self, lr: float) -> Update:
        """Return the updates of a client's parameters, valid until the next client's."""
        if not self.on_gpu:
            return Update(self.local, self.optimizer, lr)
        return TensorUpdate(self.local, self.optimizer, self.number(MINUS_LR, -lr))

    def values(self, values: LocalValues) -> LocalValues:
        """Return a client's values as its steps see them, valid until the next client's."""
        if not self.on_gpu or values.keeps_loss:
            return values
        return LocalValues(*(self.number(n, float(v)) for n, v in values._asdict().items()))

    def number(self, name: str, value: float) -> Tensor:
        """Return a number of a client's steps as a tensor [], always the same one."""
        if self._written[name] != value:
            self._numbers[name].fill_(value)
            self._written[name] = value
        return self._numbers[name]

    def outputs(self, x: Tensor) -> Outputs:
        """Return the resident network's outputs; logits are in float32 at any precision."""
        if not self._bf16:
            return self.network.forward(x)  # not __call__: the wrapper has no hooks
        with self.autocast():
            return self.network(x).in_float32()  # type: ignore[no-any-return]

    def autocast(self) -> Any:
        """Return the context of forward passes."""
        return torch.autocast(self._device.type, torch.bfloat16) if self._bf16 else nullcontext()

    def buffer(self, data: Batch, n: int) -> Batch:
        """Return a resident buffer for n ordered samples of an epoch, for samples like these."""
        if self._buffer is None or len(self._buffer.y) < n:
            self._buffer = data._replace(x=torch.empty_like(data.x), y=torch.empty_like(data.y))
        return data._replace(x=self._buffer.x[:n], y=self._buffer.y[:n])

    @property
    def frozen(self) -> Network:
        """Copy of the network in evaluation mode, to run at given tensors."""
        if self._frozen is None:
            self._frozen = self.network.frozen()
            self._modules += self._frozen.modules()
        return self._frozen

    def at(self, tensors: Tensors, x: Tensor) -> Outputs:
        """Return the outputs at given tensors, in evaluation mode, without gradient."""
        with torch.no_grad(), self.autocast():
            laid_out = self.network.laid_out(self.frozen.aside(tensors))
            return self.frozen.at(laid_out, x.clone()).in_float32()

    def gradient(
        self,
        rules: Rules,
        view: View,
        tensors: Tensors,
        batch: Batch,
        *,
        along: Tensors | None = None,
        change_outputs: Callable[[Outputs], Outputs] | None = None,
    ) -> Tensors:
        """Return `View.gradient` of `finish`: in evaluation mode."""
        points = {n: t.detach().clone() for n, t in tensors.items()}
        trainable = [points[name].requires_grad_() for name in view.trainable]
        with torch.enable_grad():
            with self.autocast():
                outputs = self.frozen.at(points, batch.x.clone()).in_float32()
            outputs = change_outputs(outputs) if change_outputs else outputs
            value = objective(rules, replace(view, params=points), outputs, batch)
            vector = [along[name] for name in view.trainable] if along is not None else None
            gradients = derivatives(value, trainable, vector)
        with torch.no_grad():
            decayed = self.update(0.0).add_weight_decay(gradients, vector or trainable)
        return dict(zip(view.trainable, decayed, strict=True))

    def seed(self, seed: int) -> None:
        """Seed the generators that dropout may draw from."""
        for generator in self._generators:
            generator.manual_seed(seed)

    def rng_state(self) -> list[Tensor]:
        """Return the states of the generators that dropout may draw from."""
        return [generator.get_state() for generator in self._generators]

    def set_rng_state(self, states: Sequence[Tensor]) -> None:
        """Set the states of the generators that dropout may draw from."""
        for generator, state in zip(self._generators, states, strict=True):
            generator.set_state(state)


class ClientTraining:
    """Training of one client.

    Batches are copies of the samples. If rules or further passes read a batch after the network,
    which may change its input in place, the network runs on a copy of the batch.
    """

    def __init__(self, trainer: SequentialTrainer, job: ClientJob) -> None:
        self.trainer, self.job, self.rules = trainer, job, job.rules
        network, start = trainer.network, job.rules.start(job.broadcast, job.state, job.personal)
        if start:
            network.load(start)
        network.train_only(job.trainable)
        self.tensors = tensors = network.tensors()
        self.names = network.trainable_names(job.trainable)
        self.params = [tensors[name] for name in self.names]
        # The same memory: steps without autograd's bookkeeping took 2% less time.
        self.detached_params = [tensor.detach() for tensor in self.params]
        self.view = View(
            params=tensors,
            trainable=self.names,
            start=start,
            broadcast=job.broadcast,
            state=job.state,
            personal=job.personal,
            values=trainer.values(job.values),
            generator=only_in_finish,
            at=trainer.at,
            # A cycle would keep the client's tensors until Python looks for cycles.
            gradient=partial(ClientTraining.gradient, proxy(self)),
            buffers=network.buffer_names,
        )
        self.given = Given.of_view(vars(self.view))
        transforms, self.beside = self.rules.transforms, self.companions()
        self.states: dict[str, Tensors] = {t.name: {**t.init(self.view)} for t in transforms}
        self.before_momentum = [t for t in transforms if not t.after_momentum]
        self.after_momentum = [t for t in transforms if t.after_momentum]
        if trainer.optimizer.keeps_gradient:
            self.before_momentum += self.after_momentum
            self.after_momentum = []
        self.keys = [(t.name, key) for t in self.before_momentum for key in self.states[t.name]]
        self.update, self.rng = trainer.update(job.lr), trainer.rng_state()
        self.update.start(self.detached_params, self.names, job.optimizer)
        other = job.data.scoring.reported or not self.rules.are_plain
        self.loss_is_objective = not other and job.values.keeps_loss
        self._find_recordings()

    def _find_recordings(self) -> None:
        """Find what is recorded of these steps: on a GPU all of a step, else parts of it."""
        self.recorded_step: ClientSteps | None = None
        before: Sequence[Transform] = self.before_momentum
        if isinstance(self.update, TensorUpdate):
            # Each apart, as steps change it in place: it may start as another one or as given.
            states = {
                name: {key: tensor.detach() for key, tensor in own.items()}
                for name, own in self.states.items()
            }
            before, changed = (), {"states": states, "update": self.update.tree()}
            self.recorded_step = self.recorded_steps(self.rules.transforms, changed)
            if self.recorded_step:
                self.states = self.recorded_step.changed["states"]
                self.update = self.update.on(self.recorded_step.changed["update"])
        self.recorded = None if self.recorded_step else self.recorded_steps(())
        self.recorded_direction = self.recorded_steps(before) if before else None

    @cached_property
    def copies(self) -> bool:
        """True if the network runs on copies of batches."""
        return bool(functions_of_step(self.rules, self.rules.transforms))

    def recorded_steps(
        self, transforms: Sequence[Transform], changed: Tree | None = None
    ) -> ClientSteps | None:
        """Return the client's recorded steps, which include these transforms, or None.

        Args:
            transforms: The transforms.
            changed: Tensors that the steps change in addition to the network's.
        """
        if self.trainer.recorded is None:
            return None
        job = self.job
        return self.trainer.recorded.of(self.rules, job.trainable, self.view, transforms, changed)

    def run(self) -> tuple[Upload, LocalLosses]:
        """Take all steps; return the upload and the losses."""
        losses: list[Tensor] = []
        objectives: list[Tensor] = []
        sizes: list[int] = []
        tail = self.tail_average()
        of_one_shape = self.job.data.lengths is None
        joins = bool(self.recorded_step and of_one_shape and not (tail or self.beside))
        for batch, joined in self.joined_batches() if joins else self.single_batches():
            sizes += [len(batch.y) // joined] * joined
            if joined > 1 and (pair := self.take_joined(batch, joined)):
                losses.append(pair[0])
                objectives.append(pair[1])
                continue
            for each in self.parts(batch, joined) if joined > 1 else (batch,):
                if self.rules.transforms or self.rules.companions:
                    self.rng = self.trainer.rng_state()
                taken = self.recorded_step and self.recorded_step.take(self.guarded_step, each)
                loss, value = taken or self.step(self.view, each, self.taken_direction(each))
                if self.beside:
                    self.step_beside(each)
                if tail:
                    tail.after_step([True])
                losses.append(loss)
                objectives.append(value)
        detached = dict(zip(self.names, self.detached_params, strict=True))
        self.trainer.network.bindings.check_parameters(detached)
        if tail and sizes:
            tail.settle()
        upload = self.upload(len(sizes))
        one = all(value is loss for value, loss in zip(objectives, losses, strict=True))
        flat = [each.view(-1) for each in (*losses, *([] if one else objectives))]
        figures = torch.cat(flat) if sizes else torch.empty(0)
        figures = figures if one else figures.view(2, -1)
        return upload, LocalLosses(read_later(figures), sizes)

    def upload(self, steps: int) -> Upload:
        """Return the upload after all steps."""
        trained = self.trained(steps)
        self.given.check_left("a rule of local training")
        with torch.no_grad():
            gradient = partial(self.trainer.gradient, self.rules, self.view)
            upload = self.rules.finish(self.job.finishing(self.view, gradient), trained)
        self.given.check_left("finish")
        return upload

    def trained(self, steps: int) -> Trained:
        """Return the end of the training, after all steps."""
        return Trained(
            steps=steps,
            lr=self.job.lr,
            states=self.states | {name: own.state for name, own in self.beside.items()},
            samples=self.job.data,
            optimizer=self.update.kept(self.names) if steps else {},
            solver=self.trainer.optimizer,
            transforms=self.rules.transforms,
            batching=self.trainer.local.batching,
            companions={name: own.tensors for name, own in self.beside.items()},
            base=self.trainer.network.bindings.base,
        )

    def companions(self) -> dict[str, Beside[Update]]:
        """Return the rules' companions at their start, by name."""
        beside = {}
        for companion in self.rules.companions:
            tensors = _copied(companion.start(self.view))
            update = self.trainer.update(self.job.lr)
            update.start([*tensors.values()], [*tensors], {})
            state = _copied(companion.init(self.view))
            beside[companion.name] = Beside(tensors, state, update)
        return beside

    def tail_average(self) -> TailAverage | None:
        """Return the running mean over the last steps, if they are averaged."""
        share = self.trainer.local.tail_average
        if not share:
            return None
        steps = steps_of(self.job.epochs, len(self.bounds()))
        return TailAverage(self.detached_params, [steps], share)

    def bounds(self) -> Bounds:
        """Return (start, stop) of the batches of an epoch."""
        return batch_bounds(
            len(self.job.data.y),
            self.trainer.local.batching,
            self.trainer.network.has_batchnorm,
        )

    def single_batches(self) -> Iterator[tuple[Batch, int]]:
        """Yield the batches of all steps, each as one."""
        bounds = self.bounds()
        batches = (each for epoch in self.epochs(bounds) for each in self.split(epoch, bounds))
        return ((batch, 1) for batch in islice(batches, steps_of(self.job.epochs, len(bounds))))

    def joined_batches(self) -> Iterator[tuple[Batch, int]]:
        """Yield the batches of all steps, with a count; batches of one size are joined in one."""
        bounds = self.bounds()
        left, size = steps_of(self.job.epochs, len(bounds)), bounds[0][1]
        alike = len(bounds) if bounds[-1][1] - bounds[-1][0] == size else len(bounds) - 1
        for epoch in self.epochs(bounds):
            at = 0
            while at < len(bounds) and left:
                most = min(alike - at, left)
                joined = next((number for number in JOINED if number <= most), 1)
                start, stop = bounds[at][0], bounds[at + joined - 1][1]
                x = epoch.x[start:stop]
                x = x.clone() if joined == 1 and self.starts_unaligned(x, bounds) else x
                yield epoch._replace(x=x, y=epoch.y[start:stop]), joined
                at, left = at + joined, left - joined

    def epochs(self, bounds: Bounds) -> Iterator[Batch]:
        """Yield the samples of each epoch in their order."""
        data, used = self.job.data, bounds[-1][1]
        buffer = self.trainer.buffer(data, used)
        for inputs, order in iterate_epochs(self.job, bounds):
            index = sent_to(data.y.device, order[:used])
            x = torch.index_select(inputs, 0, index, out=buffer.x)
            y = torch.index_select(data.y, 0, index, out=buffer.y)
            lengths = None if data.lengths is None else data.lengths[order[:used]]
            yield data._replace(x=x, y=y, lengths=lengths)

    def starts_unaligned(self, x: Tensor, bounds: Bounds) -> bool:
        """Return whether batches of x lie unaligned on a GPU, which may choose other kernels."""
        row = x[0].nbytes if self.trainer.on_gpu else 0
        return any(start * row % ALIGNMENT for start, _ in bounds)

    def split(self, samples: Batch, bounds: Bounds) -> Iterator[Batch]:
        """Yield the batches of samples, each aligned on a GPU."""
        if samples.lengths is not None:
            for start, stop in bounds:
                part = samples.part(start, stop)
                yield part._replace(x=part.x.clone())
            return
        sizes = [stop - start for start, stop in bounds]
        x, y = samples.x.split_with_sizes(sizes), samples.y.split_with_sizes(sizes)
        unaligned = self.starts_unaligned(samples.x, bounds)
        for pair in zip(x, y, strict=True):
            batch = Batch(*pair, scoring=samples.scoring)
            yield batch._replace(x=batch.x.clone()) if unaligned else batch

    def parts(self, batch: Batch, joined: int) -> Iterator[Batch]:
        """Yield the batches that are joined in one."""
        size = len(batch.y) // joined
        return self.split(batch, [(i * size, (i + 1) * size) for i in range(joined)])

    def take_joined(self, batch: Batch, joined: int) -> Sequence[Tensor] | None:
        """Take the steps on joined batches by one graph; return losses and objectives [joined]."""
        steps = partial(self.guarded_steps, joined)
        return cast("ClientSteps", self.recorded_step).take(steps, batch, joined=joined)

    def step_beside(self, batch: Batch) -> None:
        """Take the step of the companions."""
        with torch.no_grad():
            for each in self.rules.companions:
                companion, lr = self.beside[each.name], self.job.lr
                companion.step(
                    *each.gradient(self.view, companion.tensors, batch, companion.state, lr)
                )

    def taken_direction(self, batch: Batch) -> Sequence[Tensor]:
        """Return the result of `direction`, recorded if possible."""
        states, recorded = self.states_before_momentum, self.recorded_direction
        taken = recorded and recorded.take(self.guarded_direction, batch, states)
        return taken or self.plain_direction(batch, states)

    @property
    def states_before_momentum(self) -> list[Tensor]:
        """The states of the transforms before the momentum, in the order of `keys`."""
        return [self.states[name][key] for name, key in self.keys]

    def step(self, view: View, batch: Batch, direction: Sequence[Tensor]) -> tuple[Tensor, Tensor]:
        """Take a step in a direction; return the loss at T=1 and the objective before it.

        Args:
            view: The client's view.
            batch: The step's batch.
            direction: Result of `direction`.
        """
        loss, value, *changed = direction
        directions, new = changed[: len(self.names)], changed[len(self.names) :]
        states: dict[str, Tensors] = {**self.states}
        for (name, key), state in zip(self.keys, new, strict=True):
            states[name] = {**states[name], key: state}
        with torch.no_grad():
            directions = self.update.directions(directions)
            directions = self.transform(self.after_momentum, view, directions, batch, states)
            directions = self.update.add_decoupled_decay(directions, self.detached_params)
            self.update.move(self.detached_params, directions)
            if self.recorded_step:
                assign(self.states, states)
            else:
                self.states = states
            return loss, reported_objective(self.rules, self.states, value)

    def plain_direction(self, batch: Batch, states: Sequence[Tensor]) -> tuple[Tensor, ...]:
        """Return the result of `direction`; only the gradient is recorded, if possible."""
        taken = self.recorded and self.recorded.take(self.guarded_gradient, batch)
        taken = taken or self.differentiate(self.view, batch)
        return self.direction(self.view, taken, batch, states)

    def guarded_step(self, batch: Batch, states: Sequence[Tensor]) -> tuple[Tensor, ...]:
        """Take a step as without recording, with such a view as of `guarded_direction`."""
        view = cast("ClientSteps", self.recorded_step).guarded
        taken = self.differentiate(view, batch)
        before = self.direction(view, taken, batch, self.states_before_momentum)
        return self.step(view, batch, before)

    def guarded_steps(
        self, joined: int, batch: Batch, states: Sequence[Tensor]
    ) -> tuple[Tensor, ...]:
        """Take several steps so; return their losses and objectives."""
        taken = [self.guarded_step(each, states) for each in self.parts(batch, joined)]
        losses = torch.stack([loss for loss, _ in taken])
        if all(value is loss for loss, value in taken):
            return losses, losses
        return losses, torch.stack([value for _, value in taken])

    def guarded_direction(self, batch: Batch, states: Sequence[Tensor]) -> tuple[Tensor, ...]:
        """Return the result of `direction`, for a view that refuses reads of its other parts."""
        view = cast("ClientSteps", self.recorded_direction).guarded
        return self.direction(view, self.differentiate(view, batch), batch, states)

    def guarded_gradient(self, batch: Batch, states: Sequence[Tensor] = ()) -> tuple[Tensor, ...]:
        """Return the result of `differentiate`, for such a view."""
        return self.differentiate(cast("ClientSteps", self.recorded).guarded, batch)

    def direction(
        self, view: View, taken: Sequence[Tensor], batch: Batch, states: Sequence[Tensor]
    ) -> tuple[Tensor, ...]:
        """Return loss, objective, the direction before the momentum, and the transforms' states.

        Args:
            view: The client's view.
            taken: Loss, objective and gradient.
            batch: The step's batch.
            states: States of the transforms before the momentum, in the order of `keys`.
        """
        loss, value, *gradients = taken
        named: dict[str, Tensors] = {t.name: {} for t in self.before_momentum}
        for (name, key), state in zip(self.keys, states, strict=True):
            named[name] = {**named[name], key: state}
        with torch.no_grad():
            gradients = self.update.clip(gradients)
            gradients = self.update.add_weight_decay(gradients, self.params)
            gradients = self.transform(self.before_momentum, view, gradients, batch, named)
            return loss, value, *gradients, *(named[name][key] for name, key in self.keys)

    def transform(
        self,
        transforms: Sequence[Transform],
        view: View,
        gradients: list[Tensor],
        batch: Batch,
        states: dict[str, Tensors],
    ) -> list[Tensor]:
        """Apply transforms in turn; replace their states."""
        if not transforms:
            return gradients
        named: Tensors = dict(zip(self.names, gradients, strict=True))
        for change in transforms:
            named, state = change.update(view, named, batch, states[change.name])
            states[change.name] = {**state}
        return [named[name] for name in self.names]

    def differentiate(self, view: View, batch: Batch) -> tuple[Tensor, ...]:
        """Return the loss at T=1, the objective, and its gradient at the parameters."""
        return self.accumulated(batch, partial(self._differentiate, view))

    def accumulated(
        self, batch: Batch, taken: Callable[[Batch], tuple[Tensor, ...]]
    ) -> tuple[Tensor, ...]:
        """Return means over a batch; with `local.accumulate`, over its parts one after another.

        Args:
            batch: The batch.
            taken: Returns the means over a batch or a part.
        """
        parts = self.trainer.local.accumulate
        if parts == 1 or len(batch.y) == 1:
            return taken(batch)
        total: list[Tensor] = []
        for part, share in batch.in_parts(parts):
            found = taken(part)
            with torch.no_grad():
                if total:
                    total = [t.add(f, alpha=share) for t, f in zip(total, found, strict=True)]
                else:
                    total = [tensor * share for tensor in found]
        return tuple(total)

    def agrees_in_parts(self, batch: Batch) -> bool:
        """Return whether the gradient of a batch is the mean over its parts, up to rounding."""
        gradients = (
            found(self.view, batch)[2:] for found in (self._differentiate, self.differentiate)
        )
        pairs = zip(*gradients, strict=True)
        return all(torch.allclose(whole, parts, 1e-3, 1e-5) for whole, parts in pairs)

    def _differentiate(self, view: View, batch: Batch) -> tuple[Tensor, ...]:
        outputs = self.trainer.outputs(batch.x.clone() if self.copies else batch.x)
        bindings = self.trainer.network.bindings
        if rebound := bindings.rebound():
            self.tensors.update(rebound)  # the view's tensors
        value = objective(self.rules, view, outputs, batch)
        gradients = gradients_of(value, self.params)
        if rebound:  # not before the backward pass, which may need the old values
            self.tensors.update(bindings.settle(rebound))
        value = value.detach()
        with torch.no_grad():
            loss = value if self.loss_is_objective else batch.reported.loss(outputs.logits)
            return loss, value, *gradients

    def gradient(
        self,
        tensors: Tensors,
        batch: Batch,
        *,
        along: Tensors | None = None,
        change_outputs: Callable[[Outputs], Outputs] | None = None,
    ) -> dict[str, Tensor]:
        """Return `View.gradient` of a step: with its random draws."""
        network, before = self.trainer.network, self.trainer.rng_state()
        items = network.tensors().items()  # in the fast memory format
        with torch.no_grad():
            copies = {name: torch.empty_like(t).copy_(tensors[name]) for name, t in items}
        points = [copies[name] for name in self.names]
        vector = [along[name] for name in self.names] if along is not None else None
        self.trainer.set_rng_state(self.rng)
        with torch.enable_grad():  # without it, some kernels differ
            plain = self.recorded if vector is None and change_outputs is None else None
            taken = plain and plain.take_at([*copies.values()], batch)
            gradients = (
                taken[2:] if taken else self.derivatives_at(copies, batch, vector, change_outputs)
            )
        self.trainer.set_rng_state(before)
        with torch.no_grad():
            decayed = self.update.add_weight_decay([*gradients], vector or points)
            return dict(zip(self.names, decayed, strict=True))

    def derivatives_at(
        self,
        tensors: Tensors,
        batch: Batch,
        along: Sequence[Tensor] | None,
        change_outputs: Callable[[Outputs], Outputs] | None,
    ) -> list[Tensor]:
        """Return derivatives of the objective at the client's own tensors, by autograd."""
        taken = partial(self._derivatives_at, tensors, along, change_outputs)
        return [*self.accumulated(batch, taken)]

    def _derivatives_at(
        self,
        tensors: Tensors,
        along: Sequence[Tensor] | None,
        change_outputs: Callable[[Outputs], Outputs] | None,
        batch: Batch,
    ) -> tuple[Tensor, ...]:
        points = [tensors[name].requires_grad_() for name in self.names]
        with self.trainer.autocast():
            outputs = self.trainer.network.at(tensors, batch.x.clone()).in_float32()
        outputs = change_outputs(outputs) if change_outputs else outputs
        value = objective(self.rules, replace(self.view, params=tensors), outputs, batch)
        return (*derivatives(value, points, along),)


def _copied(tensors: Tensors) -> dict[str, Tensor]:
    """Return copies, which a step may change in place."""
    return {name: tensor.detach().clone() for name, tensor in tensors.items()}


def type_of_numbers(parameters: Iterable[Tensor]) -> torch.dtype:
    """Return the type of a step's numbers: float64 if a parameter is, else float32."""
    wide = any(as_real(each.detach()).dtype == torch.float64 for each in parameters)
    return torch.float64 if wide else torch.float32
