"""8 bits a value, in blocks.

Source: Dettmers, Lewis, Shleifer and Zettlemoyer, "8-bit Optimizers via Block-wise Quantization",
ICLR 2022, section 2.1, with equal steps in place of its dynamic ones.

    d <- scale * round(d / scale)            scale = max |x| / 127, x the block of d

A block is `block` values of a group in the order of its tensors; each has its scale in 4 bytes.
Rounding is to the nearest step, to even ones at a tie: biased by less than half a step.
"""

from __future__ import annotations

from dataclasses import replace
from typing import ClassVar

from pydantic import Field
from torch import Tensor

from raysim.channel.coding import SCALE_BYTES, Coder, Vector, blocks_of, count_blocks
from raysim.numbers.encoding import Encoding
from raysim.numbers.tensors import Layout

STEPS = 127
"""Steps from 0 to the largest magnitude of a block."""


class Int8(Coder):
    """Send each difference in 8 bits, as a multiple of the scale of its block.

    Helps to send a fourth of the bytes at almost no loss. Costs two passes over the upload.
    """

    quantises: ClassVar[bool] = True

    block: int = Field(
        default=256, ge=1, le=2**15, description="values that have a scale in common"
    )
    is_contraction: ClassVar[bool] = True  # s^2 is at most block / 254^2

    def code(self, vector: Vector) -> Tensor:
        """Return the rounded values."""
        blocks = blocks_of(vector.values, self.block)  # [n, block]
        scales = blocks.abs().amax(dim=1, keepdim=True) / STEPS
        steps = (blocks / scales.where(scales > 0, 1)).round_().clamp_(-STEPS, STEPS)
        return (steps * scales).view(-1)[: len(vector.values)]

    def encoded(self, sent: Encoding, layout: Layout, client: int) -> Encoding:
        """Return 8 bits a value, and the scales."""
        scales = SCALE_BYTES * count_blocks(sent, layout, self.block)
        return replace(sent, bits=8, extra=sent.extra + scales)
