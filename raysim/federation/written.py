"""Samples in memory that a dataset's `prepare` returned, written as prepared files.

Files are named by split and checksum, so that the same samples are the same file: a run that is
resumed finds its own, and several processes may write at once.
"""

from __future__ import annotations

import os
import shutil
from collections.abc import Iterator, Mapping
from itertools import chain, islice
from pathlib import Path
from typing import Any

import numpy as np
from torch.utils.data import DataLoader
from torch.utils.data import Dataset as TorchDataset

from raysim.errors import DataError
from raysim.federation.named_columns import ColumnOrder
from raysim.federation.samples import read_pair, samples_of
from raysim.samples.arrow import write_split
from raysim.samples.data import NATURAL, Split

PART_BYTES = 64 * 2**20
"""Bytes of inputs that are collected from single samples before they are written."""
MOST_PART = 65_536


def write_samples(folder: Path, split: str, samples: Any, columns: ColumnOrder) -> Path:
    """Write samples to a file of this folder, and return its path.

    Args:
        folder: The dataset's folder of prepared files.
        split: Name of the split.
        samples: A `Split`, arrays (x, y), a torch `Dataset`, a `DataLoader`, or an iterable of
            samples (x, y) or (x, y, client).
        columns: Order of the columns of DataFrames, for all splits.

    Raises:
        DataError: the samples cannot be read, or the folder cannot be written.
    """
    temporary = folder / f".{split}.{os.getpid()}"
    try:
        written = temporary / f"{split}.arrow"
        write_split(written, _parts(split, samples, columns))
        final = folder / f"{split}-{written.with_suffix('.sha256').read_text()[:16]}"
        if not final.exists():
            temporary.rename(final)
        return final / written.name
    except OSError as error:
        raise DataError(
            f"{folder}: samples cannot be written: {error.strerror}; RAYSIM_DATA must be a writable"
            " folder with space for them"
        ) from error
    finally:
        shutil.rmtree(temporary, ignore_errors=True)


def _parts(name: str, source: Any, order: ColumnOrder) -> Iterator[Split]:
    """Yield the samples in parts.

    Raises:
        DataError: there are none, or they cannot be read.
    """
    if isinstance(source, Split):
        yield source
        return
    pair = isinstance(source, tuple) and len(source) == 2
    if pair or isinstance(source, DataLoader):
        yield _split(name, source, order)
        return
    samples = iter(samples_of(name, source) if isinstance(source, TorchDataset) else source)
    first = next(samples, None)
    if first is None:
        raise DataError(f"{name}: has no samples")
    samples, done = chain([first], samples), 0
    size = np.asarray(_fields(name, 0, first)[0]).nbytes
    count = min(max(PART_BYTES // max(size, 1), 1), MOST_PART)
    while part := [*islice(samples, count)]:
        yield _joined(name, done, part, order)
        done += len(part)


def _joined(name: str, start: int, part: list[Any], order: ColumnOrder) -> Split:
    fields = [_fields(name, start + row, sample) for row, sample in enumerate(part)]
    if len({len(field) for field in fields}) > 1:
        raise DataError(f"{name}: samples must all be (x, y), or all (x, y, client)")
    x, y, *clients = zip(*fields, strict=True)
    columns = {NATURAL: np.array(clients[0])} if clients else {}
    return _split(f"{name}, from sample {start} on", ([*x], [*y]), order, columns)


def _split(
    name: str, pair: Any, order: ColumnOrder, columns: Mapping[str, Any] | None = None
) -> Split:
    """Return samples of one input and a target each.

    Raises:
        DataError: they cannot be read, or have several inputs or no targets, as a task's may.
    """
    x, y = read_pair(name, pair, order)
    if isinstance(x, dict | tuple) or y is None:
        raise DataError(
            f"{name}: a dataset's samples have one input and a target; give a raysim.Task for"
            " samples of several inputs, or without targets"
        )
    return Split(x, y, columns or {})


def _fields(name: str, row: int, sample: Any) -> tuple[Any, ...]:
    if isinstance(sample, tuple | list) and len(sample) in (2, 3):
        return tuple(sample)
    raise DataError(
        f"{name}, sample {row}: must be (x, y) or (x, y, client); is a {type(sample).__name__}"
    )
