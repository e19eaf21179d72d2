"""Ditto: each client also trains a personal model, tied to the global one.

Source: Li, Hu, Beirami and Smith, "Ditto: Fair and Robust Federated Learning Through
Personalization", ICML 2021, algorithm 1.

    global:    w as in FedAvg
    personal:  v_k <- v_k - eta * (g(v_k) + lam * (v_k - w))       w as it was broadcast

In a second pass over the cohort, v_k is trained for `local.epochs` epochs from where the client
left it, at first from the model as it was built. It stays on the client. As in the authors' code,
both passes take the same batches. `deployment` deploys v_k; a client that never took part deploys
the first model. The global model is FedAvg's. With lam=0, v_k equals the model of `local` bit for
bit; a large lam holds v_k at w. The second pass has its own columns (`personal_train_loss`, ...).
Deviation: buffers of v_k are its own.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

from pydantic import Field
from torch import nn

from raysim.api.method import Passes, Round, ServerState
from raysim.api.rules import Pass, Rules, Trained, Upload, View, nothing_received
from raysim.methods.fedavg import FedAvg
from raysim.methods.fedprox import proximal
from raysim.numbers.tensors import Groups, Tensors


class Ditto(FedAvg):
    """FedAvg with a personal model of every client that takes part.

    Helps where clients' data differ so much that no global model suits them all. Costs twice
    FedAvg's local training, and a model kept by each client that ever took part; bytes are
    FedAvg's.
    """

    lam: float = Field(default=0.1, ge=0, description="strength of the tie to the global model")

    def init(self, network: nn.Module) -> ServerState:
        """Keep the first model; personal models start there."""
        state = super().init(network)
        return state.replace(first=state.groups["model"])

    def client_init(self, state: ServerState) -> Groups:
        """Start a personal model at the first model."""
        return {"personal": state.groups["first"]}

    def round(self, now: Round, state: ServerState) -> Passes:
        """Run FedAvg's round, then train the personal models against the model it broadcast."""
        after, metrics = yield from super().round(now, state)
        yield self._personal_pass(now, state)
        return after, metrics

    def _personal_pass(self, now: Round, state: ServerState) -> Pass:
        rules = Rules(start=_own_model, transforms=(proximal(self.lam),), finish=_keep_model)
        pass_ = self.training_pass(now, state)
        return replace(pass_, rules=rules, bytes_down=nothing_received, draws=0, label="personal")

    def deployment(self, now: Round, state: ServerState) -> Pass:
        """Deploy the client's personal model as it is."""
        return Pass(now.cohort, {}, Rules(start=_own_model))

    def deployment_after(self, now: Round, state: ServerState) -> Sequence[Pass]:
        """Deploy the client's personal model as it is after its training against the global one."""
        return [replace(self._personal_pass(now, state), draws=None)]


def _own_model(broadcast: Groups, state: Groups, personal: Groups) -> Tensors:
    return state["personal"]


def _keep_model(view: View, trained: Trained) -> Upload:
    return Upload(state={"personal": view.params})
