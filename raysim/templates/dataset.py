"""NewDataset: replace the drawn samples by your own.

Source: say here where the data comes from, and its licence.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
from pydantic import Field

import raysim

Sample = tuple[npt.NDArray[np.float32], int, int]


class NewDataset(raysim.Dataset):
    """Eight numbers of each sample; the class is the sign of their drift."""

    people: int = Field(default=10, gt=0, description="number of natural clients")

    def prepare(self, root: Path, progress: Callable[..., Any]) -> dict[str, Iterator[Sample]]:
        """Return the samples of both sets; files may be kept below the folder `root`."""
        return {"train": self.samples(40, seed=0), "test": self.samples(10, seed=1)}

    def samples(self, count: int, seed: int) -> Iterator[Sample]:
        """Yield x, y and the client of each sample."""
        draw = np.random.default_rng(seed)
        for person in range(self.people):
            for y in draw.integers(2, size=count):
                yield draw.normal(y - 0.5, 1, size=8).astype(np.float32), int(y), person
