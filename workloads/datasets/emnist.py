"""EMNIST: handwritten digits and letters, in the format of MNIST.

Source: Cohen, Afshar, Tapson and van Schaik, EMNIST: Extending MNIST to Handwritten Letters, IJCNN
2017; published at https://www.nist.gov/itl/products-and-services/emnist-dataset in an archive named
gzip.zip of idx files, four for each of six splits. There each image lies transposed, and letters
are numbered from 1; both are set right on reading. Images are padded and normalised as MNIST's,
as in the public code of FedMAX's authors.
"""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from string import ascii_lowercase, ascii_uppercase, digits
from typing import ClassVar, Literal

import numpy as np
from pydantic import Field

from raysim.errors import DataError
from raysim.samples.data import Split
from raysim.workloads.datasets.mnist import IdxImages

CLASSES = {
    "byclass": 62,
    "bymerge": 47,
    "balanced": 47,
    "letters": 26,
    "digits": 10,
    "mnist": 10,
}
"""Classes of each split."""
OF_BOTH = (*digits, *ascii_uppercase)
UNLIKE = "abdefghnqrt"
"""Lower-case letters that do not look as the upper-case ones."""
NAMES = {
    "byclass": (*OF_BOTH, *ascii_lowercase),
    "bymerge": (*OF_BOTH, *UNLIKE),
    "balanced": (*OF_BOTH, *UNLIKE),
    "letters": (*ascii_lowercase,),
    "digits": (),
    "mnist": (),
}
"""Names of the classes of each split; digits are their numbers."""


class Emnist(IdxImages):
    """Handwritten digits and letters.

    Not downloaded: `emnist-SPLIT-train-images-idx3-ubyte.gz`, `emnist-SPLIT-train-labels-idx1-
    ubyte.gz` and the same with `test` belong in the folder `emnist` of the data root.
    """

    split: Literal["byclass", "bymerge", "balanced", "letters", "digits", "mnist"] = Field(
        default="letters",
        description="62 classes, 47 (alike letters merged), 47 (balanced), 26, 10 or 10",
    )
    folder: ClassVar[str] = "emnist"
    published: ClassVar[str] = (
        "gzip.zip of https://www.nist.gov/itl/products-and-services/emnist-dataset"
    )

    @property
    def classes(self) -> int:
        """Digits, letters or both, as the split has them."""
        return CLASSES[self.split]

    @property
    def class_names(self) -> tuple[str, ...]:
        """Digits and letters as characters; `letters` has both cases of a letter in one class."""
        return NAMES[self.split]

    @property
    def files(self) -> Mapping[str, tuple[str, str]]:
        """Names of the files with the images and the labels of each split."""
        return {
            part: (
                f"emnist-{self.split}-{part}-images-idx3-ubyte",
                f"emnist-{self.split}-{part}-labels-idx1-ubyte",
            )
            for part in ("train", "test")
        }

    @property
    def variant(self) -> str:
        """The split: all lie in one folder."""
        return self.split

    def read(self, split: str, folder: Path, contents: Mapping[str, bytes]) -> Split:
        """Return a split's samples with upright images and labels from 0.

        Raises:
            DataError: a file is damaged, or a label is not one of the split's.
        """
        stored = super().read(split, folder, contents)
        first = 1 if self.split == "letters" else 0
        y = stored.y - first
        if len(wrong := np.flatnonzero((y < 0) | (y >= self.classes))):
            _, labels = self.files[split]
            raise DataError(
                f"{folder / labels}: image {wrong[0]} has label {stored.y[wrong[0]]}; allowed are"
                f" {first} to {first + self.classes - 1}"
            )
        return Split(stored.x.transpose(0, 1, 3, 2), y)
