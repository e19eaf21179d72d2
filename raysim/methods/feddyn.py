"""FedDyn: dynamic regularisation aligns the clients' optima with the global one.

Source: Acar, Zhao, Matas Navarro, Mattina, Whatmough and Saligrama, "Federated Learning Based on
Dynamic Regularization", ICLR 2021, algorithm 1.

    loss - <h_k, w_k> + alpha/2 * sum over all trainable parameters of (w_k - w)^2
    step:    w_k <- w_k - eta * (g + alpha * (w_k - a))          a = w + h_k / alpha
    client:  h_k <- h_k - alpha * (w_k - w)
    server:  h <- h - alpha * m/K * mean(w_k - w)          w <- mean(w_k) - h / alpha

Both means are uniform over the m clients of the round, whatever `weighting` says. h and the h_k
cover the trainable parameters and start at zero; buffers become their uniform mean. h_k is kept by
each client between its participations, h by the server. Deviation: clients take `local.epochs`
epochs of SGD where algorithm 1 minimises exactly.
"""

from __future__ import annotations

from typing import ClassVar

from pydantic import Field
from torch import nn

from raysim.api.method import Round, ServerState
from raysim.api.rules import (
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
from raysim.methods.fedavg import FedAvg
from raysim.numbers.tensors import (
    Groups,
    Tensors,
    add_scaled,
    inner_products,
    only,
    parameter_names,
    zeros_like,
)


class FedDyn(FedAvg):
    """FedAvg with a linear and a proximal term that change with every participation.

    Helps where clients' data differ: if local training converges, its limit minimises the loss of
    all data. Costs one more set of parameters on the server, one kept by each client that ever took
    part, one in training, and FedProx's pass over the parameters a step; bytes are FedAvg's.
    """

    weighting: ClassVar[Weighting | None] = "uniform"

    alpha: float = Field(default=0.1, gt=0, description="strength of the regularisation")

    def init(self, network: nn.Module) -> ServerState:
        """Start with the server's h at zero."""
        state = super().init(network)
        return state.replace(h=zeros_like(only(state.groups["model"], parameter_names(network))))

    def client_init(self, state: ServerState) -> Groups:
        """Start with a client's h_k at zero."""
        return {"h": zeros_like(state.groups["h"])}

    def rules(self) -> Rules:
        """Return the rules of local training: SGD on the regularised loss."""
        transform = Transform("feddyn", self._pull, self._anchor, term="term", pull=self.alpha)
        return Rules(transforms=(transform,), finish=self._finish)

    def server_update(self, now: Round, state: ServerState, reduced: Reduced) -> ServerState:
        """Move h by the mean change, and the model to the mean less h / alpha."""
        model, mean, h = state.groups["model"], reduced.means["model"], state.groups["h"]
        share = len(reduced.clients) / now.clients
        change = add_scaled({name: mean[name] for name in h}, model, -1)
        h_after = add_scaled(h, change, -self.alpha * share)
        moved = add_scaled({name: mean[name] for name in h}, h_after, -1 / self.alpha)
        return state.replace(model={**mean, **moved}, h=h_after)

    def _anchor(self, view: View) -> Tensors:
        """Return a = w + h_k / alpha, and the excess of alpha/2 ||w_k - a||^2 over both terms."""
        h, model = view.state["h"], view.broadcast["model"]
        products = inner_products(h, model) + inner_products(h, h) / (2 * self.alpha)
        anchor = add_scaled({name: model[name] for name in h}, h, 1 / self.alpha)
        named = {f"anchor.{name}": tensor for name, tensor in anchor.items()}
        return {**zero_term(view), "excess": products.sum(), **named}

    def _pull(
        self, view: View, gradients: Tensors, batch: Batch, state: Tensors
    ) -> tuple[Tensors, Tensors]:
        anchor = {name: state[f"anchor.{name}"] for name in gradients}
        apart = add_scaled({name: view.params[name] for name in gradients}, anchor, -1)
        term = self.alpha / 2 * inner_products(apart, apart).sum() - state["excess"]
        return add_scaled(gradients, apart, self.alpha), {**state, "term": term}

    def _finish(self, view: View, trained: Trained) -> Upload:
        params = {name: view.params[name].detach() for name in view.trainable}
        moved = add_scaled(params, view.broadcast["model"], -1)
        h = add_scaled(view.state["h"], moved, -self.alpha)
        return Upload(sums={"model": view.params}, state={"h": h})
