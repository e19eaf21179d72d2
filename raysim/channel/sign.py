"""Sign with scale: one bit a value.

Source: Karimireddy, Rebjock, Stich and Jaggi, "Error Feedback Fixes SignSGD and other Gradient
Compression Schemes", ICML 2019, algorithm 1 (EF-SignSGD), per tensor.

    d <- ||x||_1 / n * sign(d)               x the tensor of d, n its values

The sign of 0, for which one bit has no room, is drawn: with a fixed sign, weights that no client
changes would drift. Biased: it is meant to follow `error_feedback`.
"""

from __future__ import annotations

from dataclasses import replace
from typing import ClassVar

import torch
from torch import Tensor

from raysim.channel.coding import SCALE_BYTES, Coder, Draws, Vector
from raysim.numbers.encoding import Encoding
from raysim.numbers.tensors import Layout


class Sign(Coder):
    """Send the sign of each difference, and the mean magnitude of each tensor.

    Helps to send a 32nd of the bytes. Costs bias, which `error_feedback` before it takes back.
    """

    quantises: ClassVar[bool] = True
    bounds_norm: ClassVar[bool] = True  # ||x||_1 / sqrt(n) <= ||x||
    is_contraction: ClassVar[bool] = True  # s^2 = 1 - ||x||_1^2 / (n ||x||^2)

    def code(self, vector: Vector) -> Tensor:
        """Return signs times scales."""
        return torch.cat([_scaled_signs(part, vector.draws) for part in vector.parts])

    def encoded(self, sent: Encoding, layout: Layout, client: int) -> Encoding:
        """Return one bit a value, and a scale for each tensor."""
        return replace(sent, bits=1, extra=sent.extra + SCALE_BYTES * len(layout.entries))


def _scaled_signs(values: Tensor, draws: Draws) -> Tensor:
    """Return the mean magnitude of values [n] with their signs."""
    if not len(values):
        return values
    signs = values.sign()
    zeros = signs == 0
    count = int(zeros.count_nonzero())
    if count:
        drawn = torch.randint(0, 2, (count,), generator=draws.own, device=values.device)
        signs[zeros] = (2 * drawn - 1).to(signs.dtype)
    return signs * values.abs().mean()
