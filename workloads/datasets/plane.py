"""Classes in the plane: generated points of two coordinates, an example for decision boundaries.

Source: FLex&Chill (Lee, Kim and Ko, 2024), section 3.1.3 and figure 3: data of two dimensions, on
three clients, classified by logistic regression. The paper does not print the data. Chosen here,
for class c of C:

    x ~ N((cos 2 pi c / C, sin 2 pi c / C), deviation^2 I)
"""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import ClassVar

import numpy as np
from pydantic import Field

from raysim.samples.data import Dataset, Progress, Split
from raysim.user_input.limits import Count, DataSeed
from raysim.workloads.datasets.drawn import data_stream
from raysim.workloads.datasets.prepared import prepare_once


class Plane(Dataset):
    """Points in the plane around the corners of a regular polygon, one corner a class.

    As many samples of each class, for training and for testing.
    """

    corners: int = Field(default=6, ge=2, le=100, description="number of classes")
    samples: Count = Field(default=100, description="training samples of a class")
    test_samples: Count = Field(default=100, description="test samples of a class")
    deviation: float = Field(default=0.3, ge=0, description="standard deviation of a coordinate")
    seed: DataSeed = Field(
        default=0, description="seed of the data; run: that of the run, so that each has its own"
    )
    shape: ClassVar[tuple[int, ...]] = (2,)  # two coordinates

    @property
    def classes(self) -> int:
        """Number of corners."""
        return self.corners

    def prepare(self, root: Path, progress: Progress) -> Mapping[str, Path]:
        """Draw the samples, and write each split as an Arrow file."""
        variant = ",".join(f"{name}={value}" for name, value in self.model_dump().items())
        splits = ("train", "test")
        return prepare_once(root / "plane", splits, lambda folder: self._drawn(), progress, variant)

    def _drawn(self) -> dict[str, Split]:
        counts = {"train": self.samples, "test": self.test_samples}
        return {split: self._split(split, count) for split, count in counts.items()}

    def _split(self, split: str, count: int) -> Split:
        y = np.repeat(np.arange(self.corners), count)
        angles = 2 * np.pi * y / self.corners
        noise = data_stream(self.seed, f"plane-{split}").standard_normal((len(y), 2))
        x = np.stack([np.cos(angles), np.sin(angles)], axis=1) + self.deviation * noise
        return Split(x.astype(np.float32), y)
