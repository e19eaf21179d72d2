"""Local training of several clients at once, with stacked tensors and common steps.

On some devices a small network's step is launch-bound: there K clients cost about as many launches
as one. Missing steps and batches of a client are padded and masked, so its result equals the
sequential trainer's up to rounding. With dropout it is another draw of the same distribution.

Legend: K clients, S steps, B batch.
"""

from __future__ import annotations

import copy
from collections.abc import Callable, Iterator, Sequence
from contextlib import nullcontext
from dataclasses import dataclass, field, replace
from functools import partial
from typing import Any

import numpy as np
import torch
from torch import Tensor

from raysim.api.rules import LocalValues, Trained, Upload, View, send_model
from raysim.numbers.arrays import Integers
from raysim.numbers.given import Given
from raysim.numbers.tensors import CPU, Tensors, only
from raysim.numbers.tensors.later import read_later, sent_to
from raysim.training.companions import Beside
from raysim.training.job import (
    ClientJob,
    LocalLosses,
    batch_bounds,
    losses_of_stack,
    steps_of,
)
from raysim.training.network import Network
from raysim.training.sequential import SequentialTrainer, type_of_numbers
from raysim.training.stacked.batch_norm import Padding, with_padding
from raysim.training.stacked.batches import padded_twice, stacked_batches
from raysim.training.stacked.convolution import with_columns
from raysim.training.stacked.cuda_graphs import recorder_on
from raysim.training.stacked.stacks import (
    copy_tree,
    leaves,
    side_by_side,
    split_by_layout,
    stack_sets,
    stack_trees,
)
from raysim.training.stacked.step import KeptSteps, StackedStep
from raysim.training.tail_average import TailAverage
from raysim.training.tensor_update import TensorUpdate


class UnstackableError(Exception):
    """Error of a loss or a step that cannot be stacked."""


class StackedTrainer:
    """Trains clients stacked, on a copy of the sequential trainer's network."""

    def __init__(self, sequential: SequentialTrainer, note: Callable[[str], None]) -> None:
        self.sequential = sequential
        self.padding = Padding()
        module = with_padding(copy.deepcopy(sequential.network.module), self.padding)
        device = next((p.device for p in module.parameters()), CPU)
        self.network = Network(with_columns(module) if device.type == "cuda" else module)
        self.recorder = recorder_on(device, note)
        self.kept = KeptSteps(self.recorder)

    def run(self, jobs: Sequence[ClientJob]) -> list[StackResult]:
        """Train the clients of one pass; return the results of groups of them.

        The results are valid until the next call.

        Raises:
            UnstackableError: the loss is of whole batches.
        """
        if jobs[0].data.scoring.whole_batch:
            raise UnstackableError("the task's loss is of whole batches, which a stack pads")
        jobs = [job.with_samples_read() for job in jobs]
        before = self.sequential.rng_state()
        self.sequential.seed(jobs[0].torch_seed)
        results = []
        try:
            with self.recorder.stream_context() if self.recorder else nullcontext():
                groups = split_by_layout(jobs)
                for numbers in groups:
                    of_group = [jobs[number] for number in numbers]
                    if of_group[0].epochs:
                        results.append(self._train(of_group, numbers, shared=len(groups) > 1))
                    else:
                        trained = [self.sequential.run(job) for job in of_group]
                        losses = [each for _, each in trained]
                        results.append(
                            StackResult(numbers, losses, [_copy(up) for up, _ in trained])
                        )
            return results
        finally:
            self.sequential.set_rng_state(before)

    def check_padding(self, jobs: Sequence[ClientJob]) -> None:
        """Check that a step does not depend on the samples that pad a batch.

        Two paddings of real samples must give the same bits. Values that are not finite would not
        do: they pass through a weight of 0.

        Args:
            jobs: Jobs as of `run`, which are left as they were.

        Raises:
            UnstackableError: a step depends on them, or on the positions that pad a sequence.
        """
        job = jobs[0]
        if job.data.lengths is not None and job.data.y.dim() > 1 and job.rules.penalties:
            raise UnstackableError(
                "a penalty of the method sees the outputs of all positions, of which a stack pads"
                " more"
            )
        before = self.sequential.rng_state()
        for numbers in split_by_layout(jobs):
            if jobs[numbers[0]].epochs:
                of_stack = [jobs[n].with_samples_read() for n in numbers]
                training, outcomes = _StackedTraining(self, of_stack), list[list[Tensor]]()
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

    def _train(
        self, jobs: Sequence[ClientJob], numbers: Sequence[int], *, shared: bool
    ) -> StackResult:
        """Train a group; if memory is short, again without kept steps.

        Args:
            jobs: The clients' jobs.
            numbers: The jobs' places among the jobs of `run`.
            shared: Whether another group may take the same kept step.
        """
        rng = self.sequential.rng_state()
        try:
            return _StackedTraining(self, jobs).run(numbers, shared=shared)
        except torch.OutOfMemoryError:
            freed = [self.kept.give_up(), self.sequential.give_up()]
            if not any(freed):
                raise
        torch.cuda.empty_cache()
        self.sequential.set_rng_state(rng)
        return _StackedTraining(self, jobs).run(numbers, shared=shared)


@dataclass(frozen=True)
class StackResult:
    """Uploads and losses of clients that were trained together.

    Attributes:
        numbers: The clients' places among the jobs.
        losses: The losses of each.
        uploads: The uploads of each; none if `sent` has them.
        sent: The tensors [K, ...] of the model, if each client only sends its own, as `send_model`
            does.
    """

    numbers: Sequence[int]
    losses: Sequence[LocalLosses]
    uploads: Sequence[Upload] = ()
    sent: Tensors = field(default_factory=dict)

    def each(self) -> Iterator[tuple[int, Upload, LocalLosses]]:
        """Yield each client's place, upload and losses."""
        for k, (number, losses) in enumerate(zip(self.numbers, self.losses, strict=True)):
            upload = Upload(sums={"model": row(self.sent, k)}) if self.sent else self.uploads[k]
            yield number, upload, losses


class _StackedTraining:
    """Training of clients with the same tensor names and shapes."""

    def __init__(self, trainer: StackedTrainer, jobs: Sequence[ClientJob]) -> None:
        self.jobs, job = jobs, jobs[0]
        self.rules, self.sequential = job.rules, trainer.sequential
        trainer.network.train_only(job.trainable)
        self.given = [_given_to(each) for each in jobs]
        fixed, axes = stack_trees(self.given)
        fixed["values"], axes["values"] = self._values()
        names = trainer.network.trainable_names(job.trainable)
        rates = self._rates(recorded=trainer.recorder is not None)
        other = job.data.scoring.reported or not all(j.values.keeps_loss for j in jobs)
        starts = side_by_side([given["start"] for given in self.given])
        self.tensors: Tensors = starts  # until a step has its own
        update = self._update(rates)
        params = [self.tensors[name] for name in names]
        update.start_each(params, names, [each.optimizer for each in jobs])
        step = self.step = StackedStep(
            sequential=self.sequential,
            network=trainer.network,
            padding=trainer.padding,
            rules=job.rules,
            trainable=job.trainable,
            names=names,
            update=update,
            scoring=job.data.scoring,
            loss_is_objective=job.rules.are_plain and not other,
            tensors={**starts},
            fixed=fixed,
            axes=axes,
            rates=rates,
        )
        step.states, step.beside = self._first_states(), self._companions(rates)
        self.step, self.steps = trainer.kept.of(step)
        self.stacked = Given.of_view(self.step.fixed)

    def _rates(self, *, recorded: bool) -> float | Tensor:
        """Return the learning rates times -1: of all clients [], or [K] where they differ.

        It is a number if no step is recorded, and they do not differ.
        """
        rates = [-job.lr for job in self.jobs]
        if len({*rates}) > 1:
            return self._sent(rates)
        return self._sent(rates[0]) if recorded else rates[0]

    def _sent(self, numbers: float | Sequence[float]) -> Tensor:
        """Return numbers on the device, in the type of the network's parameters."""
        dtype = type_of_numbers(self.given[0]["start"].values())
        return sent_to(self._device, np.array(numbers, dtype=np.float64)).to(dtype)

    def _update(self, rates: float | Tensor) -> TensorUpdate:
        """Return the updates of tensors of all clients."""
        local, optimizer = self.sequential.local, self.sequential.optimizer
        return TensorUpdate(local, optimizer, rates, (len(self.jobs),))

    def _values(self) -> tuple[dict[str, float | Tensor], dict[str, int | None]]:
        """Return values of local training, of all clients or of each [K], and their axes."""
        values: dict[str, float | Tensor] = {}
        axes: dict[str, int | None] = {}
        for name in LocalValues._fields:
            by_job = [getattr(job.values, name) for job in self.jobs]
            alike, first = len({*by_job}) == 1, self.jobs[0].values
            if alike and (first.keeps_loss or not self.sequential.on_gpu):
                values[name], axes[name] = by_job[0], None
                continue
            values[name] = self._sent(by_job[0] if alike else by_job)
            axes[name] = None if alike else 0
        return values, axes

    @property
    def _device(self) -> torch.device:
        return self.jobs[0].data.y.device

    def _first_states(self) -> dict[str, dict[str, Tensor]]:
        """Return the states of the transforms before the first step."""
        transforms = self.rules.transforms
        views = [(job.rules, self._view_of(k)) for k, job in enumerate(self.jobs) if transforms]
        return {
            transform.name: stack_sets([rules.transforms[n].init(view) for rules, view in views])
            for n, transform in enumerate(transforms)
        }

    def _companions(self, rates: float | Tensor) -> dict[str, Beside[TensorUpdate]]:
        """Return the rules' companions at their start, by name."""
        views = [self._view_of(k) for k in range(len(self.jobs))] if self.rules.companions else []
        beside = {}
        for companion in self.rules.companions:
            tensors = stack_sets([companion.start(view) for view in views])
            state = stack_sets([companion.init(view) for view in views])
            update = self._update(rates)
            update.start([*tensors.values()], [*tensors], {})
            beside[companion.name] = Beside(tensors, state, update)
        return beside

    def run(self, numbers: Sequence[int], *, shared: bool) -> StackResult:
        """Take all steps; return the result; see `StackedTrainer._train`."""
        hands_on = self.rules.finish is send_model
        left = [] if hands_on else [Given.of_view(given) for given in self.given]
        figures: list[Tensor] = []
        sizes: list[Integers] = []
        norm = self.sequential.network.has_batchnorm
        batching = self.sequential.local.batching
        tail = self._tail_average()
        for batch, taken, repeats in stacked_batches(self.jobs, batching, norm):
            figures.append(torch.stack(self.steps(batch, repeats)))
            if tail:
                with torch.no_grad():
                    tail.after_step([size > 0 for size in taken])
            sizes.append(taken)
        if tail:
            with torch.no_grad():
                tail.settle()
        self.stacked.check_left("a rule of local training")
        if shared:
            self.step = self.step.on_its_own()
        self.tensors = self.step.tensors
        of_steps = np.stack(sizes)  # [S, K]
        losses = losses_of_stack(read_later(torch.stack(figures)), of_steps.T)
        held = {name: tensor.detach() for name, tensor in self.tensors.items()}
        sent = only(held, self.jobs[0].broadcast.get("model", held))
        if hands_on and sent:
            return StackResult(numbers, losses, sent=sent)
        steps = (of_steps > 0).sum(0).tolist()
        uploads = [self._finish(k, steps[k]) for k in range(len(self.jobs))]
        for given in left:
            given.check_left("finish")
        return StackResult(numbers, losses, uploads)

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

    def _finish(self, k: int, steps: int) -> Upload:
        """Return the upload of a client that took a number of steps."""
        beside, job = self.step.beside, self.jobs[k]
        last = {**self.step.states, **{name: own.state for name, own in beside.items()}}
        trained = Trained(
            steps=steps,
            lr=job.lr,
            states={name: row(state, k) for name, state in last.items()},
            samples=job.data,
            optimizer=self.step.update.kept_of((k,), self.step.names),
            solver=self.sequential.optimizer,
            transforms=job.rules.transforms,
            batching=self.sequential.local.batching,
            companions={name: row(own.tensors, k) for name, own in beside.items()},
            base=self.sequential.network.bindings.base,
        )
        with torch.no_grad():
            return job.rules.finish(self._view_of(k), trained)

    def outcome(self, batch: Tensors) -> list[Tensor]:
        """Return all that a step on a batch changes, and its losses; change nothing."""
        rng, step = self.sequential.rng_state(), self.step.on_its_own()
        losses, objectives, directions, _ = step.direction(batch, rng)
        self.sequential.set_rng_state(rng)
        step = self.step.on_its_own()
        step.take(batch)
        changed = [tensor.detach() for _, tensor in leaves(step.changing())]
        return [losses, objectives, *directions, *changed]

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


def _copy(upload: Upload) -> Upload:
    """Return an upload whose tensors nobody overwrites."""
    return replace(
        upload,
        sums=copy_tree(upload.sums),
        rows=copy_tree(upload.rows),
        state=copy_tree(upload.state),
        round_state=copy_tree(upload.round_state),
    )


def row(tensors: Tensors, k: int) -> dict[str, Tensor]:
    """Return the tensors [...] of client k, of tensors [K, ...]."""
    return {name: tensor[k] for name, tensor in tensors.items()}


def _have_same_values(first: Tensor, second: Tensor) -> bool:
    """Return whether tensors are equal; a gradient of padding may be 0 or -0."""
    return torch.allclose(first, second, rtol=0, atol=0, equal_nan=True)
