"""Top-k: a client sends the differences of largest magnitude.

Source: Aji and Heafield, "Sparse Communication for Distributed Gradient Descent", EMNLP 2017, which
drops the smallest; Stich, Cordonnier and Jaggi, "Sparsified SGD with Memory", NeurIPS 2018.

    d <- d where |d| is among the k largest, else 0          k = ceil(fraction * size), at least 1

Ties are broken by the lower index, so that k values are sent. The vector is a group of the upload,
all its tensors in the order of their names (`per=vector`), or each tensor (`per=tensor`). A value
is sent with its place in ceil(log2 size) bits. Biased: without `error_feedback` before it, a value
that is small in every round is never sent.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from math import ceil
from typing import ClassVar, Literal

import numpy as np
import torch
from pydantic import Field
from torch import Tensor

from raysim.api.channel import Stage
from raysim.channel.coding import Coder, Vector, vector_sizes
from raysim.numbers.encoding import Encoding
from raysim.numbers.tensors import Layout


class TopK(Coder):
    """Send the fraction of the differences that is largest in magnitude.

    Helps where few coordinates carry most of a change; with `error_feedback` before it, a hundredth
    is often enough. Costs a selection over the upload, and the places of the values.
    """

    fraction: float = Field(default=0.01, gt=0, le=1, description="part of the values that is sent")
    per: Literal["vector", "tensor"] = Field(
        default="vector", description="largest of all tensors of a group, or of each tensor"
    )
    bounds_norm: ClassVar[bool] = True  # values are sent as they are, or not
    is_contraction: ClassVar[bool] = True  # s^2 = 1 - k/d

    def has_effect(self, behind: Sequence[Stage]) -> bool:
        """Return whether values are left out."""
        return self.fraction < 1

    def code(self, vector: Vector) -> Tensor:
        """Return the vector without the smaller values."""
        parts = vector.parts if self.per == "tensor" else [vector.values]
        return torch.cat([largest(part, sent_of(self.fraction, len(part))) for part in parts])

    def encoded(self, sent: Encoding, layout: Layout, client: int) -> Encoding:
        """Return k values a vector, and their places."""
        sizes = vector_sizes(layout, per_tensor=self.per == "tensor")
        counts = [sent_of(self.fraction, size) for size in sizes]
        places = sum(
            ceil(k * max(size - 1, 0).bit_length() / 8)
            for k, size in zip(counts, sizes, strict=True)
        )
        return replace(sent, values=min(sum(counts), sent.values), extra=sent.extra + places)


def sent_of(fraction: float, size: int) -> int:
    """Return k, the values that are sent of a vector."""
    return min(max(ceil(round(fraction * size, 6)), 1), size)


def largest(values: Tensor, k: int) -> Tensor:
    """Return values [d] with all but the k largest magnitudes set to 0; ties go by index."""
    if k >= len(values):
        return values
    magnitudes = values.abs()
    least = _kth_largest(magnitudes, k)
    kept = _places(magnitudes >= least)
    if surplus := len(kept) - k:
        ties = _places(magnitudes[kept] == least)
        is_last = torch.zeros(len(kept), dtype=torch.bool, device=kept.device)
        is_last[ties[-surplus:]] = True
        kept = kept[~is_last]
    coded = torch.zeros_like(values)
    coded[kept] = values[kept]
    return coded


def _kth_largest(magnitudes: Tensor, k: int) -> Tensor:
    """Return the k-th largest of magnitudes [d]."""
    if magnitudes.is_cuda:
        return magnitudes.topk(k, sorted=False).values.min()
    place = len(magnitudes) - k  # torch takes nine times as long: 1.0 ms of 199,210 values
    return torch.from_numpy(np.partition(magnitudes.numpy(), place)[place : place + 1])[0]


def _places(flags: Tensor) -> Tensor:
    """Return the places of true flags [d], ascending."""
    if flags.is_cuda:
        return flags.nonzero().flatten()
    return torch.from_numpy(np.flatnonzero(flags.numpy()))  # in a sixth of the time
