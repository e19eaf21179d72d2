"""FEMNIST: handwritten digits and letters; each writer is a client.

Source: Caldas et al., LEAF: a Benchmark for Federated Settings, arXiv:1812.01097, 2018, made of
Cohen et al., EMNIST, IJCNN 2017. Classes 0 to 9 are digits, 10 to 35 upper-case and 36 to 61
lower-case letters; images are black (0) on white (1), and are left so.

FedMAX (Chen, Bhardwaj and Marculescu, ECML PKDD 2020) names its letters FEMNIST* and prints that
there are 26 classes, but does not name them. Its authors' public code takes EMNIST's split
`letters` (here `emnist`): the upper and the lower case of a letter are one class.
`dataset.letters=true` makes the same 26 classes here, with writers.
"""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from string import ascii_lowercase, ascii_uppercase, digits
from typing import Any, ClassVar

import numpy as np
import numpy.typing as npt
from pydantic import Field
from torch import Tensor

from raysim.errors import DataError
from raysim.numbers.arrays import Floats
from raysim.samples.client_indices import Indices
from raysim.samples.data import Dataset, Progress, Split
from raysim.workloads.datasets.leaf import User, published_files, read_leaf
from raysim.workloads.datasets.prepared import prepare_once

DIGITS, LETTERS = 10, 26
CLASSES = DIGITS + 2 * LETTERS
CHARACTERS = (*digits, *ascii_uppercase, *ascii_lowercase)
SIDE = 28
HOW = "`./preprocess.sh -s niid --sf 1.0 -k 0 -t sample` in the folder data/femnist"


class Femnist(Dataset):
    """Handwritten digits and letters of some 3,500 writers (LEAF).

    Not downloaded: LEAF's `data/train/*.json` and `data/test/*.json` belong in the folders
    `femnist/train` and `femnist/test` of the data root. The column `writer` numbers the writers;
    the prepared file `writers` holds their names, and how many samples LEAF has of each.
    """

    letters: bool = Field(
        default=False, description="letters only, upper and lower case merged: 26 classes"
    )
    shape: ClassVar[tuple[int, ...]] = (1, SIDE, SIDE)
    client_column: ClassVar[str] = "writer"

    @property
    def classes(self) -> int:
        """Digits and letters of both cases, or the letters of the alphabet."""
        return LETTERS if self.letters else CLASSES

    @property
    def class_names(self) -> tuple[str, ...]:
        """Digits and letters as characters."""
        return (*ascii_lowercase,) if self.letters else CHARACTERS

    def decode(self, x: Tensor) -> Tensor:
        """Scale bytes [B, 1, 28, 28] to [0, 1]."""
        return x.float() / 255

    def check_files(self, root: Path) -> None:
        """Check that LEAF's files are there.

        Raises:
            DataError: a split has none.
        """
        published_files(root / "femnist", HOW)

    def prepare(self, root: Path, progress: Progress) -> Mapping[str, Path]:
        """Read LEAF's files, and write each split and the writers' names as Arrow files.

        Raises:
            DataError: a file is missing or damaged.
        """
        folder = root / "femnist"

        def build(work_folder: Path) -> dict[str, Split]:
            leaf = read_leaf(folder, "writer", self._samples, HOW, progress)
            return {**leaf.splits, "writers": Split(np.array(leaf.names), leaf.published)}

        variant = "letters" if self.letters else "all"
        return prepare_once(folder, ("train", "test", "writers"), build, progress, variant)

    def _samples(self, writer: User) -> tuple[npt.NDArray[np.uint8], Indices]:
        x, y = _pixels(writer), _labels(writer)
        if self.letters:
            letter = y >= DIGITS
            return x[letter], (y[letter] - DIGITS) % LETTERS
        return x, y


def _pixels(writer: User) -> npt.NDArray[np.uint8]:
    """Return the images of a writer as bytes [n, 1, 28, 28]: LEAF writes them divided by 255."""
    for number, image in enumerate(writer.x):
        if not isinstance(image, list) or len(image) != SIDE * SIDE:
            content = f"{len(image)} values" if isinstance(image, list) else "no list"
            raise DataError(f"{writer.where}: sample {number} has {content}, not {SIDE * SIDE}")
    levels = 255 * _numbers(writer, writer.x, 2)
    nearest = np.rint(levels)
    right = (abs(levels - nearest) < 1e-3) & (nearest >= 0) & (nearest <= 255)
    if len(wrong := np.argwhere(~right)):
        number, pixel = wrong[0]
        raise DataError(
            f"{writer.where}: sample {number} has the value {writer.x[number][pixel]} at pixel"
            f" {pixel}; allowed are 0/255, 1/255 to 255/255"
        )
    return nearest.astype(np.uint8).reshape(-1, 1, SIDE, SIDE)


def _labels(writer: User) -> Indices:
    labels = _numbers(writer, writer.y, 1)
    right = (labels >= 0) & (labels < CLASSES) & (labels == np.floor(labels))
    if len(wrong := np.flatnonzero(~right)):
        raise DataError(
            f"{writer.where}: sample {wrong[0]} has label {writer.y[wrong[0]]}; allowed are 0 to"
            f" {CLASSES - 1}"
        )
    return labels.astype(np.int64)


def _numbers(writer: User, values: list[Any], dimensions: int) -> Floats:
    """Return nested lists of numbers as an array; values that are not finite become -1."""
    try:
        numbers = np.array(values, dtype=np.float64)
    except (TypeError, ValueError) as error:
        raise DataError(f"{writer.where}: `x` and `y` must hold numbers ({error})") from error
    if numbers.ndim != dimensions:
        raise DataError(f"{writer.where}: `x` and `y` must hold numbers, not lists of them")
    return np.nan_to_num(numbers, nan=-1, posinf=-1, neginf=-1)
