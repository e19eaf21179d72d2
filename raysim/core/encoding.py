"""Encoding of what a client sends: how many numbers, of how many bits, and what else."""

from __future__ import annotations

import math
from dataclasses import dataclass

from raysim.core.tensors import Layout

NUMBER_BYTES = 4
"""Bytes of a number that is sent beside the differences."""


@dataclass(frozen=True)
class Encoding:
    """Encoding of the differences of an upload, from which their bytes follow.

    Stages of the channel change one after another what they are about: a sparse one the numbers,
    a quantiser their bits, both what is sent beside them.

    Attributes:
        values: Numbers that are sent.
        bits: Bits of each.
        extra: Further bytes, such as places, scales or the seed of a mask.
        numbers: Numbers that are sent beside the differences, four bytes each.
        is_shared: Whether the values are those of the same places in all clients of a pass, so
            that their sums have as many.
    """

    values: int
    bits: float
    extra: int = 0
    numbers: int = 0
    is_shared: bool = True

    def __post_init__(self) -> None:
        counts = (self.values, self.extra, self.numbers)
        whole = all(isinstance(each, int) and each >= 0 for each in counts)
        if not whole or not 0 <= self.bits < math.inf:
            raise ValueError(
                f"{self}: must have whole numbers of values and extra bytes, and bits, from 0 on"
            )

    @classmethod
    def of(cls, layout: Layout) -> Encoding:
        """Return the encoding of tensors that are sent as they are, complex numbers as two."""
        values = sum(
            shape.numel() * (2 if dtype.is_complex else 1) for _, dtype, shape in layout.entries
        )
        return cls(values, 8 * layout.nbytes / values if values else 0.0)

    @property
    def nbytes(self) -> int:
        """Bytes in all, rounded up."""
        beside = self.extra + NUMBER_BYTES * self.numbers
        return math.ceil(round(self.values * self.bits / 8, 6)) + beside
