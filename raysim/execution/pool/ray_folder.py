"""Folders of our own Ray: short paths, and nothing of them left behind.

A folder is removed after its run. After a fault it stays if Ray's logs are in it; that of a driver
that was killed is removed when the next one starts. The folder for temporary files may be writable
by others: links are not followed there, and folders of others are left alone.
"""

from __future__ import annotations

import os
import shutil
import stat
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

from filelock import FileLock, Timeout

from raysim.core.errors import MachineError, RaysimError, SettingsError

PREFIX = "raysim-ray-"
"""Beginning of their names."""
RAY, IN_USE, KEPT = "ray", "in-use", "kept"
"""Names in such a folder: Ray's own folder, a file that the driver locks, one that spares it."""
SOCKET_BYTES = 107
"""Most bytes of the path of a socket."""
BELOW = f"/{PREFIX}12345678/{RAY}/session_2026-01-01_00-00-00_000000_/sockets/plasma_store"
"""Path of a socket of Ray's below the folder for temporary files, without the driver's number."""
SHORT = "/tmp"  # noqa: S108 - a folder of our own is made in it
"""Folder for temporary files where the user's has too long a path, as of jobs of Slurm."""


def short_place() -> Path:
    """Return the folder for temporary files in which Ray's sockets can lie.

    Raises:
        SettingsError: there is none with a path that is short enough.
    """
    given = os.environ.get("RAY_TMPDIR")
    places = [given] if given else [tempfile.gettempdir(), SHORT]
    for place in places:
        if len(os.fsencode(Path(place).absolute())) <= _most_bytes():
            return Path(place)
    raise SettingsError(
        f"RAY_TMPDIR={places[0]}: must be a folder with a path of at most {_most_bytes()} bytes, as"
        " Ray's sockets lie in it"
    )


def _most_bytes() -> int:
    return SOCKET_BYTES - len(BELOW) - len(str(os.getpid()))


@contextmanager
def own_folder(place: Path) -> Iterator[Path]:
    """Make a folder for Ray's files; remove it afterwards, and those of killed drivers before.

    Raises:
        SettingsError: it cannot be made.
    """
    _sweep(place)
    try:
        folder = Path(tempfile.mkdtemp(prefix=PREFIX, dir=place))  # for this user alone
    except OSError as error:
        raise SettingsError(
            f"{place}: Ray's folder cannot be made there: {error.strerror}; set RAY_TMPDIR to a"
            f" folder with a path of at most {_most_bytes()} bytes"
        ) from error
    logs = f"Ray's logs are in {folder}"
    # Before Ray's folder is there, without which none is removed; any thread may release it.
    with FileLock(folder / IN_USE, thread_local=False):
        kept = False
        try:
            yield folder
        except MachineError as error:
            if kept := _has_logs(folder):
                raise type(error)(f"{error}; {logs}") from error
            raise
        except BaseException as error:
            expected = isinstance(error, RaysimError | KeyboardInterrupt | GeneratorExit)
            if kept := not expected and _has_logs(folder):
                error.add_note(logs)
            raise
        finally:
            if kept:
                (folder / KEPT).touch()
            else:
                _remove(folder)
            _sweep(place)


def _has_logs(folder: Path) -> bool:
    """Return whether Ray has logged something."""
    return any(path.is_file() and path.stat().st_size for path in (folder / RAY).glob("*/logs/*"))


def _sweep(place: Path) -> None:
    """Remove the folders of killed drivers, and what Ray's processes wrote after that."""
    for folder in place.glob(f"{PREFIX}*"):
        with suppress(OSError, Timeout):
            if _is_own(folder) and {RAY} <= {p.name for p in folder.iterdir()} <= {RAY, IN_USE}:
                with FileLock(folder / IN_USE, blocking=False):
                    _remove(folder)


def _is_own(folder: Path) -> bool:
    """Return whether it is a folder of this user that others cannot change, and no link to one."""
    found = folder.lstat()
    private = not found.st_mode & (stat.S_IWGRP | stat.S_IWOTH)
    return stat.S_ISDIR(found.st_mode) and found.st_uid == os.geteuid() and private


def _remove(folder: Path) -> None:
    """Remove a folder; where Ray's processes still write to it, the next sweep does."""
    shutil.rmtree(folder / RAY, ignore_errors=True)
    if not (folder / RAY).exists():
        shutil.rmtree(folder, ignore_errors=True)
