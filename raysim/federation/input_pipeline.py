"""Input pipelines, from stored raw inputs to the inputs of training and evaluation.

Stored inputs are shared and often mapped from a file, where a write would end the process. Datasets
and partitions, which may change their inputs in place, therefore get copies.

Legend: n samples.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

from raysim.api.components import call
from raysim.config import Settings
from raysim.numbers.seeds import torch_generator
from raysim.samples.data import Dataset, Partition


@dataclass(frozen=True, kw_only=True)
class InputPipeline:
    """Input pipeline of a `Task`, which only casts its inputs [n, ...]; base of the other.

    Attributes:
        dtype: Type of the returned floating-point inputs: the type of the network's parameters.
    """

    dtype: torch.dtype = torch.float32

    def cast(self, x: Tensor) -> Tensor:
        """Return floating-point values in the network's type, other values unchanged."""
        return x.to(self.dtype) if x.is_floating_point() else x

    @property
    def per_client(self) -> bool:
        """True if inputs of a sample may differ from client to client."""
        return False

    def decode(self, x: Tensor) -> Tensor:
        """Decode inputs that do not differ between clients."""
        return self.cast(x)

    def client(self, x: Tensor, rows: Tensor, client: int) -> Tensor:
        """Decode all inputs of a client, samples `rows` [n], and transform them for the client."""
        return self.cast(x)

    def test(self, x: Tensor, rows: Tensor) -> Tensor:
        """Decode the inputs of the test samples `rows` [n] for the evaluation."""
        return self.cast(x)

    def augment(self, x: Tensor, generator: torch.Generator) -> Tensor:
        """Alter a client's training inputs at random for an epoch."""
        return x

    def check(self, x: Tensor, rows: Tensor) -> None:
        """Try the pipeline on a few inputs, samples `rows` [n].

        Raises:
            SettingsError: dataset or partition fails, or does not return inputs.
        """


@dataclass(frozen=True)
class PreparedPipeline(InputPipeline):
    """Input pipeline of prepared files: the dataset decodes, the partition transforms."""

    settings: Settings

    @property
    def per_client(self) -> bool:
        """True if the partition transforms inputs."""
        partition = type(self.settings.partition)
        views = (partition.client_view, partition.test_view)
        return views != (Partition.client_view, Partition.test_view)

    def decode(self, x: Tensor) -> Tensor:
        """Decode inputs as the dataset does."""
        return self.cast(self.settings.dataset.decode(x.clone()))

    def client(self, x: Tensor, rows: Tensor, client: int) -> Tensor:
        """Decode all inputs of a client and transform them as the partition does."""
        settings = self.settings
        decoded = self.decode(x)
        seen = settings.partition.client_view(decoded, rows.clone(), client, settings.seed)
        return self.cast(seen)

    def test(self, x: Tensor, rows: Tensor) -> Tensor:
        """Decode test inputs and transform them as the partition does."""
        settings, decoded = self.settings, self.decode(x)
        return self.cast(
            settings.partition.test_view(decoded, rows, settings.clients, settings.seed)
        )

    def augment(self, x: Tensor, generator: torch.Generator) -> Tensor:
        """Alter training inputs at random as the dataset does."""
        dataset = self.settings.dataset
        if type(dataset).augment is Dataset.augment:
            return x
        return self.cast(dataset.augment(x.clone(), generator))

    def check(self, x: Tensor, rows: Tensor) -> None:
        """Try the dataset's and the partition's methods on a few inputs, of client 0."""
        settings = self.settings
        dataset, partition, seed = settings.dataset, settings.partition, settings.seed
        decoded = call(dataset, Dataset.decode, x.clone())
        call(partition, Partition.client_view, decoded, rows, 0, seed)
        call(partition, Partition.test_view, decoded, rows, settings.clients, seed)
        call(dataset, Dataset.augment, decoded, torch_generator(seed, "check"))
