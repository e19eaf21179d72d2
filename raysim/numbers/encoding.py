"""Encoding of an upload: how many numbers, of how many bits, and further bytes."""

from __future__ import annotations

import math
from collections.abc import Collection
from dataclasses import dataclass, replace

from raysim.numbers.tensors import Layout

NUMBER_BYTES = 4
"""Bytes of a number that is sent with the differences."""


@dataclass(frozen=True)
class Traffic:
    """Bytes that a client sends and receives, and its trips to the server and back."""

    up: int = 0
    down: int = 0
    trips: int = 1


@dataclass(frozen=True)
class Encoding:
    """Encoding of the differences of an upload; determines their bytes.

    The channel's stages change it in order: a sparse stage the number of values, a quantiser their
    bits, and both the data sent along with the values.

    Attributes:
        values: Numbers that are sent.
        bits: Bits of each.
        extra: Further bytes, such as places, scales or the seed of a mask.
        numbers: Numbers that are sent with the differences, four bytes each.
        is_shared: Whether all clients of a pass send values at the same places, so their sum has
            as many values as each of them.
    """

    values: int
    bits: float
    extra: int = 0
    numbers: int = 0
    is_shared: bool = True

    def __post_init__(self) -> None:
        counts = (self.values, self.extra, self.numbers)
        whole = all(isinstance(count, int) and count >= 0 for count in counts)
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


@dataclass(frozen=True)
class Encoded:
    """Encoding of an upload's differences after some stages; buffers have their own.

    Attributes:
        layout: Layout of all differences, as they would be sent without stages.
        others: Layout of the differences that are not of buffers.
        parameters: Encoding of `others`.
        buffers: Encoding of the differences of buffers.
    """

    layout: Layout
    others: Layout
    parameters: Encoding
    buffers: Encoding

    @classmethod
    def of(cls, layout: Layout, buffers: Collection[str]) -> Encoded:
        """Return the encoding of differences that are sent as they are.

        Args:
            layout: Their layout, by `group/name`.
            buffers: Names of the network's buffers.
        """
        is_buffer = {key: key.partition("/")[2] in buffers for key, _, _ in layout.entries}
        apart, others = (
            Layout(tuple(entry for entry in layout.entries if is_buffer[entry[0]] is flag))
            for flag in (True, False)
        )
        return cls(layout, others, Encoding.of(others), Encoding.of(apart))

    @property
    def whole(self) -> Encoding:
        """The encoding of all differences."""
        one, other = self.parameters, self.buffers
        if not other.values:
            return one
        values = one.values + other.values
        bits = (one.values * one.bits + other.values * other.bits) / values
        return replace(one, values=values, bits=bits)

    def seen_by(self, *, leaves_buffers: bool) -> tuple[Encoding, Layout]:
        """Return the encoding and the layout that a stage sees, which may leave buffers."""
        return (self.parameters, self.others) if leaves_buffers else (self.whole, self.layout)

    def behind(self, after: Encoding, *, leaves_buffers: bool) -> Encoded:
        """Return the encoding after a stage.

        Args:
            after: The stage's encoding of the differences that it saw.
            leaves_buffers: Whether it saw no buffers.
        """
        if leaves_buffers:
            return replace(self, parameters=after)
        before, one = self.whole, self.parameters
        if (after.values, after.bits) == (before.values, before.bits):
            return replace(self, parameters=replace(after, values=one.values, bits=one.bits))
        count = min(self.buffers.values, after.values)  # it encodes all values alike
        one = replace(after, values=after.values - count)
        return replace(self, parameters=one, buffers=Encoding(count, after.bits))
