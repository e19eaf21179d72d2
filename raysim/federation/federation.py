"""What is simulated, as the engine sees it: samples, who holds them, and a network.

A federation is built once by the driver and opened by every worker: prepared data travels as
paths to memory-mapped files, a user's own arrays through the object store, never per client.
"""

from __future__ import annotations

import socket
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor, nn

from raysim.config import Settings
from raysim.core.arrow import open_split
from raysim.core.data import ListedIndices, Partition, Progress, Split
from raysim.core.errors import DataError
from raysim.core.holdout import TrainingIndices
from raysim.core.seeds import torch_seed

Samples = tuple[Any, Any]
"""Inputs [N, ...] and labels [N], as tensors or arrays."""


@dataclass(frozen=True)
class Task:
    """A user's own task, in place of a dataset, a partition and a model.

    Attributes:
        model: Builds the network; its weights as built are the first global model.
        clients: Per client, its inputs [n_k, ...] and labels [n_k].
        test: The test inputs [N, ...] and labels [N].
    """

    model: Callable[[], nn.Module]
    clients: Sequence[Samples]
    test: Samples


class InputPipeline:
    """What becomes of raw inputs [n, ...] of samples `rows` [n]: nothing, as for a user's own."""

    @property
    def per_client(self) -> bool:
        """Whether a client may see a sample otherwise than as it is decoded."""
        return False

    def decode(self, x: Tensor) -> Tensor:
        """Return inputs as everyone sees them, where nobody sees them otherwise."""
        return x

    def client(self, x: Tensor, rows: Tensor, client: int) -> Tensor:
        """Return inputs of a client's samples, all at once, as the client sees them."""
        return x

    def test(self, x: Tensor, rows: Tensor) -> Tensor:
        """Return test inputs as they are evaluated."""
        return x

    def augment(self, x: Tensor, generator: torch.Generator) -> Tensor:
        """Return a client's training inputs for an epoch, altered at random."""
        return x


@dataclass(frozen=True)
class _PreparedPipeline(InputPipeline):
    """Inputs decoded by the dataset and altered by the partition."""

    settings: Settings

    @property
    def per_client(self) -> bool:
        own = type(self.settings.partition)
        views = (own.client_view, own.test_view)
        return views != (Partition.client_view, Partition.test_view)

    def decode(self, x: Tensor) -> Tensor:
        return self.settings.dataset.decode(x)

    def client(self, x: Tensor, rows: Tensor, client: int) -> Tensor:
        settings = self.settings
        return settings.partition.client_view(self.decode(x), rows, client, settings.seed)

    def test(self, x: Tensor, rows: Tensor) -> Tensor:
        settings = self.settings
        return settings.partition.test_view(self.decode(x), rows, settings.clients, settings.seed)

    def augment(self, x: Tensor, generator: torch.Generator) -> Tensor:
        return self.settings.dataset.augment(x, generator)


@dataclass(frozen=True)
class Federation:
    """Samples, shares and network of a run; small to send, opened where it is used.

    Attributes:
        train: The training samples, or the path of their prepared file.
        test: The test samples, or the path of their prepared file.
        shares: Which client holds which training samples, and trains on which of them.
        inputs: Turns raw inputs into what the network takes.
        build: Builds the network.
        prepare: Prepares the files on a node and returns them by split, where there are any.
    """

    train: Split | Path
    test: Split | Path
    shares: TrainingIndices
    inputs: InputPipeline
    build: Callable[[], nn.Module]
    prepare: Callable[[], Mapping[str, Path]] = dict

    def here(self) -> Federation:
        """Return this federation with files that this node has.

        The driver's, where the node sees them; else its own, in its own data root, prepared by the
        first who asks while the others wait.

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

    def holding_out(self, share: float, seed: int) -> Federation:
        """Return this federation with a share of each client's samples kept from training."""
        return replace(self, shares=TrainingIndices(self.shares.whole, share, seed))

    def network(self, seed: int) -> nn.Module:
        """Build the network in float32, its initial weights drawn from the seed."""
        with torch.random.fork_rng(devices=[]):
            torch.manual_seed(torch_seed(seed, "init"))
            return self.build().float()


@dataclass(frozen=True)
class _Build:
    settings: Settings

    def __call__(self) -> nn.Module:
        dataset = self.settings.dataset
        return self.settings.model.build(dataset.shape, dataset.classes)


@dataclass(frozen=True)
class _Prepare:
    settings: Settings
    root: Callable[[], Path]

    def __call__(self) -> Mapping[str, Path]:
        return self.settings.dataset.prepare(self.root(), lambda *_: None)


def from_settings(settings: Settings, root: Callable[[], Path], progress: Progress) -> Federation:
    """Prepare the dataset, split it, and return the federation of a run.

    Args:
        settings: The run's settings.
        root: Returns the data root of the node where it is called.
        progress: Told how far the work is.

    Raises:
        DataError: the data cannot be had, is damaged, or cannot be split as asked.
    """
    prepared = settings.dataset.prepare(root(), progress)
    train = open_split(prepared["train"])
    shares = settings.partition.shares(train, settings.clients, settings.seed)
    return Federation(
        prepared["train"],
        prepared["test"],
        TrainingIndices(shares),
        _PreparedPipeline(settings),
        _Build(settings),
        _Prepare(settings, root),
    )


def from_task(task: Task) -> Federation:
    """Return the federation of a user's own task.

    Raises:
        DataError: clients hold no samples, or inputs and labels do not match.
    """
    if not task.clients:
        raise DataError("Task.clients: must hold at least one client")
    samples = [_arrays(f"client {i}", pair) for i, pair in enumerate(task.clients)]
    sizes = [len(y) for _, y in samples]
    cuts = np.cumsum(sizes)[:-1]
    shares = TrainingIndices(ListedIndices.of(np.split(np.arange(sum(sizes)), cuts)))
    if len({x.shape[1:] for x, _ in samples}) > 1:
        raise DataError("Task.clients: inputs of all clients must have the same shape")
    test = Split(*_arrays("Task.test", task.test))
    if not len(test):
        raise DataError("Task.test: must hold at least one sample")
    train = Split(np.concatenate([x for x, _ in samples]), np.concatenate([y for _, y in samples]))
    return Federation(train, test, shares, InputPipeline(), task.model)


def _arrays(who: str, pair: Samples) -> tuple[npt.NDArray[Any], npt.NDArray[np.int64]]:
    x, y = (np.asarray(values) for values in pair)
    if len(x) != len(y) or y.ndim != 1:
        raise DataError(f"{who}: inputs {x.shape} and labels {y.shape} do not match")
    if len(y) and y.min() < 0:
        raise DataError(f"{who}: labels must be class numbers from 0 up; there is {y.min()}")
    return x, y.astype(np.int64)


def opened(split: Split | Path) -> Split:
    """Return the samples of a federation's training or test set."""
    return open_split(split) if isinstance(split, Path) else split
