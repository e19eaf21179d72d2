"""Base of asynchronous methods: their concurrency, and their weights by staleness.

Source: Xie, Koyejo and Gupta, "Asynchronous Federated Optimization", OPT 2020. s is the factor of
an update that starts tau versions before its aggregation.

    staleness="constant":     s = 1
    staleness="polynomial":   s = (1 + tau)^-a                              a = 0.5 by default
    staleness="hinge":        s = 1 if tau <= b, else 1 / (a (tau - b) + 1)  a = 10, b = 4

Clients are drawn uniformly among those that neither train nor wait for their aggregation.
"""

from __future__ import annotations

from typing import ClassVar, Literal

from pydantic import Field

from raysim.api.method import Asynchrony
from raysim.methods.fedavg import FedAvg
from raysim.user_input.limits import Count

DECAYS = {"polynomial": 0.5, "hinge": 10.0, "constant": 0.0}
"""Default of the setting `a`, by `staleness`."""


class AsynchronousAvg(FedAvg):
    """Base of methods with overlapping rounds; a round makes one version of the global model."""

    own_round: ClassVar[str] = "a version of the model, made of the updates that have arrived"

    concurrency: Count | None = Field(
        default=None, description="M, clients that train at once; none: fraction x clients"
    )
    staleness: Literal["constant", "polynomial", "hinge"] = Field(
        default="polynomial", description="how the weight of an update falls with its staleness"
    )
    a: float | None = Field(
        default=None, ge=0, description="how fast it falls; none: 0.5, of hinge 10"
    )
    b: int = Field(default=4, ge=0, description="of hinge: the weight stays 1 up to this staleness")
    max_staleness: int | None = Field(
        default=None, ge=0, description="staler updates are dropped; none: no update is"
    )

    def updates(self, concurrency: int) -> int:
        """Return the number of updates that make a version, given the concurrency."""
        return 1

    def asynchrony(self, size: int) -> Asynchrony:
        """Return the overlap of rounds."""
        concurrency = self.concurrency or size
        return Asynchrony(self.updates(concurrency), concurrency, self.max_staleness)

    def factor(self, staleness: int) -> float:
        """Return s(tau), the factor of an update of staleness tau."""
        a = DECAYS[self.staleness] if self.a is None else self.a
        if self.staleness == "polynomial":
            return float((1 + staleness) ** -a)
        late = max(staleness - self.b, 0) if self.staleness == "hinge" else 0
        return 1 / (a * late + 1)
