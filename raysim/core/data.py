"""Interfaces of datasets, partitions and models, and how samples are held in memory.

Legend: N samples, K clients, B batch.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any, Protocol

import numpy as np
import numpy.typing as npt
from pydantic import Field

from raysim.core.components import Component, Registry
from raysim.core.errors import DataError
from raysim.core.seeds import stream

if TYPE_CHECKING:  # `raysim list presets` reads names of components alone, without torch
    import torch
    from torch import Tensor, nn

Indices = npt.NDArray[np.int64]


@dataclass(frozen=True)
class Split:
    """The samples of a training or test set: raw inputs [N, ...] and labels [N].

    Arrays are read-only views of memory-mapped files or of shared memory where they can be; inputs
    on disk in several parts are a `ConcatArray` (raysim.core.arrow), indexed alike. `columns` holds
    further values per sample (a writer, a role, an age group) for partitions.
    """

    x: npt.NDArray[Any]
    y: npt.NDArray[np.int64]
    columns: Mapping[str, npt.NDArray[Any]] = field(default_factory=dict)

    def __len__(self) -> int:
        return len(self.y)


class ClientIndices(Protocol):
    """Who holds which samples: `sizes` [K] and, per client, the indices of its samples."""

    @property
    def sizes(self) -> Indices:
        """Samples per client [K]; a lazily computed population may give a broadcast view."""
        ...

    def __getitem__(self, client: int) -> Indices:
        """Return the indices of one client's samples."""
        ...


@dataclass(frozen=True)
class ListedIndices:
    """Client indices held as one list of indices [N'] cut at `offsets` [K+1]."""

    indices: Indices
    offsets: Indices

    @classmethod
    def of(cls, parts: Sequence[npt.NDArray[Any]]) -> ListedIndices:
        """Build shares from one array of sample indices per client.

        Raises:
            DataError: a client has no samples.
        """
        sizes = np.array([len(part) for part in parts], dtype=np.int64)
        if len(empty := np.flatnonzero(sizes == 0)):
            raise DataError(
                f"client {empty[0]} has no samples ({len(empty)} of {len(parts)} clients have"
                " none): use fewer clients or another partition"
            )
        offsets = np.concatenate([[0], np.cumsum(sizes)]).astype(np.int64)
        return cls(np.concatenate(parts).astype(np.int64), offsets)

    @property
    def sizes(self) -> Indices:
        """Samples per client [K]."""
        return np.diff(self.offsets)

    def __getitem__(self, client: int) -> Indices:
        return self.indices[self.offsets[client] : self.offsets[client + 1]]


@dataclass(frozen=True)
class LimitedIndices:
    """Client indices of which each client keeps at most `limit` samples, in their order."""

    whole: ClientIndices
    limit: int
    seed: int

    @property
    def sizes(self) -> Indices:
        """Samples per client [K]; one number seen K times where `whole` has it so."""
        sizes = self.whole.sizes
        distinct = sizes[:1] if sizes.strides == (0,) else sizes
        return np.broadcast_to(np.minimum(distinct, self.limit), sizes.shape)

    def __getitem__(self, client: int) -> Indices:
        rows = self.whole[client]
        if len(rows) <= self.limit:
            return rows
        generator = stream(self.seed, "limit", client)
        return rows[np.sort(generator.choice(len(rows), self.limit, replace=False, shuffle=False))]


Progress = Callable[[str, int, int], None]
"""Called with (what is being done, units done, units in all); units are bytes or steps."""


class Dataset(Component, ABC):
    """A dataset: where its files come from, how they are checked and read."""

    @property
    @abstractmethod
    def shape(self) -> tuple[int, ...]:
        """Shape of one decoded input, without the batch dimension."""

    @property
    @abstractmethod
    def classes(self) -> int:
        """Number of classes C."""

    @abstractmethod
    def prepare(self, root: Path, progress: Progress) -> Mapping[str, Path]:
        """Fetch what is missing, check it, and return prepared Arrow files by split.

        Args:
            root: The data root, which holds a folder per dataset.
            progress: Told how far the work is.

        Raises:
            DataError: a file is missing and cannot be fetched, or is damaged.
        """

    def decode(self, x: Tensor) -> Tensor:
        """Turn raw inputs [B, ...] as stored into what the network takes."""
        return x

    def augment(self, x: Tensor, generator: torch.Generator) -> Tensor:
        """Return randomly altered decoded inputs [n, ...] of one client, anew for each epoch.

        Args:
            x: Inputs, left as they are.
            generator: Source of all draws, on the inputs' device; keyed by seed, round and client.
        """
        return x


class Partition(Component, ABC):
    """How samples are spread over clients: a pure function of data, clients and seed."""

    limit: int | None = Field(
        default=None,
        ge=1,
        description="samples that a client keeps at most, drawn by the seed; nobody has the others",
    )

    def shares(self, data: Split, clients: int, seed: int) -> ClientIndices:
        """Return who holds which samples.

        Raises:
            DataError: the data cannot be split so.
        """
        whole = self.split(data, clients, seed)
        if self.limit is None:
            return whole
        limited = LimitedIndices(whole, self.limit, seed)
        if not isinstance(whole, ListedIndices):  # computed when asked for
            return limited
        return ListedIndices.of([limited[client] for client in range(clients)])

    @abstractmethod
    def split(self, data: Split, clients: int, seed: int) -> ClientIndices:
        """Assign samples to clients.

        Raises:
            DataError: the data cannot be split so, for example more clients than samples.
        """

    def client_view(self, x: Tensor, rows: Tensor, client: int, seed: int) -> Tensor:
        """Return decoded training inputs [n, ...] as one client sees them.

        Args:
            x: The inputs of the samples `rows` [n] of the training set, left as they are.
            rows: Their indices.
            client: The client.
            seed: The run's seed.
        """
        return x

    def test_view(self, x: Tensor, rows: Tensor, clients: int, seed: int) -> Tensor:
        """Return decoded test inputs [n, ...] as the global model is evaluated on them.

        What a sample looks like depends on its index, not on the batch that it comes in.

        Args:
            x: The inputs of the samples `rows` [n] of the test set, left as they are.
            rows: Their indices.
            clients: Number of clients K.
            seed: The run's seed.
        """
        return x


class Model(Component, ABC):
    """A network description: its fields, and the module that they build."""

    @abstractmethod
    def build(self, shape: tuple[int, ...], classes: int) -> nn.Module:
        """Build the module for decoded inputs of `shape` and C `classes`.

        The module's three submodules `features`, `hidden` and `head` compose to its forward;
        `hidden` ends at the input of the last fully connected layer (activations [B, F]).
        """


DATASETS: Registry[Dataset] = Registry("dataset", Dataset)  # type: ignore[type-abstract]
PARTITIONS: Registry[Partition] = Registry("partition", Partition)  # type: ignore[type-abstract]
MODELS: Registry[Model] = Registry("model", Model)  # type: ignore[type-abstract]
