"""Mean: the server takes the method's model of the clients' models as it is.

Source: McMahan et al., "Communication-Efficient Learning of Deep Networks from Decentralized
Data", AISTATS 2017, algorithm 1.

    w <- sum_k p_k w_k        p_k as in FedAvg
"""

from __future__ import annotations

from raysim.api.server import ServerRule
from raysim.numbers.tensors import Groups, Tensors


class ModelMean(ServerRule):
    """The clients' mean, or a method's other combination of their models, becomes the model.

    The default. It has no learning rate: `server.schedule` is for the method's own rate, if it has
    one.
    """

    def step(self, params: Tensors, mean: Tensors, kept: Groups) -> tuple[Tensors, Groups]:
        """Return the mean itself."""
        return mean, kept
