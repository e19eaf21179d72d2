"""Local training: nobody communicates; each client trains its own model.

Source: the baseline of studies of personalisation, for example of Li et al., "Ditto: Fair and
Robust Federated Learning Through Personalization", ICML 2021. No paper describes it.

    client k:  v_k <- local epochs of SGD from v_k      v_k at first the network as it was built

A round trains the clients of its cohort, so that a client has done as much local work as under
FedAvg. Buffers are the client's own, too. The common start is evaluated as the global model in
every round: see the columns of the clients' own models.
"""

from __future__ import annotations

from typing import ClassVar

from torch import nn

from raysim.methods.partly_shared import PartlyShared
from raysim.numbers.tensors import state_of


class Local(PartlyShared):
    """Training of each client on its own samples alone.

    The floor of every table: helps to see the benefit of federation to a client. Against FedAvg it
    costs no bytes, and a model kept by each client that ever took part.
    """

    own_server: ClassVar[str] = "receives no model"

    def own_tensors(self, network: nn.Module) -> frozenset[str]:
        """Return the names of all tensors."""
        return frozenset(state_of(network))
