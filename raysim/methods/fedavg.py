"""FedAvg: federated averaging.

Source: McMahan et al., "Communication-Efficient Learning of Deep Networks from Decentralized
Data", AISTATS 2017, algorithm 1.

    w <- sum_k p_k w_k        p_k = n_k / sum of the n_k aggregated (or 1/m: weighting="uniform")

`local.batch_size=full` with `local.epochs=1` is FedSGD. Floating-point buffers (BatchNorm
statistics) are averaged like parameters; integer buffers take the maximum.
"""

from __future__ import annotations

from torch import nn

from raysim.core.method import Method, Metrics, Round, ServerState
from raysim.core.rules import Pass, Rules
from raysim.core.tensors import state_of


class FedAvg(Method):
    """Average the clients' trained models, weighted by their samples.

    What all others are compared with; many local steps help where sending is dear. Costs a client
    one model in memory, and one model down and one up a round. The base of most methods: they
    override `rules` and keep the round.
    """

    def rules(self) -> Rules:
        """Return the rules of local training: plain SGD."""
        return Rules()

    def init(self, network: nn.Module) -> ServerState:
        """Start from the network as it was built."""
        return ServerState({"model": {n: t.clone() for n, t in state_of(network).items()}})

    def round(self, now: Round, state: ServerState) -> tuple[ServerState, Metrics]:
        """Train the cohort from the global model and average the results."""
        reduced = now.run(Pass(now.cohort, state.groups, self.rules(), now.epochs, now.lr))
        return ServerState({"model": reduced.means["model"]}), {}
