"""Random-k: a client sends differences at random places.

Source: Konečný, McMahan, Yu, Richtárik, Suresh and Bacon, "Federated Learning: Strategies for
Improving Communication Efficiency", arXiv:1610.05492, 2016, section 2, random mask; Stich,
Cordonnier and Jaggi, "Sparsified SGD with Memory", NeurIPS 2018, rand_k.

    d <- size/k * d at k places drawn without replacement, else 0         k = ceil(fraction * size)

Unbiased, with size/k - 1 times the squared norm as variance. `unbiased=false` leaves out the
factor, as error feedback needs: with it, rand-k is no contraction. The vector is a group of the
upload, all its tensors. Places are not sent, but the seed of each client's mask. With `mask=shared`
all clients of a pass send the same places, drawn from a common seed, so that sums under secure
aggregation are of k values.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import Literal

import torch
from pydantic import Field
from torch import Tensor

from raysim.api.channel import Stage
from raysim.channel.coding import SEED_BYTES, Coder, Vector, vector_sizes
from raysim.channel.topk import sent_of
from raysim.numbers.encoding import Encoding
from raysim.numbers.tensors import Layout


class RandK(Coder):
    """Send a random fraction of the differences.

    Helps where only the sum of a shared mask may be seen, or where no bias is allowed. Costs noise
    that grows as 1/fraction; at equal bytes `topk` with `error_feedback` mostly learns faster.
    """

    fraction: float = Field(default=0.01, gt=0, le=1, description="part of the values that is sent")
    unbiased: bool = Field(
        default=True, description="multiply by size/k; false for error feedback, and after clips"
    )
    mask: Literal["own", "shared"] = Field(
        default="own", description="places of each client, or the same for all of a pass"
    )

    @property
    def bounds_norm(self) -> bool:
        """True if values are sent as they are, or not at all."""
        return not self.unbiased

    @property
    def is_contraction(self) -> bool:
        """True without the factor: s^2 = 1 - k/d."""
        return not self.unbiased

    @property
    def shares_places(self) -> bool:
        """True with `mask=shared`."""
        return self.mask == "shared"

    def has_effect(self, behind: Sequence[Stage]) -> bool:
        """Return whether values are left out."""
        return self.fraction < 1

    def code(self, vector: Vector) -> Tensor:
        """Return the values at random places."""
        values, draws = vector.values, vector.draws
        size, k = len(values), sent_of(self.fraction, len(values))
        generator = draws.common if self.mask == "shared" else draws.own
        places = torch.randperm(size, generator=generator, device=values.device)[:k]
        coded = torch.zeros_like(values)
        coded[places] = values[places] * (size / max(k, 1) if self.unbiased else 1.0)
        return coded

    def encoded(self, sent: Encoding, layout: Layout, client: int) -> Encoding:
        """Return k values a group, and the seed of the mask unless it is shared."""
        values = sum(sent_of(self.fraction, size) for size in vector_sizes(layout))
        seed = 0 if self.mask == "shared" else SEED_BYTES
        return replace(sent, values=min(values, sent.values), extra=sent.extra + seed)
