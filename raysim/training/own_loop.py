"""Training of clients by a loop of the user's own.

The loop has a module with the client's start; what the module holds afterwards goes the
way of the engine's own steps, through the method's `finish`. Each client has a module of its own,
in the memory of the resident one: what a loop leaves on it, such as hooks, is gone with it.
"""

from __future__ import annotations

import copy
import random
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, replace
from itertools import islice
from math import isfinite
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
from raysim.numbers.tensors import Groups, Tensors, is_base
from raysim.numbers.tensors.later import sent_to
from raysim.numbers.tensors.torch_private import foreach_add_, tensor_hooks, transient_buffers
from raysim.training.job import Bounds, ClientJob, LocalLosses, iterate_epochs, steps_of
from raysim.training.sequential import ClientTraining, SequentialTrainer
from raysim.training.update import Update

TENSORS, NUMBERS = f"{OWN_LOOP}@tensors", f"{OWN_LOOP}@numbers"
"""Groups of a client's state that hold `Client.state`."""
SERVER = -1
"""Number of the server as a client."""
OPTIMIZER = "client.optimizer"
LOOP = "the loop of local.train"
LONGEST_NAME = 100
"""Most characters of the name of a number."""
TRAIN_LOSS = "train_loss"
"""Number that a loop may return as the client's training loss."""


class LocalOptimizer(torch.optim.Optimizer):
    """The optimizer of `local.*` as one of torch's, for schedulers and trainers.

    `local.clip_norm` and `local.weight_decay` are a part of its step. A parameter without a
    gradient has a gradient of zeros; one that needs none stays as it is.
    """

    def __init__(self, params: Iterable[Any], local: LocalSettings, lr: float) -> None:
        """Set the parameters, or groups of them, the settings, and the learning rate."""
        super().__init__(params, {"lr": lr})
        self._update, self._started = Update(local, local.build_optimizer(), lr), False

    def add_param_group(self, param_group: dict[str, Any]) -> None:
        """Add a group; torch's own method imports torch's compiler, which takes seconds."""
        params = param_group["params"]
        params = [params] if isinstance(params, Tensor) else [*params]
        if not all(isinstance(param, Tensor) for param in params):
            raise RunError(f"{OPTIMIZER}: takes parameters, not pairs of names and parameters")
        if others := sorted(param_group.keys() - {"params", "lr"}):
            raise RunError(
                f"{OPTIMIZER}: a group may have params and lr, not {others[0]}; local.* has the"
                " rest, for all groups"
            )
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
            gradients = [
                torch.zeros_like(p) if p.grad is None or not p.requires_grad else p.grad
                for p in params
            ]
            decaying = [p if p.requires_grad else torch.zeros_like(p) for p in params]
            gradients = self._update.add_weight_decay(self._update.clip(gradients), decaying)
            directions = self._update.directions(gradients)
            left = iter(self._update.add_decoupled_decay(directions, decaying))
            for group in self.param_groups:
                of_group = zip(group["params"], left, strict=False)
                moved = [pair for pair in of_group if pair[0].requires_grad]
                if moved:
                    foreach_add_(
                        [param for param, _ in moved], [step for _, step in moved], -group["lr"]
                    )
        return result

    def _params(self) -> list[Tensor]:
        return [param for group in self.param_groups for param in group["params"]]


class ClientSamples(Dataset[Any]):
    """A client's samples, one by one; a batch of an epoch is its own index."""

    def __init__(self, x: Tensor, y: Tensor) -> None:
        self._x, self._y = x, y

    def __len__(self) -> int:
        return len(self._y)

    def __getitem__(self, row: int | tuple[Tensor, Tensor]) -> tuple[Tensor, Tensor]:
        """Return a copy of a sample, or the given batch."""
        return row if isinstance(row, tuple) else (self._x[row].clone(), self._y[row].clone())


@dataclass(frozen=True)
class EpochBatches:
    """The batches of an epoch, of the next one in each iteration.

    Attributes:
        next_epoch: Returns inputs and targets of the next epoch.
        bounds: (start, stop) of the batches.
    """

    next_epoch: Callable[[], tuple[Tensor, Tensor]]
    bounds: Bounds

    def __len__(self) -> int:
        return len(self.bounds)

    def __iter__(self) -> Iterator[tuple[Tensor, Tensor]]:
        x, y = self.next_epoch()
        return ((x[start:stop], y[start:stop]) for start, stop in self.bounds)


class Client:
    """Client of a round, as the argument of a training loop of your own.

    What `model` holds after the loop is what the client has trained.

    Attributes:
        model: The module, with the tensors that the client starts from.
        id: The client's number; -1 where the server trains on its root samples.
        name: Its name; its number where clients have none; "server" where the server trains.
        round: The round, from 1.
        lr: The learning rate of this round.
        epochs: Local epochs; with `local.steps`, the epochs that have so many steps, rounded up.
        samples: The number of its samples.
        device: Where its model and samples are.
        state: Tensors and numbers that the client keeps until its next round, by name.
    """

    def __init__(self, training: OwnLoopTraining, model: nn.Module) -> None:
        job, trainer = training.job, training.trainer
        self._training, self._bounds, self.model = training, training.bounds(), model
        self.id = SERVER if job.root else job.client
        self.name = "server" if job.root else trainer.name_of(job.client)
        self.round = job.round + 1
        self.lr, self.samples, self.device = job.lr, len(job.data.y), job.data.y.device
        self._steps = steps_of(job.epochs, len(self._bounds))
        self.epochs = -(-self._steps // len(self._bounds))
        self.state = read_state({**job.stages, **job.state})
        self._epochs = iterate_epochs(replace(job, epochs=maxsize), self._bounds)

    def __repr__(self) -> str:
        return f"Client({self.name}, round={self.round}, samples={self.samples})"

    def optimizer(self, params: Iterable[Any] | None = None) -> LocalOptimizer:
        """Return the optimizer of `local.*` at this round's rate.

        Args:
            params: Parameters, or groups of them as torch takes them; None: all that are trained.
        """
        training = self._training
        if params is None:
            own = named_tensors(self.model)
            params = [own[name] for name in training.names if name in own]
        return LocalOptimizer(params, training.trainer.local, self.lr)

    def batches(self) -> Iterator[tuple[Tensor, Tensor]]:
        """Yield inputs and targets of each local step, in the order of the run's own draws."""
        batches = (batch for _ in range(self.epochs) for batch in self.loader())
        return islice(batches, self._steps)

    def loader(self) -> DataLoader[Any]:
        """Return a DataLoader of the client's samples; each iteration is the next epoch."""
        data = self._training.job.data
        return DataLoader(
            ClientSamples(data.x, data.y),
            batch_size=None,
            sampler=EpochBatches(self._next_epoch, self._bounds),
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
        template: The module before all clients, with the resident tensors.
    """

    loop: Loop
    names: tuple[str, ...] = ()
    template: nn.Module

    def using(self, loop: Loop, names: tuple[str, ...]) -> Self:
        """Return this trainer with a loop, and the names of the clients."""
        module = self.network.module
        shared: dict[int, Any] = {id(t): t for t in named_tensors(module).values()}
        self.loop, self.names, self.template = loop, names, copy.deepcopy(module, shared)
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
        with lent(self) as model, seeded_globally(self.job.torch_seed):
            client = Client(self, model)
            try:
                returned = self.trainer.loop(client)
            except SystemExit as error:
                raise RunError(f"{LOOP} ends the process: {error!r}") from error
        numbers = checked_numbers(returned, LOOP)
        if not isfinite(numbers.get(TRAIN_LOSS, 0.0)):
            raise RunError(
                f"{LOOP} returns {TRAIN_LOSS!r} {numbers[TRAIN_LOSS]}, which is not finite"
            )
        loss = numbers.pop(TRAIN_LOSS, float("nan"))
        self.numbers, self.kept = numbers, state_groups(client.state, self.job.stages)
        steps = steps_of(self.job.epochs, len(self.bounds()))
        return self.upload(steps), LocalLosses.stated(loss, steps)

    def trained(self, steps: int) -> Trained:
        """Return the end of the training."""
        return replace(super().trained(steps), numbers=self.numbers, kept=self.kept)


@contextmanager
def seeded_globally(seed: int) -> Iterator[None]:
    """Seed the global generators of NumPy and Python in the body.

    They are restored after it, and so are torch's grad mode and default dtype.
    """
    before = np.random.get_state(), random.getstate()
    grad_mode, dtype = torch.is_grad_enabled(), torch.get_default_dtype()
    np.random.seed(seed % 2**32)
    random.seed(seed)
    try:
        yield
    finally:
        np.random.set_state(before[0])
        random.setstate(before[1])
        torch.set_grad_enabled(grad_mode)
        torch.set_default_dtype(dtype)


@contextmanager
def lent(training: OwnLoopTraining) -> Iterator[nn.Module]:
    """Lend a module of its own to a loop; afterwards the resident tensors have its values.

    The module is made anew for each client, from the one before all clients, so nothing that a loop
    leaves on it is there for the next client. Its tensors have the memory of the resident ones.

    Raises:
        RunError: the module has tensors of other names, shapes or types, or a parameter that is
            not trained has changed.
    """
    held = training.trainer.network.bindings.tensors
    memory = {name: tensor.detach() for name, tensor in held.items()}
    trained = {*training.names}
    parameters = {name for name, tensor in held.items() if isinstance(tensor, nn.Parameter)}
    fixed = {name: memory[name].clone() for name in parameters - trained}
    module = fresh_module(training.trainer, trained)
    yield module
    values = moved_values(module, memory)
    with torch.no_grad():
        for name, value in values.items():
            held[name].copy_(value)
    for name, before in fixed.items():
        if not torch.equal(before, memory[name]):
            raise RunError(f"{LOOP} changes the parameter {name}, which is not trained")


def fresh_module(trainer: OwnLoopTrainer, trained: Collection[str]) -> nn.Module:
    """Return a new module with the memory of the resident tensors.

    Args:
        trainer: The trainer, with the resident network.
        trained: Names of the parameters that need gradients.
    """
    resident, template = trainer.network.module, trainer.template
    held, memo = trainer.network.bindings.tensors, dict[int, Any]()
    for name, tensor in named_tensors(template).items():
        own: Tensor = held[name].detach()
        if isinstance(tensor, nn.Parameter):
            own = type(tensor)(own, name in trained)
            vars(own).update(copy.deepcopy(vars(tensor), memo))
            for hook in tensor_hooks(tensor):
                own.register_hook(hook)  # type: ignore[no-untyped-call]
        memo[id(tensor)] = own
    module = copy.deepcopy(template, memo)
    for name, tensor in named_tensors(module).items():
        if tensor.data_ptr() != held[name].data_ptr():  # a script copies its tensors by itself
            tensor.data.copy_(held[name])
    for each, like in zip(module.modules(), resident.modules(), strict=True):
        each.training = like.training
    return module


def named_tensors(module: nn.Module) -> dict[str, Tensor]:
    """Return a module's parameters and buffers by name, without those of its base."""
    tensors = (*module.named_parameters(), *module.named_buffers())
    return {name: tensor for name, tensor in tensors if not is_base(tensor)}


def moved_values(module: nn.Module, memory: Tensors) -> Tensors:
    """Return the values that a module holds elsewhere than in the given memory, by name.

    Args:
        module: The module, as a loop has left it.
        memory: Tensors that it had, by name.

    Raises:
        RunError: the module has tensors of other names, shapes or types.
    """
    present = named_tensors(module)
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
        if name in memory
        and not _in_place(tensor, memory[name])
        and _shown(tensor) == _shown(memory[name])
    }


def _in_place(tensor: Tensor, memory: Tensor) -> bool:
    where = tensor.data_ptr(), tensor.stride(), _shown(tensor)
    return where == (memory.data_ptr(), memory.stride(), _shown(memory))


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
    for name in named:
        if not name.isprintable() or "@" in name or len(name) > LONGEST_NAME:
            raise RunError(
                f"{who} returns the name {visible(repr(name), 80)}; a name must have printable"
                f" characters but @, and {LONGEST_NAME} of them at most"
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
