"""Prepared splits, in one batch or several, against the arrays that they were made from."""

import tracemalloc
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st

from raysim.errors import DataError
from raysim.samples.arrow import ConcatArray, open_split, verify_split, write_split
from raysim.samples.data import Split


def made(rows: int, key: int = 0) -> Split:
    generator = np.random.default_rng([rows, key])
    x = generator.integers(256, size=(rows, 2, 3, 4), dtype=np.uint8)
    writers = np.array([f"w{n}" for n in generator.integers(99, size=rows)], dtype="U3")
    return Split(x, generator.integers(10, size=rows), {"writer": writers})


SIZES = (3, 1, 0, 5)
PARTS = [made(size, key) for key, size in enumerate(SIZES)]
X = np.concatenate([part.x for part in PARTS])
Y = np.concatenate([part.y for part in PARTS])


@pytest.fixture
def path(tmp_path: Path) -> Path:
    return tmp_path / "train.arrow"


def test_a_split_in_one_piece_is_mapped_not_copied(path: Path) -> None:
    whole = made(7)
    write_split(path, whole)
    before = pa.total_allocated_bytes()
    read = open_split(path)
    assert pa.total_allocated_bytes() == before
    assert isinstance(read.x, np.ndarray)
    assert not read.x.flags.owndata
    assert not read.x.flags.writeable
    assert np.array_equal(read.x, whole.x)
    assert np.array_equal(read.y, whole.y)
    assert read.columns["writer"].tolist() == whole.columns["writer"].tolist()


def test_a_split_in_parts_is_read_as_one(path: Path) -> None:
    write_split(path, iter(PARTS))
    verify_split(path)
    read = open_split(path)
    assert len(read) == len(read.x) == 9
    assert read.x.shape == X.shape
    assert read.x.dtype == X.dtype
    assert np.array_equal(read.x[:], X)
    assert read.y.dtype == np.int64
    assert np.array_equal(read.y, Y)
    writers = [name for part in PARTS for name in part.columns["writer"]]
    assert read.columns["writer"].tolist() == writers


def test_parts_may_hold_single_values(path: Path) -> None:
    write_split(path, [Split(np.arange(3.0), np.arange(3)), Split(np.arange(2.0), np.arange(2))])
    assert open_split(path).x[np.array([4, 0, 3])].tolist() == [1, 0, 0]


indices = st.lists(st.integers(-len(X), len(X) - 1), max_size=20)
limits = st.none() | st.integers(-len(X) - 2, len(X) + 2)
steps = st.none() | st.integers(-3, 3).filter(bool)


@given(indices)
def test_samples_are_gathered_in_any_order(rows: list[int]) -> None:
    wanted = np.array(rows, dtype=np.int64)
    found = ConcatArray([part.x for part in PARTS])[wanted]
    assert found.dtype == X.dtype
    assert found.shape == (len(rows), 2, 3, 4)
    assert np.array_equal(found, X[wanted])


@given(limits, limits, steps)
def test_slices_are_those_of_one_array(start: int | None, stop: int | None, step: int) -> None:
    rows = slice(start, stop, step)
    assert np.array_equal(ConcatArray([part.x for part in PARTS])[rows], X[rows])


@pytest.mark.parametrize("wrong", [len(X), -len(X) - 1])
def test_a_sample_that_is_not_there_is_refused(wrong: int) -> None:
    with pytest.raises(IndexError, match=str(wrong)):
        ConcatArray([part.x for part in PARTS])[np.array([0, wrong])]


def test_damage_in_any_part_is_found(path: Path) -> None:
    write_split(path, PARTS)
    content = bytearray(path.read_bytes())
    content[content.index(PARTS[3].x.tobytes()) + 60] ^= 1
    path.write_bytes(content)
    with pytest.raises(DataError, match=f"{path}: prepared data is damaged"):
        verify_split(path)


def test_parts_that_end_in_an_error_leave_no_split(path: Path) -> None:
    def breaks() -> Iterator[Split]:
        yield PARTS[0]
        raise DataError("no more")

    with pytest.raises(DataError, match="no more"):
        write_split(path, breaks())
    assert not path.exists()
    assert not path.with_suffix(".sha256").exists()


def peak_of(read: object, rows: slice | np.ndarray) -> int:
    """Return the most bytes that NumPy held at a time while samples were read."""
    tracemalloc.start()
    read.x[rows]  # type: ignore[attr-defined]
    peak = tracemalloc.get_traced_memory()[1]
    tracemalloc.stop()
    return peak


def test_a_gather_holds_what_it_returns_and_no_more(path: Path) -> None:
    sample = 50_000
    write_split(path, (Split(np.zeros((20, sample), np.uint8), np.zeros(20, int)),) * 10)
    before = pa.total_allocated_bytes()
    read = open_split(path)
    apart = np.random.default_rng(0).permutation(200)[:16]
    assert 16 * sample <= peak_of(read, apart) < 17 * sample
    assert 16 * sample <= peak_of(read, slice(30, 46)) < 17 * sample
    assert peak_of(read, slice(None)) >= 200 * sample
    assert pa.total_allocated_bytes() - before < 16 * sample
