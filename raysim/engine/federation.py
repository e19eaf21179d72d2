"""What is simulated, as the engine sees it: samples, who holds them, and a network.

A federation is built once by the driver and opened by every worker: prepared data travels as
paths to memory-mapped files, a user's own arrays through the object store, never per client.
"""

from __future__ import annotations

import math
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
from raysim.core.arrow import Parts, open_split
from raysim.core.data import Indices, ListedShares, Partition, Progress, Split
from raysim.core.errors import DataError
from raysim.core.holdout import TrainingShares
from raysim.core.rules import Batch
from raysim.core.seeds import torch_seed
from raysim.engine.client_samples import ClientSamples
from raysim.engine.transport import as_tensor

RESIDENT_SHARE = 0.15
"""Of a GPU's free memory that a set of samples may take to be kept there."""
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


class Inputs:
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
class _PreparedInputs(Inputs):
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
    shares: TrainingShares
    inputs: Inputs
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
        return replace(self, shares=TrainingShares(self.shares.whole, share, seed))

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
        TrainingShares(shares),
        _PreparedInputs(settings),
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
    shares = TrainingShares(ListedShares.of(np.split(np.arange(sum(sizes)), cuts)))
    if len({x.shape[1:] for x, _ in samples}) > 1:
        raise DataError("Task.clients: inputs of all clients must have the same shape")
    test = Split(*_arrays("Task.test", task.test))
    if not len(test):
        raise DataError("Task.test: must hold at least one sample")
    train = Split(np.concatenate([x for x, _ in samples]), np.concatenate([y for _, y in samples]))
    return Federation(train, test, shares, Inputs(), task.model)


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


class OpenData:
    """The samples of a federation, opened in one process; they are read-only."""

    def __init__(self, federation: Federation, device: torch.device) -> None:
        self._shares = federation.shares
        self._inputs = federation.inputs
        self._device = device
        self._train = _open(federation.train)
        self._test = _open(federation.test)
        if device.type == "cuda":
            free = torch.cuda.mem_get_info(device)[0] * RESIDENT_SHARE
            self._train = _resident(self._train, free, device)
            self._test = _resident(self._test, free, device)

    def client(self, client: int) -> Batch:
        """Return the samples that one client trains on, decoded."""
        whole = self._whole(client)
        if not self._shares.holdout:
            return whole
        return _selected(whole, self._shares.parts(client, len(whole.y))[0])

    def of_clients(self, samples: ClientSamples, number: int) -> Batch:
        """Return the samples of one of the batches that are evaluated client by client."""
        first, last = samples.cuts[number : number + 2].tolist()
        split = self._train if samples.held_out else self._test
        if not self._inputs.per_client:
            rows = samples.rows[samples.offsets[first] : samples.offsets[last]]
            x, y = split.take(torch.from_numpy(rows), self._device)
            return Batch(self._inputs.decode(x), y)
        seen = [self._seen(samples, position) for position in range(first, last)]
        return Batch(torch.cat([data.x for data in seen]), torch.cat([data.y for data in seen]))

    def test(self, start: int, stop: int) -> Batch:
        """Return a range of test samples, decoded."""
        x, y = self._test.take(slice(start, stop), self._device)
        return Batch(self._inputs.test(x, torch.arange(start, start + len(y))), y)

    def _whole(self, client: int) -> Batch:
        """Return all samples of one client as it sees them."""
        rows = torch.from_numpy(self._shares.whole[client])
        first, last = int(rows[0]), int(rows[-1])
        consecutive = last - first + 1 == len(rows) and bool((rows.diff() == 1).all())
        wanted = slice(first, last + 1) if consecutive else rows
        x, y = self._train.take(wanted, self._device)
        return Batch(self._inputs.client(x, rows, client), y)

    def _seen(self, samples: ClientSamples, position: int) -> Batch:
        """Return one client's evaluated samples as the client sees them."""
        client = int(samples.clients[position])
        if samples.held_out:
            whole = self._whole(client)
            return _selected(whole, self._shares.parts(client, len(whole.y))[1])
        rows = torch.from_numpy(samples.of_client(position))
        x, y = self._test.take(rows, self._device)
        return Batch(self._inputs.client(x, rows, client), y)


def _selected(whole: Batch, positions: Indices) -> Batch:
    chosen = torch.from_numpy(positions).to(whole.y.device)
    return Batch(whole.x[chosen], whole.y[chosen])


@dataclass(frozen=True)
class _Samples:
    """Raw inputs [N, ...] and labels [N]; inputs in parts on disk are read when asked for."""

    x: Tensor | Parts
    y: Tensor

    def take(self, rows: slice | Tensor, device: torch.device) -> tuple[Tensor, Tensor]:
        """Return the inputs and labels of some samples, on the device."""
        if isinstance(rows, Tensor):
            rows = rows.to(self.y.device)
        if isinstance(self.x, Parts):
            x = as_tensor(self.x[rows.numpy() if isinstance(rows, Tensor) else rows])
        else:
            x = self.x[rows]
        return x.to(device), self.y[rows].to(device)


def _open(split: Split | Path) -> _Samples:
    found = opened(split)
    x: Any = found.x  # an array, or `Parts`
    return _Samples(x if isinstance(x, Parts) else as_tensor(x), as_tensor(found.y))


def _resident(split: _Samples, room: float, device: torch.device) -> _Samples:
    """Move samples to the device where they take no more than `room` bytes of its memory."""
    fits = math.prod(split.x.shape) * split.x.dtype.itemsize <= room
    return _Samples(*split.take(slice(None), device)) if fits else split
