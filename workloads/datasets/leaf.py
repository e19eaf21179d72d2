"""The JSON files of LEAF; each user is a client.

Source: Caldas et al., LEAF: a Benchmark for Federated Settings, arXiv:1812.01097, 2018, with the
preprocessing of its authors' public code, https://github.com/TalwalkarLab/leaf: the folders `train`
and `test` hold JSON files, each an object of `users` (a list of names), `num_samples` (a list) and
`user_data` (for each name an object of the lists `x` and `y`). `num_samples` is not read: for
Shakespeare's test sets that code writes a number that is 79 too large.

Legend: U users, N samples.
"""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from raysim.errors import DataError
from raysim.numbers.arrays import Array
from raysim.samples.client_indices import Indices
from raysim.samples.data import Progress, Split
from raysim.user_input import parse_json

SPLITS = ("train", "test")


@dataclass(frozen=True)
class User:
    """Samples of one user in one file; `where` names both, for errors."""

    name: str
    x: list[Any]
    y: list[Any]
    where: str


Convert = Callable[[User], tuple[Array, Indices]]
"""Function that checks a user's samples and returns inputs [n, ...] and labels [n] to store."""


@dataclass(frozen=True)
class Leaf:
    """Content of LEAF's files.

    Attributes:
        splits: The samples, with a column of user numbers.
        names: Name of each user [U], in the order of the files.
        published: Samples of each user [U] in the files of both splits.
    """

    splits: dict[str, Split]
    names: list[str]
    published: Indices


def read_leaf(folder: Path, key: str, convert: Convert, how: str, progress: Progress) -> Leaf:
    """Read the files `train/*.json` and `test/*.json` of a dataset's folder.

    Args:
        folder: The dataset's folder.
        key: Name of the column of user numbers, from 0.
        convert: Checks and converts the samples of one user.
        how: LEAF's command that writes these files, for error messages.
        progress: Called with the number of files read.

    Raises:
        DataError: a file is missing or damaged, or a split has no samples.
    """
    files = published_files(folder, how)
    total, done = sum(map(len, files.values())), 0
    numbers: dict[str, int] = {}
    published: Counter[int] = Counter()
    splits = {}
    for split, paths in files.items():
        parts = []
        origins: dict[str, Path] = {}
        for path in paths:
            progress(f"read {folder.name}", done, total)
            for user in users(path, origins):
                x, y = convert(user)
                number = numbers.setdefault(user.name, len(numbers))
                published[number] += len(user.y)
                parts.append(Split(x, y, {key: np.full(len(y), number, dtype=np.int64)}))
            done += 1
        splits[split] = joined(parts, folder / split)
    progress(f"read {folder.name}", total, total)
    return Leaf(splits, list(numbers), np.array([published[n] for n in range(len(numbers))]))


def joined(parts: Sequence[Split], where: object) -> Split:
    """Concatenate the samples of all parts to one split.

    Raises:
        DataError: there are no samples; the message names `where`.
    """
    if not any(map(len, parts)):
        raise DataError(f"{where}: contains no usable samples")
    return Split(
        np.concatenate([part.x for part in parts]),
        np.concatenate([part.y for part in parts]),
        {name: np.concatenate([part.columns[name] for part in parts]) for name in parts[0].columns},
    )


def published_files(folder: Path, how: str) -> dict[str, list[Path]]:
    """Return the files of each split; `how` is LEAF's command that writes them.

    Raises:
        DataError: a split has none.
    """
    return {split: _files(folder, split, how) for split in SPLITS}


def _files(folder: Path, split: str, how: str) -> list[Path]:
    if paths := sorted((folder / split).glob("*.json")):
        return paths
    raise DataError(
        f"{folder / split}: no *.json found; they are not downloaded: {how} of"
        f" https://github.com/TalwalkarLab/leaf writes data/train/*.json and data/test/*.json; put"
        f" them into {folder / 'train'} and {folder / 'test'}"
    )


def users(path: Path, origins: dict[str, Path]) -> Iterator[User]:
    """Yield the users of a file; add them to `origins`, the files of earlier users."""
    content = _content(path)
    names, data = (_member(content, name, path) for name in ("users", "user_data"))
    if not (isinstance(names, list) and all(isinstance(name, str) for name in names)):
        raise DataError(f"{path}: `users` must be a list of names")
    for name in names:
        where = f"{path}: user {name}"
        if name in origins:
            raise DataError(
                f"{where}: is also in {origins[name]}; remove the files of other preprocessing runs"
            )
        origins[name] = path
        samples = _member(data, name, f"{path}: user_data")
        x, y = (_member(samples, part, where) for part in ("x", "y"))
        if not (isinstance(x, list) and isinstance(y, list)):
            raise DataError(f"{where}: `x` and `y` must be lists")
        if len(x) != len(y):
            raise DataError(f"{where}: {len(x)} inputs in `x`, {len(y)} labels in `y`")
        if not y:
            raise DataError(f"{where}: has no samples")
        yield User(name, x, y, where)


def _content(path: Path) -> Any:
    if not path.is_file():  # a pipe would be waited for
        raise DataError(f"{path}: is no file; remove it")
    try:
        return parse_json(path.read_bytes())
    except json.JSONDecodeError as error:
        where = f"line {error.lineno}, column {error.colno}"
        raise DataError(f"{path}: {where}: not a complete JSON file ({error.msg})") from error
    except ValueError as error:
        raise DataError(f"{path}: not a JSON file ({error})") from error


def _member(value: Any, name: str, where: object) -> Any:
    if not isinstance(value, dict) or name not in value:
        raise DataError(f"{where}: has no `{name}`; LEAF's files must have it")
    return value[name]
