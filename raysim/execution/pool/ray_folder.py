"""Folders for the files of a run's own Ray: with short paths, and removed afterwards.

A folder is removed after its run. After a fault it stays if it has Ray's logs; the folder of a
killed driver is removed when the next driver starts. The folder for temporary files may be writable
by other users: links there are not followed, and folders of other users are left alone.
"""

from __future__ import annotations

import os
import shutil
import socket
import stat
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

from filelock import FileLock, Timeout

from raysim.errors import MachineError, RaysimError, SettingsError

PREFIX = "raysim-ray-"
"""Beginning of the folders' names."""
RAY, IN_USE, KEPT = "ray", "in-use", "kept"
"""Names in a folder: Ray's own folder, the driver's lock, and a file that prevents removal."""
SOCKET_BYTES = 107
"""Most bytes of the path of a socket."""
BELOW = f"/{PREFIX}12345678/{RAY}/session_2026-01-01_00-00-00_000000_/sockets/plasma_store"
"""Path of a socket of Ray below the folder for temporary files, without the driver's number."""
SHORT = "/tmp"  # noqa: S108 - holds a private folder
"""Folder for temporary files if the path of the user's is too long, as in jobs of Slurm."""


def short_place() -> Path:
    """Return a folder for temporary files; its path is short enough for Ray's sockets.

    Raises:
        SettingsError: no folder has a short enough path.
    """
    chosen = os.environ.get("RAY_TMPDIR")
    if not hasattr(socket, "AF_UNIX"):  # on Windows, Ray's sockets are not files
        return Path(chosen or tempfile.gettempdir())
    places = [chosen] if chosen else [tempfile.gettempdir(), SHORT]
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
    """Create a folder for Ray's files and remove it afterwards; first remove killed drivers' ones.

    Raises:
        SettingsError: the folder cannot be created.
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
    # Locked before Ray's folder exists, without which no folder is removed; any thread may release
    # it.
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
    """Return whether Ray has written logs."""
    return any(path.is_file() and path.stat().st_size for path in (folder / RAY).glob("*/logs/*"))


def _sweep(place: Path) -> None:
    """Remove the folders of killed drivers, and files that Ray's processes wrote later."""
    for folder in place.glob(f"{PREFIX}*"):
        with suppress(OSError, Timeout):
            if _is_own(folder) and {RAY} <= {p.name for p in folder.iterdir()} <= {RAY, IN_USE}:
                with FileLock(folder / IN_USE, blocking=False):
                    _remove(folder)


def _is_own(folder: Path) -> bool:
    """Return whether a path is this user's folder, not a link, and only this user can change it."""
    status = folder.lstat()
    if not hasattr(os, "geteuid"):  # on Windows each user has a folder for temporary files
        return stat.S_ISDIR(status.st_mode)
    private = not status.st_mode & (stat.S_IWGRP | stat.S_IWOTH)
    return stat.S_ISDIR(status.st_mode) and status.st_uid == os.geteuid() and private


def _remove(folder: Path) -> None:
    """Remove a folder; if Ray's processes still write to it, the next sweep does."""
    shutil.rmtree(folder / RAY, ignore_errors=True)
    if not (folder / RAY).exists():
        shutil.rmtree(folder, ignore_errors=True)
