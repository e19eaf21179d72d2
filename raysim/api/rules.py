"""The rules of local training, as functions of tensors, and the data of a pass over clients.

A method changes local training by handing rules to the engine. Rules never branch in Python on a
tensor's value (`torch.where` does), so the same rules can train one client at a time or many at
once.

Legend: B batch, F features, C classes, n_k samples of client k.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property, partial
from itertools import pairwise
from math import ceil
from typing import Literal, NamedTuple, Protocol, cast

import numpy as np
import torch
from torch import Tensor

from raysim.api.optimizer import Optimizer, effective_steps
from raysim.api.scoring import CLASSIFICATION, Scoring
from raysim.api.withheld import COHORT, SINGLE, closed
from raysim.errors import RunError, SettingsError
from raysim.numbers.arrays import Floats, Integers
from raysim.numbers.encoding import Encoding
from raysim.numbers.tensors import Groups, Tensors, at_least_float32, nbytes, number_beside, only

Weighting = Literal["examples", "uniform"]
Bases = Mapping[str, str]
"""For each group of uploads, the broadcast group that it has moved from, or CHANGE."""
CHANGE = ""
"""Base of a group that is a change already."""
MEANS_ALONE = "choose a method that needs means alone, such as method.name=fedavg"
"""Advice for a run that withholds a value from its method."""


@dataclass(frozen=True)
class LocalSteps:
    """Number of local steps in place of local epochs; the last epoch is cut. Falsy for 0 steps."""

    count: int

    def __bool__(self) -> bool:
        """Return whether there are any steps."""
        return self.count > 0

    def __mul__(self, factor: float) -> LocalSteps:
        """Return a multiple of the steps, rounded up; at least one unless there are none."""
        return LocalSteps(max(ceil(round(self.count * factor, 9)), min(self.count, 1)))

    __rmul__ = __mul__


class Batching(NamedTuple):
    """Batches of an epoch of a client.

    Attributes:
        size: Batch size B, or "full".
        drop_last: Whether a last batch of fewer samples is left out; a client with fewer than B
            samples keeps it, because it would not train otherwise.
    """

    size: int | Literal["full"]
    drop_last: bool = False

    def used(self, sizes: Integers) -> Integers:
        """Return the samples of an epoch of clients that have `sizes` samples [n]."""
        if self.size == "full" or not self.drop_last:
            return sizes
        return np.where(sizes < self.size, sizes, sizes - sizes % self.size)


LocalWork = int | LocalSteps
"""Local epochs, or local steps in their place."""


def count_of(local_work: LocalWork) -> int:
    """Return the number of epochs or of steps."""
    return local_work.count if isinstance(local_work, LocalSteps) else local_work


def with_count(local_work: LocalWork, count: int) -> LocalWork:
    """Return another number of epochs or of steps."""
    return LocalSteps(count) if isinstance(local_work, LocalSteps) else count


def samples_of(local_work: LocalWork, sizes: Integers, batching: Batching) -> Integers:
    """Return the samples that clients train on, each time that they do [n].

    Args:
        local_work: Their local epochs or steps.
        sizes: The clients' samples [n].
        batching: Batches of an epoch.
    """
    used = batching.used(sizes)
    if not isinstance(local_work, LocalSteps):
        return local_work * used
    rows = np.minimum(used, used if batching.size == "full" else batching.size)
    whole, rest = np.divmod(local_work.count, -(-used // rows))
    samples: Integers = whole * used + rest * rows
    return samples


class Outputs(NamedTuple):
    """Outputs of a network on a batch; `features` and `hidden` are None without these stages."""

    features: Tensor | None  # [B, ch, H, W] or [B, F]
    hidden: Tensor | None  # [B, F]
    logits: Tensor  # [B, C]

    def in_float32(self) -> Outputs:
        """Return these outputs with logits in float32 or float64, as losses need them."""
        return self._replace(logits=at_least_float32(self.logits))

    def scaled(self, temperature: float | Tensor) -> Outputs:
        """Return these outputs with logits divided by the temperature T."""
        return self._replace(logits=self.logits / temperature)


PADDED_TO = 16
"""Sequences are padded to multiples of so many positions, so that batches have few shapes."""


def padded_length(lengths: Integers) -> int:
    """Return the length of a batch of sequences: of the longest one, in PADDED_TO rounded up."""
    return -(-max(1, int(lengths.max())) // PADDED_TO) * PADDED_TO


class Batch(NamedTuple):
    """Samples: inputs x [B, ...] and targets y [B, ...], with the scoring that compares them.

    A batch of local training is a view of a buffer that the next epoch overwrites. Where clients
    are trained together the smaller batches are padded; `weights` [B] is then 1 for a sample and 0
    for padding. Rules reduce over samples by `loss`, `mean`, `padded_with_zeros` and `size` alone.
    `lengths` [B] are those of padded sequences x [B, T, ...], where x are sequences. A part of a
    batch (`in_parts`) divides the sum of its losses by `divisor` in place of its weights.
    """

    x: Tensor
    y: Tensor
    weights: Tensor | None = None
    scoring: Scoring = CLASSIFICATION
    lengths: Integers | None = None
    divisor: Tensor | None = None

    def loss(self, outputs: Tensor) -> Tensor:
        """Return the mean loss of a network's outputs; by default their cross-entropy."""
        if self.scoring.whole_batch:
            return self.scoring.mean_loss(outputs, self.y)
        if self.weights is not None or self.scoring.weights is not None:
            return self.mean_of_losses(outputs)
        return self.scoring.mean_loss(outputs, self.y)

    def mean_of_losses(self, outputs: Tensor) -> Tensor:
        """Return the mean loss as the mean of the samples' losses, padded or not."""
        losses = self.losses(outputs)
        if self.scoring.weights is None:
            return self.mean(losses)
        if self.divisor is not None:
            total = self.divisor
        else:
            total = self.padded_with_zeros(self.scoring.weights(self.y).to(losses.dtype)).sum()
        return self.padded_with_zeros(losses).sum() / torch.where(total > 0, total, 1)

    def in_parts(self, count: int) -> Iterator[tuple[Batch, float]]:
        """Yield parts of almost equal size, and their shares of the samples.

        The mean over the parts by these shares is that of the batch, also of a loss that is divided
        by the weights of all its samples.
        """
        n, total = len(self.y), None
        if self.scoring.weights is not None:
            total = self.scoring.weights(self.y).sum()
        for start in range(0, n, -(-n // count)):
            rows = slice(start, start + -(-n // count))
            part = self._replace(x=self.x[rows], y=self.y[rows], lengths=None)
            share = len(part.y) / n
            yield part._replace(divisor=None if total is None else total * share), share

    def part(self, start: int, stop: int) -> Batch:
        """Return some of the samples; sequences are cut as `padded_length` says."""
        rows = slice(start, stop)
        part = self._replace(x=self.x[rows], y=self.y[rows])
        if self.lengths is None:
            return part
        lengths = self.lengths[rows]
        return part._replace(x=part.x[:, : padded_length(lengths)], lengths=lengths)

    @property
    def reported(self) -> Batch:
        """This batch with the reported loss, if another one is minimised."""
        return self._replace(scoring=self.scoring.reported or self.scoring)

    def losses(self, outputs: Tensor) -> Tensor:
        """Return the loss of each sample [B]."""
        return self.scoring.sample_losses(outputs, self.y)

    def mean(self, values: Tensor) -> Tensor:
        """Return the mean over the batch of one value per sample [B]."""
        if self.weights is None:
            return values.mean()
        return (values * self.weights).sum() / self.size().clamp(min=1)

    def size(self) -> Tensor:
        """Return the number of samples, padding left out."""
        if self.weights is None:
            return self.y.new_full((), len(self.y), dtype=torch.int64)
        return self.weights.sum()

    def padded_with_zeros(self, values: Tensor) -> Tensor:
        """Return one row per sample [B, ...] with the rows of padding set to 0."""
        if self.weights is None:
            return values
        return values * self.weights.view(-1, *(1,) * (values.dim() - 1))


class LocalValues(NamedTuple):
    """Values of local training that a run chooses for a client in a round, besides its rate.

    On a GPU, and in a stack of clients that differ in one, a value is a tensor [] (a T of 1, the
    default, is a number): rules that ask for it as a number are not recorded.

    Attributes:
        temperature: T, the divisor of the logits in a criterion; in a criterion [B, 1] where it
            differs between samples.
    """

    temperature: float | Tensor = 1.0

    @property
    def keeps_loss(self) -> bool:
        """True if the objective of plain rules is the task's loss."""
        return not isinstance(self.temperature, Tensor) and self.temperature == 1


NO_VALUES = LocalValues()


class ClientValues(NamedTuple):
    """Values of local training of the clients of a pass.

    Attributes:
        common: Values of clients without their own.
        own: Own values of clients, by client.
    """

    common: LocalValues
    own: Mapping[int, LocalValues] = {}

    def of(self, client: int) -> LocalValues:
        """Return the values of a client."""
        return self.own.get(client, self.common)

    def differing(self, client: int) -> dict[str, float]:
        """Return the values of a client by name, if clients of the pass have their own."""
        return self.of(client)._asdict() if self.own else {}


class Gradient(Protocol):
    """Gradient of the local objective at any tensors, weight decay included.

    In a step it is taken in training mode with the step's random draws (dropout), in `finish` in
    evaluation mode; buffers are left alone.
    """

    def __call__(
        self,
        tensors: Tensors,
        batch: Batch,
        *,
        along: Tensors | None = None,
        change_outputs: Callable[[Outputs], Outputs] | None = None,
    ) -> Tensors:
        """Return the gradient, by name of the trained parameters.

        Args:
            tensors: Parameters and buffers of the network.
            batch: The samples.
            along: A vector by name of the trained parameters: returns the product of the Hessian
                with it, in place of the gradient.
            change_outputs: Returns the outputs that the objective is computed from in place of the
                network's; logits are not yet divided by the temperature.
        """


def only_in_finish(purpose: str) -> torch.Generator:
    """Refuse a generator to the functions of a step, which may run for many clients at once.

    Raises:
        SettingsError: always.
    """
    raise SettingsError(
        f"view.generator({purpose!r}): is for `finish` alone; in a step use torch's own random"
        " functions, which are seeded for each client"
    )


@dataclass(frozen=True)
class View:
    """View of the client in training, as rules see it.

    `start`, `broadcast`, `state` and `personal` must be left as they are: a change in place stops
    the run.

    Attributes:
        params: The live parameters and buffers of the client's network.
        trainable: Names of the parameters that are trained.
        start: The tensors that the client's network had at the start of this pass.
        broadcast: The groups that the server sent to every client.
        state: The client's own groups: its client state, and the round state of earlier passes.
        personal: The groups that the server sent to this client alone.
        generator: `generator(purpose)`, for `finish` alone; keyed by seed, round, pass and client.
        at: `at(tensors, x)`: the outputs at any tensors, in evaluation mode, without gradient.
        gradient: `gradient(tensors, batch)`: the gradient of the local objective at any tensors;
            `gradient(tensors, batch, along=v)` is the product of its Hessian with v.
        client: The client's number, for `finish` alone.
        stages: The groups that the client keeps for the stages of the channel, named
            `stage@group`; for the engine alone.
        pass_generator: As `generator`, with the same draws for all clients of the pass.
        buffers: Names of the network's buffers.
        values: Values that the run has chosen for the client.
    """

    params: Tensors
    trainable: Sequence[str]
    start: Tensors
    broadcast: Groups
    state: Groups
    personal: Groups
    generator: Callable[[str], torch.Generator]
    at: Callable[[Tensors, Tensor], Outputs]
    gradient: Gradient
    client: int = -1
    stages: Groups = field(default_factory=dict)
    pass_generator: Callable[[str], torch.Generator] = only_in_finish
    buffers: frozenset[str] = frozenset()
    values: LocalValues = NO_VALUES

    @property
    def temperature(self) -> float | Tensor:
        """The client's T; see `LocalValues.temperature`."""
        return self.values.temperature

    def scaled(self, logits: Tensor) -> Tensor:
        """Return logits as criteria see them: divided by the client's T."""
        return logits / self.values.temperature

    @property
    def received(self) -> Tensors:
        """The broadcast model; the client's own tensors, which are not sent, as they started."""
        return {**self.start, **self.broadcast.get("model", {})}


Criterion = Callable[[View, Outputs, Batch], Tensor]
"""Returns the loss of a batch, given logits / temperature."""


@dataclass(frozen=True)
class Trained:
    """The end of one client's local training.

    Attributes:
        steps: Optimiser steps taken.
        lr: Learning rate used.
        states: The last state of every transform and companion, by its name.
        samples: All of the client's samples, shared with others: left as they are.
        optimizer: What the optimizer keeps, by slot and name of the parameter; for the engine.
        solver: The optimizer itself; None for plain SGD.
        transforms: The changes of the gradient.
        batching: Batches of an epoch.
        companions: The last tensors of every companion, by its name.
        numbers: Numbers that a loop of the user's own has returned; for the engine.
        kept: Groups that the client keeps for that loop; for the engine.
        base: The frozen tensors of the network, which no group has, for calls of its structure.
    """

    steps: int
    lr: float
    states: Mapping[str, Tensors]
    samples: Batch
    optimizer: Groups = field(default_factory=dict)
    solver: Optimizer | None = None
    transforms: tuple[Transform, ...] = ()
    batching: Batching = field(default_factory=partial(Batching, "full"))
    companions: Groups = field(default_factory=dict)
    numbers: Mapping[str, float] = field(default_factory=dict)
    kept: Groups = field(default_factory=dict)
    base: Tensors = field(default_factory=dict)

    @cached_property
    def data(self) -> Batch:
        """A copy of all of the client's samples, made on demand: most clients never read it."""
        return self.samples._replace(x=self.samples.x.clone(), y=self.samples.y.clone())

    @property
    def effective_steps(self) -> float:
        """Sum of the weights a_i of gradients g_i in the change lr * sum_i a_i g_i.

        It is `steps` for plain SGD; momentum and pulls (`Transform.pull`) change it. Constants that
        a transform adds are left out. The optimizer must be linear in its gradients, as `sgd` is,
        and the model the last step's: `Method.needs_local` has `{"tail_average": 0.0}`.

        Raises:
            SettingsError: a transform states no `pull`.
            RunError: the sum is not above 0, because pulls are too strong for lr.
        """
        pulls = {False: 0.0, True: 0.0}
        for transform in self.transforms:
            if transform.pull is None:
                raise SettingsError(
                    f"rules: {transform.name!r} states no `pull`: no effective steps"
                )
            pulls[transform.after_momentum] += self.lr * transform.pull
        total = effective_steps(self.solver, self.steps, pulls[False], pulls[True])
        if total <= 0:
            raise RunError(
                f"its {self.steps} steps at lr={self.lr:g} are {total:g} effective steps, which"
                " must be above 0: set a smaller local.lr, or a weaker pull to the global model"
            )
        return total


@dataclass(frozen=True)
class Upload:
    """Upload of one client: the groups that it sends and keeps, and the numbers that it reports.

    Attributes:
        sums: Groups that the server needs the weighted mean of; they are sent.
        rows: Groups that the server needs client by client; they are sent.
        state: The client's new client state; it stays on the client.
        round_state: Groups for the later passes of this round, which find them in `View.state`;
            they stay on the client and are deleted after the round.
        scalars: Numbers for the server; they are sent, four bytes each, and are logged.
        metrics: Numbers for people, or tensors []; they are logged only.
        bytes_up: Bytes that a deployment would send, if the tensors here hold more.
        samples: n_k, as the stages of the channel see it; the engine sets it.
        encoding: Encoding of the differences of an upload that a stage sees or returns.
        dtypes: Dtypes of the means of tensors that are summed in float64, by `group/name`. Other
            means have the dtype of the tensor.
    """

    sums: Groups = field(default_factory=dict)
    rows: Groups = field(default_factory=dict)
    state: Groups = field(default_factory=dict)
    round_state: Groups = field(default_factory=dict)
    scalars: Mapping[str, float] = field(default_factory=dict)
    metrics: Mapping[str, float | Tensor] = field(default_factory=dict)
    bytes_up: int | None = None
    samples: int = 0
    encoding: Encoding | None = None
    dtypes: Mapping[str, torch.dtype] = field(default_factory=dict)

    def sent_bytes(self) -> int:
        """Return the bytes that a client sends: `bytes_up`, or the size of scalars and tensors."""
        held = nbytes(self.sums) + nbytes(self.rows) + 4 * len(self.scalars)
        return held if self.bytes_up is None else self.bytes_up


Finish = Callable[[View, Trained], Upload]
"""Returns a client's upload after its training."""


def send_model(view: View, trained: Trained) -> Upload:
    """Send the trained model up to be averaged, as FedAvg does.

    If the model was broadcast in part, only these tensors are sent.
    """
    sent = view.broadcast.get("model", view.params)
    return Upload(sums={"model": only(view.params, sent)})


def receive_model(broadcast: Groups, state: Groups, personal: Groups) -> Tensors:
    """Start from the broadcast model, as FedAvg does."""
    return broadcast.get("model", {})


def load_nothing(broadcast: Groups, state: Groups, personal: Groups) -> Tensors:
    """Load nothing: no client trains."""
    return {}


def send_nothing(view: View, trained: Trained) -> Upload:
    """Return an empty upload."""
    return Upload()


def nothing_received(client: int) -> int:
    """Return 0, the bytes of a broadcast that clients already have from an earlier pass."""
    return 0


def no_state(view: View) -> Tensors:
    """Return the state of a transform that keeps none."""
    return {}


def zero_term(view: View) -> Tensors:
    """Return the state of a transform that keeps only the term that it reports."""
    return {"term": number_beside(view.params)}


@dataclass(frozen=True)
class Transform:
    """A change of the gradient between autograd and the step, as optax's GradientTransformation.

    Attributes:
        name: Names its state; unique among the transforms of a client.
        update: `update(view, gradients, batch, state)`: returns the changed gradients and the next
            state, both of the same names, shapes and dtypes as before.
        init: `init(view)`: returns the state before the first step.
        term: Key in the state of a term; its gradient is added, and the reported objective has it.
        after_momentum: Whether it changes the step's direction after the momentum; else it changes
            the gradient before the momentum, weight decay included.
        replaces: Whether it ignores the given gradient and computes its own by `view.gradient`; it
            must then be the first transform of the gradient.
        pull: Its strength mu, if it adds mu * (w_k - a) with a fixed, and constants of the pass;
            None if it does anything else. For `Trained.effective_steps`.
    """

    name: str
    update: Callable[[View, Tensors, Batch, Tensors], tuple[Tensors, Tensors]]
    init: Callable[[View], Tensors] = no_state
    term: str | None = None
    after_momentum: bool = False
    replaces: bool = False
    pull: float | None = None


@dataclass(frozen=True)
class Companion:
    """Tensors that a client trains in addition to its network, on the same batches.

    After each step of the network they take a separate step, with the same optimizer, learning rate
    and decoupled weight decay. Their slots are zero at the start of a pass. `local.clip_norm` and
    `local.tail_average` do not apply to them.

    Attributes:
        name: Names its state; unique among companions and transforms.
        start: `start(view)`: the tensors to start from, by name.
        gradient: `gradient(view, tensors, batch, state, lr)`: returns their gradient and the next
            state, both of the same names and shapes. `view.params` have taken their step,
            `view.gradient` has its random draws; `lr` is the learning rate, in a stack a tensor [].
        init: `init(view)`: returns the state before the first step.
    """

    name: str
    start: Callable[[View], Tensors]
    gradient: Callable[[View, Tensors, Batch, Tensors, float | Tensor], tuple[Tensors, Tensors]]
    init: Callable[[View], Tensors] = no_state


@dataclass(frozen=True)
class Rules:
    """Rules of a client in a pass; every default is plain SGD on the task's loss.

    `criterion`, penalties and the transforms' `update` must depend on their arguments and on the
    method's fields alone: on a CPU and on a GPU, they are replayed without their Python.
    They may write into buffers of `view.params` in place, which are then the client's.

    Attributes:
        start: `start(broadcast, state, personal)`: the tensors to start from.
        criterion: `criterion(view, outputs, batch)`, for that loss, on logits / temperature.
        penalties: Terms added to the criterion; they see raw logits.
        transforms: Changes of the gradient, applied in this order.
        companions: Tensors that take a step after each step of the network.
        finish: `finish(view, trained)`: the client's upload.
        divisors: `divisors(view, outputs, batch)`: the divisor of each sample's raw logits [B] for
            the criterion; None takes the client's T.
        from_samples: `from_samples(groups, samples)`: groups that the client makes of its samples
            at the start of the pass, such as counts of classes, given the groups that it received
            and keeps. They are in its state for the pass; it neither keeps nor sends them.
    """

    start: Callable[[Groups, Groups, Groups], Tensors] = receive_model
    criterion: Criterion | None = None
    penalties: tuple[Callable[[View, Outputs, Batch], Tensor], ...] = ()
    transforms: tuple[Transform, ...] = ()
    companions: tuple[Companion, ...] = ()
    finish: Callable[[View, Trained], Upload] = send_model
    divisors: Callable[[View, Outputs, Batch], Tensor] | None = None
    from_samples: Callable[[Groups, Batch], Groups] | None = None

    @property
    def are_plain(self) -> bool:
        """True if the objective, before transforms, is the task's loss at the client's T."""
        return not (self.criterion or self.penalties or self.divisors)

    @property
    def change_steps(self) -> bool:
        """True if a local step is not the plain one on the task's loss."""
        return bool(not self.are_plain or self.transforms or self.companions)

    def __post_init__(self) -> None:
        names = [transform.name for transform in self.transforms]
        names += [companion.name for companion in self.companions]
        if len({*names}) < len(names):
            raise SettingsError(
                f"rules: transforms and companions must have different names; given {names}"
            )
        changing = [transform for transform in self.transforms if not transform.after_momentum]
        for before, after in pairwise(changing):
            if after.replaces:
                raise SettingsError(
                    f"rules: {before.name!r} cannot stand before {after.name!r}, which computes its"
                    f" own gradient; put {after.name!r} first"
                )


@dataclass(frozen=True)
class Pass:
    """One map-reduce over clients.

    With `epochs=0` clients do not train, and `finish` alone makes each upload: a full gradient
    (`view.gradient`) or a model of an earlier pass (`view.state`).

    Attributes:
        clients: The ids of the clients that take part.
        broadcast: Groups sent to all of them; "model" is the network's parameters and buffers.
        rules: Rules of each client.
        epochs: Local epochs of all clients, or by client; `LocalSteps` in their place.
        lr: Local learning rate of all clients, by client, or a function of a client's local steps
            (`Round.steps`).
        trainable: Names of the parameters that are trained; None trains all. Modules whose own
            parameters are all frozen run in evaluation mode, so BatchNorm keeps its statistics.
        weighting: Weights of the mean, a word or a number for each client; None takes the run's
            `weighting`.
        personal: Groups sent to one client alone.
        bytes_down: `bytes_down(client)`: bytes of the broadcast that one client receives, where a
            deployment would send less than the whole.
        bytes_up: `bytes_up(client)`: those of the bytes that a client sends whose number differs by
            client. An upload counts all its bytes itself; the virtual clock counts one upload, and
            takes these for the other clients.
        bases: Groups in uploads that stages of the channel change, each with the broadcast group
            that it has moved from, or CHANGE if it is a change itself. Stages leave other groups as
            they are. None: `model`, from the broadcast `model` if there is one.
        draws: Number of the round's pass that its clients repeat the random draws of: batches,
            dropout. None: new draws.
        pooled: Whether its clients train on the samples of all clients, in one place: they receive
            nothing, and no stage of the channel changes their uploads.
        label: Prefix of separate columns for its losses and bytes (`{label}_train_loss`, ...). The
            round's columns then have its bytes but not its losses. Empty: none.
    """

    clients: Sequence[int]
    broadcast: Groups
    rules: Rules = Rules()
    epochs: LocalWork | Mapping[int, LocalWork] = 0
    lr: float | Mapping[int, float] | Callable[[int], float] = 0.0
    trainable: frozenset[str] | None = None
    weighting: Weighting | Mapping[int, float] | None = None
    personal: Mapping[int, Groups] = field(default_factory=dict)
    bytes_down: Callable[[int], int] | None = None
    bytes_up: Callable[[int], int] | None = None
    bases: Bases | None = None
    draws: int | None = None
    pooled: bool = False
    label: str = ""

    @property
    def moved_from(self) -> Bases:
        """The bases of the groups in uploads that stages of the channel change."""
        if self.pooled:
            return {}
        if self.bases is not None:
            return self.bases
        return {"model": "model"} if "model" in self.broadcast else {}

    def epochs_of(self, client: int) -> LocalWork:
        """Return the local epochs or steps of one client."""
        return self.epochs[client] if isinstance(self.epochs, Mapping) else self.epochs

    def lr_of(self, client: int) -> float:
        """Return the local learning rate of one client, where the pass has no function for it."""
        if isinstance(self.lr, int | float):
            return self.lr
        return cast(Mapping[int, float], self.lr)[client]

    def received_bytes(self, clients: Sequence[int]) -> Integers:
        """Return the bytes that clients [n] receive [n], including `personal` groups."""
        received = np.zeros(len(clients), dtype=np.int64)
        if self.pooled or not len(clients):  # an empty list would be float
            return received
        if self.personal:
            received += [nbytes(self.personal.get(client, {})) for client in clients]
        if self.bytes_down is None:
            received += nbytes(self.broadcast)
        else:
            received += [self.bytes_down(client) for client in clients]
        return received


@dataclass(frozen=True)
class Reduced:
    """The result of a pass.

    A method may pass on a withheld field but not read it.

    Attributes:
        clients: The clients that arrived, ascending; dropped ones are missing. May be withheld; a
            pass may still be over them.
        means: The weighted mean of every group in `Upload.sums`.
        rows: For each client, its `Upload.rows`; may be withheld.
        scalars: By name, one value for each client, in the order of `clients`.
        staleness: In asynchronous rounds, for each client, the versions since its start.
        tiers: In asynchronous rounds, for each client, its tier; 0 is the fastest.
        samples: The clients' samples, in the order of `clients`; may be withheld.
    """

    clients: tuple[int, ...] = field(
        metadata=closed(
            *("the clients of a round that have arrived", COHORT), instead=MEANS_ALONE, handle=True
        )
    )
    means: Groups
    rows: Mapping[int, Groups] = field(
        metadata=closed("what single clients send", SINGLE, instead=MEANS_ALONE)
    )
    scalars: Mapping[str, Floats]
    staleness: Mapping[int, int] = field(default_factory=dict)
    tiers: Mapping[int, int] = field(default_factory=dict)
    samples: Integers = field(
        default_factory=lambda: np.empty(0, dtype=np.int64),
        metadata=closed("the sizes of clients", SINGLE, instead=MEANS_ALONE),
    )
