"""FedAsync: asynchronous rounds; every update makes a version of the model.

Source: Xie, Koyejo and Gupta, "Asynchronous Federated Optimization", OPT 2020, algorithm 1.

    client:  loss + mu/2 * sum over all trainable parameters of (w_k - w_v)^2       the paper's rho
    server:  w <- (1 - alpha_t) w + alpha_t w_k              alpha_t = alpha * s(tau)

w_v is the version from which client k starts, tau the number of versions between its start and its
update. M = `concurrency` clients train at once; the paper draws the staleness of an update at
random instead. Floating-point buffers are mixed like parameters; integer buffers are the client's.
alpha=1 with staleness=constant and concurrency=1 is FedAvg of one client a round.
"""

from __future__ import annotations

from pydantic import Field

from raysim.api.method import Round, ServerState
from raysim.api.rules import Reduced, Rules
from raysim.methods.asynchronous import AsynchronousAvg
from raysim.methods.fedprox import proximal
from raysim.numbers.tensors import as_real, like


class FedAsync(AsynchronousAvg):
    """Asynchronous averaging: the server mixes in each client's model when it arrives.

    Helps where devices differ in speed and updates are few. Costs a version of the model for every
    update, of one client's data alone, and a client's pass over the model for the proximal term.
    Bytes of an update are FedAvg's.
    """

    alpha: float = Field(default=0.6, gt=0, le=1, description="weight of an update without delay")
    mu: float = Field(default=0.005, ge=0, description="strength of the proximal term")

    def rules(self) -> Rules:
        """Return the rules of local training: SGD on the loss plus the proximal term."""
        return Rules(transforms=(proximal(self.mu),) if self.mu else ())

    def server_update(self, now: Round, state: ServerState, reduced: Reduced) -> ServerState:
        """Mix the client's model into the global one."""
        (client,) = reduced.clients
        alpha = self.alpha * self.factor(reduced.staleness.get(client, 0))
        mixed = {}
        for name, tensor in state.groups["model"].items():
            sent = reduced.means["model"][name]
            if (real := as_real(tensor)).is_floating_point():
                exact = (1 - alpha) * real.double() + alpha * as_real(sent).double()
                sent = like(exact.to(real.dtype), tensor)
            mixed[name] = sent
        return state.replace(model=mixed)
