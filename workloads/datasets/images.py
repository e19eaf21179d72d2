"""Base class of image datasets: bytes on disk, floats for the network."""

from __future__ import annotations

from typing import ClassVar

from pydantic import Field
from torch import Tensor

from raysim.core.data import Dataset
from raysim.workloads.transforms import normalise


class Images(Dataset):
    """Images stored as bytes [N, C, H, W].

    Attributes:
        mean: Mean of each channel, of values in [0, 1].
        std: Standard deviation of each channel.
    """

    normalised: bool = Field(
        default=True, description="subtract each channel's mean and divide by its deviation"
    )
    mean: ClassVar[tuple[float, ...]]
    std: ClassVar[tuple[float, ...]]

    def decode(self, x: Tensor) -> Tensor:
        """Scale bytes [B, C, H, W] to [0, 1], then normalise them if `normalised` is set."""
        return self.scaled(x.float() / 255)

    def scaled(self, x: Tensor) -> Tensor:
        """Normalise images with values in [0, 1] if `normalised` is set."""
        return normalise(x, self.mean, self.std) if self.normalised else x
