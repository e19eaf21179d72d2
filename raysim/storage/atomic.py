"""Atomic writes: a crash leaves the old file or the new one, never a part of it."""

from __future__ import annotations

import json
import os
import shutil
import socket
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from safetensors import SafetensorError

from raysim.core.errors import MachineError


@contextmanager
def writing(path: Path) -> Iterator[None]:
    """Context of a write; converts errors of the disk.

    Raises:
        MachineError: the file cannot be written; the message names it and the cause.
    """
    try:
        yield
    except (OSError, SafetensorError) as error:
        reason = getattr(error, "strerror", None) or str(error)
        raise MachineError(f"{path}: cannot be written: {reason}") from error


def replace_file(path: Path, write: Callable[[Path], object]) -> None:
    """Write a file aside with `write(path)` and rename it into place.

    Raises:
        MachineError: the file cannot be written.
    """
    aside = _aside(path)
    with writing(path):
        try:
            path.parent.mkdir(parents=True, exist_ok=True)
            write(aside)
            aside.replace(path)
        except BaseException:
            aside.unlink(missing_ok=True)
            raise


def write_json(path: Path, values: Any) -> None:
    """Write values as indented JSON."""
    text = json.dumps(values, indent=2) + "\n"
    replace_file(path, lambda aside: aside.write_text(text, encoding="utf-8"))


def replace_folder(path: Path, write: Callable[[Path], object]) -> None:
    """Write a folder aside with `write(folder)`, force it to disk and rename it into place.

    Raises:
        MachineError: the folder cannot be written.
    """
    aside = _aside(path)
    with writing(path):
        try:
            aside.mkdir(parents=True)
            write(aside)
            for file in [*aside.iterdir(), aside]:
                _force_to_disk(file)
            if path.exists():
                shutil.rmtree(path)
            aside.replace(path)
        except BaseException:
            shutil.rmtree(aside, ignore_errors=True)
            raise


def _aside(path: Path) -> Path:
    """Return a temporary path, unique per process and node."""
    return path.with_name(f".{path.name}.{socket.gethostname()}.{os.getpid()}")


def _force_to_disk(path: Path) -> None:
    descriptor = os.open(path, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)
