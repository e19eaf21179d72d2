"""The idx reader against bytes made by hand."""

import struct
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from hypothesis.extra import numpy as hnp

from raysim.errors import DataError
from raysim.workloads.datasets.mnist import decode_idx
from tests.workloads.datasets.idx_files import encode_idx

PATH = Path("folder/some-idx3-ubyte")
TWO_IMAGES = bytes([0, 0, 8, 3]) + struct.pack(">3I", 2, 2, 3) + bytes(range(12))


def test_reads_dimensions_and_values_in_order() -> None:
    values = decode_idx(TWO_IMAGES, 3, PATH)
    assert values.shape == (2, 2, 3)
    assert values.dtype == np.uint8
    assert values[1, 0].tolist() == [6, 7, 8]
    assert not values.flags.writeable


@given(hnp.arrays(np.uint8, hnp.array_shapes(min_dims=1, max_dims=3, min_side=0, max_side=5)))
def test_encoding_is_the_inverse(values: np.ndarray) -> None:
    assert np.array_equal(decode_idx(encode_idx(values), values.ndim, PATH), values)


def test_encodes_the_published_bytes() -> None:
    assert encode_idx(decode_idx(TWO_IMAGES, 3, PATH)) == TWO_IMAGES


@given(st.integers(0, len(TWO_IMAGES) - 1))
def test_every_truncation_is_refused(length: int) -> None:
    with pytest.raises(DataError, match="folder/some-idx3-ubyte: "):
        decode_idx(TWO_IMAGES[:length], 3, PATH)


@pytest.mark.parametrize(
    ("content", "message"),
    [
        (b"", "missing, not 00000803"),
        (b"\0\0\x0d\x03" + TWO_IMAGES[4:], "first four bytes are 00000d03, not 00000803"),
        (b"\0\0\x08\x01" + TWO_IMAGES[4:], "first four bytes are 00000801, not 00000803"),
        (b"\x1f\x8b" + TWO_IMAGES, "first four bytes are 1f8b"),
        (TWO_IMAGES[:9], "ends within its header, at 9 of 16 bytes"),
        (TWO_IMAGES + b"\0", "holds 13 values; its header promises 2 x 2 x 3 = 12"),
        (TWO_IMAGES[:-1], "holds 11 values; its header promises 2 x 2 x 3 = 12"),
    ],
)
def test_damage_is_named(content: bytes, message: str) -> None:
    with pytest.raises(DataError, match=f"folder/some-idx3-ubyte: .*{message}"):
        decode_idx(content, 3, PATH)
