"""The federation of a run: samples, client indices and a network.

The driver builds a federation once, and every worker opens it: prepared data travels as paths to
memory-mapped files, a user's own arrays through the object store, never per client.
"""

from __future__ import annotations

import copy
import math
import socket
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field, replace
from functools import partial
from pathlib import Path
from typing import Literal, TypeVar

import numpy as np
import torch
from torch import nn

from raysim.api.components import call, called
from raysim.api.method import Method
from raysim.api.own_loop import Evaluate, Loop
from raysim.api.scoring import (
    CLASSIFICATION,
    Scoring,
    balanced_weights,
    for_training,
    unit_of,
)
from raysim.config import LocalSettings, Settings
from raysim.errors import DataError, SettingsError
from raysim.federation.base_files import base_digest, share
from raysim.federation.input_pipeline import InputPipeline, PreparedPipeline
from raysim.federation.prepared import (
    class_names,
    network_size,
    notes_of,
    open_prepared,
    prepared,
)
from raysim.federation.samples import not_finite
from raysim.numbers.arrays import Array
from raysim.numbers.seeds import seeded, stream
from raysim.numbers.tensors import Tensors, base_of, rebase, set_base, without
from raysim.samples.arrow import open_split
from raysim.samples.client_indices import (
    NO_HOLDOUT,
    ClientIndices,
    Holdout,
    Indices,
    ListedIndices,
    named,
    owner_of,
    shared_size,
)
from raysim.samples.data import Dataset, Model, Progress, Split, may_have_own_tests
from raysim.samples.local_cut import LocalCut, have_common_samples, with_cut, without_cut
from raysim.samples.participants import Participants
from raysim.samples.preparation import PREPARATION, Preparation

BASES = "bases"
"""Folder of networks' bases under a node's data root."""
CLIENT_TESTS = "Task.client_tests"
MOST_NAMES = 20
"""Most names of tensors in a message."""


@dataclass(frozen=True)
class LocalTest:
    """The clients' own test samples.

    Attributes:
        indices: Per client, the indices of its samples; may be empty for some clients.
        samples: The indexed samples; None: the samples of `split`.
        split: Origin of the samples: the test set ("test"), the clients' own samples ("local"), or
            a part cut out of the training set ("cut").
    """

    indices: ClientIndices
    samples: Split | None = None
    split: Literal["test", "local", "cut"] = "test"


@dataclass(frozen=True)
class Start:
    """Tensors that training starts from.

    Attributes:
        tensors: A model's tensors.
        kept: Of a run, the frozen tensors that it holds beside them.
        base: Of a run, the digest of all of its frozen tensors, "" of none; None: unknown.
        method: Of a run, its method, if that is one of raysim's; it may add tensors to the network.
    """

    tensors: Tensors
    kept: Tensors = field(default_factory=dict)
    base: str | None = None
    method: Method | None = None

    def of_model(self, model: nn.Module) -> Tensors:
        """Return the tensors, without those that the run's method had added to such a model."""
        here = names_in(model)
        if self.method is None or self.tensors.keys() <= here:
            return self.tensors
        with suppress(SettingsError), seeded(0, "network"):
            network = self.method.network(copy.deepcopy(model))
            return without(self.tensors, names_in(network) - here)
        return self.tensors


def names_in(network: nn.Module) -> set[str]:
    """Return the names of a network's parameters and buffers."""
    return {*dict(network.named_parameters()), *dict(network.named_buffers())}


@dataclass(frozen=True)
class Federation:
    """Samples, client indices and network of a run; small to send, opened in each process.

    Attributes:
        train: The training samples, or the path of their prepared file.
        test: The test samples, or the path of their prepared file; empty for a task without any.
        client_indices: The training samples that each client holds.
        inputs: Turns raw inputs into inputs of the network.
        build: Builds the network.
        prepare: Prepares the files on a node and returns them by split; None without files.
        scoring: Loss and metrics.
        training: Scoring with the minimised loss, if it differs from the loss of `scoring`.
        loop: The user's own training loop; None: the engine's steps.
        evaluate: The user's own evaluation of a model, in addition to the scores.
        holdout: Divides a client's samples into training samples and held-out samples.
        local_test: Test samples of single clients, for their evaluation, if there are any.
        class_names: Name of each class number [C]; empty if classes have numbers alone.
        in_words: Whether the targets were given as these names.
        default_dtype: torch's default dtype in the driver, which each process takes.
        start: Tensors of the initial model; None: the tensors of the built model.
        root: Numbers of the server's own training samples, if any.
        test_rows: Numbers of the samples in the test set, ascending; None: all test samples.
        names: Names of the clients [K]; empty if they have numbers alone.
        sequences: Whether inputs are padded sequences, see `sequences`.
        base: Digest of the network's base, as the driver has built it; "" without one.
        base_file: Digest of the part of it that a file of each node has.
        base_values: The rest of it.
        data_root: Returns a node's data root, where its processes share the base; None: each has
            its own.
        preparation: How new data becomes inputs of the network; None for a task.
        most: Most samples to open of each client, of the server's root samples and of each batch of
            the test set; None: all.
    """

    train: Split | Path
    test: Split | Path
    client_indices: ClientIndices
    inputs: InputPipeline
    build: Callable[[], nn.Module]
    prepare: Callable[[], Mapping[str, Path]] = dict
    scoring: Scoring = CLASSIFICATION
    training: Scoring | None = None
    loop: Loop | None = None
    evaluate: Evaluate | None = None
    holdout: Holdout = NO_HOLDOUT
    local_test: LocalTest | None = None
    class_names: tuple[str, ...] = ()
    in_words: bool = False
    default_dtype: torch.dtype = field(default_factory=torch.get_default_dtype)
    start: Start | None = None
    test_rows: Indices | None = None
    root: Indices = field(default_factory=lambda: np.empty(0, dtype=np.int64))
    names: tuple[str, ...] = ()
    sequences: bool = False
    base: str = ""
    base_file: str = ""
    base_values: Tensors = field(default_factory=dict)
    data_root: Callable[[], Path] | None = None
    preparation: Preparation | None = None
    most: int | None = None

    @property
    def has_test(self) -> bool:
        """True if there is a test set; tasks may lack one, and datasets that pool their images."""
        return isinstance(self.test, Path) or len(self.test) > 0

    @property
    def test_targets(self) -> Array:
        """Targets of the test set [N, ...]."""
        targets = open_samples(self.test).y
        return targets if self.test_rows is None else targets[self.test_rows]

    @property
    def training_sizes(self) -> Indices:
        """Number of training samples of each client [K]."""
        return self.holdout.training_sizes(self.client_indices.sizes)

    @property
    def shared_bytes(self) -> int:
        """Bytes of the shared samples that each client is sent, as they are stored."""
        if not (shared := shared_size(self.client_indices)):
            return 0
        parts = (open_samples(self.train).x, open_samples(self.train).y)
        return shared * sum(math.prod(values.shape[1:]) * values.dtype.itemsize for values in parts)

    def on_this_node(self) -> Federation:
        """Return this federation with paths that exist on this node.

        They are the driver's paths if the node sees them, else paths under the node's own data
        root. The first process to ask prepares the files, the others wait.

        Raises:
            DataError: the files cannot be prepared; the message names the node.
        """
        paths = [split for split in (self.train, self.test) if isinstance(split, Path)]
        if all(path.exists() for path in paths):
            return self
        try:
            splits = self.prepare()
        except DataError as error:
            raise DataError(f"node {socket.gethostname()}: {error}") from error
        test = splits["test"] if isinstance(self.test, Path) else self.test
        return replace(self, train=splits["train"], test=test)

    def without_test(self) -> Federation:
        """Return this federation without test samples, which are not opened."""
        train = open_samples(self.train)
        none = Split(train.x[:1][:0], train.y[:0])  # of no sample torch could not tell the layout
        return replace(self, test=none, test_rows=None, local_test=None)

    def with_local_test(self, settings: Settings) -> Federation:
        """Return this federation with test samples of each client, for `evaluation.local_test`.

        They are cut out of its training samples, unless clients have their own test samples.

        Raises:
            SettingsError: clients share samples, so other clients would train on them.
        """
        fraction = settings.evaluation.local_test
        if not fraction or self.local_test is not None:
            return self
        y = open_samples(self.train).y
        if have_common_samples(self.client_indices, len(y)):
            raise SettingsError(
                f"evaluation.local_test={fraction}: {called(settings.partition)} gives a sample to"
                " several clients, so that some would train on others' test samples; use"
                " another partition, or evaluation.clients=true, which tests on the test set"
            )
        classes = None
        if settings.evaluation.local_test_cut == "stratified" and self.scoring.classifies:
            classes = y.astype(np.min_scalar_type(int(y.max())))  # sent to each worker
        kept, tests = with_cut(self.client_indices, LocalCut(fraction, settings.seed, classes))
        return replace(self, client_indices=kept, local_test=LocalTest(tests, split="cut"))

    def with_root(self, count: int, seed: int, participants: Participants) -> Federation:
        """Return this federation with samples that the server has and no client, if it needs any.

        Raises:
            SettingsError: they cannot be withdrawn from the clients.
        """
        if not count:
            return self
        if self.inputs.per_client:
            raise SettingsError(
                f"aggregation.root={count}: the inputs of this dataset differ by client; choose"
                " another dataset, or an aggregation without root samples"
            )
        kept, root = without_root(self.client_indices, count, seed, participants)
        return replace(self, client_indices=kept, root=root)

    def with_holdout(self, fraction: float, seed: int) -> Federation:
        """Return this federation with a fraction of each client's samples held out."""
        return replace(self, holdout=Holdout(fraction, seed, shared_size(self.client_indices)))

    def with_objective(self, local: LocalSettings) -> Federation:
        """Return this federation with the training loss of the settings.

        Balanced class weights are computed from the whole training set, whichever clients hold it.
        """
        weights = local.class_weights
        if isinstance(weights, str):  # balanced
            weights = balanced_weights(open_samples(self.train).y)
        training = for_training(self.scoring, local.label_smoothing, weights)
        return replace(self, training=training)

    def for_network(self, network: nn.Module) -> Federation:
        """Return this federation with floating-point samples in the type of a network's parameters.

        Samples of a user's own task are cast once, samples of files when they are decoded.

        Raises:
            DataError: a value is out of range for that type.
        """
        dtype = sample_dtype(network)
        train, test = (
            _cast(split, dtype, partial(self.place, name))
            for name, split in (("train", self.train), ("test", self.test))
        )
        local = self.local_test
        if local and local.samples:
            cast = _cast(local.samples, dtype, partial(self.place, "local"))
            local = replace(local, samples=cast)
        inputs = replace(self.inputs, dtype=dtype)
        return replace(self, train=train, test=test, local_test=local, inputs=inputs)

    def named(self, client: int) -> str:
        """Return a client's number as it stands in messages: with its name, if it has one."""
        return client_named(self.names, client)

    def place(self, split: str, row: int) -> str:
        """Return the name of a task's sample in errors: `client 3, sample 5`."""
        name = "Task.test"
        held = without_cut(self.client_indices)
        indices = self.local_test.indices if self.local_test else None
        if split == "local" and isinstance(indices, ListedIndices):
            client, row = owner_of(indices, row)
            name = f"{CLIENT_TESTS}, client {client}"
        elif split == "train" and isinstance(held, ListedIndices):
            client, row = owner_of(held, row)
            name = f"client {client}"
        return f"{name}, sample {row}"

    def network(self, seed: int, method: Method | None = None) -> nn.Module:
        """Build the model, with weights drawn from the seed, or the weights of `start`.

        Its frozen tensors are its base, except those that the method's server moves.

        Raises:
            SettingsError: `start` belongs to another model.
        """
        with seeded(seed, "init"):
            built = self.build()
        set_base(built, call(method, Method.moved, built) if method else ())
        if self.start is not None:
            started = {**self.start.kept, **self.start.of_model(built)}
            load_tensors(built, started, "start_from")
            _check_base(built, self.start)
            for name, tensor in base_of(built).items():
                tensor.started = name in started
        return built


def network_of(model: nn.Module, method: Method, seed: int) -> nn.Module:
    """Return the network that a method makes of a model, with what is frozen in it as its base.

    Raises:
        SettingsError: the method fails, or trains a copy of a frozen parameter.
    """
    with seeded(seed, "network"):
        network = call(method, Method.network, model)
    try:
        rebase(network, call(method, Method.moved, network))
    except ValueError as error:
        raise SettingsError(
            f"{called(method)}: its network trains {error}, a copy of a frozen parameter, which"
            " copies share; make a new one, torch.nn.Parameter(old.detach().clone())"
        ) from error
    return network


def client_named(names: Sequence[str], client: int) -> str:
    """Return a client's number as it stands in messages: with its name [K], if there are any."""
    return named(client, names[client] if names else "")


def _check_base(network: nn.Module, start: Start) -> None:
    """Check that a network that has taken a run's tensors has the run's frozen ones, too.

    Raises:
        SettingsError: it has others.
    """
    if start.base is None:
        return
    tensors = dict((*network.named_parameters(), *network.named_buffers()))
    here = base_digest(without(tensors, start.tensors))
    if start.base != here:
        was, now = (digest[:12] or "none" for digest in (start.base, here))
        raise SettingsError(
            "start_from: the tensors that its run had frozen are others here: their digest was"
            f" {was}, here {now}; choose the same pretrained network"
        )


def hold_base(federation: Federation, network: nn.Module) -> None:
    """Give a network's base the driver's values, in memory that the processes of a node share.

    Raises:
        DataError: it differs from the driver's, or cannot be written.
    """
    base = base_of(network)
    for name, value in federation.base_values.items():
        base[name].data = value
    rest = {name: tensor for name, tensor in base.items() if name not in federation.base_values}
    if rest and federation.data_root:
        share(rest, federation.base_file, federation.data_root() / BASES)


def load_tensors(model: nn.Module, tensors: Tensors, origin: str) -> None:
    """Copy a model's parameters and buffers from tensors of these names and shapes.

    Those of its base may be missing. Those of a state_dict have further names of tied weights,
    which count once, and lack the buffers that no state_dict has, which stay.

    Raises:
        SettingsError: they are another model's, or of types that hold more; the message begins with
            their origin, and names the tensors that are wanted.
    """
    of_model = dict((*model.named_parameters(), *model.named_buffers()))
    kept = model.state_dict().keys()
    loaded = {name: [*tensor.shape] for name, tensor in tensors.items()}
    here = {name: [*tensor.shape] for name, tensor in of_model.items()}
    needed = kept - base_of(model).keys()
    wanted = {name: shape for name, shape in here.items() if name in needed or name in loaded}
    loaded = {name: shape for name, shape in loaded.items() if name in of_model or name not in kept}
    if other := sorted(n for n in loaded | wanted if loaded.get(n) != wanted.get(n)):
        told = [shapes.get(other[0], "missing") for shapes in (loaded, wanted)]
        names = [f"{name} {shape}" for name, shape in wanted.items()]
        more = f" and {len(names) - MOST_NAMES} more" if len(names) > MOST_NAMES else ""
        raise SettingsError(
            f"{origin}: holds another model: tensor {other[0]} is {told[0]}, here {told[1]};"
            f" wanted are {', '.join(names[:MOST_NAMES])}{more}"
        )
    for name in wanted:
        if not torch.can_cast(tensors[name].dtype, of_model[name].dtype):
            kinds = [
                str(tensor.dtype).removeprefix("torch.")
                for tensor in (tensors[name], of_model[name])
            ]
            raise SettingsError(
                f"{origin}: holds another model: tensor {name} is in {kinds[0]}, here in"
                f" {kinds[1]}, which would lose a part of it"
            )
    with torch.no_grad():
        for name in wanted:
            of_model[name].copy_(tensors[name])


def sample_dtype(network: nn.Module) -> torch.dtype:
    """Return the type of floating-point samples: float64 if all real parameters are, else float32.

    Modules with parameters of several types, or complex ones, cast their inputs themselves.
    """
    types = {parameter.dtype for parameter in network.parameters() if parameter.is_floating_point()}
    return torch.float64 if types == {torch.float64} else torch.float32


S = TypeVar("S", Split, Split | Path)


def _cast(split: S, dtype: torch.dtype, place_of: Callable[[int], str]) -> S:
    """Return samples in memory with their floating-point values in a type."""
    if isinstance(split, Path):
        return split
    wanted = np.float64 if dtype == torch.float64 else np.float32
    with np.errstate(over="ignore"):  # checked below
        x, y = (
            values.astype(wanted, copy=False) if values.dtype.kind == "f" else values
            for values in (split.x, split.y)
        )
    for part, before, values in (("input", split.x, x), ("target", split.y, y)):
        if values.dtype != before.dtype and (problem := not_finite(part, values, place_of)):
            raise DataError(f"{problem}: it is beyond the type of the model")
    return replace(split, x=x, y=y)


def model_builder(settings: Settings, size: tuple[tuple[int, ...], int]) -> Callable[[], nn.Module]:
    """Return the function that builds the model of settings.

    Args:
        settings: The settings.
        size: Shape of an input, and number of outputs.
    """
    return partial(call, settings.model, Model.build, *size)


def preparation_of(
    settings: Settings, paths: Mapping[str, Path], train: Split, scoring: Scoring
) -> Preparation:
    """Return how new data becomes inputs of a run's network.

    Args:
        settings: The run's settings.
        paths: The prepared files by split.
        train: The training samples.
        scoring: Loss and metrics.
    """
    shape, outputs = network_size(settings.dataset, lambda: train)
    return Preparation(
        stored=tuple(train.x.shape[1:]),
        dtype=str(train.x.dtype),
        inputs=shape,
        outputs=outputs,
        classes=class_names(settings.dataset, paths),
        unit=unit_of(scoring),
        columns=str(open_split(paths[PREPARATION]).x[0]) if PREPARATION in paths else "",
    )


def _prepared(data: Dataset, root: Callable[[], Path]) -> Mapping[str, Path]:
    return prepared(data, root(), lambda *_: None)


def from_settings(
    settings: Settings,
    root: Callable[[], Path],
    progress: Progress,
    note: Callable[[str], None] = lambda text: None,
) -> Federation:
    """Prepare and split the dataset, and return the federation of a run.

    Args:
        settings: The run's settings.
        root: Returns the data root of the node that calls it.
        progress: Called as the work proceeds.
        note: Called with lines on the data that was read.

    Raises:
        DataError: the data cannot be fetched, is damaged, or cannot be split by these settings.
        SettingsError: dataset or partition fails.
    """
    paths = prepared(settings.data, root(), progress)
    for line in notes_of(paths):
        note(line)
    train = open_prepared(settings.data, paths["train"])
    indices = settings.partition.client_indices(train, settings.clients, settings.seed)
    test_rows, local_test = _of_natural_clients(settings, train, paths["test"], indices)
    scored = settings.evaluation.clients or settings.evaluation.local_test
    none = Split(train.x[:1][:0], train.y[:0])  # of no sample torch could not tell the layout
    scoring = call(settings.dataset, Dataset.scoring_of, train.y)
    preparation = preparation_of(settings, paths, train, scoring)
    return Federation(
        paths["train"],
        paths["test"] if settings.dataset.has_test else none,
        indices,
        PreparedPipeline(settings),
        model_builder(settings, preparation.size),
        partial(_prepared, settings.data, root),
        scoring,
        local_test=local_test if scored else None,
        test_rows=test_rows,
        class_names=preparation.classes,
        preparation=preparation,
        sequences=settings.dataset.sequences,
        names=settings.partition.names_of(train, indices),
    )


def _of_natural_clients(
    settings: Settings, train: Split, path: Path, indices: ClientIndices
) -> tuple[Indices | None, LocalTest | None]:
    """Return the numbers of the test set's samples, None for all, and the clients' own samples.

    Clients have their own test samples if the partition says so, as partitions by key do.

    Args:
        settings: The run's settings.
        train: The training samples.
        path: The prepared test samples.
        indices: The training samples that each client holds.
    """
    evaluation = settings.evaluation
    decides_cut = evaluation.local_test and may_have_own_tests(type(settings.partition))
    if not (evaluation.test or decides_cut):
        return None, None
    test = open_prepared(settings.data, path)
    tests = settings.partition.local_test_indices(train, test, indices)
    if tests is None:
        return None, None
    rows = np.unique(tests.indices)
    if evaluation.test_samples == "all" or len(rows) == len(test):
        return None, LocalTest(tests)
    return rows, LocalTest(replace(tests, indices=np.searchsorted(rows, tests.indices)))


def open_samples(split: Split | Path) -> Split:
    """Return the samples of a federation's training or test set."""
    return open_split(split) if isinstance(split, Path) else split


def without_root(
    indices: ClientIndices, count: int, seed: int, participants: Participants
) -> tuple[ClientIndices, Indices]:
    """Draw R root samples by the seed; return the client indices without them, and them [R].

    The root samples are ascending, and come from participants' samples, as nobody trains on the
    samples of new clients. If several clients hold a root sample, all of them lose it.

    Raises:
        SettingsError: a client would have no sample left, or the partition draws clients' samples
            on demand.
    """
    setting = f"aggregation.root={count}"
    if not isinstance(indices, ListedIndices):
        raise SettingsError(
            f"{setting}: the partition draws a client's samples when it trains, or has them share"
            " some: choose another partition, or fewer clients"
        )
    by_client = [indices[client] for client in range(len(indices.sizes))]
    held = np.unique(np.concatenate([by_client[client] for client in participants.listed]))
    if count >= len(held):
        raise SettingsError(
            f"{setting}: must be below the {len(held)} samples of clients that take part"
        )
    root = np.sort(stream(seed, "root-samples").choice(held, count, replace=False))
    kept = ListedIndices.of_some(
        [client_indices[~np.isin(client_indices, root)] for client_indices in by_client]
    )
    if len(empty := np.flatnonzero(kept.sizes == 0)):
        raise SettingsError(f"{setting}: leaves client {empty[0]} no samples; choose fewer")
    return kept, root
