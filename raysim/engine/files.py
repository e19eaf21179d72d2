"""Writing files so that a crash leaves the old one or the new one, never half of it."""

from __future__ import annotations

import json
import os
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

from raysim.core.errors import RunError


def replace_file(path: Path, write: Callable[[Path], object]) -> None:
    """Write a file aside with `write(path)` and rename it into place.

    Raises:
        RunError: the disk refuses.
    """
    aside = path.with_name(f".{path.name}.{os.getpid()}")
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        write(aside)
        aside.replace(path)
    except OSError as error:
        aside.unlink(missing_ok=True)
        raise RunError(f"{path}: cannot be written: {error.strerror or error}") from error


def write_json(path: Path, values: Any) -> None:
    """Write values as indented JSON."""
    text = json.dumps(values, indent=2) + "\n"
    replace_file(path, lambda aside: aside.write_text(text, encoding="utf-8"))


def replace_folder(path: Path, write: Callable[[Path], object]) -> None:
    """Write a folder aside with `write(folder)`, force it to disk and rename it into place.

    Raises:
        RunError: the disk refuses.
    """
    aside = path.with_name(f".{path.name}.{os.getpid()}")
    try:
        aside.mkdir(parents=True)
        write(aside)
        for file in [*aside.iterdir(), aside]:
            _force_to_disk(file)
        if path.exists():
            shutil.rmtree(path)
        aside.replace(path)
    except OSError as error:
        shutil.rmtree(aside, ignore_errors=True)
        raise RunError(f"{path}: cannot be written: {error.strerror or error}") from error


def _force_to_disk(path: Path) -> None:
    descriptor = os.open(path, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)
