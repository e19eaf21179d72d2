"""Files of networks' bases: one on each node, which its processes map and share.

A base's file is named by the base's digest. The first process of a node that needs it writes it.
All processes map it privately: they share its pages, and a write would give the writer alone a
page of its own. `HeldBase` finds such a write.
"""

from __future__ import annotations

import hashlib
import mmap
import os
import socket
import time
from collections.abc import Mapping
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import torch
from filelock import FileLock
from torch import Tensor, nn

from raysim.display.units import in_fitting_unit
from raysim.errors import ChangedInputError, DataError
from raysim.numbers.given import Given
from raysim.numbers.tensors import Tensors, base_of
from raysim.numbers.tensors.base import BaseBuffer, BaseParameter
from raysim.numbers.tensors.digests import bytes_of, checksums
from raysim.numbers.tensors.sets import ALIGNMENT

Base = Mapping[str, BaseParameter | BaseBuffer]
LEAST_SHARED = 2**20
"""Bytes of the smallest base that has a file; smaller ones are sent to each process."""
ENDING, LOCK = ".base", ".lock"
UNUSED_SECONDS = 30 * 24 * 3600
"""A file that no process has opened for so long is removed when another one is written."""
PAGES = Path("/proc/self/pagemap")
"""Linux's words of 64 bits on each page of this process's memory."""
PAGE = mmap.PAGESIZE
IN_MEMORY, OF_A_FILE = np.uint64(0b11 << 62), np.uint64(1 << 61)
"""Bits of such a word: in memory or swapped out; a file's page, or shared memory."""


def base_digest(tensors: Tensors) -> str:
    """Return the digest of a base, of its tensors' names, types, shapes and values; "" of none."""
    if not tensors:
        return ""
    digest = hashlib.sha256()
    for name, tensor in sorted(tensors.items()):
        digest.update(f"{name} {tensor.dtype} {[*tensor.shape]};".encode())
        digest.update(bytes_of(tensor.detach()).data)
    return digest.hexdigest()


@dataclass(frozen=True)
class HeldBase:
    """A network's base in this process, and whether it is as it was.

    Attributes:
        tensors: The network's tensors, in the order of the file.
        given: Tells whether one has changed, but through `.data`.
        file: The file whose mapped memory they are views of; None without one.
        sums: Checksums of the tensors that no file has.
        addresses: Where the values of each tensor are in memory.
        user: What runs the network, for errors.
    """

    tensors: Base
    given: Given
    file: Path | None
    sums: Mapping[str, int]
    addresses: Mapping[str, int]
    user: str

    @classmethod
    def of(cls, network: nn.Module, user: str = "the model") -> HeldBase:
        """Return the base of a network as it is now."""
        tensors = dict(sorted(base_of(network).items()))
        given = Given({name: {name: tensor} for name, tensor in tensors.items()})
        file = next((tensor.file for tensor in tensors.values() if tensor.file), None)
        return cls(tensors, given, file, _sums(tensors), _addresses(tensors), user)

    def check_left(self) -> None:
        """Check that no tensor was changed, as far as its version tells.

        Raises:
            ChangedInputError: one was; the message names it.
        """
        if changed := self.given.changed():
            raise self._changed(changed[0])

    def check_values(self) -> None:
        """Check that no tensor was changed, by version, place, values, or the mapped file's pages.

        Raises:
            ChangedInputError: one was; the message names it.
        """
        self.check_left()
        for was, now in (
            (self.addresses, _addresses(self.tensors)),  # another tensor may be its `.data`
            (self.sums, _sums(self.tensors)),
        ):
            if changed := [name for name, value in now.items() if was[name] != value]:
                raise self._changed(changed[0])
        if self.file:
            first = next(tensor for tensor in self.tensors.values() if tensor.file)
            if _has_own_pages(first.untyped_storage()):
                raise self._changed(self._differing(self.file))

    def _differing(self, file: Path) -> str:
        """Return the name of a tensor that differs from the file."""
        mapped = {name: tensor for name, tensor in self.tensors.items() if tensor.file}
        places = _Places.of(mapped)
        with suppress(OSError):  # it was removed
            views = places.views(places.mapped(file), mapped)
            for (name, tensor), view in zip(mapped.items(), views, strict=True):
                if not np.array_equal(bytes_of(tensor.detach()), bytes_of(view)):
                    return name
        return "that clients share"

    def _changed(self, name: str) -> ChangedInputError:
        return ChangedInputError(
            f"the frozen tensor {name} was changed in place, which all clients share; a module that"
            " changes it, as BatchNorm does, must be in evaluation mode",
            self.user,
        )


def _sums(tensors: Base) -> dict[str, int]:
    """Return checksums of the tensors that no file has; of a GPU's only versions tell changes."""
    return checksums({n: t for n, t in tensors.items() if not (t.file or t.is_cuda)})


def _addresses(tensors: Base) -> dict[str, int]:
    return {name: tensor.data_ptr() for name, tensor in tensors.items()}


def share(base: Base, digest: str, folder: Path) -> None:
    """Map tensors of a base from a file of this node.

    Args:
        base: The tensors, on the CPU.
        digest: Their digest, as the driver has it.
        folder: The folder of such files on this node.

    Raises:
        DataError: the base of this process differs from the driver's, which no file has; or the
            file cannot be written.
    """
    tensors = dict(sorted(base.items()))
    path, places = folder / f"{digest}{ENDING}", _Places.of(tensors)
    try:
        mapped = _held(path, places, tensors, digest)
        if mapped is None:
            folder.mkdir(parents=True, exist_ok=True)
            with FileLock(folder / LOCK):
                mapped = _held(path, places, tensors, digest)
                if mapped is None:
                    _check_own(tensors, digest)
                    _remove_unused(folder)
                    places.write(path, tensors)
                    mapped = places.mapped(path)
    except OSError as error:
        raise DataError(
            f"{path}: cannot be written: {error.strerror}; RAYSIM_DATA must be a writable folder"
            f" with space for the model's frozen tensors, {in_fitting_unit(places.size, 'B')}"
        ) from error
    with suppress(OSError):  # another user's, who may use it, too; or just removed
        os.utime(path)
    for tensor, view in zip(tensors.values(), places.views(mapped, tensors), strict=True):
        tensor.data, tensor.file = view, path


def _held(path: Path, places: _Places, tensors: Tensors, digest: str) -> Tensor | None:
    """Return the mapped bytes of a file that holds the base with a digest, whole; else None."""
    try:
        if path.stat().st_size != places.size:
            return None
        mapped = places.mapped(path)
    except OSError:  # there is none, or another user's, which this one may not read
        return None
    views = places.views(mapped, tensors)
    return mapped if base_digest(dict(zip(tensors, views, strict=True))) == digest else None


def _check_own(tensors: Tensors, digest: str) -> None:
    """Check that this process has built the driver's base.

    Raises:
        DataError: it has not.
    """
    if (own := base_digest(tensors)) != digest:
        raise DataError(
            f"node {socket.gethostname()}: the model's frozen tensors differ from the driver's"
            f" (digest {own[:12]}, not {digest[:12]}): all nodes must have the same files of the"
            " model, and the same versions of packages"
        )


@dataclass(frozen=True)
class _Places:
    """Places of tensors in a file, each aligned as torch aligns memory.

    Attributes:
        starts: First byte of each tensor.
        size: Bytes of the file.
    """

    starts: tuple[int, ...]
    size: int

    @classmethod
    def of(cls, tensors: Tensors) -> _Places:
        starts, end = [], 0
        for tensor in tensors.values():
            starts.append(end)
            end += -(-max(tensor.nbytes, 1) // ALIGNMENT) * ALIGNMENT
        return cls((*starts,), end)

    def write(self, path: Path, tensors: Tensors) -> None:
        """Write the tensors to a file, which gets its name when it is whole."""
        aside = path.with_suffix(f".{os.getpid()}")
        try:
            with aside.open("wb") as file:
                for start, tensor in zip(self.starts, tensors.values(), strict=True):
                    file.seek(start)
                    file.write(bytes_of(tensor.detach()).data)
                file.truncate(self.size)
            aside.chmod(0o444 & aside.stat().st_mode)  # those who have mapped it would see writes
            aside.replace(path)
        finally:
            aside.unlink(missing_ok=True)

    def mapped(self, path: Path) -> Tensor:
        """Return the bytes of a file, mapped.

        Raises:
            OSError: it cannot be read.
        """
        try:
            return torch.from_file(str(path), shared=False, size=self.size, dtype=torch.uint8)
        except RuntimeError as error:  # torch's for all that goes wrong
            raise OSError(None, str(error)) from error

    def views(self, mapped: Tensor, tensors: Tensors) -> list[Tensor]:
        """Return tensors of these shapes and types, as views of the bytes of a file."""
        return [
            mapped[start : start + tensor.nbytes].view(tensor.dtype).view(tensor.shape)
            for start, tensor in zip(self.starts, tensors.values(), strict=True)
        ]


def _remove_unused(folder: Path) -> None:
    """Remove files that no process has opened for long, and files of killed writers.

    A file that is mapped stays readable.
    """
    for path in folder.iterdir():
        with suppress(OSError):
            unused = time.time() - path.stat().st_mtime > UNUSED_SECONDS
            if path.name != LOCK and (unused or path.suffix != ENDING):
                path.unlink()


def _has_own_pages(mapped: torch.UntypedStorage) -> bool:
    """Return whether this process has written to the memory of a privately mapped file.

    False where the system does not tell.
    """
    first, last = mapped.data_ptr() // PAGE, (mapped.data_ptr() + mapped.nbytes() - 1) // PAGE
    try:
        with PAGES.open("rb") as file:
            file.seek(8 * first)
            words = np.frombuffer(file.read(8 * (last - first + 1)), np.uint64)
    except OSError:  # not Linux
        return False
    return bool(((words & IN_MEMORY != 0) & (words & OF_A_FILE == 0)).any())
