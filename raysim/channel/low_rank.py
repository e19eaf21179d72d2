"""Low rank: a client sends each matrix as a product of two thin ones.

Source: Konečný, McMahan, Yu, Richtárik, Suresh and Bacon, "Federated Learning: Strategies for
Improving Communication Efficiency", arXiv:1610.05492, 2016, names low rank among structured
updates; the factors are by the randomised subspace iteration of Halko, Martinsson and Tropp, SIAM
Review 53(2), 2011, algorithm 4.4.

    P = orth(M G);  `iterations` times:  P = orth(M orth(M' P))        d <- P (P' M)

M [n, m] is a tensor with its first dimension against all others, G [m, rank] normal draws of the
client. Tensors of one dimension are sent as they are, and so are tensors with factors of no fewer
values. Each client has its own factors, of rank * (n + m) values, and their mean has no low
rank; `powersgd`, a method, has one P for all clients.
"""

from __future__ import annotations

from typing import ClassVar

import torch
from pydantic import Field
from torch import Tensor

from raysim.channel.coding import Coder, Draws, Vector
from raysim.numbers.encoding import Encoding
from raysim.numbers.tensors import Layout


class LowRank(Coder):
    """Send the differences of each matrix as factors of a low rank.

    Helps where updates of wide layers have few directions. Costs a few products with each matrix
    and an orthogonalisation; stands last of the stages that encode.
    """

    rank: int = Field(default=4, ge=1, description="columns of the factors")
    iterations: int = Field(default=1, ge=0, description="further products with the matrix")
    bounds_norm: ClassVar[bool] = True  # it is a projection
    is_contraction: ClassVar[bool] = True  # it is a projection, onto a random space at first
    sends_coordinates: ClassVar[bool] = False  # factors are sent

    def code(self, vector: Vector) -> Tensor:
        """Return the products of the factors."""
        pairs = zip(vector.parts, vector.shapes, strict=True)
        return torch.cat([self._projected(part, shape, vector.draws) for part, shape in pairs])

    def encoded(self, sent: Encoding, layout: Layout, client: int) -> Encoding:
        """Return the values of the factors, in the bits of the tensors."""
        counts = [
            sent_of(shape if not dtype.is_complex else torch.Size([*shape, 2]), self.rank)
            for _, dtype, shape in layout.entries
        ]
        return Encoding(sum(counts), Encoding.of(layout).bits)

    def _projected(self, values: Tensor, shape: torch.Size, draws: Draws) -> Tensor:
        """Return a tensor's values as the product of its factors."""
        if sent_of(shape, self.rank) == shape.numel():
            return values
        matrix = values.view(shape[0], -1)  # [n, m]
        start = torch.randn(
            matrix.shape[1],
            self.rank,
            generator=draws.own,
            device=values.device,
            dtype=values.dtype,
        )
        left = torch.linalg.qr(matrix @ start).Q  # [n, rank]
        for _ in range(self.iterations):
            left = torch.linalg.qr(matrix @ torch.linalg.qr(matrix.T @ left).Q).Q
        product: Tensor = left @ (left.T @ matrix)
        return product.view(-1)


def sent_of(shape: torch.Size, rank: int) -> int:
    """Return the number of sent values of a tensor: its factors' values, or its own if fewer."""
    if len(shape) < 2 or not shape.numel():
        return shape.numel()
    rows = shape[0]
    return min(rank * (rows + shape.numel() // rows), shape.numel())
