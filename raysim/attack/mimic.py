"""Mimic: all bad clients send a copy of one honest client's update.

Source: Karimireddy, He and Jaggi, "Byzantine-Robust Learning on Heterogeneous Datasets via
Bucketing", ICLR 2022, appendix B; the steps are the authors' code's.

    d_k <- d_i      of the honest client i of the largest <d_i, z>
    in round t = 0, 1, ... of the warm-up, by Oja's rule:
        mu <- t/(t+1) mu + 1/(t+1) mean
        s  <- sum_i <d_i - mu, z> (d_i - mu)
        z  <- t/(t+1) z + 1/(t+1) s/||s||,  divided by its norm

Afterwards client and z stay. The authors have full participation; here, where the client does not
take part in a round, the present client of the largest <d_i, z> is copied. Their first z
is a random vector, here a random combination of the d_i - mu, which a vector's first step leads to.
Rounds without a bad or without an honest client do not count.

Legend: h honest clients, n coordinates of a block.
"""

from __future__ import annotations

from typing import ClassVar

import torch
from pydantic import Field
from torch import Tensor

from raysim.api.attack import Attack, KnownUpdates, MeasuredUpdates


class Mimic(Attack):
    """Copy one honest client, so that its data weigh more than the others' data.

    No update looks odd: an aggregation that takes the majority's side is led to one client's data.
    Strong on unequal data alone. Costs a file of each update, read twice, two vectors of the size
    of an update in the checkpoints, and m^2 inner products.
    """

    vectors: ClassVar[int] = 2

    warmup: int = Field(default=10, ge=1, description="rounds to choose direction and client in")

    def measure(self, known: KnownUpdates) -> Tensor:
        """Return the inner products of the honest updates, mu and z [h + 2, h + 2]."""
        rows = torch.cat([known.honest, known.kept])
        products = rows @ rows.T
        return (products + products.T) / 2

    def decide(self, measured: MeasuredUpdates) -> Tensor:
        """Return round, client and its row, the weight of the old mu, and z's weights of rows."""
        products, clients = measured.numbers, measured.clients
        h = len(clients)
        t, client = (int(number) for number in measured.last[:2]) if len(measured.last) else (0, -1)
        old = 1.0
        z = products.new_zeros(h + 2)
        z[-1] = 1
        if t < self.warmup:
            old = t / (t + 1)
            z = _oja(products, old)
        scores = (products @ z)[:h]
        present = (torch.from_numpy(clients) == client).nonzero()
        row = int(present[0]) if t >= self.warmup and len(present) else int(scores.argmax())
        if t < self.warmup:
            client = int(clients[row])
        return torch.cat([z.new_tensor([t + 1, client, row, old]), z])

    def forge(self, known: KnownUpdates) -> Tensor:
        """Return the update of the client that is copied [n]."""
        return known.honest[int(known.decided[2])]

    def keep(self, known: KnownUpdates) -> Tensor:
        """Return mu and z [2, n]."""
        old, z = known.decided[3], known.decided[4:]
        mu = old * known.kept[0] + (1 - old) * known.honest.mean(dim=0)
        return torch.stack([mu, z @ torch.cat([known.honest, known.kept])])


def _oja(products: Tensor, old: float) -> Tensor:
    """Return the next z, as weights of the rows: honest updates, mu and z [h + 2].

    Args:
        products: Inner products of the rows.
        old: Weight of the old mu and z, t/(t+1).
    """
    h = len(products) - 2
    centred = torch.eye(h, h + 2, dtype=products.dtype)  # d_i - mu
    centred[:, :h] -= (1 - old) / h
    centred[:, h] -= old
    before = products.new_zeros(h + 2)
    begun = bool(products[-1, -1] > 0)  # not yet where all updates so far were alike
    if begun:
        before[-1] = 1
    else:
        draws = torch.Generator().manual_seed(0)
        before = torch.randn(h, generator=draws, dtype=products.dtype) @ centred
    s = (centred @ products @ before) @ centred
    z = old * before + (1 - old) * s / _norm(products, s) if begun else s
    return z / _norm(products, z)


def _norm(products: Tensor, weights: Tensor) -> Tensor:
    """Return the norm of a combination of rows, 1 if it is 0."""
    square = weights @ products @ weights
    return square.sqrt() if square > 0 else torch.ones_like(square)
