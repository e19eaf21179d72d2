"""Formats by the names of files and folders.

| path | format |
|---|---|
| `*.csv`, `*.tsv`, `*.jsonl`, `*.ndjson`, also `*.gz` of these | a table |
| `*.parquet`, `*.arrow`, `*.feather` | a table |
| a folder of such files of one format | their rows; of two sets, if names have `train`, `test` |
| `*.npz`, or a folder of `*.npy` | arrays by name: x and y, or x_train, y_train, x_test, y_test |
| `*.h5`, `*.hdf5`, or a folder of two, named `*train*` and `*test*` | TensorFlow Federated |
| a folder of folders of `*.png` and `*.jpg` | images by class; also in `train` and `test` |
| a folder of such images and one table | images named by the table |
| a folder with `train/*.json` and `test/*.json` | LEAF |
| a folder with `train/*.npz` and `test/*.npz` | PFLlib |
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence
from pathlib import Path

from raysim.core.errors import DataError
from raysim.core.user_input import user_path
from raysim.workloads.datasets.files import arrays, client_files, pictures, tables
from raysim.workloads.datasets.files.division import SPLITS, check_divided
from raysim.workloads.datasets.files.source import Sources, shown
from raysim.workloads.datasets.image_files import NO_FILE, visible

KNOWN = (
    f"{', '.join((*tables.SUFFIXES, '.npz', *client_files.HDF5))}, folders of these, of .npy files"
    " or of images by class, LEAF's and PFLlib's folders"
)

WORD = re.compile("[A-Z]?[a-z]+|[A-Z]+(?![a-z])")
"""Word of a file's name; `KDDTrain-2` has KDD and Train."""
OF_A_SET = re.compile("(train|test)(ing|set|data)?")
"""Word that says of which set a file's rows are."""
Rest = tuple[str, str]
"""Letters of a name before and after such a word."""


def find_sources(path: Path, split: float | str, image_size: int | None) -> Sources:
    """Return the sources of a path.

    Args:
        path: The file or folder.
        split: The setting `dataset.split`, which may name a file of test samples beside it.
        image_size: Height and width of images; None: those of the files.

    Raises:
        DataError: there is nothing, or nothing of a known format; or it has two sets already, and a
            split is given.
    """
    if not path.exists():
        raise DataError(f"dataset.path={path}: not there; must be a file or folder")
    if not (path.is_file() or path.is_dir()):
        raise DataError(f"dataset.path={path}: {NO_FILE}; copy it to a file")
    found = _of_file(path) if path.is_file() else _of_folder(path, image_size)
    if "" not in found:
        check_divided(path, split)
        return found
    if not isinstance(split, str) or split in found[""].names:
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
    if all(client_files.files_of(path, ".json") for path in sets.values()):
        return client_files.leaf(folder)
    if all(client_files.files_of(path, ".npz") for path in sets.values()):
        return client_files.pfllib(folder)
    if all(map(pictures.class_folders, sets.values())):
        return {split: pictures.by_class(path, image_size) for split, path in sets.items()}
    found = {split: _of_folder(path, image_size) for split, path in sets.items()}
    if any("" not in each for each in found.values()):
        raise DataError(f"dataset.path={folder}: a set in it is divided into sets again")
    return {split: each[""] for split, each in found.items()}


def _together(files: list[Path]) -> Sources:
    """Return the two sets, if the files' names have them, or the rows of all files together.

    Raises:
        DataError: some names have a set, others none: these rows may be for training or not.
    """
    sets = _by_words(files)
    if not any(sets.values()):
        sets = _by_pairs(files)
    named = [*sets["train"], *sets["test"]]
    others = [path for path in files if path not in named]
    if named and others:
        raise DataError(
            f"{others[0]}: lies beside {shown(named[0].name)}, and its name says not which set it"
            " is of; name each file train or test, or move it elsewhere"
        )
    if tables.suffix_of(files[0]) in client_files.HDF5:
        if [*map(len, sets.values())] != [1, 1]:
            folder = files[0].parent
            raise DataError(f"dataset.path={folder}: must hold one *train*.h5, one *test*.h5")
        return {split: client_files.tff(path) for split, (path,) in sets.items()}
    if not all(sets.values()):
        return {"": tables.table(files)}
    return {split: tables.table(paths) for split, paths in sets.items()}


def _by_words(files: Sequence[Path]) -> dict[str, list[Path]]:
    """Return the files of each set whose names have its word: `train-0.csv`, `KDDTest.csv`."""

    def named(path: Path) -> set[str]:
        found = [OF_A_SET.fullmatch(word.lower()) for word in WORD.findall(path.stem)]
        return {word[1] for word in found if word}

    return {split: [path for path in files if named(path) == {split}] for split in SPLITS}


def _by_pairs(files: Sequence[Path]) -> dict[str, list[Path]]:
    """Return the files of each set whose names are alike but for it: `Xtrain.csv`, `Xtest.csv`.

    Digits and marks are not compared. `strain` and `latest` differ in other letters, too.
    """
    rests = {path: {split: _rests(path, split) for split in SPLITS} for path in files}
    train, test = (set[Rest]().union(*(of[split] for of in rests.values())) for split in SPLITS)

    def named(path: Path) -> set[str]:
        return {split for split, of in rests[path].items() if of & train & test}

    return {split: [path for path in files if named(path) == {split}] for split in SPLITS}


def _rests(path: Path, split: str) -> set[Rest]:
    """Return the letters before and after each place where a file's name has a set's word."""
    stem = path.stem.lower()
    places = [word.span() for word in OF_A_SET.finditer(stem) if word[1] == split]
    return {(_letters(stem[:start]), _letters(stem[end:])) for start, end in places}


def _letters(text: str) -> str:
    return "".join(filter(str.isalpha, text))


def _names_below(folder: Path) -> Iterator[str]:
    return (path.name for path in folder.rglob("*"))
