"""Interfaces of datasets, partitions and models, and the samples of a split in memory.

Legend: N samples, K clients, B batch.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Self

import numpy as np
from pydantic import Field, model_validator

from raysim.api.components import Component, Registry, call, called, cause, returns
from raysim.errors import DataError, RaysimError
from raysim.numbers.arrays import Array
from raysim.samples.client_indices import (
    ClientIndices,
    Indices,
    ListedIndices,
    SharingIndices,
    as_indices,
    held_problem,
    limited,
    own_indices,
    renumbered,
)
from raysim.samples.sharing import SomeInputs, shared_samples
from raysim.user_input.limits import MOST, OF_RUN, Count

if TYPE_CHECKING:  # `raysim list presets` reads names of components alone, without torch
    import torch
    from torch import Tensor, nn

    from raysim.api.scoring import Scoring


@dataclass(frozen=True)
class Split:
    """Samples of a training or test set: raw inputs x [N, ...] and targets y [N, ...].

    Targets are class numbers [N], or any that the dataset's scoring takes. Arrays are read-only
    views of memory-mapped files or of shared memory if possible. Inputs in several files are a
    `ConcatArray` (raysim.samples.arrow), inputs of chosen samples are `SomeInputs`; both are
    indexed like an array. `columns` holds further values per sample (a writer, a role, an age
    group) for partitions.
    """

    x: Array
    y: Array
    columns: Mapping[str, Array] = field(default_factory=dict)

    def __len__(self) -> int:
        return len(self.y)


NATURAL = "client"
"""Column of natural clients in opened samples, by whatever name a dataset has it."""
NOTES = "notes"
"""Split of a dataset for notes: its inputs are lines to show about the files that were read."""


def are_names(values: object) -> bool:
    """Say whether an object is a sequence, or an array of one axis, of different texts."""
    listed: Any = values
    if isinstance(values, str) or not (
        isinstance(values, Sequence) or hasattr(values, "__array__")
    ):
        return False
    if getattr(values, "ndim", 1) != 1 or not all(isinstance(name, str) for name in listed):
        return False
    return len({*listed}) == len(listed)


def _is_count(value: object) -> bool:
    return isinstance(value, int) and 1 <= value <= MOST


def _is_scoring(returned: object, *_: object) -> bool:
    from raysim.api.scoring import Scoring

    return isinstance(returned, Scoring)


def _is_split(value: object) -> bool:
    """Return whether an object is a prepared file, or may hold samples."""
    from torch.utils.data import DataLoader
    from torch.utils.data import Dataset as TorchDataset

    if isinstance(value, Path | tuple | list | Split | TorchDataset | DataLoader):
        return True
    return isinstance(value, Iterable) and not isinstance(value, str | bytes | dict)


PER_INPUT = "a tensor with one row per input"


def _has_rows(returned: Any, component: Component, x: Tensor, *_: object) -> bool:
    return returned.dim() > 0 and len(returned) == len(x)


Progress = Callable[[str, int, int], None]
"""Callback (description, units done, total units); units are bytes or steps."""


class Dataset(Component, ABC):
    """Dataset: origin, checks and decoding of its files."""

    @property
    @returns(
        f"a tuple of whole numbers from 1 to {MOST}, or None",
        lambda returned, _: (
            returned is None or (isinstance(returned, tuple) and all(map(_is_count, returned)))
        ),
    )
    def shape(self) -> tuple[int, ...] | None:
        """Shape of one decoded input, without the batch dimension; None: read from the samples."""
        return None

    @property
    @returns(
        f"a whole number from 1 to {MOST}, or None",
        lambda returned, _: returned is None or _is_count(returned),
    )
    def classes(self) -> int | None:
        """Number of classes C; of a network's outputs if targets are not class numbers.

        None: one more than the largest class number of the training samples; of other targets, the
        number of values of a target.
        """
        return None

    @property
    @returns(
        "the names of the classes, as different texts", lambda returned, _: are_names(returned)
    )
    def class_names(self) -> Sequence[str]:
        """Names of the classes in the order of their numbers; empty if they have numbers alone."""
        return ()

    @property
    def has_test(self) -> bool:
        """Say whether it has a test set; one that pools all samples for training has none."""
        return True

    @property
    def sequences(self) -> bool:
        """Say whether inputs are sequences of unequal length, padded on the right.

        Whole numbers [N, T] are padded with -1; floating-point values [N, T, D + 1] have a mask as
        last value of each position, 0 for padding. Batches are cut to their longest sequence, in
        multiples of 16 positions.
        """
        return False

    @property
    @returns("whole numbers", lambda returned, _: all(isinstance(n, int) for n in returned))
    def end_tokens(self) -> Sequence[int]:
        """Tokens that end a text; by default none does."""
        return ()

    @property
    def client_column(self) -> str:
        """Column that names each sample's natural client, for `partition.name=natural`."""
        return "client"

    @property
    def scoring(self) -> Scoring:
        """Loss and metrics; by default a classification's."""
        from raysim.api.scoring import CLASSIFICATION

        return CLASSIFICATION

    @returns("a raysim.Scoring", _is_scoring)
    def scoring_of(self, targets: Array) -> Scoring:
        """Return loss and metrics, given the training targets [N, ...]; by default `scoring`."""
        return self.scoring

    @property
    def own_files(self) -> bool:
        """Say whether its files are the user's own, which may change.

        raysim reads a user's files again to compare them with a finished run's; published files it
        does not.
        """
        return False

    @returns("a raysim.Dataset", lambda returned, *_: isinstance(returned, Dataset))
    def for_run(self, seed: int) -> Self:
        """Return the dataset of a run with this seed; it replaces the dataset's `seed="run"`."""
        follows = getattr(self, "seed", None) == OF_RUN
        return self.model_copy(update={"seed": seed}) if follows else self

    @returns("a raysim.Dataset", lambda returned, *_: isinstance(returned, Dataset))
    def for_model(self, model: Model) -> Self:
        """Return the dataset of a run with this model; text is read with its tokeniser."""
        return self

    def check_files(self, root: Path) -> None:
        """Check that published files which cannot be fetched are in the data root.

        Raises:
            DataError: a file is missing; the message names it, its folder and its source.
        """

    @abstractmethod
    @returns(
        'a mapping of "train" and "test" to a Path or to samples each',
        lambda returned, *_: all(_is_split(returned[split]) for split in ("train", "test")),
    )
    def prepare(self, root: Path, progress: Progress) -> Mapping[str, Any]:
        """Fetch and check missing files, and return the samples of "train" and "test".

        A split is the path of a file that `raysim.write_split` wrote; or samples in memory, which
        are written at each start: a `raysim.Split` of inputs, targets and further columns, arrays
        (x, y), or a torch `Dataset`, a `DataLoader` or an iterable of samples (x, y) or
        (x, y, client), which is read once. They are never in memory all at once unless they are
        arrays or a `DataLoader`. A split "notes" has lines of text as inputs; raysim shows them.

        Args:
            root: The data root, which holds a folder per dataset.
            progress: Called with the progress of the preparation: first before it fetches or
                writes anything, and not at all if all is prepared. What it raises ends it.

        Raises:
            DataError: a file is missing and cannot be fetched, or is damaged.
        """

    @returns(PER_INPUT, _has_rows)
    def decode(self, x: Tensor) -> Tensor:
        """Decode stored raw inputs [B, ...] into inputs of the network."""
        return x

    @returns("one text per row", lambda returned, _, tokens, *__: len(returned) == len(tokens))
    def as_text(self, tokens: Array) -> Sequence[str]:
        """Return rows of tokens [n, T], padded with -1, as texts; by default as their numbers."""
        return [" ".join(map(str, row[row >= 0])) for row in tokens]

    @returns(PER_INPUT, _has_rows)
    def augment(self, x: Tensor, generator: torch.Generator) -> Tensor:
        """Return randomly altered decoded inputs [n, ...] of one client, again for each epoch.

        Args:
            x: Inputs, not to be changed.
            generator: Source of all draws, on the inputs' device; keyed by seed, round and client.
        """
        return x


@dataclass(frozen=True)
class CheckedIndices:
    """Client indices of a user's own rule, checked whenever a client's are read.

    Attributes:
        drawn: The client indices.
        samples: Number N of samples in the data.
        owner: The setting that names the rule, for errors.
    """

    drawn: ClientIndices
    samples: int
    owner: str

    @property
    def sizes(self) -> Indices:
        """Samples per client [K]."""
        return self.drawn.sizes

    def __getitem__(self, client: int) -> Indices:
        """Return the indices of one client's samples.

        Raises:
            DataError: the indices cannot be drawn, are out of range, or their number differs from
                `sizes`.
        """
        where = f"{self.owner}: client {client}"
        try:
            indices = np.asarray(self.drawn[client])
        except (RaysimError, MemoryError, OSError):
            raise
        except Exception as error:  # a user's rule may raise anything
            raise DataError(f"{where}: its samples cannot be drawn: {cause(error)}") from error
        indices, size = as_indices(where, indices), int(self.sizes[client])
        if len(indices) != size:
            raise DataError(f"{where}: {len(indices)} samples are drawn; `sizes` says {size}")
        if len(wrong := indices[(indices < 0) | (indices >= self.samples)]):
            raise DataError(
                f"{where}: sample {wrong[0]}; the data has samples 0 to {self.samples - 1}"
            )
        return indices


class Partition(Component, ABC):
    """Rule that assigns samples to clients: a pure function of data, clients and seed."""

    limit: Count | None = Field(
        default=None,
        description="most samples of a client, drawn by the seed; the others are left out",
    )
    shared: Count | None = Field(
        default=None,
        description="samples, equally many of each class, that no client owns and all are sent",
    )
    shared_portion: Annotated[float, Field(gt=0, le=1)] | None = Field(
        default=None, description="part of them that a client receives, drawn for each; none: all"
    )

    @model_validator(mode="after")
    def _portion_is_of_shared(self) -> Self:
        if self.shared is None and self.shared_portion is not None:
            raise ValueError(f"shared_portion={self.shared_portion}: needs partition.shared")
        return self

    def client_indices(self, data: Split, clients: int, seed: int) -> ClientIndices:
        """Return the samples that each client holds: its own within the limit, then shared ones.

        Raises:
            DataError: the data cannot be split so, or the rule gives samples outside the data.
            SettingsError: the rule fails.
        """
        if self.shared is None:
            return self._own_indices(data, clients, seed)
        shared = shared_samples(data.y, self.shared, seed)
        rest = np.delete(np.arange(len(data)), shared)
        columns = {name: values[rest] for name, values in data.columns.items()}
        x: Any = SomeInputs(data.x, rest)
        indices = self._own_indices(Split(x, data.y[rest], columns), clients, seed)
        size = max(round((self.shared_portion or 1) * self.shared), 1)
        return SharingIndices(renumbered(indices, rest), shared, size, seed)

    def _own_indices(self, data: Split, clients: int, seed: int) -> ClientIndices:
        """Return the samples of `data` that each client holds, within the limit.

        Raises:
            DataError: the data cannot be split so, or the rule gives samples outside the data.
            SettingsError: the rule fails.
        """
        whole = call(self, Partition.split, data, clients, seed)
        if not isinstance(whole, ListedIndices):
            whole = CheckedIndices(whole, len(data), called(self))
        if problem := held_problem(whole, clients, len(data)):
            raise DataError(f"{called(self)}: split returned {problem}")
        return whole if self.limit is None else limited(whole, self.limit, seed)

    def local_test_indices(
        self, train: Split, test: Split, held: ClientIndices
    ) -> ListedIndices | None:
        """Return each client's own test samples; None if no client has any.

        Args:
            train: The training set.
            test: The test set.
            held: The training samples that each client holds, shared ones among them.

        Raises:
            DataError: the rule gives samples outside the test set.
            SettingsError: the rule fails.
        """
        returned = call(self, Partition.split_test, train, test, own_indices(held))
        if returned is None or not any(map(len, returned)):
            return None
        indices = ListedIndices.of_some(returned)
        wrong = indices.indices[(indices.indices < 0) | (indices.indices >= len(test))]
        if len(wrong):
            raise DataError(
                f"{called(self)}: split_test returned sample {wrong[0]}; the test set has samples"
                f" 0 to {len(test) - 1}"
            )
        return indices

    @abstractmethod
    @returns(
        "client indices, such as ListedIndices.of([indices of client 0, ...])",
        lambda returned, *_: hasattr(returned, "sizes") and hasattr(returned, "__getitem__"),
    )
    def split(self, data: Split, clients: int, seed: int) -> ClientIndices:
        """Assign samples to clients.

        Raises:
            DataError: the data cannot be split so, for example more clients than samples.
        """

    @returns(
        lambda *arguments: f"None, or {len(arguments[-1].sizes)} arrays of indices, one a client",
        lambda returned, *arguments: (
            returned is None
            or (
                len(returned) == len(arguments[-1].sizes)
                and all(array.ndim == 1 for array in returned)
            )
        ),
    )
    def split_test(
        self, train: Split, test: Split, held: ClientIndices
    ) -> Sequence[Indices] | None:
        """Return, per client, the indices of its own test samples.

        A client may have none (an empty array). By default no client has any: None. Together the
        samples are the test set, unless `evaluation.test_samples` is `all`.

        Args:
            train: The training set.
            test: The test set.
            held: The training samples that each client holds, without shared ones.
        """
        return None

    @returns("a number of clients, or None", int | None)
    def natural_clients(self, train: Split) -> int | None:
        """Return the number of clients that the training set has, by default unknown: None.

        A partition that says it gives `clients` its default.
        """
        return None

    def names_of(self, train: Split, held: ClientIndices) -> tuple[str, ...]:
        """Return the names of all clients; none where they have numbers alone.

        Args:
            train: The training set.
            held: The training samples that each client holds, shared ones among them.

        Raises:
            SettingsError: the rule fails, or returns no names.
        """
        returned = call(self, Partition.client_names, train, own_indices(held))
        return () if returned is None else tuple(map(str, returned))

    @returns(
        lambda *arguments: f"None, or {len(arguments[-1].sizes)} names, one a client",
        lambda returned, *arguments: returned is None or len(returned) == len(arguments[-1].sizes),
    )
    def client_names(self, train: Split, held: ClientIndices) -> Sequence[object] | None:
        """Return a name for each client, to stand next to its number; by default none have any.

        Args:
            train: The training set.
            held: The training samples that each client holds, without shared ones.
        """
        return None

    @returns(PER_INPUT, _has_rows)
    def client_view(self, x: Tensor, rows: Tensor, client: int, seed: int) -> Tensor:
        """Transform decoded training inputs [n, ...] for one client.

        Args:
            x: The inputs of the samples `rows` [n] of the training set, not to be changed.
            rows: Indices of the samples.
            client: The client.
            seed: The run's seed.
        """
        return x

    @returns(PER_INPUT, _has_rows)
    def test_view(self, x: Tensor, rows: Tensor, clients: int, seed: int) -> Tensor:
        """Transform decoded test inputs [n, ...] for the evaluation of the global model.

        The result depends on a sample's index, not on its batch.

        Args:
            x: The inputs of the samples `rows` [n] of the test set, not to be changed.
            rows: Indices of the samples.
            clients: Number of clients K.
            seed: The run's seed.
        """
        return x


class Model(Component, ABC):
    """Network description that builds a module from its fields."""

    @property
    @returns("the name of a folder, or None", str | None)
    def tokenizer(self) -> str | None:
        """Folder of the tokeniser that numbers its inputs; None: they are no text."""
        return None

    @abstractmethod
    @returns(
        "a torch.nn.Module with parameters that are trained",
        lambda returned, *_: any(weights.requires_grad for weights in returned.parameters()),
    )
    def build(self, shape: tuple[int, ...], classes: int) -> nn.Module:
        """Build the module for decoded inputs of `shape` and C `classes`.

        The module's three submodules `features`, `hidden` and `head` compose to its forward;
        `hidden` ends at the input of the last fully connected layer (activations [B, F]).
        """

    @returns("paths by setting", lambda returned, *_: isinstance(returned, Mapping))
    def files(self) -> Mapping[str, Path]:
        """Return the small files, by setting, that `build` reads its structure from.

        Runs keep their digests; they go on, and their models are loaded, with these files alone.
        """
        return {}

    @returns("names of tensors", lambda returned, *_: all(isinstance(n, str) for n in returned))
    def read(self, module: nn.Module) -> Collection[str]:
        """Return the names of the frozen tensors that `build` reads from files.

        Run directories do not hold these; they must be there whenever the model is built again.
        """
        return ()


def may_have_own_tests(partition: type[Partition]) -> bool:
    """Return whether clients of a partition may have their own test samples."""
    return partition.split_test is not Partition.split_test


def counts_clients(partition: type[Partition]) -> bool:
    """Return whether a partition may say how many clients the data has."""
    return partition.natural_clients is not Partition.natural_clients


DATASETS: Registry[Dataset] = Registry("dataset", Dataset)  # type: ignore[type-abstract]
PARTITIONS: Registry[Partition] = Registry("partition", Partition)  # type: ignore[type-abstract]
MODELS: Registry[Model] = Registry("model", Model)  # type: ignore[type-abstract]
