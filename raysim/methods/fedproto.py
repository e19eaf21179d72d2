"""FedProto: clients share prototypes of classes, mean features, and no model.

Source: Tan, Long, Liu, Zhou, Lu, Jiang and Zhang, "FedProto: Federated Prototype Learning across
Heterogeneous Clients", AAAI 2022, algorithm 1, with the authors' code
(github.com/yuetan031/FedProto).

    loss = CE(f, y) + lam * mean over the batch and the F features of (z - c_y)^2
    client k sends c_kj, the mean of its z of class j      z the activations of the stage `hidden`
    server:  c_j <- sum_k v_kj c_kj / sum_k v_kj           over the clients that have class j

    weights="clients":  v_kj = 1                           the code
    weights="samples":  v_kj = the samples of class j      the paper's eq. 6

    gather="last_epoch":  c_kj are of the last local epoch, while the client trains; the code
    gather="all_epochs":  of all local epochs, as in PFLlib

    predict="head":       a client predicts by its own head
    predict="prototype":  the class of the nearest prototype, by the mean square over the F features

A class without a prototype adds nothing to the loss. Each client has a whole private model, which
starts from the first network and continues from the client's last turn; lam=0 with predict="head"
is `local`, bit for bit. In every round the evaluated global model has the body and the head of the
first network: see the columns of the clients' own models. A client that never took part deploys
this first network. Choices and discrepancies:

- The paper's clients have networks of several architectures; here they have one, from the same
  first weights. The code's start differently, or pretrained.
- A prototype stays as it was if no client of the round has a sample of its class. In the code all
  clients take part in each round; PFLlib drops it.
- classes="own": by prototypes a client predicts only classes that it has samples of, as in the
  code; "all": all that have a prototype, as in PFLlib. Classes without one come last, where the
  code gives them the distance 100. Before there is any prototype, the head predicts.
- The code has local.lr=0.01 local.momentum=0.5 local.batch_size=4 local.drop_last=true.
- With `local.steps` the last epoch may be cut, and have classes of fewer samples or none.
- The whole table of C x F numbers travels, and C weights up and C flags down.

Legend: B batch, C classes, F features.
"""

from __future__ import annotations

import copy
from collections.abc import Sequence
from typing import ClassVar, Literal, cast

import torch
from pydantic import Field
from torch import Tensor, nn

from raysim.api.method import Round, ServerState
from raysim.api.rules import (
    Bases,
    Batch,
    Outputs,
    Pass,
    Reduced,
    Rules,
    Trained,
    Upload,
    View,
    Weighting,
)
from raysim.methods.fedavg import FedAvg
from raysim.methods.linear_head import class_counts, classes_of, linear_head
from raysim.numbers.tensors import Groups, Tensors, without

MODEL, PROTOTYPES, OWN, COUNTS = "model", "prototypes", "own", "counts"
"""Groups: the first network and c_j of the server, a client's model and its class counts."""
MEANS, KNOWN = "head.means", "head.known"
"""Buffers of the network: c_j [C, F], and 1 for each class that has one [C]."""
SUMS, SEEN, PASSED = "head.sums", "head.seen", "head.passed"
"""Buffers of the network, which training writes: the sums of z by class [C, F], the samples of each
class in them [C], and the samples that the epoch has passed []."""
HELPERS = (MEANS, KNOWN, SUMS, SEEN, PASSED)
BEHIND = 100.0
"""Distance that is added for classes without a prototype, so that they come last."""


class Prototyped(nn.Module):
    """Head that holds prototypes, and may predict by them in evaluation mode."""

    means: Tensor
    known: Tensor

    def __init__(self, layer: nn.Linear, by_prototype: bool) -> None:
        super().__init__()
        self.layer, self.by_prototype = layer, by_prototype
        table = layer.weight.detach().new_zeros(classes_of(layer), layer.in_features)
        shapes = {MEANS: table, KNOWN: table[:, 0], SUMS: table, SEEN: table[:, 0]}
        for name, zeros in (*shapes.items(), (PASSED, table.new_zeros(()))):
            self.register_buffer(name.removeprefix("head."), zeros.clone())

    def forward(self, z: Tensor) -> Tensor:
        """Return the logits [B, C] of features z [B, F]."""
        logits: Tensor = self.layer(z)
        if self.training or not self.by_prototype:
            return logits
        near = -(z[:, None] - self.means).square().mean(-1)  # [B, C]
        known = self.known > 0
        last = torch.where(known, near, 0.0).amin(-1, keepdim=True) - BEHIND
        near = torch.where(known, near, last)
        if logits.shape[-1] == 1:  # the logit of the second class
            near = near[:, 1:] - near[:, :1]
        return torch.where(known.any(), near, logits)


class FedProto(FedAvg):
    """Private models of clients, which pull their features of a class to other clients' features.

    Helps where clients' data or tasks differ so much that models should not be averaged. Against
    FedAvg it costs a model kept by each client that ever took part, and a few operations on the
    features every step; it sends F numbers a class both ways, in place of a model.
    """

    own_server: ClassVar[str] = "receives prototypes, and no model"
    staged: ClassVar[bool] = True
    real: ClassVar[bool] = True
    weighting: ClassVar[Weighting | None] = "uniform"
    bases: ClassVar[Bases | None] = {}

    lam: float = Field(default=1.0, ge=0, description="strength of the pull to the prototypes")
    predict: Literal["head", "prototype"] = Field(
        default="head", description="how a client predicts"
    )
    weights: Literal["clients", "samples"] = Field(
        default="clients", description="weights in the mean of a class's prototypes"
    )
    gather: Literal["last_epoch", "all_epochs"] = Field(
        default="last_epoch", description="epochs that a client's prototypes are taken from"
    )
    classes: Literal["own", "all"] = Field(
        default="own", description="classes that a client predicts by prototypes"
    )

    @property
    def needs_classes(self) -> str:
        """The setting that needs a classification."""
        return f"name={self.title}"

    def network(self, model: nn.Module) -> nn.Module:
        """Return the model with the prototypes as buffers of its head.

        Raises:
            SettingsError: the head is not one fully connected layer.
        """
        wrapped = copy.deepcopy(model)
        wrapped.head = Prototyped(linear_head(self, wrapped), self.predict == "prototype")
        return wrapped

    def init(self, network: nn.Module) -> ServerState:
        """Start from the network as it was built, without prototypes."""
        state = super().init(network)
        model = state.groups[MODEL]
        return state.replace(prototypes={MEANS: model[MEANS], KNOWN: model[KNOWN]})

    def client_init(self, state: ServerState) -> Groups:
        """Start a client's model at the first network."""
        return {OWN: without(state.groups[MODEL], HELPERS)}

    def broadcast(self, state: ServerState) -> Groups:
        """Return the prototypes."""
        return {PROTOTYPES: state.groups[PROTOTYPES]}

    def rules(self) -> Rules:
        """Return the rules of local training: SGD on the client's own model, near prototypes."""
        return Rules(
            start=_start, penalties=(self._near,), finish=self._finish, from_samples=_count
        )

    def server_update(self, now: Round, state: ServerState, reduced: Reduced) -> ServerState:
        """Move the prototypes of the classes that clients sent."""
        before, sent = state.groups[PROTOTYPES], reduced.means[PROTOTYPES]
        has = sent[KNOWN] > 0
        means = sent[MEANS] / torch.where(has, sent[KNOWN], 1)[:, None]
        after = {
            MEANS: torch.where(has[:, None], means, before[MEANS]),
            KNOWN: torch.where(has, 1, before[KNOWN]),
        }
        return state.replace(prototypes=after)

    def deployed(self, state: ServerState) -> Tensors:
        """Return the first network with the prototypes."""
        return _with_helpers(state.groups[MODEL], state.groups[PROTOTYPES])

    def deployment(self, now: Round, state: ServerState) -> Pass:
        """Deploy the client's own model, with the prototypes of now."""
        of_own_classes = self.classes == "own"
        rules = Rules(
            start=_start_of_own_classes if of_own_classes else _start, from_samples=_count
        )
        return Pass(now.cohort, self.broadcast(state), rules)

    def deployment_after(self, now: Round, state: ServerState) -> Sequence[Pass] | None:
        """Deploy the client's own model as it has trained it, with the prototypes of now."""
        trained = self.trained_alone(now, state)
        return trained and [*trained, self.deployment(now, state)]

    def _near(self, view: View, outputs: Outputs, batch: Batch) -> Tensor:
        """Return the pull of features to prototypes, and add them to the client's own sums."""
        means, known = view.params[MEANS], view.params[KNOWN]
        z = cast(Tensor, outputs.hidden).to(means.dtype)  # [B, F]
        classes = torch.arange(len(known), device=z.device)
        is_class = (batch.y[:, None] == classes).to(z.dtype)  # [B, C]
        with torch.no_grad():
            self._add(view, z, batch.padded_with_zeros(is_class), batch.size())
        apart = (z - is_class @ means).square().mean(-1) * (is_class @ known)  # [B]
        return self.lam * batch.mean(apart)

    def _add(self, view: View, z: Tensor, is_class: Tensor, size: Tensor) -> None:
        """Add features [B, F] to the sums of their classes; a new epoch may restart the sums."""
        passed = view.params[PASSED]
        # An epoch ends where the next batch is no longer part of it, whatever its last one is.
        goes_on = passed + size <= view.state[COUNTS]["n"].sum()
        kept = goes_on if self.gather == "last_epoch" else torch.ones_like(goes_on)
        passed.copy_(torch.where(goes_on, passed, 0) + size)
        for name, added in ((SUMS, is_class.T @ z), (SEEN, is_class.sum(0))):
            view.params[name].copy_(torch.where(kept, view.params[name], 0) + added)

    def _finish(self, view: View, trained: Trained) -> Upload:
        sums, seen = view.params[SUMS], view.params[SEEN]
        by_clients = self.weights == "clients"
        weights = (seen > 0).to(seen.dtype) if by_clients else seen
        sent = sums / seen.clamp(min=1)[:, None] * weights[:, None]
        return Upload(
            sums={PROTOTYPES: {MEANS: sent, KNOWN: weights}},
            state={OWN: without(view.params, HELPERS)},
        )


def _count(groups: Groups, samples: Batch) -> Groups:
    return {COUNTS: {"n": class_counts(samples, groups[PROTOTYPES][KNOWN])}}


def _start(broadcast: Groups, state: Groups, personal: Groups) -> Tensors:
    return _with_helpers(state[OWN], broadcast[PROTOTYPES])


def _start_of_own_classes(broadcast: Groups, state: Groups, personal: Groups) -> Tensors:
    tensors = _with_helpers(state[OWN], broadcast[PROTOTYPES])
    has = state[COUNTS]["n"] > 0
    return {**tensors, KNOWN: torch.where(has, tensors[KNOWN], 0)}


def _with_helpers(model: Tensors, prototypes: Tensors) -> Tensors:
    """Return a network's tensors with prototypes, and sums of nothing."""
    means, known = prototypes[MEANS], prototypes[KNOWN]
    sums = {SUMS: torch.zeros_like(means), SEEN: torch.zeros_like(known)}
    return {**model, MEANS: means, KNOWN: known, **sums, PASSED: known.new_zeros(())}
