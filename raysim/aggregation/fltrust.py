"""FLTrust: updates are weighed by how far their direction agrees with the server's own update.

Source: Cao, Fang, Liu and Gong, "FLTrust: Byzantine-robust Federated Learning via Trust
Bootstrapping", NDSS 2021, algorithm 2, with a global learning rate of 1.

    g0 <- the update of the server, trained on its root samples as a client trains on its own
    t_k = max(0, cos(d_k, g0))
    w <- w + sum_k t_k (||g0|| / ||d_k||) d_k / sum_k t_k        w stays where all t_k are 0

The seed draws root samples from the clients that take part in training, which then train without
them. The paper's clients and server take as many steps; here the server takes as many epochs, or
`local.steps`. The server's training costs no bytes and no virtual time.
"""

from __future__ import annotations

import torch
from pydantic import Field
from torch import Tensor

from raysim.api.aggregation import Aggregation, AggregationPlan, ArrivedUpdates, Updates


class FLTrust(Aggregation):
    """Mean of the updates, each of the server's norm, weighed by its cosine to the server's.

    Helps where the server has a few clean samples, against updates that point away from its own,
    even of most clients; a backdoor's do not (`docs/robustness.md`). Costs the training of one
    client more, one after the others; a file of each update, read twice. On unequal data the root
    samples decide which clients it trusts. `trust` of a client in the tables is t_k;
    `root_train_loss` is the loss of the server's training. An update may be scaled up, its running
    statistics, too: a variance of BatchNorm may fall below 0, and the test loss is then NaN.
    """

    root: int = Field(
        default=100, ge=1, description="samples of the server, drawn from the clients'"
    )

    @property
    def root_samples(self) -> int:
        """Number of samples on which the server trains."""
        return self.root

    def measure(self, updates: Updates) -> Tensor:
        """Return inner products with the server's update, and squared norms; its own come first."""
        rows = torch.cat([updates.root[None], updates.differences])
        return torch.stack([rows @ updates.root, rows.square().sum(dim=1)])  # [2, 1 + m]

    def decide(self, arrived: ArrivedUpdates) -> AggregationPlan:
        """Return the weights of the updates: trust times the server's norm over the client's."""
        products, squared = arrived.measured
        norms = squared.sqrt()
        least = torch.finfo(norms.dtype).tiny  # for an update of zeros, which has product 0, too
        cosines = products[1:] / (norms[1:] * norms[0]).clamp(min=least)
        trust = cosines.clamp(min=0)
        weights = torch.zeros_like(trust)
        if float(trust.sum()) > 0:
            weights = trust / trust.sum() * norms[0] / norms[1:].clamp(min=least)
        return AggregationPlan(weights, columns={"trust": trust.numpy()})
