"""Training of clients by a loop of the user's own.

The loop has the resident module with the client's start; what the module holds afterwards goes the
way of the engine's own steps, through the method's `finish`. The module is as before when the next
client gets it: hooks, modes, gradients and attributes that a loop leaves there are taken off.
"""

from __future__ import annotations

import random
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, replace
from itertools import islice
from numbers import Real
from sys import maxsize
from typing import Any, Self

import numpy as np
import torch
from torch import Tensor, nn
from torch.utils.data import DataLoader, Dataset

from raysim.api.own_loop import OWN_LOOP, Loop
from raysim.api.rules import Trained, Upload
from raysim.config import LocalSettings
from raysim.errors import RunError, visible
from raysim.numbers.arrays import Array
from raysim.numbers.tensors import Groups, Tensors
from raysim.numbers.tensors.later import sent_to
from raysim.numbers.tensors.torch_private import foreach_add_, transient_buffers
from raysim.training.job import Bounds, ClientJob, LocalLosses, iterate_epochs, steps_of
from raysim.training.sequential import ClientTraining, SequentialTrainer
from raysim.training.update import Update

TENSORS, NUMBERS = f"{OWN_LOOP}@tensors", f"{OWN_LOOP}@numbers"
"""Groups of a client's state that hold `Client.state`."""
LOOP = "the loop of local.train"
TRAIN_LOSS = "train_loss"
"""Number that a loop may return as the client's training loss."""


class LocalOptimizer(torch.optim.Optimizer):
    """The optimizer of `local.*` as one of torch's, for schedulers and trainers.

    `local.clip_norm` and `local.weight_decay` are a part of its step. A parameter without a
    gradient has a gradient of zeros.
    """

    def __init__(self, params: Iterable[Any], local: LocalSettings, lr: float) -> None:
        """Set the parameters, or groups of them, the settings, and the learning rate."""
        super().__init__(params, {"lr": lr})
        self._update, self._started = Update(local, local.build_optimizer(), lr), False

    def add_param_group(self, param_group: dict[str, Any]) -> None:
        """Add a group; torch's own method imports torch's compiler, which takes seconds."""
        params = param_group["params"]
        params = [params] if isinstance(params, Tensor) else [*params]
        self.param_groups.append({**self.defaults, **param_group, "params": params})

    def zero_grad(self, set_to_none: bool = True) -> None:
        """Remove the gradients, or set them to zero."""
        for param in self._params():
            if param.grad is not None:
                param.grad = None if set_to_none else torch.zeros_like(param)

    def step(self, closure: Callable[[], Any] | None = None) -> Any:
        """Take a step; return the closure's result."""
        result = None if closure is None else closure()
        with torch.no_grad():
            params = self._params()
            if not self._started:
                self._update.start(params, [*map(str, range(len(params)))], {})
                self._started = True
            gradients = [torch.zeros_like(p) if p.grad is None else p.grad for p in params]
            gradients = self._update.add_weight_decay(self._update.clip(gradients), params)
            directions = self._update.directions(gradients)
            left = iter(self._update.add_decoupled_decay(directions, params))
            for group in self.param_groups:
                of_group = [*islice(left, len(group["params"]))]
                foreach_add_(group["params"], of_group, -group["lr"])
        return result

    def _params(self) -> list[Tensor]:
        return [param for group in self.param_groups for param in group["params"]]


class ClientSamples(Dataset[Any]):
    """A client's samples, one by one; by a slice, those of the present epoch.

    Attributes:
        epoch: Inputs and targets of the present epoch, in its order.
    """

    def __init__(self, x: Tensor, y: Tensor) -> None:
        self._x, self._y, self.epoch = x, y, (x, y)

    def __len__(self) -> int:
        return len(self._y)

    def __getitem__(self, rows: int | slice) -> tuple[Tensor, Tensor]:
        """Return a copy of a sample, or a batch."""
        if isinstance(rows, slice):
            return self.epoch[0][rows], self.epoch[1][rows]
        return self._x[rows].clone(), self._y[rows].clone()


@dataclass(frozen=True)
class EpochBatches:
    """Slices of the batches of an epoch, of the next one in each iteration.

    Attributes:
        samples: The samples, which get the epoch.
        next_epoch: Returns inputs and targets of the next epoch.
        bounds: (start, stop) of the batches.
    """

    samples: ClientSamples
    next_epoch: Callable[[], tuple[Tensor, Tensor]]
    bounds: Bounds

    def __len__(self) -> int:
        return len(self.bounds)

    def __iter__(self) -> Iterator[slice]:
        self.samples.epoch = self.next_epoch()
        return (slice(*bounds) for bounds in self.bounds)


class Client:
    """Client of a round, as the argument of a training loop of your own.

    What `model` holds after the loop is what the client has trained.

    Attributes:
        id: The client's number.
        name: Its name; its number where clients have none.
        round: The round, from 1.
        lr: The learning rate of this round.
        epochs: Local epochs; with `local.steps`, the epochs that have so many steps, rounded up.
        samples: The number of its samples.
        device: Where its model and samples are.
        state: Tensors and numbers that the client keeps until its next round, by name.
    """

    def __init__(self, training: OwnLoopTraining) -> None:
        job, trainer = training.job, training.trainer
        self._training, self._bounds = training, training.bounds()
        self.id, self.name, self.round = job.client, trainer.name_of(job.client), job.round + 1
        self.lr, self.samples, self.device = job.lr, len(job.data.y), job.data.y.device
        self._steps = steps_of(job.epochs, len(self._bounds))
        self.epochs = -(-self._steps // len(self._bounds))
        self.state = read_state({**job.stages, **job.state})
        self._epochs = iterate_epochs(replace(job, epochs=maxsize), self._bounds)

    def __repr__(self) -> str:
        return f"Client({self.name}, round={self.round}, samples={self.samples})"

    @property
    def model(self) -> nn.Module:
        """The module, with the tensors that the client starts from."""
        return self._training.trainer.network.module

    def optimizer(self, params: Iterable[Any] | None = None) -> LocalOptimizer:
        """Return the optimizer of `local.*` at this round's rate.

        Args:
            params: Parameters, or groups of them as torch takes them; None: all that are trained.
        """
        training = self._training
        chosen = training.params if params is None else params
        return LocalOptimizer(chosen, training.trainer.local, self.lr)

    def batches(self) -> Iterator[tuple[Tensor, Tensor]]:
        """Yield inputs and targets of each local step, in the order of the run's own draws."""
        batches = (batch for _ in range(self.epochs) for batch in self.loader())
        return islice(batches, self._steps)

    def loader(self) -> DataLoader[Any]:
        """Return a DataLoader of the client's samples; each iteration is the next epoch."""
        data = self._training.job.data
        samples = ClientSamples(data.x, data.y)
        return DataLoader(
            samples,
            batch_size=None,
            sampler=EpochBatches(samples, self._next_epoch, self._bounds),
            generator=torch.Generator(),  # else it draws from the global one
        )

    def _next_epoch(self) -> tuple[Tensor, Tensor]:
        """Return copies of inputs and targets, in the order of the next epoch."""
        inputs, order = next(self._epochs)
        targets = self._training.job.data.y
        index = sent_to(targets.device, order[: self._bounds[-1][1]])
        return inputs.index_select(0, index), targets.index_select(0, index)

    def arrays(self) -> tuple[Array, Array]:
        """Return copies of all inputs and targets as NumPy arrays."""
        data = self._training.job.data
        return data.x.cpu().numpy().copy(), data.y.cpu().numpy().copy()


class OwnLoopTrainer(SequentialTrainer):
    """Trains clients by a loop; passes without local steps go as ever.

    Attributes:
        loop: The loop.
        names: Names of the clients; empty if they have numbers alone.
    """

    loop: Loop
    names: tuple[str, ...] = ()

    def using(self, loop: Loop, names: tuple[str, ...]) -> Self:
        """Return this trainer with a loop, and the names of the clients."""
        self.loop, self.names = loop, names
        return self

    def name_of(self, client: int) -> str:
        """Return a client's name, or its number."""
        return self.names[client] if self.names else str(client)

    def training(self, job: ClientJob) -> ClientTraining:
        """Return the training of a client."""
        return OwnLoopTraining(self, job) if job.epochs else super().training(job)


class OwnLoopTraining(ClientTraining):
    """Training of one client by a loop."""

    trainer: OwnLoopTrainer

    def _find_recordings(self) -> None:
        self.recorded_step = self.recorded = self.recorded_direction = None

    def run(self) -> tuple[Upload, LocalLosses]:
        """Call the loop; return the upload and the losses."""
        client = Client(self)
        with lent(self), seeded_globally(self.job.torch_seed):
            try:
                returned = self.trainer.loop(client)
            except SystemExit as error:
                raise RunError(f"{LOOP} ends the process: {error!r}") from error
        numbers = checked_numbers(returned, LOOP)
        loss = numbers.pop(TRAIN_LOSS, float("nan"))
        self.numbers, self.kept = numbers, state_groups(client.state, self.job.stages)
        steps = steps_of(self.job.epochs, len(self.bounds()))
        return self.upload(steps), LocalLosses.stated(loss, steps)

    def trained(self, steps: int) -> Trained:
        """Return the end of the training."""
        return replace(super().trained(steps), numbers=self.numbers, kept=self.kept)


@contextmanager
def seeded_globally(seed: int) -> Iterator[None]:
    """Seed the global generators of NumPy and Python in the body, and restore them after it."""
    before = np.random.get_state(), random.getstate()
    np.random.seed(seed % 2**32)
    random.seed(seed)
    try:
        yield
    finally:
        np.random.set_state(before[0])
        random.setstate(before[1])


@contextmanager
def lent(training: OwnLoopTraining) -> Iterator[None]:
    """Lend the resident module in the body; afterwards it has its own tensors, with new values.

    Raises:
        RunError: the module has tensors of other names, shapes or types.
    """
    network = training.trainer.network
    module, held = network.module, network.bindings.tensors
    memory = {name: tensor.detach() for name, tensor in held.items()}
    needed_grad = [(each, each.requires_grad) for each in module.parameters()]
    own = [vars(each) for each in module.modules()]
    dicts = [value for each in own for value in each.values() if isinstance(value, dict)]
    contents: list[tuple[dict[str, Any], dict[str, Any]]] = [(d, {**d}) for d in (*own, *dicts)]
    trained = {*training.names}
    for name, tensor in held.items():
        if tensor.requires_grad and name not in trained:
            tensor.requires_grad_(False)
    try:
        yield
        values = moved_values(module, held, memory)
    finally:
        for part, content in contents:
            part.clear()
            part.update(content)
        for name, tensor in held.items():
            if not _in_place(tensor, memory[name]):
                tensor.data = memory[name]
        for parameter, needs in needed_grad:
            parameter.requires_grad_(needs)
            parameter.grad = None
    with torch.no_grad():
        for name, value in values.items():
            held[name].copy_(value)


def moved_values(module: nn.Module, held: Tensors, memory: Tensors) -> Tensors:
    """Return the values that a module holds elsewhere than in its own tensors, by name.

    Args:
        module: The module, as a loop has left it.
        held: Its own tensors.
        memory: Views of their memory.

    Raises:
        RunError: the module has tensors of other names, shapes or types.
    """
    present = dict((*module.named_parameters(), *module.named_buffers()))
    transient = {
        f"{path}.{name}".lstrip(".")
        for path, owner in module.named_modules()
        for name in transient_buffers(owner)
    }
    shown = [{n: _shown(t) for n, t in each.items()} for each in (present, memory)]
    for name in sorted({*present, *memory} - transient):
        found, wanted = (each.get(name, "missing") for each in shown)
        if found != wanted:
            raise RunError(
                f"{LOOP} changes the model's tensors: {name} is {found}, was"
                f" {wanted}; a loop may change values alone"
            )
    return {
        name: tensor.detach().clone()  # it may be the old tensor of another name
        for name, tensor in present.items()
        if name in held
        and not (tensor is held[name] and _in_place(tensor, memory[name]))
        and _shown(tensor) == _shown(memory[name])
    }


def _in_place(tensor: Tensor, memory: Tensor) -> bool:
    return tensor.data_ptr() == memory.data_ptr() and _shown(tensor) == _shown(memory)


def _shown(tensor: Tensor) -> str:
    return f"{str(tensor.dtype).removeprefix('torch.')}{[*tensor.shape]}"


def checked_numbers(returned: Any, who: str) -> dict[str, float]:
    """Return the numbers that a user's function has returned, by name.

    Args:
        returned: What it has returned.
        who: The function, for the error.

    Raises:
        RunError: it has returned something else.
    """
    named = {} if returned is None else returned
    if not isinstance(named, Mapping) or not all(isinstance(name, str) for name in named):
        raise RunError(
            f"{who} returns {visible(repr(returned))}; must return numbers by name, or None"
        )
    return {name: float(_number(f"{who} returns {name!r}", value)) for name, value in named.items()}


def state_groups(state: Any, before: Groups) -> Groups:
    """Return the groups that hold a client's state; none where it has and had none.

    Args:
        state: `Client.state`.
        before: The groups that the client kept before.

    Raises:
        RunError: a value is neither tensor nor number.
    """
    if not isinstance(state, Mapping) or not all(isinstance(name, str) for name in state):
        raise RunError(f"{LOOP}: client.state must map names to tensors or numbers")
    if not state and TENSORS not in before:
        return {}
    tensors = {n: v.detach().clone() for n, v in state.items() if isinstance(v, Tensor)}
    numbers = {
        name: torch.tensor(_number(f"{LOOP} keeps client.state[{name!r}],", value))
        for name, value in state.items()
        if name not in tensors
    }
    return {TENSORS: tensors, NUMBERS: numbers}


def read_state(groups: Groups) -> dict[str, Any]:
    """Return a client's state from the groups that hold it."""
    numbers = {name: value.item() for name, value in groups.get(NUMBERS, {}).items()}
    return {**groups.get(TENSORS, {}), **numbers}


def _number(where: str, value: Any) -> bool | int | float:
    """Return a number, or the value of a tensor without dimensions.

    Raises:
        RunError: it is something else.
    """
    if isinstance(value, Tensor | np.ndarray | np.generic) and not value.shape:
        value = value.item()
    if not isinstance(value, Real):
        hint = "; torch.from_numpy makes a tensor of an array" * isinstance(value, np.ndarray)
        raise RunError(f"{where} {visible(repr(value), 80)}, which is no number{hint}")
    return value  # type: ignore[return-value]
