"""LG-FedAvg: federated averaging of the last layers; each client keeps its own body.

Source: Liang, Liu, Ziyin, Allen, Auerbach, Brent, Salakhutdinov and Morency, "Think Locally, Act
Globally: Federated Learning with Local and Global Representations", arXiv:2001.01523, 2020,
algorithm 1.

    client k:  (v_k, w_k) <- local epochs of SGD from (v_k, w)      v_k the body, w the last layers
    server:    w <- sum_k p_k w_k                                   p_k as in FedAvg

`shared` chooses the last layers: by default the stage `head`, as in PFLlib. The authors' code
shares the last three of five layers on MNIST; on CIFAR-10 the last two of its list, which are the
convolutions. It starts from a trained model of FedAvg (`start_from`), weighs clients alike
(`weighting=uniform`), and reports each client's best model by its test accuracy, which is not done
here. A client that never took part has the common first body; so has the global model where it is
evaluated.
"""

from __future__ import annotations

from pydantic import Field
from torch import nn

from raysim.methods.partly_shared import PartlyShared, Parts, names_of
from raysim.numbers.tensors import state_of


class LgFedAvg(PartlyShared):
    """FedAvg of the last layers; each client has its own body.

    Helps where clients' inputs differ in kind, and saves bytes: the last layers alone travel.
    Against FedAvg it costs a body kept by each client that ever took part. A client that joins late
    brings an untrained body.
    """

    shared: Parts = Field(
        default=("head",), description="parts that travel: modules, tensors or patterns, none, all"
    )

    def own_tensors(self, network: nn.Module) -> frozenset[str]:
        """Return the names of all tensors but the shared ones."""
        return frozenset(state_of(network)) - names_of(self.shared, network, "method.shared")
