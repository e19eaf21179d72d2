"""Archives (.zip) of data, unpacked while they are prepared.

Nothing leaves its folder: names that lead out of it, links, and all that is neither a file nor a
folder are refused, and so is an archive that unpacks to many times its size.
"""

from __future__ import annotations

import stat
import zipfile
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from pathlib import Path, PureWindowsPath

from raysim.errors import DataError
from raysim.workloads.datasets.files.arrays import DAMAGE, LARGE_BYTES, MOST_RATIO
from raysim.workloads.datasets.files.source import reading, shown
from raysim.workloads.datasets.image_files import visible

ZIP = ".zip"
OF_MACOS = "__MACOSX/"
"""Folder that macOS adds to archives, with copies of the names."""


def unpacked(path: Path, folder: Path) -> Path:
    """Unpack an archive; return its only file or folder, or a folder of all.

    Args:
        path: The archive.
        folder: A new folder, which is the caller's to remove.

    Raises:
        DataError: it is damaged, or holds files that are not unpacked.
    """
    folder.mkdir()
    with opened(path) as (archive, members):
        archive.extractall(folder, members)
    while folder.is_dir() and len(names := visible(folder)) == 1:
        folder /= names[0]
    return folder


@contextmanager
def opened(path: Path) -> Iterator[tuple[zipfile.ZipFile, list[zipfile.ZipInfo]]]:
    """Open an archive; yield it and its members.

    Raises:
        DataError: it is damaged, or holds files that are not unpacked.
    """
    with reading(path, "a .zip archive", *DAMAGE), zipfile.ZipFile(path) as archive:
        members = [
            member for member in archive.infolist() if not member.filename.startswith(OF_MACOS)
        ]
        _check(path, members)
        yield archive, members


def _check(path: Path, members: Iterable[zipfile.ZipInfo]) -> None:
    """Check the members of an archive before any is unpacked.

    Raises:
        DataError: one is none that is unpacked, or there are too many bytes.
    """
    size, declared = path.stat().st_size, 0
    for member in members:
        name = PureWindowsPath(member.filename)  # which separates by both slashes, and has drives
        kind = stat.S_IFMT(member.external_attr >> 16)
        if name.anchor or ".." in name.parts:
            problem = "leads out of the archive"
        elif kind not in (0, stat.S_IFREG, stat.S_IFDIR):
            problem = "is a link or a device"
        elif member.flag_bits & 1:
            problem = "is encrypted"
        else:
            declared += member.file_size
            continue
        raise DataError(f"{path}: {shown(member.filename)} {problem}; such archives are not read")
    if declared > max(LARGE_BYTES, MOST_RATIO * size):
        raise DataError(
            f"{path}: has {size} bytes and {declared} unpacked; at most {MOST_RATIO} times as many"
            " are read: unpack it"
        )
