"""Updates of single clients on disk, for aggregations that see them one by one.

One file per client and pass, written by the worker that trained it and read by all workers, block
by block: a block is sent with its digest, so that a reader sees the written values. The files of a
pass are deleted after it. They lie in the run directory, which all nodes must share.
"""

from __future__ import annotations

import hashlib
from pathlib import Path
from typing import NamedTuple

import numpy as np
import numpy.typing as npt

from raysim.errors import MachineError
from raysim.numbers.arrays import Floats
from raysim.storage.atomic import discard_folder, replace_file, writing

BLOCK = 1 << 15
"""Coordinates of a block: of 1000 clients it takes 0.26 GB in float64."""
DIGEST_BYTES = 8
Values = npt.NDArray[np.float32] | Floats


class Place(NamedTuple):
    """Place of an update: its round, pass and client."""

    number: int
    pass_number: int
    client: int


def blocks_of(coordinates: int) -> int:
    """Return the number of blocks that hold a number of coordinates."""
    return -(-coordinates // BLOCK)


class UpdateFiles:
    """The files of one run's updates."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder

    def write(self, place: Place, values: Values) -> tuple[bytes, ...]:
        """Write an update [N]; return the digests of its blocks.

        Raises:
            MachineError: the file cannot be written.
        """
        path = self._path(place)
        with writing(path):
            path.parent.mkdir(parents=True, exist_ok=True)
        replace_file(path, lambda aside: Path(aside).write_bytes(values.tobytes()))
        blocks = (values[at : at + BLOCK] for at in range(0, len(values), BLOCK))
        return tuple(_digest(block.tobytes()) for block in blocks)

    def read(self, place: Place, block: int, digest: bytes, dtype: npt.DTypeLike) -> Values:
        """Read a block of an update [n].

        Args:
            place: The update's.
            block: Number of the block.
            digest: The block's digest.
            dtype: The values' dtype.

        Raises:
            MachineError: it is damaged or missing.
        """
        path, size = self._path(place), BLOCK * np.dtype(dtype).itemsize
        try:
            with path.open("rb") as file:
                file.seek(block * size)
                content = file.read(size)
        except OSError as error:
            raise MachineError(
                f"{path}: this update cannot be read ({error.strerror}); the run directory must lie"
                " on storage that all nodes share"
            ) from error
        if _digest(content) != digest:
            raise MachineError(f"{path}: this update is damaged")
        values: Values = np.frombuffer(content, dtype)
        return values

    def delete(self, number: int, pass_number: int) -> None:
        """Delete the updates of a pass."""
        self._discard(self._folder_of(number, pass_number))

    def clear(self) -> None:
        """Delete the updates that an interrupted run has left."""
        self._discard(self.folder)

    @staticmethod
    def _discard(folder: Path) -> None:
        if folder.exists():
            discard_folder(folder)

    def _folder_of(self, number: int, pass_number: int) -> Path:
        return self.folder / f"round_{number:06d}_pass_{pass_number}"

    def _path(self, place: Place) -> Path:
        return self._folder_of(place.number, place.pass_number) / str(place.client)


def _digest(content: bytes) -> bytes:
    return hashlib.blake2b(content, digest_size=DIGEST_BYTES).digest()
