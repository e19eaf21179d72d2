"""Secure aggregation, simulated: the server sees masked words, and their sum.

Sources: Bonawitz, Ivanov, Kreuter, Marcedone, McMahan, Patel, Ramage, Segal and Seth, "Practical
Secure Aggregation for Privacy-Preserving Machine Learning", CCS 2017 (SecAgg); Bell, Bonawitz,
Gascon, Lepoint and Raykova, "Secure Single-Server Aggregation with (Poly)Logarithmic Overhead",
CCS 2020 (SecAgg+), in which each client has k neighbours in place of all others.

    client:  y_k = v_k + sum_{j > k} PRG(s_kj) - sum_{j < k} PRG(s_jk) + PRG(b_k)
    server:  sum y_k, without PRG(s_kj) of neighbours that are lost, and without PRG(b_k) of others

Masks are added to the words of the engine's exact sum, 64 bits, with the client's weight as one
more word: they change no bit of a result. Bytes are counted as in a deployment with values of
`bits` bits, by the formula of SecAgg, with k for n - 1:

    2 (k + 1) keys + (5 k + 1) shares + bits * (values + 1)      sent and received by a client

Deviations: secrets follow from the run's seed, and neither key agreement nor shares, encryption or
signatures are simulated; nor is the rounding to the deployment's words. Clients that have sent
their words do not drop out before the sum is unmasked.
"""

from __future__ import annotations

from typing import Self

from pydantic import Field, model_validator

from raysim.api.channel import Stage
from raysim.numbers.encoding import Encoding
from raysim.numbers.masking import SecureSum
from raysim.numbers.tensors import Layout
from raysim.user_input.limits import MOST


class Masks(Stage):
    """Secure aggregation: the server sees the sum of the uploads, and no single one.

    Helps where clients do not trust the server with their updates. Stands last in the channel.
    Costs keys and shares, three more trips, and the rounds with too few clients left; compression
    by places or codes that differ between clients saves nothing.
    """

    neighbours: int | None = Field(
        default=None,
        ge=2,
        le=MOST,
        description="number of neighbours that a client shares masks with, even (SecAgg+); none:"
        " all others (SecAgg)",
    )
    bits: int = Field(
        default=32, ge=8, le=64, description="bits of a masked value, in the bytes that are counted"
    )
    threshold: float = Field(
        default=0.5,
        ge=0,
        lt=1,
        description="share of a client and its neighbours above which they rebuild its secrets; a"
        " round with fewer left is lost",
    )

    @model_validator(mode="after")
    def _suits(self) -> Self:
        _ = self.secure_sum  # raises ValueError for an odd number of neighbours
        return self

    @property
    def secure_sum(self) -> SecureSum:
        """The statement of its settings."""
        return SecureSum(self.neighbours, self.bits, self.threshold)

    def encoded(self, sent: Encoding, layout: Layout, client: int) -> Encoding:
        """Return all values, or the values that all clients send, as words."""
        values = sent.values if sent.is_shared else Encoding.of(layout).values
        return Encoding(values + sent.numbers, self.bits)
