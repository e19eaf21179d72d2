"""FedDBE: each client shifts its features by a private vector; their mean is kept in common.

Source: Zhang, Hua, Cao, Wang, Song, Xue, Ma and Guan, "Eliminating Domain Bias for Federated
Learning in Representation Space", NeurIPS 2023, with the authors' code (github.com/TsingZ0/DBE).

    loss = CE(head(z + b_k), y) + kappa/2 * mean over the F features of (r - z_bar)^2
    r <- (1 - momentum) * r + momentum * mean of z over the batch             from 0 in each round
    client k deploys head(z + b_k); the server averages body and head, as FedAvg does

z are the activations of the stage `hidden`; b_k starts at 0, is trained with the network and stays
on the client. In r only the present batch has a gradient. z_bar is the mean feature of all clients:
before round 1 each trains from the first network as in a round, without b_k and kappa, and sends
its last r; these models are dropped. Columns of that pass begin with `initial_`. Choices and
discrepancies:

- kappa=0 is the code's default, and then neither r nor z_bar matters: that pass is left out. The
  authors' own run has kappa=50 and momentum=1; the paper's "mean" of clients is weighted by samples
  in the code, here by `weighting`.
- The code takes SGD's plain steps for b_k; here b_k has the momentum and the weight decay of the
  network's parameters.
- A client that never took part has b_k = 0: it deploys the global model, which is evaluated so.

Legend: B batch, C classes, F features.
"""

from __future__ import annotations

import copy
from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import ClassVar, cast

import torch
from pydantic import Field
from torch import Tensor, nn

from raysim.api.method import Round, ServerState
from raysim.api.rules import Batch, Outputs, Pass, Rules, Trained, Upload, View, send_model
from raysim.methods.fedavg import BeforePasses, FedAvg
from raysim.methods.linear_head import linear_head
from raysim.numbers.tensors import Groups, Tensors, parameter_names, without

SHIFT, RUNNING = "head.shift", "head.running"
"""Tensors b_k [F] and r [F] of the network."""
OWN, MEAN, Z = "own", "mean", "z"
"""Group of a client's b_k, group of z_bar, and the name of its tensor."""


class Shifted(nn.Module):
    """Head with a shift of its input.

    Attributes:
        layer: The head.
        shift: b_k [F].
        running: r [F], which the rules of training write.
    """

    running: Tensor

    def __init__(self, layer: nn.Linear) -> None:
        super().__init__()
        self.layer = layer
        zeros = torch.zeros(layer.in_features, dtype=layer.weight.dtype)
        self.shift = nn.Parameter(zeros)
        self.register_buffer("running", zeros.clone())

    def forward(self, z: Tensor) -> Tensor:
        """Return the logits [B, C] of features z [B, F]."""
        logits: Tensor = self.layer(z + self.shift)
        return logits


class FedDbe(FedAvg):
    """FedAvg with a private shift of each client's features, and a pull to their common mean.

    Helps where clients' data differ: a client's particulars go into its shift. Against
    FedAvg it costs a vector of F numbers kept by each client that ever took part; bytes are
    FedAvg's. With kappa above 0 it costs F numbers more down, and before round 1 a local training
    of every client of the population: with 1,000,000 clients, 10,000 rounds of 100.
    """

    staged: ClassVar[bool] = True
    real: ClassVar[bool] = True

    kappa: float = Field(default=0.0, ge=0, description="strength of the pull to the common mean")
    momentum: float = Field(
        default=0.1, gt=0, le=1, description="share of a batch in the running mean of features"
    )

    @property
    def needs_local(self) -> Mapping[str, object]:
        """No kept optimizer with kappa: the pass before round 1 trains without the shift."""
        return {"keep": False} if self.kappa else {}

    def key_needing(self, name: str) -> str:
        """Return kappa."""
        return f"method.kappa={self.kappa:g}"

    def network(self, model: nn.Module) -> nn.Module:
        """Return the model with a shift before its head.

        Raises:
            SettingsError: the head is not one fully connected layer.
        """
        shifted = copy.deepcopy(model)
        shifted.head = Shifted(linear_head(self, shifted))
        return shifted

    def init(self, network: nn.Module) -> ServerState:
        """Start from the network as it was built."""
        state = super().init(network)
        mean = {Z: state.groups["model"][RUNNING]}
        return state.replace(mean=mean) if self.kappa else state

    def client_init(self, state: ServerState) -> Groups:
        """Start without a shift."""
        return {OWN: {SHIFT: state.groups["model"][SHIFT]}}

    def broadcast(self, state: ServerState) -> Groups:
        """Return the model without a shift, and the mean feature if clients are pulled to it."""
        mean = {MEAN: state.groups[MEAN]} if self.kappa else {}
        return {**_shared(state), **mean}

    def rules(self) -> Rules:
        """Return the rules of local training: SGD on the loss after the shift, and the pull."""
        penalties = (self._pull,) if self.kappa else ()
        return Rules(start=_start, penalties=penalties, finish=_finish)

    def before_training(self, now: Round, state: ServerState) -> BeforePasses:
        """Gather the mean feature from all clients, once, if clients are pulled to it."""
        if not self.kappa or now.number:
            return state
        now.note(
            f"method.kappa={self.kappa:g}: all {len(now.everyone)} clients train before round 1"
        )
        gathering = Rules(start=_start, penalties=(self._follow,), finish=_send_running)
        reduced = yield Pass(
            now.everyone,
            _shared(state),
            gathering,
            now.epochs,
            now.lr,
            trainable=parameter_names(now.network) - {SHIFT},
            bases={},
            label="initial",
        )
        return state.replace(mean=reduced.means[MEAN])

    def deployment(self, now: Round, state: ServerState) -> Pass:
        """Deploy the current model with the client's own shift."""
        return Pass(now.cohort, _shared(state), Rules(start=_start))

    def deployment_after(self, now: Round, state: ServerState) -> Sequence[Pass] | None:
        """Deploy model and shift as the client has trained them."""
        return self.trained_alone(now, state)

    def _pull(self, view: View, outputs: Outputs, batch: Batch) -> Tensor:
        running = self._moved(view, outputs, batch)
        return self.kappa / 2 * (running - view.broadcast[MEAN][Z]).square().mean()

    def _follow(self, view: View, outputs: Outputs, batch: Batch) -> Tensor:
        return 0 * self._moved(view, outputs, batch).sum()

    def _moved(self, view: View, outputs: Outputs, batch: Batch) -> Tensor:
        """Move the running mean [F] by a batch; return it, with a gradient at the batch."""
        kept = view.params[RUNNING]
        z = cast(Tensor, outputs.hidden).to(kept.dtype)
        mean = batch.padded_with_zeros(z).sum(0) / batch.size().clamp(min=1)
        running = (1 - self.momentum) * kept + self.momentum * mean
        with torch.no_grad():
            kept.copy_(running)
        return running


def _start(broadcast: Groups, state: Groups, personal: Groups) -> Tensors:
    kept = state[OWN]
    return {**broadcast["model"], **kept, RUNNING: torch.zeros_like(kept[SHIFT])}


def _send_running(view: View, trained: Trained) -> Upload:
    return Upload(sums={MEAN: {Z: view.params[RUNNING]}})


def _finish(view: View, trained: Trained) -> Upload:
    return replace(send_model(view, trained), state={OWN: {SHIFT: view.params[SHIFT]}})


def _shared(state: ServerState) -> Groups:
    return {"model": without(state.groups["model"], (SHIFT, RUNNING))}
