"""Preparation of a dataset: once, by one process at a time, all splits or none."""

from __future__ import annotations

import shutil
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path

from filelock import FileLock

from raysim.errors import DataError
from raysim.samples.arrow import verify_split, write_split
from raysim.samples.data import Dataset, Progress, Split

WORK = ".work"
"""Folder of the files that are needed while a dataset is prepared."""


class NeededError(DataError):
    """Error of missing files that are read at each start, even once they are prepared."""


@contextmanager
def workspace(folder: Path) -> Iterator[Path]:
    """Lock a dataset's folder and yield an empty work folder in it, which is removed at the end.

    Raises:
        DataError: the folder cannot be created or written.
    """
    work_folder = folder / WORK
    try:
        folder.mkdir(parents=True, exist_ok=True)
        with FileLock(folder / ".lock"):
            shutil.rmtree(work_folder, ignore_errors=True)  # left over by a killed process
            work_folder.mkdir()
            try:
                yield work_folder
            finally:
                shutil.rmtree(work_folder, ignore_errors=True)
    except OSError as error:
        raise DataError(
            f"{folder}: cannot be used ({error});"
            " RAYSIM_DATA must be a writable folder with space for the dataset"
        ) from error


def prepare_once(
    folder: Path,
    splits: Sequence[str],
    build: Callable[[Path], Mapping[str, Split | Iterable[Split]]],
    progress: Progress,
    variant: str = "",
) -> dict[str, Path]:
    """Return the prepared files of a dataset; prepare them first if they do not exist.

    A complete set is checked and used without a lock, so a data root may be read-only.

    Args:
        folder: The dataset's folder.
        splits: Names of the splits.
        build: Reads the published files, given a work folder, and returns all splits, each whole or
            as parts to be written one after another.
        progress: Called with the number of prepared splits, first before `build`.
        variant: Name of the settings that the prepared samples depend on; "" if they depend on
            none.

    Raises:
        DataError: the published files are not available, or prepared data is damaged.
    """
    ready = folder / "prepared" / variant
    paths = {name: ready / f"{name}.arrow" for name in splits}
    if not _is_complete(paths.values()):
        progress(f"prepare {folder.name}", 0, len(splits))  # before anything is fetched
        with workspace(folder) as work_folder:
            if not _is_complete(paths.values()):  # another process may have held the lock
                temporary = work_folder / "prepared"
                temporary.mkdir()
                built = build(work_folder)
                for done, name in enumerate(splits, 1):
                    write_split(temporary / f"{name}.arrow", built[name])
                    progress(f"prepare {folder.name}", done, len(splits))
                ready.mkdir(parents=True, exist_ok=True)  # it may hold folders of other variants
                for path in sorted(temporary.iterdir(), key=lambda file: file.suffix == ".arrow"):
                    path.replace(ready / path.name)  # checksums first
    return paths


def missing_files(dataset: Dataset, root: Path) -> str:
    """Return which files that cannot be fetched the data root lacks; empty if none.

    Published files may be gone once a dataset is prepared, if they are not needed at each start.
    """
    try:
        dataset.check_files(root)
    except NeededError as error:
        return str(error)
    except DataError as error:
        prepared = any((root / dataset.title / "prepared").rglob("*.arrow"))
        return "" if prepared else str(error)
    return ""


def _is_complete(paths: Collection[Path]) -> bool:
    """Return whether all files exist; check them if they do.

    Raises:
        DataError: they are damaged, or cannot be read.
    """
    try:
        if not all(path.is_file() for path in paths):
            return False
        for path in paths:
            verify_split(path)
    except OSError as error:
        raise DataError(
            f"{error.filename}: prepared data cannot be read: {error.strerror}; have its owner"
            " allow it, or set RAYSIM_DATA to your own folder"
        ) from error
    return True
