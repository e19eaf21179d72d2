"""FedDyn: dynamic regularisation aligns the clients' optima with the global one.

Source: Acar, Zhao, Matas Navarro, Mattina, Whatmough and Saligrama, "Federated Learning Based on
Dynamic Regularization", ICLR 2021, algorithm 1.

    loss - <h_k, w_k> + alpha/2 * sum over all trainable parameters of (w_k - w)^2
    step:    w_k <- w_k - eta * (g - h_k + alpha * (w_k - w))
    client:  h_k <- h_k - alpha * (w_k - w)
    server:  h <- h - alpha * m/K * mean(w_k - w)          w <- mean(w_k) - h / alpha

Both means are uniform over the m clients of the round, whatever `weighting` says. h and the h_k
cover the trainable parameters and start at zero; buffers become their uniform mean. h_k is kept by
each client between its participations, h by the server. Deviation: clients take `local.epochs`
epochs of SGD where algorithm 1 minimises exactly.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import ClassVar

from pydantic import Field
from torch import Tensor, nn

from raysim.core.method import Round, ServerState
from raysim.core.rules import (
    Batch,
    Reduced,
    Rules,
    Trained,
    Transform,
    Upload,
    View,
    Weighting,
    zero_term,
)
from raysim.core.tensors import (
    Groups,
    Tensors,
    add_scaled,
    add_scaled_,
    inner_products,
    parameter_names,
    zeros_like,
)
from raysim.methods.fedavg import FedAvg


class FedDyn(FedAvg):
    """FedAvg with a linear and a proximal term that change with every participation.

    Helps where clients' data differ: where local training converges, its limit is that of all data.
    Costs one more set of parameters on the server, one kept by each client that ever took part, and
    two additions a step; bytes are FedAvg's.
    """

    revision: ClassVar[int] = 2

    weighting: ClassVar[Weighting | None] = "uniform"

    alpha: float = Field(default=0.1, gt=0, description="strength of the regularisation")

    def init(self, network: nn.Module) -> ServerState:
        """Start with the server's h at zero."""
        state = super().init(network)
        trained = parameter_names(network)
        params = {n: t for n, t in state.groups["model"].items() if n in trained}
        return state.replace(h=zeros_like(params))

    def client_init(self, state: ServerState) -> Groups:
        """Start with a client's h_k at zero."""
        return {"h": zeros_like(state.groups["h"])}

    def rules(self) -> Rules:
        """Return the rules of local training: SGD on the regularised loss."""
        transform = Transform("feddyn", self._regularise, zero_term, term="term")
        return Rules(transforms=(transform,), finish=self._finish)

    def server_update(self, now: Round, state: ServerState, reduced: Reduced) -> ServerState:
        """Move h by the mean change, and the model to the mean less h / alpha."""
        model, mean, h = state.groups["model"], reduced.means["model"], state.groups["h"]
        share = len(reduced.clients) / now.clients
        change = add_scaled({name: mean[name] for name in h}, model, -1)
        h_after = add_scaled(h, change, -self.alpha * share)
        moved = add_scaled({name: mean[name] for name in h}, h_after, -1 / self.alpha)
        return state.replace(model={**mean, **moved}, h=h_after)

    def _regularise(
        self, view: View, gradients: Tensors, batch: Batch, state: Tensors
    ) -> tuple[Tensors, Tensors]:
        params = {name: view.params[name].detach() for name in gradients}
        moved, linear = _moved(view, gradients), inner_products(params, view.state["h"]).sum()
        term = self.alpha / 2 * inner_products(moved, moved).sum() - linear
        changed = add_scaled(gradients, view.state["h"], -1)
        return add_scaled_(changed, moved, self.alpha), {"term": term}

    def _finish(self, view: View, trained: Trained) -> Upload:
        h = add_scaled(view.state["h"], _moved(view, view.trainable), -self.alpha)
        return Upload(sums={"model": view.params}, state={"h": h})


def _moved(view: View, names: Iterable[str]) -> dict[str, Tensor]:
    """Return w_k - w by the names of parameters."""
    params = {name: view.params[name].detach() for name in names}
    return add_scaled(params, view.broadcast["model"], -1)
