"""Test doubles of a slow disk, a stepped clock and a disk that renames deleted files.

They are installed in a driver's process before it imports anything else, and act while a file of
their name is in the folder of orders: `slow` and `clock` hold seconds. Each prints an event when it
first acts.
"""

from __future__ import annotations

import os
import time
from collections.abc import Callable
from functools import wraps
from pathlib import Path
from typing import Any

_seen: set[str] = set()


def event(text: str) -> None:
    """Print an event once."""
    if text not in _seen:
        _seen.add(text)
        print("event", text, flush=True)


def _seconds(order: Path) -> float:
    try:
        return float(order.read_text() or 0)
    except (FileNotFoundError, ValueError):
        return 0.0


def install(orders: Path) -> None:
    """Put the doubles in place of the functions of `os` and `time`."""
    for name in ("fsync", "replace", "rename"):
        setattr(os, name, _slow(getattr(os, name), orders / "slow"))
    for name in ("unlink", "remove"):
        setattr(os, name, _renaming(getattr(os, name), orders / "renaming"))
    clock = time.time

    def stepped() -> float:
        if offset := _seconds(orders / "clock"):
            event("clock stepped")
        return clock() + offset

    time.time = stepped


def _slow(function: Callable[..., Any], order: Path) -> Callable[..., Any]:
    @wraps(function)
    def slow(*arguments: Any, **options: Any) -> Any:
        if seconds := _seconds(order):
            event("disk slow")
            time.sleep(seconds)
        return function(*arguments, **options)

    return slow


def _renaming(function: Callable[..., None], order: Path) -> Callable[..., None]:
    """Rename a file that this process has open instead of deleting it, as NFS does."""

    @wraps(function)
    def delete(path: Any, *, dir_fd: int | None = None) -> None:
        if not order.exists():
            function(path, dir_fd=dir_fd)
            return
        event("file deleted")
        folder = Path.cwd() if dir_fd is None else Path(f"/proc/self/fd/{dir_fd}").readlink()
        found = folder / os.fspath(path)
        if is_open(found):
            event(f"renamed {found.name}")
            os.rename(found, found.with_name(f".nfs{time.monotonic_ns()}"))  # noqa: PTH104
        else:
            function(path, dir_fd=dir_fd)

    return delete


def is_open(path: Path) -> bool:
    """Return whether this process has a file open, or in its memory."""
    name = str(path.resolve())
    if any(line.endswith(name) for line in Path("/proc/self/maps").read_text().splitlines()):
        return True
    return any(os.path.realpath(entry) == name for entry in Path("/proc/self/fd").iterdir())
