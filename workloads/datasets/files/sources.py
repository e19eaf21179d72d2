"""Formats by the names of files and folders.

| path | format |
|---|---|
| `*.csv`, `*.tsv`, `*.jsonl`, `*.ndjson`, `*.json`, also `*.gz` of these | a table |
| `*.parquet`, `*.arrow`, `*.feather` | a table |
| a folder of such files of one format | their rows; of two sets, if names have `train`, `test` |
| `*.npz`, `*.npy`, or a folder of `*.npy` | arrays by name: x and y, or x_train, y_train, ... |
| `*.h5`, `*.hdf5`, or a folder of two, named `*train*` and `*test*` | TensorFlow Federated |
| a folder of folders of `*.png` and `*.jpg` | images by class; also in `train` and `test` |
| a folder of such images and one table | images named by the table |
| a folder with `train/*.json` and `test/*.json` | LEAF |
| a folder of `*.npz`, or with `train/*.npz` and `test/*.npz` | a client a file, as PFLlib |
| a folder of folders of one of these formats | a client a folder |

Of several tables, each is a client's, too: natural clients are the names of files.
"""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from pathlib import Path

from raysim.errors import DataError
from raysim.user_input import override_text, user_path
from raysim.workloads.datasets.files import arrays, client_files, pictures, tables
from raysim.workloads.datasets.files.combined import of_clients, with_target
from raysim.workloads.datasets.files.division import SPLITS, check_divided
from raysim.workloads.datasets.files.pictures import AS_IN_FILES, Look
from raysim.workloads.datasets.files.source import Source, Sources, shown
from raysim.workloads.datasets.files.unzipped import ZIP
from raysim.workloads.datasets.image_files import NO_FILE, visible

NPY, NPZ, JSON = ".npy", ".npz", ".json"
OF_TABLES = frozenset(tables.SUFFIXES)
OF_DATA = OF_TABLES | {NPZ, NPY, *client_files.HDF5}
FILES = f"{', '.join((*tables.SUFFIXES, NPZ, NPY, *client_files.HDF5))} or {ZIP}"
LAYOUTS = (
    "CLASS/*.png, CLIENT/CLASS/*.png, images and a table; tables, .npy or .npz files; a folder of"
    " these for each client; each of these also in folders train and test"
)
"""Layouts of folders, for errors."""

WORD = re.compile("[A-Z]?[a-z]+|[A-Z]+(?![a-z])")
"""Word of a file's name; `KDDTrain-2` has KDD and Train."""
OF_A_SET = re.compile("(train|test)(ing|set|data)?")
"""Word that names the set of a file's rows."""
WITH_SET = re.compile(f"[-_. ]*{OF_A_SET.pattern}[-_. ]*", re.IGNORECASE)
OTHER_SETS = frozenset(("val", "valid", "validation", "dev", "eval", "holdout"))
"""Names of folders of further sets."""
Rest = tuple[str, str]
"""Letters of a name before and after such a word."""


@dataclass(frozen=True)
class Reading:
    """Settings that say how a path is read.

    Attributes:
        split: The setting `dataset.split`, which may name a file or folder of test samples.
        look: Size and mode of images.
        target: The setting `dataset.target`, which may name a file of targets.
        texts: Columns whose cells are taken as they stand.
    """

    split: float | str
    look: Look = AS_IN_FILES
    target: str | None = None
    texts: frozenset[str] = frozenset()


def find_sources(path: Path, reading: Reading) -> Sources:
    """Return the sources of a path.

    Args:
        path: The file or folder.
        reading: The settings that say how it is read.

    Raises:
        DataError: there is nothing, or nothing of a known format; or it has two sets already, and a
            split is given.
    """
    if not path.exists():
        raise DataError(f"dataset.path={path}: not there; must be a file or folder")
    if not (path.is_file() or path.is_dir()):
        raise DataError(f"dataset.path={path}: {NO_FILE}; copy it to a file")
    sources = _with_target(
        _of_file(path, reading) if path.is_file() else _of_folder(path, reading), path, reading
    )
    split = reading.split
    if "" not in sources:
        if not (isinstance(split, str) and (path / split).is_dir()):
            check_divided(path, split)
        return sources
    if not isinstance(split, str) or split in sources[""].names:
        return sources
    beside = path.parent / user_path(split, "dataset.split")
    if not beside.is_file():
        return sources
    return {"train": sources[""], "test": _of_file(beside, reading)[""]}


def _with_target(sources: Sources, path: Path, reading: Reading) -> Sources:
    """Return sources with targets of a second file, if the setting `dataset.target` names one.

    Raises:
        DataError: the sources are two sets.
    """
    named = reading.target
    if named is None or any(named in source.names for source in sources.values()):
        return sources
    beside = path.parent / user_path(named, "dataset.target")
    if not beside.is_file():
        return sources
    if "" not in sources:
        raise DataError(
            f"dataset.target={shown(named)}: is a file of targets, and {path} has two sets; call"
            " the files of a folder x_train, y_train, x_test and y_test"
        )
    return {"": with_target(sources[""], _of_file(beside, reading)[""])}


def _of_file(path: Path, reading: Reading) -> Sources:
    suffix = tables.suffix_of(path)
    if suffix in OF_TABLES:
        return {"": tables.table([path], reading.texts)}
    if suffix == NPZ:
        return arrays.archive(path)
    if suffix == NPY:
        return arrays.folder(path, [path])
    if suffix in client_files.HDF5:
        return {"": client_files.tff(path)}
    raise DataError(f"dataset.path={path}: no known format; known are {FILES} files")


def _of_folder(folder: Path, reading: Reading) -> Sources:
    inside = [folder / name for name in visible(folder)]
    files, folders = ([p for p in inside if p.is_dir() == is_dir] for is_dir in (False, True))
    of_tables = [path for path in files if tables.suffix_of(path) in OF_TABLES]
    if len(of_tables) == 1 and any(map(pictures.is_image, _names_below(folder))):
        return {"": pictures.by_table(folder, of_tables[0], reading.look)}
    if sets := _set_folders(folder, folders, reading.split):
        sources = _of_sets(folder, sets, reading)
        unread = tuple(path.name for path in folders if path not in sets.values())
        return {split: replace(source, unread=unread) for split, source in sources.items()}
    data = [path for path in files if tables.suffix_of(path) in OF_DATA]
    ends = {tables.suffix_of(path) for path in data}
    if len(ends) == 1 and not any(pictures.is_image(path.name) for path in files):
        unread = tuple(path.name for path in inside if path not in data)
        sources = _of_files(folder, data, next(iter(ends)), reading)
        return {
            split: replace(source, unread=source.unread + unread)
            for split, source in sources.items()
        }
    if not ends and _has_classes(folder):
        return {"": pictures.by_class(folder, reading.look)}
    if not ends and folders:
        return _of_client_folders(folder, folders, reading)
    raise DataError(f"dataset.path={folder}: {_told(files, folders)}; known layouts are {LAYOUTS}")


def _of_files(folder: Path, files: list[Path], end: str, reading: Reading) -> Sources:
    """Return the sources of a folder's files, which share one suffix."""
    if end == NPY:
        return arrays.folder(folder, files)
    return {"": client_files.pfllib(folder)} if end == NPZ else _together(files, reading)


def _told(files: Sequence[Path], folders: Sequence[Path]) -> str:
    """Return the content of a folder in words."""
    kinds = Counter(tables.suffix_of(path) or "other" for path in files)
    parts = [f"{count} {shown(end)[1:-1]}" for end, count in kinds.most_common(3)]
    if folders:
        names = ", ".join(path.name for path in folders[:3]) + ", ..." * (len(folders) > 3)
        parts.insert(0, f"{len(folders)} folders ({shown(names)[1:-1]})")
    return f"has no known layout, but {' and '.join(parts) or 'nothing'}"


def _has_classes(folder: Path) -> bool:
    """Return whether a folder has folders with images in them."""
    inside = pictures.class_folders(folder)
    return any(pictures.is_image(name) for class_folder in inside for name in visible(class_folder))


def _set_folders(folder: Path, folders: Sequence[Path], split: float | str) -> dict[str, Path]:
    """Return the folder of each set; none where a folder's folders are of no sets.

    A class may be called `train`: its folder has images.

    Raises:
        DataError: there is one set, or another set than the test set, alone.
    """
    named = {path.name.lower(): path for path in folders}
    of_sets = {}
    for name, path in named.items():
        of_a_set = OF_A_SET.fullmatch(name)
        if (of_a_set or name in OTHER_SETS) and not any(map(pictures.is_image, visible(path))):
            of_sets[of_a_set[1] if of_a_set else name] = path
    if isinstance(split, str) and split.lower() in named and "train" in of_sets:
        return {"train": of_sets["train"], "test": named[split.lower()]}
    if {*SPLITS} <= of_sets.keys():
        return {split: of_sets[split] for split in SPLITS}
    if len(folders) == 1 or not of_sets:
        return {}
    there = ", ".join(path.name for path in folders)
    advice = "name one train and one test"
    if "train" in of_sets and (others := [n for n in of_sets if n in OTHER_SETS]):
        name = of_sets[others[0]].name
        advice = f"{override_text('dataset.split', name)} tests on {name}"
    raise DataError(
        f"dataset.path={folder}: has the folders {shown(there)[1:-1]}; sets are in folders train"
        f" and test: {advice}"
    )


def _of_sets(folder: Path, sets: dict[str, Path], reading: Reading) -> Sources:
    """Return the sources of the folders of a training and a test set."""
    if all(map(_is_leaf, sets.values())):
        return {split: client_files.leaf(path) for split, path in sets.items()}
    by_split = {split: _of_folder(path, reading) for split, path in sets.items()}
    if any("" not in sources for sources in by_split.values()):
        raise DataError(f"dataset.path={folder}: a set in it is divided into sets again")
    return {split: sources[""] for split, sources in by_split.items()}


def _is_leaf(folder: Path) -> bool:
    """Return whether a folder has LEAF's files of JSON objects; arrays in such files are tables."""
    paths = client_files.files_of(folder, JSON)
    return bool(paths) and tables.first_mark(paths[0]) == "{"


def _of_client_folders(folder: Path, folders: Sequence[Path], reading: Reading) -> Sources:
    """Return the sources of a folder with a folder for each client.

    Raises:
        DataError: some clients have two sets, others one.
    """
    if len(folders) == 1:
        return _of_folder(folders[0], reading)
    if all(map(_has_classes, folders)):
        by_client = {path.name: path for path in folders}
        return {"": pictures.by_class(folder, reading.look, by_client)}
    sets = {path.name: _set_folders(path, _folders(path), reading.split) for path in folders}
    if all(
        client_sets and all(map(_has_classes, client_sets.values()))
        for client_sets in sets.values()
    ):
        of_split = {s: {name: client_sets[s] for name, client_sets in sets.items()} for s in SPLITS}
        return {
            split: pictures.by_class(folder, reading.look, by_client)
            for split, by_client in of_split.items()
        }
    parts = {path.name: _of_folder(path, reading) for path in folders}
    splits = {frozenset(part) for part in parts.values()}
    if len(splits) > 1:
        lacking = next(name for name, part in parts.items() if "" in part)
        raise DataError(f"{folder / lacking}: has no test set, as other clients' folders have")
    return {
        split: of_clients(folder, {name: part[split] for name, part in parts.items()})
        for split in next(iter(splits))
    }


def _folders(folder: Path) -> list[Path]:
    return [path for name in visible(folder) if (path := folder / name).is_dir()]


def _together(files: list[Path], reading: Reading) -> Sources:
    """Return the two sets, if the files' names have them, or the rows of all files together.

    Several files of a set are a client each; files x and y are inputs and targets.

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
            f"{others[0]}: lies beside {shown(named[0].name)}, and its name does not tell its set;"
            " name each file train or test, or move it elsewhere"
        )
    if tables.suffix_of(files[0]) in client_files.HDF5:
        if [*map(len, sets.values())] != [1, 1]:
            folder = files[0].parent
            raise DataError(f"dataset.path={folder}: must hold one *train*.h5, one *test*.h5")
        return {split: client_files.tff(path) for split, (path,) in sets.items()}
    if not all(sets.values()):
        sets = {"": files}
    return {split: _of_tables(paths, split, reading.texts) for split, paths in sets.items()}


def _of_tables(paths: Sequence[Path], split: str, texts: frozenset[str]) -> Source:
    """Return the rows of a set's tables: of one, of inputs and targets, or of a client each."""
    if len(paths) == 1:
        return tables.table(paths, texts)
    names = [path.name.removesuffix("".join(path.suffixes)) for path in paths]
    if split and len({*(bare := [WITH_SET.sub("", name) for name in names])}) == len(names):
        names = bare
    by_name = {name: tables.table([path], texts) for name, path in zip(names, paths, strict=True)}
    if {*map(str.lower, by_name)} == {"x", "y"}:
        return with_target(*(by_name[name] for name in sorted(by_name, key=str.lower)))
    return of_clients(paths[0].parent, by_name)


def _by_words(files: Sequence[Path]) -> dict[str, list[Path]]:
    """Return each set's files by the set's word in their names: `train-0.csv`, `KDDTest.csv`."""

    def named(path: Path) -> set[str]:
        matches = [OF_A_SET.fullmatch(word.lower()) for word in WORD.findall(path.stem)]
        return {word[1] for word in matches if word}

    return {split: [path for path in files if named(path) == {split}] for split in SPLITS}


def _by_pairs(files: Sequence[Path]) -> dict[str, list[Path]]:
    """Return the files of each set, if names differ only in the set: `Xtrain.csv`, `Xtest.csv`.

    Digits and marks are not compared. `strain` and `latest` differ in other letters, too.
    """
    rests = {path: {split: _rests(path, split) for split in SPLITS} for path in files}
    train, test = (
        set[Rest]().union(*(of_file[split] for of_file in rests.values())) for split in SPLITS
    )

    def named(path: Path) -> set[str]:
        return {
            split for split, rests_of_split in rests[path].items() if rests_of_split & train & test
        }

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
