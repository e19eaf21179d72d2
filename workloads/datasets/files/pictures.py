"""Images in folders: one folder per class, or a table of file names next to them.

Images keep their size, which must then be the same for all, or are resized to
`dataset.image_size`. They have one channel if all are grey, else three. Grey images of 16 bits a
pixel become numbers in [0, 1], as 8 bits would keep too few of their levels.
"""

from __future__ import annotations

import math
import warnings
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import AbstractContextManager
from functools import cached_property
from io import BytesIO
from itertools import islice
from pathlib import Path
from typing import NamedTuple

import numpy as np
import numpy.typing as npt
from PIL import Image

from raysim.errors import DataError
from raysim.numbers.arrays import Array
from raysim.process.machine.cores import usable_cores
from raysim.workloads.datasets.files.source import (
    ArrayKind,
    Batches,
    Source,
    as_columns,
    shown,
    side_by_side,
)
from raysim.workloads.datasets.files.tables import table
from raysim.workloads.datasets.image_files import DAMAGE, FORMATS, visible

SUFFIXES = (".png", ".jpg", ".jpeg")
GREY = ("1", "L", "LA")
DEEP, NUMBERS = "I;16", "F"
"""Modes of grey images of 16 bits a pixel, and of numbers."""
DEEPEST = 2**16 - 1
MOST_PIXELS = 2**26
"""Most pixels of an image, 8192x8192."""
PART_BYTES = 16 * 2**20
HEADS = 4096
"""Heads of images that are read at once."""
X, Y, CLIENT, FILE = "x", "y", "client", "file"

File = Path | BytesIO
Size = tuple[int, int]
Pixels = npt.NDArray[np.uint8 | np.float32]


def is_image(name: object) -> bool:
    """Return whether a file's name has an image's suffix."""
    return isinstance(name, str) and name.lower().endswith(SUFFIXES)


def class_folders(folder: Path) -> list[Path]:
    """Return the sorted folders in a folder, which may also have files; empty with images there."""
    names = visible(folder)
    inside = [folder / name for name in names if (folder / name).is_dir()]
    return [] if any(map(is_image, names)) else inside


class Look(NamedTuple):
    """Size and mode in which images are read.

    Attributes:
        size: Height and width; None: those of the first file.
        mode: Mode of Pillow: L, RGB or NUMBERS; None: L, unless a file has colours or 16 bits.
    """

    size: int | None = None
    mode: str | None = None


AS_IN_FILES = Look()


def by_class(path: Path, look: Look, folders: Mapping[str, Path] | None = None) -> Source:
    """Return the images of a folder's folders, labelled with their names.

    Args:
        path: The folder.
        look: Size and mode of the images.
        folders: The folder of each client's folders, by its name; None: there are no clients.

    Raises:
        DataError: a folder has no images, or holds other files.
    """
    listed = []
    for client, folder in (folders or {"": path}).items():
        for class_folder in class_folders(folder):
            names = visible(class_folder)
            if wrong := [name for name in names if not is_image(name)]:
                raise DataError(
                    f"{class_folder / wrong[0]}: is no {' or '.join(SUFFIXES)} file; remove it"
                )
            listed += [(class_folder / name, class_folder.name, client) for name in names]
    if not listed:
        raise DataError(f"{path}: contains no images")
    read_all = ImageReader(lambda: (image for image, *_ in listed), look)

    def read(wanted: tuple[str, ...]) -> Batches:
        for start in range(0, len(listed), read_all.rows):
            part = listed[start : start + read_all.rows]
            columns: dict[str, Array] = {Y: np.array([label for _, label, _ in part])}
            columns[CLIENT] = np.array([client for *_, client in part])
            if X in wanted:
                columns[X] = read_all([path for path, *_ in part])
            yield as_columns({name: columns[name] for name in wanted})

    client = CLIENT if folders else ""
    with_client = (X, Y, client) if client else (X, Y)
    files = tuple(image for image, *_ in listed)
    return Source(
        *(path, with_client, read, files, client),
        arrays=lambda: {X: read_all.kind},
        images=(X,),
    )


def unlabelled(path: Path, look: Look) -> Source:
    """Return an image, or all images in a folder and below it, with the names of their files.

    Raises:
        DataError: there are none.
    """
    files = [path] if path.is_file() else [*_images(path)]
    if not files:
        raise DataError(f"{path}: contains no images")
    above = path.parent if path.is_file() else path
    read_all = ImageReader(lambda: files, look)

    def read(wanted: tuple[str, ...]) -> Batches:
        for start in range(0, len(files), read_all.rows):
            part = files[start : start + read_all.rows]
            columns: dict[str, Array] = {FILE: np.array([str(f.relative_to(above)) for f in part])}
            if X in wanted:
                columns[X] = read_all(part)
            yield as_columns({name: columns[name] for name in wanted})

    return Source(
        *(path, (FILE, X), read, tuple(files)),
        arrays=lambda: {X: read_all.kind},
        images=(X,),
    )


def by_table(folder: Path, labels: Path, look: Look) -> Source:
    """Return the images that a table of a folder names, with the table's other columns.

    The first column of image names is the column of images.

    Raises:
        DataError: the table has no such column, or a name leads out of the folder.
    """
    rows = table([labels])
    first = next(rows.read(rows.names), None)
    first_row = {} if first is None else first.slice(0, 1).to_pydict()
    column = next(
        (name for name, values in first_row.items() if values and is_image(values[0])), None
    )
    if column is None:
        raise DataError(f"{labels}: has no column of image files ({', '.join(SUFFIXES)})")
    inside = folder.resolve()

    def place(name: object) -> Path:
        path = (folder / str(name)).resolve()
        if not is_image(name) or not path.is_relative_to(inside):
            raise DataError(f"{labels}: {shown(name)} must be an image in the folder {folder}")
        return path

    def places() -> Iterator[Path]:
        return (place(name) for (names,) in rows.read((column,)) for name in names.to_pylist())

    read_all = ImageReader(places, look)

    def read(wanted: tuple[str, ...]) -> Batches:
        for whole in rows.read(tuple(dict.fromkeys((*wanted, column)))):
            for start in range(0, len(whole), read_all.rows):
                batch = whole.slice(start, read_all.rows)
                if column in wanted:
                    paths = [place(name) for name in batch[column].to_pylist()]
                    images = as_columns({column: read_all(paths)})
                    batches = {name: images if name == column else batch for name in wanted}
                    batch = side_by_side(batches)
                yield batch.select([*wanted])

    files = (labels, *_images(folder))
    return Source(
        *(folder, rows.names, read, files),
        arrays=lambda: {column: read_all.kind},
        images=(column,),
    )


def _images(folder: Path) -> Iterator[Path]:
    return (path for path in sorted(folder.rglob("*")) if is_image(path.name))


class ImageReader:
    """Reads images of one size as bytes, or as numbers in [0, 1] [n, channels, height, width].

    Their heads are read for that, once the kind of the images is asked for, up to one of colours.
    """

    def __init__(self, images: Callable[[], Iterable[File]], look: Look) -> None:
        """Read no image yet.

        Args:
            images: Returns all images.
            look: Size and mode of the results.
        """
        self._images, self._look = images, look

    @cached_property
    def _form(self) -> tuple[Size, str]:
        """Size and mode of the results."""
        images = iter(self._images())
        with _unwarned(), ThreadPoolExecutor(usable_cores()) as pool:
            (size, mode), *_ = map(_head, islice(images, 1))
            mode = self._look.mode or mode
            while not self._look.mode and mode != "RGB" and (part := [*islice(images, HEADS)]):
                if "RGB" in (picture_mode for _, picture_mode in pool.map(_head, part)):
                    mode = "RGB"
        return size if self._look.size is None else (self._look.size, self._look.size), mode

    @property
    def kind(self) -> ArrayKind:
        """Shape and type of an image."""
        (width, height), mode = self._form
        dtype = np.dtype(np.float32 if mode == NUMBERS else np.uint8)
        return (len(mode), height, width), dtype

    @property
    def rows(self) -> int:
        """Images that are read at once."""
        shape, dtype = self.kind
        return max(PART_BYTES // (math.prod(shape) * dtype.itemsize), 1)

    def __call__(self, paths: Sequence[File]) -> Pixels:
        """Return the images of files, decoded in parallel."""
        _ = self._form  # before the threads ask for it
        # threads, as decoding leaves the interpreter lock
        with _unwarned(), ThreadPoolExecutor(usable_cores()) as pool:
            return np.stack([*pool.map(self._read, paths)])

    def _read(self, path: File) -> Pixels:
        size, mode = self._form
        try:
            with _opened(path) as image:
                if (image.mode == DEEP) != (mode == NUMBERS):
                    raise DataError(
                        f"{_named(path)}: differs from other images in its bits a pixel, 8 or 16;"
                        " convert all to one of these"
                    )
                whole = _scaled(image) if image.mode == DEEP else image.convert(mode)
        except DAMAGE as error:
            raise _not_decoded(path, error) from error
        if self._look.size is not None:
            whole = whole.resize(size, Image.Resampling.BILINEAR)
        if whole.size != size:
            raise DataError(
                f"{_named(path)}: has {whole.width}x{whole.height} pixels, the first image"
                f" {size[0]}x{size[1]}; dataset.image_size=64 resizes all to 64x64"
            )
        pixels = np.asarray(whole)
        return pixels.transpose(2, 0, 1) if mode == "RGB" else pixels[None]


def _head(path: File) -> tuple[Size, str]:
    """Return an image's size, and its mode for reading: L, RGB or NUMBERS."""
    with _opened(path) as image:
        return image.size, {DEEP: NUMBERS}.get(image.mode, "L" if image.mode in GREY else "RGB")


def _scaled(image: Image.Image) -> Image.Image:
    """Return an image of 16 bits a pixel as numbers in [0, 1]."""
    return Image.fromarray(np.asarray(image).astype(np.float32) / DEEPEST)


def _unwarned() -> AbstractContextManager[object]:
    """Ignore Pillow's warning of images above 89 million pixels, which are refused."""
    return warnings.catch_warnings(action="ignore", category=Image.DecompressionBombWarning)


def _opened(path: File) -> Image.Image:
    if isinstance(path, Path) and path.exists() and not path.is_file():
        raise DataError(f"{path}: is no file; remove it")
    try:
        image = Image.open(path, formats=FORMATS)
    except DAMAGE as error:
        raise _not_decoded(path, error) from error
    if image.width * image.height > MOST_PIXELS:
        image.close()
        raise DataError(
            f"{_named(path)}: has {image.width}x{image.height} pixels; at most {MOST_PIXELS} are"
            " decoded"
        )
    return image


def _not_decoded(path: File, error: Exception) -> DataError:
    if isinstance(error, FileNotFoundError):
        return DataError(f"{_named(path)}: there is no such file, which a table of images names")
    return DataError(f"{_named(path)}: cannot be decoded as a {' or '.join(FORMATS)} ({error})")


def _named(path: File) -> str:
    return str(path) if isinstance(path, Path) else "an image"
