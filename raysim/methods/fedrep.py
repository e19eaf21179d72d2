"""FedRep: each client trains its own head, then the shared body under it.

Source: Collins, Hassani, Mokhtari and Shakkottai, "Exploiting Shared Representations for
Personalized Federated Learning", ICML 2021, algorithm 1.

    client k:  v_k <- `head_epochs` epochs of SGD from v_k, the body at w
               w_k <- `body_epochs` epochs of SGD from w, the head at v_k
    server:    w <- sum_k p_k w_k                                   p_k as in FedAvg

The epochs are the authors' and take the place of `local.epochs`. `own` chooses the head. The two
phases are two passes over the cohort, and the first has its own columns (`head_train_loss`, ...). A
step of the head needs no gradient of the body. Modules that are not trained are in evaluation mode,
so that the body's BatchNorm keeps its statistics while the head is trained.

Deviations from the authors' code: there, one optimizer goes through both phases, and its momentum
(0.5) and weight decay (1e-4, of weights alone) go on moving the part that is frozen; on MNIST and
CIFAR clients weigh alike (`weighting=uniform`); heads of clients not yet sampled equal the mean of
the sent heads, while here a client that never took part has the common first head, as the global
model has where it is evaluated; and the last round trains the heads of all clients for 10 epochs or
more, which is `evaluation.finetune_epochs` here without the body. PFLlib trains one epoch of each
(`head_epochs=1`).
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from typing import ClassVar

from pydantic import Field
from torch import nn

from raysim.api.method import Passes, Round, ServerState
from raysim.api.rules import Pass, Trained, Upload, View, nothing_received, send_model
from raysim.errors import SettingsError
from raysim.methods.partly_shared import (
    OWN,
    PartlyShared,
    Parts,
    finish,
    names_of,
)
from raysim.numbers.tensors import parameter_names
from raysim.user_input.limits import Count


class FedRep(PartlyShared):
    """FedAvg of the body, under the clients' own heads, which are trained first.

    Helps where clients' labels differ: the body is trained under a head that suits the client.
    Costs `head_epochs` cheap epochs and `body_epochs` others a round; against FedAvg it saves the
    head's bytes both ways, and keeps a head of each client that ever took part.
    """

    own: Parts = Field(
        default=("head",), description="each client's own parts: modules, tensors or patterns"
    )
    head_epochs: Count = Field(default=4, description="local epochs of the own parts, before")
    body_epochs: Count = Field(default=1, description="local epochs of the shared parts")
    needs_local: ClassVar[Mapping[str, object]] = {"steps": None}  # epochs, which both phases count

    def own_tensors(self, network: nn.Module) -> frozenset[str]:
        """Return the names of the chosen tensors.

        Raises:
            SettingsError: they are all parameters of the network, or none.
        """
        names, trained = names_of(self.own, network, "method.own"), parameter_names(network)
        if not names & trained or trained <= names:
            raise SettingsError(
                f"method.own={','.join(self.own)}: must leave parameters to both parts, as"
                f" method.name={self.title} trains one after the other"
            )
        return names

    def round(self, now: Round, state: ServerState) -> Passes:
        """Train the cohort's own parts, then the shared ones, and average these."""
        head, body = self.deployment_after(now, state)
        heads = yield head
        reduced = yield replace(body, clients=heads.clients)
        after = self.server_update(now, state, reduced)
        return after, self.metrics(after)

    def deployment_after(self, now: Round, state: ServerState) -> tuple[Pass, Pass]:
        """Deploy the client's model after the passes of the own and of the shared parts."""
        pass_ = self.training_pass(now, state)
        names = frozenset(self.client_init(state)[OWN])
        head = replace(
            pass_,
            rules=replace(pass_.rules, finish=_keep_own),
            epochs=self.head_epochs,
            trainable=names,
            label="head",
        )
        body = replace(
            pass_,
            rules=replace(pass_.rules, finish=send_model),
            epochs=self.body_epochs,
            trainable=frozenset(state.groups["model"]) - names,
            bytes_down=nothing_received,
        )
        return head, body


def _keep_own(view: View, trained: Trained) -> Upload:
    return replace(finish(view, trained), sums={})
