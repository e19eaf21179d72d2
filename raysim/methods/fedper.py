"""FedPer: federated averaging of the body; each client keeps its own head.

Source: Arivazhagan, Aggarwal, Singh and Choudhary, "Federated Learning with Personalization
Layers", arXiv:1912.00818, 2019, algorithms 1 and 2.

    client k:  (w_k, v_k) <- local epochs of SGD from (w, v_k)      w the body, v_k the head
    server:    w <- sum_k p_k w_k                                   p_k as in FedAvg

`own` chooses the head: by default the stage `head`; "hidden,head" is more of the last layers. The
authors' code is not public. `own=none` is FedAvg, and `own=all` is `local`, bit for bit. A client
that never took part has the common first head; so has the global model where it is evaluated.
"""

from __future__ import annotations

from pydantic import Field
from torch import nn

from raysim.methods.partly_shared import PartlyShared, Parts, names_of


class FedPer(PartlyShared):
    """FedAvg of the body; each client has its own head.

    Helps where clients' labels differ: a head learns its client's classes, the body the features
    common to all. Against FedAvg it saves the head's bytes both ways, and costs a head kept by each
    client that ever took part. A client that joins late brings an untrained head.
    """

    own: Parts = Field(
        default=("head",),
        description="each client's own parts: modules, tensors or patterns, none, all",
    )

    def own_tensors(self, network: nn.Module) -> frozenset[str]:
        """Return the names of the chosen tensors."""
        return names_of(self.own, network, "method.own")
