"""Prepared data of a dataset: its files, its samples, and the size of a network for them.

Legend: N samples, C classes.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from contextlib import suppress
from dataclasses import replace
from pathlib import Path

from raysim.api.components import call, calling
from raysim.config import Settings
from raysim.errors import DataError, RaysimError
from raysim.numbers.arrays import Array
from raysim.samples.arrow import open_split, recorded_checksum
from raysim.samples.data import NATURAL, NOTES, Dataset, Progress, Split
from raysim.user_input import portable_name


def prepared(dataset: Dataset, root: Path, progress: Progress) -> Mapping[str, Path]:
    """Prepare a dataset; return the paths of its Arrow files by split.

    Raises:
        DataError: a file is missing and cannot be fetched, or is damaged.
        SettingsError: the dataset fails, or lacks a split.
    """
    splits = call(dataset, Dataset.prepare, root, progress)
    if all(isinstance(path, Path) for path in splits.values()):
        return splits
    from raysim.federation.named_columns import ColumnOrder
    from raysim.federation.written import write_samples

    columns = ColumnOrder()
    folder = root / portable_name(dataset.title) / "prepared"
    with calling(dataset, "prepare"):
        return {
            split: content
            if isinstance(content, Path)
            else write_samples(folder, split, content, columns)
            for split, content in splits.items()
        }


CLASSES = "classes"
"""Name of the prepared file with the labels of a dataset, by class number."""


def notes_of(paths: Mapping[str, Path]) -> list[str]:
    """Return the lines about the files that a dataset has read, if it has any."""
    return [str(line) for line in open_split(paths[NOTES]).x] if NOTES in paths else []


def _ignore(title: str, done: int, total: int) -> None:
    """Take no notice of a preparation's progress."""


def digests_of(dataset: Dataset, root: Path, progress: Progress = _ignore) -> dict[str, str]:
    """Prepare a dataset; return the sha256 of its files by split, which runs seal.

    Raises:
        RaysimError: `prepared` raises it.
    """
    paths = prepared(dataset, root, progress)
    return {split: recorded_checksum(paths[split]) for split in ("train", "test")}


def refuse(title: str, done: int, total: int) -> None:
    """Refuse to fetch or convert anything.

    Raises:
        DataError: always.
    """
    raise DataError(f"{title}: not there yet")


def known_digests(settings: Settings, root: Path) -> dict[str, str]:
    """Return the digests of the splits that a run reads, to compare them with a finished run's.

    None if it has not been prepared here with these settings: nothing is fetched, and only a
    user's own files are prepared, for a comparison.
    """
    dataset = settings.data
    folder = root / portable_name(dataset.title) / "prepared"
    if any(folder.rglob("*.arrow")):
        with suppress(RaysimError):  # of files that are not there, or damaged since
            digests = digests_of(dataset, root, _ignore if dataset.own_files else refuse)
            tested = settings.evaluation.test and dataset.has_test
            return digests if tested else {"train": digests["train"]}
    return {}


def open_prepared(dataset: Dataset, path: Path) -> Split:
    """Map a prepared split; its natural clients, if it has any, are also the column `client`.

    Raises:
        DataError: the file was not written by `raysim.write_split`.
    """
    split = open_split(path)
    if (column := dataset.client_column) not in split.columns:
        return split
    return replace(split, columns={**split.columns, NATURAL: split.columns[column]})


def class_names(dataset: Dataset, paths: Mapping[str, Path]) -> tuple[str, ...]:
    """Return the name of each class number [C]; empty if classes have numbers alone.

    Args:
        dataset: The dataset; may have its own names.
        paths: Its prepared files; a file of labels takes precedence over the dataset's names.

    Raises:
        SettingsError: the dataset fails, or returns no names.
        DataError: the file of labels was not written by `raysim.write_split`.
    """
    if CLASSES in paths:
        return tuple(str(label) for label in open_split(paths[CLASSES]).x)
    return tuple(map(str, call(dataset, Dataset.class_names)))


def network_size(dataset: Dataset, train: Callable[[], Split]) -> tuple[tuple[int, ...], int]:
    """Return the shape of an input and the number of classes, to build a network for them.

    Args:
        dataset: The dataset.
        train: Opens its training samples, which tell the sizes that the dataset leaves out.

    Raises:
        SettingsError: the dataset fails, or returns something else.
    """
    shape, classes = call(dataset, Dataset.shape), call(dataset, Dataset.classes)
    if shape is None:
        from raysim.numbers.tensors.packed import as_tensor

        decoded = call(dataset, Dataset.decode, as_tensor(train().x[:1]).clone())
        shape = tuple(decoded.shape[1:])
    return shape, _outputs(dataset, train().y) if classes is None else classes


def _outputs(dataset: Dataset, targets: Array) -> int:
    """Return the number of classes or tokens, or of values of a target [N, ...]."""
    more = dataset.scoring.columns_after_tokens
    if more is not None:
        tokens = targets[:, : targets.shape[1] - more]
        return max(int(tokens.max(initial=0)) + 1, 1)
    if dataset.scoring.classifies and len(targets) and targets.dtype.kind in "iu":
        return max(int(targets.max()) + 1, 1)
    return max(math.prod(targets.shape[1:]), 1)
