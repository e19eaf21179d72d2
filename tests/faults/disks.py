"""Small disks that fill up or become read-only; only root may mount them."""

from __future__ import annotations

import subprocess
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

MEGABYTES = 16


@contextmanager
def small_disk(folder: Path) -> Iterator[Path]:
    """Mount a disk of a few megabytes.

    Raises:
        PermissionError: this machine permits no mounts.
    """
    folder.mkdir()
    size = f"size={MEGABYTES}m"
    if refused := mount("-t", "tmpfs", "-o", size, "tmpfs", str(folder)):
        raise PermissionError(f"this machine permits no mounts: {refused}")
    try:
        yield folder
    finally:
        subprocess.run(["umount", "--lazy", str(folder)], check=True)


def mount(*arguments: str) -> str:
    """Mount; return why it was refused, if it was."""
    done = subprocess.run(["mount", *arguments], check=False, capture_output=True, text=True)
    return done.stderr.strip() if done.returncode else ""


def fill(disk: Path) -> None:
    """Leave no byte free."""
    with (disk / "filler").open("wb", buffering=0) as filler:
        for size in (2**16, 2**12, 1):
            try:
                while filler.write(bytes(size)):
                    pass
            except OSError:
                continue


def empty(disk: Path) -> None:
    """Give back what `fill` took."""
    (disk / "filler").unlink()
