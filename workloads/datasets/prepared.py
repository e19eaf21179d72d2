"""Preparing a dataset once: one process at a time, all splits or none."""

from __future__ import annotations

import shutil
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path

from filelock import FileLock

from raysim.core.arrow import verify_split, write_split
from raysim.core.data import Progress, Split
from raysim.core.errors import DataError


@contextmanager
def workspace(folder: Path) -> Iterator[Path]:
    """Lock a dataset's folder and yield an empty work folder in it, removed afterwards.

    Raises:
        DataError: the folder cannot be made or written.
    """
    work = folder / ".work"
    try:
        folder.mkdir(parents=True, exist_ok=True)
        with FileLock(folder / ".lock"):
            shutil.rmtree(work, ignore_errors=True)  # left by a process that was killed
            work.mkdir()
            try:
                yield work
            finally:
                shutil.rmtree(work, ignore_errors=True)
    except OSError as error:
        raise DataError(
            f"{folder}: cannot be used ({error});"
            " RAYSIM_DATA must name a folder that can be written, with room for the dataset"
        ) from error


def prepare_once(
    folder: Path,
    splits: Sequence[str],
    build: Callable[[Path], Mapping[str, Split | Iterable[Split]]],
    say: Progress,
    variant: str = "",
) -> dict[str, Path]:
    """Return the prepared files of a dataset, building them if they are not there.

    A complete set is checked and used without a lock, so a data root may be read-only.

    Args:
        folder: The dataset's folder.
        splits: Names of the splits.
        build: Given a work folder, reads the published files and returns all splits, each whole or
            as parts to be written one after another.
        say: Told how far the work is, in splits.
        variant: Names the settings that the prepared samples depend on, where there are any.

    Raises:
        DataError: the published files cannot be had, or prepared data is damaged.
    """
    ready = folder / "prepared" / variant
    paths = {name: ready / f"{name}.arrow" for name in splits}

    def there() -> bool:
        if complete := all(path.is_file() for path in paths.values()):
            for path in paths.values():
                verify_split(path)
        return complete

    if not there():
        with workspace(folder) as work:
            if not there():
                aside = work / "prepared"
                aside.mkdir()
                built = build(work)
                for done, name in enumerate(splits):
                    say(f"prepare {folder.name}", done, len(splits))
                    write_split(aside / f"{name}.arrow", built[name])
                say(f"prepare {folder.name}", len(splits), len(splits))
                shutil.rmtree(ready, ignore_errors=True)
                ready.parent.mkdir(exist_ok=True)
                aside.replace(ready)
    return paths
