"""The federation of a run: samples, client indices and a network.

A federation is built once by the driver and opened by every worker: prepared data travels as
paths to memory-mapped files, a user's own arrays through the object store, never per client.
"""

from __future__ import annotations

import socket
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, replace
from functools import partial
from pathlib import Path
from typing import TypeVar

import numpy as np
import torch
from torch import nn

from raysim.config import Settings
from raysim.core.arrow import open_split
from raysim.core.client_indices import (
    NO_HOLDOUT,
    ClientIndices,
    Holdout,
    Indices,
    ListedIndices,
    owner_of,
)
from raysim.core.components import ask
from raysim.core.data import Progress, Split, prepared
from raysim.core.errors import DataError
from raysim.core.given.limits import MOST
from raysim.core.scoring import CLASSIFICATION, Scoring
from raysim.core.seeds import torch_seed
from raysim.federation.input_pipeline import InputPipeline, PreparedPipeline
from raysim.federation.samples import not_finite

CLIENT_TESTS = "Task.client_tests"


@dataclass(frozen=True)
class LocalTest:
    """Test samples that clients have of their own.

    Attributes:
        indices: Per client, the indices of its samples; some clients may have none.
        samples: The samples that they index; None: the federation's test samples.
    """

    indices: ListedIndices
    samples: Split | None = None


@dataclass(frozen=True)
class Federation:
    """Samples, client indices and network of a run; small to send, opened in each process.

    Attributes:
        train: The training samples, or the path of their prepared file.
        test: The test samples, or the path of their prepared file; of a task without, no samples.
        client_indices: The training samples that each client holds.
        inputs: Turns raw inputs into inputs of the network.
        build: Builds the network.
        prepare: Prepares the files on a node and returns them by split, where there are any.
        scoring: Loss and metrics.
        holdout: Divides a client's samples into those trained on and those held out.
        local_test: Test samples of single clients, on which they are evaluated, if there are any.
        labels: The words that a task's class numbers stand for, where its labels are words.
        default_dtype: torch's where the federation was made, in which each process builds.
    """

    train: Split | Path
    test: Split | Path
    client_indices: ClientIndices
    inputs: InputPipeline
    build: Callable[[], nn.Module]
    prepare: Callable[[], Mapping[str, Path]] = dict
    scoring: Scoring = CLASSIFICATION
    holdout: Holdout = NO_HOLDOUT
    local_test: LocalTest | None = None
    labels: tuple[str, ...] = ()
    default_dtype: torch.dtype = field(default_factory=torch.get_default_dtype)

    @property
    def has_test(self) -> bool:
        """True if there is a test set; a task may have none."""
        return isinstance(self.test, Path) or len(self.test) > 0

    @property
    def training_sizes(self) -> Indices:
        """Samples that each client trains on [K]."""
        return self.holdout.training_sizes(self.client_indices.sizes)

    def on_this_node(self) -> Federation:
        """Return this federation with paths that exist on this node.

        These are the driver's paths where the node sees them, else paths under the node's own data
        root. The first process to ask prepares the files, the others wait.

        Raises:
            DataError: they cannot be prepared; it names the node.
        """
        paths = [split for split in (self.train, self.test) if isinstance(split, Path)]
        if all(path.exists() for path in paths):
            return self
        try:
            own = self.prepare()
        except DataError as error:
            raise DataError(f"node {socket.gethostname()}: {error}") from error
        return replace(self, train=own["train"], test=own["test"])

    def with_holdout(self, fraction: float, seed: int) -> Federation:
        """Return this federation with a fraction of each client's samples held out."""
        return replace(self, holdout=Holdout(fraction, seed))

    def for_network(self, network: nn.Module) -> Federation:
        """Return this federation with floating-point samples in the type of a network's parameters.

        Samples of a task's own are cast once, those of files as they are decoded.

        Raises:
            DataError: a value is beyond that type.
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

    def place(self, split: str, row: int) -> str:
        """Return what a sample of a task is called in errors: `client 3, sample 5`."""
        name = "Task.test"
        if split == "local" and self.local_test:
            client, row = owner_of(self.local_test.indices, row)
            name = f"{CLIENT_TESTS}, client {client}"
        elif split == "train" and isinstance(self.client_indices, ListedIndices):
            client, row = owner_of(self.client_indices, row)
            name = f"client {client}"
        return f"{name}, sample {row}"

    def network(self, seed: int) -> nn.Module:
        """Build the network, its initial weights drawn from the seed."""
        before = torch.get_default_dtype()
        with torch.random.fork_rng(devices=[]):
            torch.manual_seed(torch_seed(seed, "init"))
            torch.set_default_dtype(self.default_dtype)
            try:
                return self.build()
            finally:
                torch.set_default_dtype(before)


def sample_dtype(network: nn.Module) -> torch.dtype:
    """Return the type of floating-point samples: float64 where all real parameters are, or float32.

    Modules whose parameters are of several types, or complex, cast their inputs themselves.
    """
    types = {each.dtype for each in network.parameters() if each.is_floating_point()}
    return torch.float64 if types == {torch.float64} else torch.float32


S = TypeVar("S", Split, Split | Path)


def _cast(split: S, dtype: torch.dtype, place_of: Callable[[int], str]) -> S:
    """Return samples in memory with floating-point values of a type."""
    if isinstance(split, Path):
        return split
    wanted = np.float64 if dtype == torch.float64 else np.float32
    with np.errstate(over="ignore"):  # it is found below
        x, y = (
            values.astype(wanted, copy=False) if values.dtype.kind == "f" else values
            for values in (split.x, split.y)
        )
    for part, before, values in (("input", split.x, x), ("target", split.y, y)):
        if values.dtype != before.dtype and (problem := not_finite(part, values, place_of)):
            raise DataError(f"{problem}: it is beyond the type of the model")
    return replace(split, x=x, y=y)


@dataclass(frozen=True)
class _Build:
    settings: Settings

    def __call__(self) -> nn.Module:
        dataset = self.settings.dataset
        shape: tuple[int, ...] = ask(
            dataset,
            "shape",
            returns=lambda found: isinstance(found, tuple) and all(map(_is_count, found)),
            expected=f"a tuple of whole numbers from 1 to {MOST}",
        )
        classes: int = ask(
            dataset,
            "classes",
            returns=_is_count,
            expected=f"a whole number from 1 to {MOST}",
        )
        built: nn.Module = ask(
            self.settings.model,
            "build",
            *(shape, classes),
            returns=lambda found: any(weights.requires_grad for weights in found.parameters()),
            expected="a torch.nn.Module with parameters that are trained",
        )
        return built


def _is_count(value: object) -> bool:
    return isinstance(value, int) and 1 <= value <= MOST


@dataclass(frozen=True)
class _Prepare:
    settings: Settings
    root: Callable[[], Path]

    def __call__(self) -> Mapping[str, Path]:
        return prepared(self.settings.dataset, self.root(), lambda *_: None)


def from_settings(settings: Settings, root: Callable[[], Path], progress: Progress) -> Federation:
    """Prepare the dataset, split it, and return the federation of a run.

    Args:
        settings: The run's settings.
        root: Returns the data root of the node where it is called.
        progress: Called as the work proceeds.

    Raises:
        DataError: the data cannot be fetched, is damaged, or cannot be split as the settings say.
        SettingsError: dataset or partition fails.
    """
    paths = prepared(settings.dataset, root(), progress)
    train, local_test = open_split(paths["train"]), None
    partition = settings.partition
    client_indices = partition.client_indices(train, settings.clients, settings.seed)
    if settings.evaluation.clients:
        own = partition.local_test_indices(train, open_split(paths["test"]), client_indices)
        local_test = LocalTest(own) if own else None
    scoring: Scoring = ask(
        settings.dataset,
        "scoring",
        returns=lambda found: isinstance(found, Scoring),
        expected="a raysim.Scoring",
    )
    return Federation(
        paths["train"],
        paths["test"],
        client_indices,
        PreparedPipeline(settings),
        _Build(settings),
        _Prepare(settings, root),
        scoring,
        local_test=local_test,
    )


def open_samples(split: Split | Path) -> Split:
    """Return the samples of a federation's training or test set."""
    return open_split(split) if isinstance(split, Path) else split
