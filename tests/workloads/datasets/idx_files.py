"""Idx files, as MNIST is published in them."""

from __future__ import annotations

import struct

from raysim.numbers.arrays import Array


def encode_idx(values: Array) -> bytes:
    """Return the idx file that holds `values`."""
    header = struct.pack(f">4B{values.ndim}I", 0, 0, 8, values.ndim, *values.shape)
    return header + values.tobytes()
