"""Locks of folders, for one writing process at a time."""

from __future__ import annotations

import errno
import os
import shutil
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from itertools import count
from pathlib import Path

from filelock import FileLock, Timeout

from raysim.errors import MovedError, RaysimError, RunError
from raysim.process.exits import INPUT
from raysim.storage.atomic import POSIX

LOCK = ".lock"
"""Name of the locked file."""
PROBED = 0.2
"""Seconds to wait at least for a lock, which `is_locked` may hold for a moment."""


def make_folder(path: Path) -> None:
    """Create a folder if it does not exist.

    Raises:
        RunError: the folder cannot be created.
    """
    try:
        path.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise RunError(f"out={path}: cannot be written: {error.strerror}") from error


def make_new_folder(path: Path) -> Path:
    """Create a new folder and return it, with a number appended to a name in use.

    Raises:
        RunError: the folder cannot be created.
    """
    make_folder(path.parent)
    for number in count(1):
        new = path if number == 1 else path.with_name(f"{path.name}-{number}")
        try:
            new.mkdir(parents=True)  # another process may have removed an empty parent
            break
        except FileExistsError:
            continue
        except OSError as error:
            raise RunError(f"out={new}: cannot be written: {error.strerror}") from error
    return new


@contextmanager
def lock_folder(path: Path, held: str, seconds: float = 0.0) -> Iterator[int | None]:
    """Create a folder and hold its lock, which the system releases for a killed process.

    The folder itself is locked, too, if the file system can, since the file may be removed. Yields
    the folder's descriptor, which stays valid when the folder is renamed; on Windows None, as
    there nobody can rename a folder or remove a file that is open.

    Args:
        path: The folder.
        held: The message if another process holds the lock.
        seconds: Seconds to wait for another process.

    Raises:
        RunError: the folder cannot be written, or another process holds the lock.
    """
    make_folder(path)
    lock = FileLock(path / LOCK, thread_local=False)  # any thread may release it
    try:
        lock.acquire(max(seconds, PROBED))
    except Timeout as error:
        raise RunError(f"out={path}: {held}") from error
    except OSError as error:
        raise RunError(
            f"{path / LOCK}: cannot be locked: {error.strerror}; if it is no file, move it away"
        ) from error
    try:
        with _locked_itself(path, held) as descriptor:
            yield descriptor
    finally:
        lock.release()


@contextmanager
def _locked_itself(path: Path, held: str) -> Iterator[int | None]:
    if not POSIX:
        yield None
        return
    import fcntl

    descriptor = os.open(path, os.O_RDONLY | os.O_DIRECTORY)
    try:
        fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError as error:
        os.close(descriptor)
        raise RunError(f"out={path}: {held}") from error
    except OSError:
        pass  # some network file systems lock no folders
    try:
        yield descriptor
    finally:
        os.close(descriptor)


@contextmanager
def removed_if_refused(path: Path) -> Iterator[None]:
    """Remove a folder that the body creates if the body fails before a run has begun.

    Raises:
        RaysimError: the body's error.
    """
    missing = [folder for folder in (path, *path.parents) if not folder.exists()]
    try:
        yield
    except RaysimError as error:
        is_ours = missing and not is_locked(path)  # another process may have been faster
        if is_ours and error.exit_code == INPUT and not any(path.rglob("config.json")):
            shutil.rmtree(path, ignore_errors=True)
            with suppress(OSError):
                for parent in missing[1:]:
                    parent.rmdir()
        raise


def check_place(path: Path, descriptor: int) -> None:
    """Check that a path leads to the folder of a descriptor.

    Raises:
        MovedError: the folder was renamed, deleted or replaced.
    """
    opened = os.fstat(descriptor)
    with suppress(OSError):
        if os.path.samestat(opened, path.stat()):
            return
    with suppress(OSError):
        later = Path(f"/proc/self/fd/{descriptor}").readlink()
        if os.path.samestat(opened, later.stat()):
            raise MovedError(
                f"{path}: was renamed to {later} while the run wrote to it; to go on from its last"
                f" checkpoint, resume {later}"
            )
    raise MovedError(
        f"{path}: was deleted or moved away while the run wrote to it; restore it and resume it, or"
        " start the run again"
    )


def is_locked(path: Path) -> bool:
    """Return whether a process holds the lock of a folder, which may not exist; write nothing."""
    if not (path / LOCK).is_file():
        return False
    if not POSIX:
        lock = FileLock(path / LOCK)
        try:
            lock.acquire(0.0)
        except Timeout:
            return True
        lock.release()
        return False
    import fcntl

    try:
        with (path / LOCK).open("rb") as file:
            fcntl.flock(file, fcntl.LOCK_SH | fcntl.LOCK_NB)
    except OSError as error:
        # ENOSYS: the file system has no locks, and the file is there as long as it is held.
        return error.errno in (errno.EAGAIN, errno.EWOULDBLOCK, errno.ENOSYS)
    return False
