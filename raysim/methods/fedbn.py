"""FedBN: federated averaging of all but BatchNorm; each client keeps its own BatchNorm layers.

Source: Li, Jiang, Zhang, Kamp and Dou, "FedBN: Federated Learning on Non-IID Features via Local
Batch Normalization", ICLR 2021, algorithm 1.

    client k:  (w_k, b_k) <- local epochs of SGD from (w, b_k)
    server:    w <- sum_k p_k w_k                                   p_k as in FedAvg

b_k is every tensor of the layers of BatchNorm, found by their type: weight, bias, running mean and
variance, counter. The authors' code finds them by "bn" in their names and has all clients take part
with equal weights (`fraction=1 weighting=uniform`); PFLlib looks for "bn" in the names of
parameters, which misses the layers in the shortcuts of ResNets, and averages no buffers.

A client that never took part has the first weights and no statistics (mean 0, variance 1); so has
the global model where it is evaluated. On a network without BatchNorm it is FedAvg bit for bit.
"""

from __future__ import annotations

from collections.abc import Sequence

from torch import nn

from raysim.methods.partly_shared import PartlyShared
from raysim.numbers.layers import BATCH_NORMS
from raysim.numbers.tensors import state_of


class FedBn(PartlyShared):
    """FedAvg of all but BatchNorm; each client has its own BatchNorm layers.

    Helps where clients' inputs are distributed differently, as images of several hospitals are.
    Against FedAvg it saves the bytes of these layers both ways, and costs a file with them for
    each client that ever took part.
    """

    def notes(self, network: nn.Module) -> Sequence[str]:
        """Return that it is FedAvg on a network without BatchNorm."""
        if self.own_tensors(network):
            return ()
        return ("the model has no BatchNorm layers to keep on clients, so that fedbn is FedAvg",)

    def own_tensors(self, network: nn.Module) -> frozenset[str]:
        """Return the names of the tensors of all BatchNorm layers."""
        return frozenset(
            f"{path}.{name}".lstrip(".")
            for path, module in network.named_modules()
            if isinstance(module, BATCH_NORMS)
            for name in state_of(module)
        )
