"""QSGD: stochastic rounding to a few levels of the norm.

Source: Alistarh, Grubic, Li, Tomioka and Vojnovic, "QSGD: Communication-Efficient SGD via Gradient
Quantization and Encoding", NeurIPS 2017, section 3.1, in buckets as in its section 3.3.

    d <- ||x|| * sign(d) * level / s        level = floor(s |d| / ||x|| + u), u uniform in [0, 1)

x is the bucket of d, ||x|| its Euclidean norm. Unbiased; the variance is at most
v = min(b/s^2, sqrt(b)/s) times the squared norm, with b values in a bucket. `unbiased=false`
divides by 1 + v, which makes it a contraction, as error feedback needs. A bucket is b values of a
group in the order of its tensors, or with `bucket=none` the group. A value has ceil(log2(2s + 1))
bits, a bucket its norm in 4 bytes. The paper's Elias codes, and the run lengths of public code, are
shorter where most levels are 0; their length depends on the values, and is not known beforehand.
"""

from __future__ import annotations

import math
from dataclasses import replace
from typing import Annotated, ClassVar

import torch
from pydantic import Field
from torch import Tensor

from raysim.channel.coding import SCALE_BYTES, Coder, Vector, blocks_of, count_blocks
from raysim.numbers.encoding import Encoding
from raysim.numbers.tensors import Layout


class QSGD(Coder):
    """Round the differences at random to a few levels of the norm of their bucket.

    Helps to send a few bits a value without bias. Costs noise that grows with the bucket and falls
    with the levels, and a draw for each value.
    """

    quantises: ClassVar[bool] = True

    levels: int = Field(default=7, ge=1, le=2**15, description="s: levels above 0; 7 take 4 bits")
    bucket: Annotated[int, Field(ge=1, le=2**31)] | None = Field(
        default=512, description="values that have a norm in common; none: all of a group"
    )
    unbiased: bool = Field(
        default=True, description="false divides by 1 + the variance, for error feedback"
    )

    @property
    def is_contraction(self) -> bool:
        """True divided by 1 + v: s^2 = v / (1 + v)."""
        return not self.unbiased

    def code(self, vector: Vector) -> Tensor:
        """Return the rounded values."""
        values, s = vector.values, self.levels
        blocks = blocks_of(values, self.bucket)  # [n, b]
        norms = torch.linalg.vector_norm(blocks, dim=1, keepdim=True)
        draws = torch.rand(
            blocks.shape, generator=vector.draws.own, device=blocks.device, dtype=blocks.dtype
        )
        levels = (blocks.abs() * (s / norms.where(norms > 0, 1)) + draws).floor_().clamp_(max=s)
        scale = 1 / s if self.unbiased else 1 / (s * (1 + self.variance(blocks.shape[1])))
        coded: Tensor = blocks.sign() * levels * (norms * scale)
        return coded.view(-1)[: len(values)]

    def variance(self, size: int) -> float:
        """Return v, the most variance of a bucket over its squared norm."""
        return min(size / self.levels**2, math.sqrt(size) / self.levels)

    def encoded(self, sent: Encoding, layout: Layout, client: int) -> Encoding:
        """Return the bits of a level and its sign, and the norms."""
        norms = SCALE_BYTES * count_blocks(sent, layout, self.bucket)
        return replace(sent, bits=(2 * self.levels).bit_length(), extra=sent.extra + norms)
