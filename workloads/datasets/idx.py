"""The idx format of MNIST, Fashion-MNIST and EMNIST.

Source: LeCun, Cortes and Burges, The MNIST database of handwritten digits, "file formats": two zero
bytes, one byte for the type (8: unsigned bytes, the only one read here), one for the number of
dimensions; then each dimension as a big-endian 32-bit integer; then the values, last dimension
fastest.
"""

from __future__ import annotations

import math
import struct
from pathlib import Path

import numpy as np
import numpy.typing as npt

from raysim.errors import DataError

Bytes = npt.NDArray[np.uint8]


def decode_idx(content: bytes, dimensions: int, path: Path) -> Bytes:
    """Decode an idx file to an array, a read-only view of its bytes.

    Args:
        content: The file, decompressed.
        dimensions: Number of dimensions that the array must have.
        path: The file's name, for errors.

    Raises:
        DataError: the bytes are no idx file of unsigned bytes with these dimensions.
    """
    magic = bytes((0, 0, 8, dimensions))
    start = 4 + 4 * dimensions
    if content[:4] != magic:
        raise DataError(
            f"{path}: no idx file of unsigned bytes in {dimensions} dimensions:"
            f" its first four bytes are {content[:4].hex() or 'missing'}, not {magic.hex()}"
        )
    if len(content) < start:
        raise DataError(f"{path}: ends within its header, at {len(content)} of {start} bytes")
    shape = struct.unpack(f">{dimensions}I", content[4:start])
    if len(content) - start != math.prod(shape):
        raise DataError(
            f"{path}: holds {len(content) - start} values; its header promises"
            f" {' x '.join(map(str, shape))} = {math.prod(shape)}"
        )
    return np.frombuffer(content, dtype=np.uint8, offset=start).reshape(shape)
