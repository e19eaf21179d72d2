"""Formats by the names of files and folders.

| path | format |
|---|---|
| `*.csv`, `*.tsv`, `*.jsonl`, `*.ndjson`, also `*.gz` of these | a table |
| `*.parquet`, `*.arrow`, `*.feather` | a table |
| a folder of such files of one format | their rows; `train.*` and `test.*` are the two sets |
| `*.npz`, or a folder of `*.npy` | arrays by name: x and y, or x_train, y_train, x_test, y_test |
| `*.h5`, `*.hdf5`, or a folder of two, named `*train*` and `*test*` | TensorFlow Federated |
| a folder of folders of `*.png` and `*.jpg` | images by class; also in `train` and `test` |
| a folder of such images and one table | images named by the table |
| a folder with `train/*.json` and `test/*.json` | LEAF |
| a folder with `train/*.npz` and `test/*.npz` | PFLlib |
"""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

from raysim.core.errors import DataError
from raysim.core.user_input import user_path
from raysim.workloads.datasets.files import arrays, client_files, pictures, tables
from raysim.workloads.datasets.files.source import Sources
from raysim.workloads.datasets.image_files import visible

KNOWN = (
    f"{', '.join((*tables.SUFFIXES, '.npz', *client_files.HDF5))}, folders of these, of .npy files"
    " or of images by class, LEAF's and PFLlib's folders"
)


def find_sources(path: Path, split: float | str, image_size: int | None) -> Sources:
    """Return the sources of a path.

    Args:
        path: The file or folder.
        split: The setting `dataset.split`, which may name a file of test samples beside it.
        image_size: Height and width of images; None: those of the files.

    Raises:
        DataError: there is nothing, or nothing of a known format.
    """
    if not path.exists():
        raise DataError(f"dataset.path={path}: not there; must be a file or folder")
    found = _of_file(path) if path.is_file() else _of_folder(path, image_size)
    if "" not in found or not isinstance(split, str) or split in found[""].names:
        return found
    beside = path.parent / user_path(split, "dataset.split")
    if not beside.is_file():
        return found
    return {"train": found[""], "test": _of_file(beside)[""]}


def _of_file(path: Path) -> Sources:
    suffix = tables.suffix_of(path)
    if suffix in tables.SUFFIXES:
        return {"": tables.table([path])}
    if suffix == ".npz":
        return arrays.archive(path)
    if suffix in client_files.HDF5:
        return {"": client_files.tff(path)}
    raise DataError(f"dataset.path={path}: no known format; known are {KNOWN}")


def _of_folder(folder: Path, image_size: int | None) -> Sources:
    inside = [folder / name for name in visible(folder)]
    files = [path for path in inside if path.is_file()]
    of_tables = [path for path in files if tables.suffix_of(path) in tables.SUFFIXES]
    if len(of_tables) == 1 and any(map(pictures.is_image, _names_below(folder))):
        return {"": pictures.by_table(folder, of_tables[0], image_size)}
    named = {split: folder / split for split in ("train", "test")}
    if all(path.is_dir() for path in named.values()):
        return _of_sets(folder, named, image_size)
    ends = {tables.suffix_of(path) for path in files}
    if ends == {".npy"}:
        return arrays.folder(folder, files)
    if len(ends) == 1 and (ends <= {*tables.SUFFIXES} or ends <= {*client_files.HDF5}):
        return _together(files)
    if pictures.class_folders(folder):
        return {"": pictures.by_class(folder, image_size)}
    raise DataError(f"dataset.path={folder}: no known format; known are {KNOWN}")


def _of_sets(folder: Path, sets: dict[str, Path], image_size: int | None) -> Sources:
    """Return the sources of a folder with folders `train` and `test`."""
    if all(any(path.glob("*.json")) for path in sets.values()):
        return client_files.leaf(folder)
    if all(any(path.glob("*.npz")) for path in sets.values()):
        return client_files.pfllib(folder)
    if all(map(pictures.class_folders, sets.values())):
        return {split: pictures.by_class(path, image_size) for split, path in sets.items()}
    found = {split: _of_folder(path, image_size) for split, path in sets.items()}
    if any("" not in each for each in found.values()):
        raise DataError(f"dataset.path={folder}: a set in it is divided into sets again")
    return {split: each[""] for split, each in found.items()}


def _together(files: list[Path]) -> Sources:
    """Return the two sets, if two files are named so, or the rows of all files together."""
    named = {split: [path for path in files if split in path.stem] for split in ("train", "test")}
    if len(files) == 2 and all(len(paths) == 1 for paths in named.values()):
        return {split: _of_file(paths[0])[""] for split, paths in named.items()}
    if any(tables.suffix_of(path) in client_files.HDF5 for path in files):
        raise DataError(f"dataset.path={files[0].parent}: must hold one *train*.h5, one *test*.h5")
    return {"": tables.table(files)}


def _names_below(folder: Path) -> Iterator[str]:
    return (path.name for path in folder.rglob("*"))
