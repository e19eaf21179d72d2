"""Input pipelines, from stored raw inputs to the inputs of training and evaluation.

Legend: n samples.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

from raysim.config import Settings
from raysim.core.data import Partition


class InputPipeline:
    """Input pipeline; the base class returns inputs [n, ...] unchanged, as of a `Task`."""

    @property
    def per_client(self) -> bool:
        """True if inputs of a sample may differ from client to client."""
        return False

    def decode(self, x: Tensor) -> Tensor:
        """Decode inputs that are the same for all clients."""
        return x

    def client(self, x: Tensor, rows: Tensor, client: int) -> Tensor:
        """Decode all inputs of a client, samples `rows` [n], and transform them for the client."""
        return x

    def test(self, x: Tensor, rows: Tensor) -> Tensor:
        """Decode the inputs of the test samples `rows` [n] for the evaluation."""
        return x

    def augment(self, x: Tensor, generator: torch.Generator) -> Tensor:
        """Alter a client's training inputs at random for an epoch."""
        return x


@dataclass(frozen=True)
class PreparedPipeline(InputPipeline):
    """Input pipeline of prepared files: the dataset decodes, the partition transforms."""

    settings: Settings

    @property
    def per_client(self) -> bool:
        """True if the partition transforms inputs."""
        own = type(self.settings.partition)
        views = (own.client_view, own.test_view)
        return views != (Partition.client_view, Partition.test_view)

    def decode(self, x: Tensor) -> Tensor:
        """Decode inputs as the dataset does."""
        return self.settings.dataset.decode(x)

    def client(self, x: Tensor, rows: Tensor, client: int) -> Tensor:
        """Decode all inputs of a client and transform them as the partition does."""
        settings = self.settings
        return settings.partition.client_view(self.decode(x), rows, client, settings.seed)

    def test(self, x: Tensor, rows: Tensor) -> Tensor:
        """Decode test inputs and transform them as the partition does."""
        settings = self.settings
        return settings.partition.test_view(self.decode(x), rows, settings.clients, settings.seed)

    def augment(self, x: Tensor, generator: torch.Generator) -> Tensor:
        """Alter training inputs at random as the dataset does."""
        return self.settings.dataset.augment(x, generator)
