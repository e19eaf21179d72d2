"""Atomic writes: a crash leaves the old file or the new one, never a partial one.

A durable file is on disk, not only in the system's cache, before it gets its name; then its folder,
which holds the name, is forced to disk, too.
"""

from __future__ import annotations

import json
import os
import shutil
import socket
import threading
from collections.abc import Callable, Iterable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any

from safetensors import SafetensorError

from raysim.errors import MachineError

MISPLACED = (IsADirectoryError, NotADirectoryError, FileExistsError)
"""Errors of a file in the place of a folder, or a folder in the place of a file."""
POSIX = hasattr(os, "O_DIRECTORY")
"""Whether a folder, and a file that is only read, can be forced to disk; on Windows neither."""
FORCING_THREADS = 8
"""Most files forced to disk at once, which the file system commits together."""


@contextmanager
def writing(path: Path) -> Iterator[None]:
    """Turn errors of the disk in the body into a MachineError.

    Raises:
        MachineError: the file cannot be written; the message names it and the reason.
    """
    try:
        yield
    except (OSError, SafetensorError) as error:
        reason = getattr(error, "strerror", None) or str(error)
        if isinstance(error, MISPLACED) and (other := in_the_way(path)):
            reason = f"{other}; move it away"
        raise MachineError(f"{path}: cannot be written: {reason}") from error


def in_the_way(path: Path) -> str | None:
    """Describe a folder in the place of a file, or a file in the place of its folders, or None."""
    if path.is_dir():
        return f"{path} is a folder"
    for parent in path.parents:
        if parent.is_symlink() and not parent.exists():
            return f"{parent} is a link that leads nowhere"
        if parent.exists():
            return None if parent.is_dir() else f"{parent} is no folder"
    return None


def replace_file(path: Path, write: Callable[[Path], object], durable: bool = False) -> None:
    """Write a temporary file with `write(path)` and rename it into place.

    Args:
        path: The file.
        write: Writes the content to a path.
        durable: Whether to force it to disk, or leave it in the system's cache.

    Raises:
        MachineError: the file cannot be written.
    """
    aside = _aside(path)
    with writing(path):
        try:
            path.parent.mkdir(parents=True, exist_ok=True)
            write(aside)
            if durable:
                _force(aside)
            aside.replace(path)
            if durable:
                _force(path.parent)
        except BaseException:
            aside.unlink(missing_ok=True)
            raise


def write_json(path: Path, values: Any) -> None:
    """Write values as indented JSON, durably."""
    text = json.dumps(values, indent=2) + "\n"
    replace_file(path, lambda aside: aside.write_text(text, encoding="utf-8"), durable=True)


def replace_folder(path: Path, write: Callable[[Path], object]) -> None:
    """Write a temporary folder with `write(folder)`, force it to disk and rename it into place.

    Raises:
        MachineError: the folder cannot be written.
    """
    aside = _aside(path)
    with writing(path):
        try:
            aside.mkdir(parents=True)
            write(aside)
            force_to_disk(aside.iterdir())
            if path.exists():
                _exchange(path, aside)
            else:
                aside.replace(path)
            _force(path.parent)
        except BaseException:
            remove(aside)
            raise


def _exchange(path: Path, aside: Path) -> None:
    """Replace an old folder by a new one; put it back if that fails."""
    old = _aside(path.with_name(f"{path.name}.old"))
    path.replace(old)
    try:
        aside.replace(path)
    except BaseException:
        old.replace(path)
        raise
    remove(old)


def discard_folder(path: Path) -> None:
    """Rename a folder to a temporary name, then delete it as far as possible.

    A network file system keeps files that are open or mapped somewhere, under other names: their
    folder keeps its temporary name until `sweep` deletes it.
    """
    aside = _aside(path)
    with writing(path):
        path.replace(aside)
    remove(aside)


def sweep(folder: Path) -> None:
    """Delete half-written and half-deleted files of killed processes in a folder."""
    for path in folder.glob("*"):  # none without the folder
        if is_leftover(path):
            remove(path)


def is_leftover(path: Path) -> bool:
    """Return whether a file or folder has a temporary name."""
    return path.match(".*.aside")


def remove(path: Path) -> None:
    """Delete a file or a folder as far as possible now."""
    if path.is_dir() and not path.is_symlink():
        shutil.rmtree(path, ignore_errors=True)
    else:
        with suppress(OSError):
            path.unlink()


def force_to_disk(paths: Iterable[Path]) -> None:
    """Force files to disk, and the folders that hold their names."""
    files = list(paths)
    with ThreadPoolExecutor(FORCING_THREADS) as pool:
        for group in (files, {file.parent for file in files}):
            # One needs no thread; none can be started while the interpreter exits.
            call = pool.map if len(group) > 1 and threading.main_thread().is_alive() else map
            for _ in call(_force, group):
                pass


def _aside(path: Path) -> Path:
    """Return a temporary name that is unique among processes, also of nodes that share the disk."""
    return path.with_name(f".{path.name}.{socket.gethostname()}.{os.getpid()}.aside")


def _force(path: Path) -> None:
    """Force a file or a folder's names to disk; Windows does so with the names by itself."""
    if not POSIX and path.is_dir():
        return
    descriptor = os.open(path, os.O_RDONLY if POSIX else os.O_RDWR)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)
