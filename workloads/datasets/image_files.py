"""Image files, decoded and resized part by part to bound memory."""

from __future__ import annotations

import os
import struct
from abc import abstractmethod
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence, Sized
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from functools import partial
from itertools import islice
from pathlib import Path
from typing import ClassVar, Protocol

import numpy as np
import numpy.typing as npt
from PIL import Image, ImageOps
from pydantic import Field

from raysim.errors import DataError
from raysim.process.machine.cores import usable_cores
from raysim.samples.data import Progress, Split
from raysim.workloads.datasets.images import Images
from raysim.workloads.datasets.prepared import prepare_once

PART_BYTES = 64 * 2**20
"""Bytes of pixels that are decoded at once and written as one part."""

FORMATS = ("JPEG", "PNG")
DAMAGE = (OSError, SyntaxError, ValueError, EOFError, struct.error, Image.DecompressionBombError)
"""Errors that Pillow raises for damaged images."""

NO_FILE = "is neither a file nor a folder, but a pipe, a device or a link that leads nowhere"

Labelled = tuple[Path, int]
"""An image file and its label."""


class Listing(Sized, Iterable[Labelled], Protocol):
    """Image files of a split, in the order of storage."""


@dataclass(frozen=True)
class ClassFolders:
    """Image files of folders [C], one per class; files are sorted by name.

    The names of one folder are in memory at a time. Hidden files (names with a leading dot) are
    ignored.
    """

    folders: Sequence[Path]

    def __len__(self) -> int:
        return sum(len(self._names(folder)) for folder in self.folders)

    def __iter__(self) -> Iterator[Labelled]:
        for label, folder in enumerate(self.folders):
            for name in self._names(folder):
                yield folder / name, label

    @staticmethod
    def _names(folder: Path) -> list[str]:
        if not (names := visible(folder)):
            raise DataError(f"{folder}: contains no images")
        return names


def visible(folder: Path) -> list[str]:
    """Return the sorted names of files and folders in a folder that do not begin with a dot.

    Raises:
        DataError: one is a pipe, which would be waited for, a device, or a link that leads nowhere.
    """
    with os.scandir(folder) as inside:
        entries = [entry for entry in inside if not entry.name.startswith(".")]
    for entry in entries:
        if not (entry.is_file() or entry.is_dir()):
            raise DataError(f"{entry.path}: {NO_FILE}; remove it")
    return sorted(entry.name for entry in entries)


def class_folders(folder: Path, classes: Sequence[str], published: str) -> ClassFolders:
    """Return the image files of the folders `classes`, labelled in their order, in `folder`.

    Raises:
        DataError: a class has no folder, or `folder` holds something else.
    """
    if lacking := [name for name in classes if not (folder / name).is_dir()]:
        raise DataError(
            f"{folder / lacking[0]}: not there; put the class folder there, from {published}"
        )
    if other := sorted(set(visible(folder)) - set(classes)):
        raise DataError(f"{folder / other[0]}: is not a class of this dataset; remove it")
    return ClassFolders([folder / name for name in classes])


def read_image(path: Path, size: int, crop: bool) -> npt.NDArray[np.uint8]:
    """Return an image file as colours [3, size, size], resized bilinearly.

    Args:
        path: The file, JPEG or PNG.
        size: Height and width of the result.
        crop: Keep the largest square in the middle, instead of changing proportions.

    Raises:
        DataError: the file cannot be decoded.
    """
    try:
        with Image.open(path, formats=FORMATS) as image:
            whole = image.convert("RGB")
    except DAMAGE as error:
        raise DataError(
            f"{path}: cannot be decoded as a {' or '.join(FORMATS)} ({error})"
        ) from error
    resize = ImageOps.fit if crop else Image.Image.resize
    small = resize(whole, (size, size), Image.Resampling.BILINEAR)
    return np.asarray(small).transpose(2, 0, 1)


def read_parts(
    files: Listing, size: int, crop: bool, progress: Callable[[int, int], None]
) -> Iterator[Split]:
    """Yield the samples of image files in parts of at most PART_BYTES of pixels.

    Raises:
        DataError: a file cannot be decoded.
    """
    total, done = len(files), 0
    rows = max(PART_BYTES // (3 * size * size), 1)
    read = partial(read_image, size=size, crop=crop)
    remaining = iter(files)
    with ThreadPoolExecutor(usable_cores()) as pool:  # Pillow decodes outside the interpreter lock
        while part := list(islice(remaining, rows)):
            progress(done, total)
            x = np.empty((len(part), 3, size, size), np.uint8)
            for row, pixels in enumerate(pool.map(read, (path for path, _ in part))):
                x[row] = pixels
            yield Split(x, np.array([label for _, label in part], np.int64))
            done += len(part)
    progress(done, total)


class ImageFiles(Images):
    """Colour images from JPEG or PNG files, resized when they are prepared.

    Prepared files are not updated when image files change; delete the folder `prepared` then.

    Attributes:
        folder: The dataset's folder under the data root.
        crop: Crop images to squares instead of changing their proportions.
    """

    image_size: int = Field(default=224, ge=1, le=4096, description="height and width in pixels")
    normalised: bool = Field(
        default=True,
        description="normalise with ImageNet's means and deviations, as pretrained networks expect",
    )
    folder: ClassVar[str]
    crop: ClassVar[bool] = False
    mean: ClassVar[tuple[float, ...]] = (0.485, 0.456, 0.406)
    std: ClassVar[tuple[float, ...]] = (0.229, 0.224, 0.225)

    @property
    def shape(self) -> tuple[int, ...]:
        """Three channels of the chosen size."""
        return (3, self.image_size, self.image_size)

    @property
    def variant(self) -> str:
        """Name of the prepared files of these settings."""
        return str(self.image_size)

    @abstractmethod
    def listed(self, folder: Path) -> Mapping[str, Listing]:
        """Return the labelled files of the splits `train` and `test`.

        Raises:
            DataError: files are missing, or their labels are wrong.
        """

    def check_files(self, root: Path) -> None:
        """Check that the image files are there.

        Raises:
            DataError: a table, a folder or a file is missing.
        """
        self.listed(root / self.folder)

    def prepare(self, root: Path, progress: Progress) -> Mapping[str, Path]:
        """Decode and resize the image files, and write each split as an Arrow file.

        Raises:
            DataError: a file is missing or damaged.
        """
        folder = root / self.folder

        def build(work_folder: Path) -> dict[str, Iterator[Split]]:
            return {
                split: read_parts(
                    files,
                    self.image_size,
                    self.crop,
                    partial(progress, f"read {folder.name} {split}"),
                )
                for split, files in self.listed(folder).items()
            }

        return prepare_once(folder, ("train", "test"), build, progress, self.variant)
