"""FedRoD: a generic head for balanced classes, and each client's own head on top of it.

Source: Chen and Chao, "On Bridging Generic and Personalized Federated Learning for Image
Classification", ICLR 2022, section 4, with linear personalised heads.

    g = head_g(z)        p = head_k(stopgrad z)        z the activations of the stage `hidden`
    loss = CE(g + gamma * log n_k, y) + CE(stopgrad g + p, y)        n_k the client's class counts
    client k deploys g + p; the server averages the body and head_g, as FedAvg does

The first term, a balanced softmax, trains the body and the generic head, the second the client's
own head alone. n_k are the counts of the training samples. Choices and discrepancies:

- The authors' repository holds no code. PFLlib steps the body before it takes the second gradient,
  but at the z and g of before that step; FL-bench adds both terms. These are the same steps.
- A class without samples has gamma * log n = -100, for every gamma above 0: no float32 softmax can
  tell it from the -inf of both codes. With gamma=0 the generic model is FedAvg's bit for bit.
- A client's own head starts as a copy of the first generic one, as in PFLlib. A client that never
  took part deploys g alone, which is also evaluated as the global model.
- `local.temperature` divides g and p, but not the prior. The hypernetwork of section 4 that makes
  heads of n_k is left out.

Legend: B batch, C classes.
"""

from __future__ import annotations

import copy
from typing import ClassVar, cast

import torch
import torch.nn.functional as F
from pydantic import Field
from torch import Tensor, nn

from raysim.api.method import ServerState
from raysim.api.rules import Batch, Outputs, Rules, View
from raysim.errors import SettingsError
from raysim.methods.linear_head import class_counts, linear_head, shifted, weight_in
from raysim.methods.partly_shared import OWN, PartlyShared, finish, names_of
from raysim.numbers.tensors import Groups, Tensors, nbytes, zeros_like

GENERIC, OWN_HEAD = "head.generic", "head.own"
"""Modules of the network: the heads g and p."""
FIRST_HEAD = "first"
"""Group of the head to start from, until a client has taken part."""
COUNTS, NONE = "counts", -100.0
"""Group of a client's class counts, and the prior of a class without samples."""


class TwoHeads(nn.Module):
    """Head that adds the logits of a generic head and of the client's own head."""

    def __init__(self, head: nn.Linear) -> None:
        super().__init__()
        self.generic = head
        self.own = copy.deepcopy(head).requires_grad_()

    def forward(self, z: Tensor) -> Tensor:
        """Return the logits [B, C] of activations z [B, F]; own ones have no gradient at z."""
        logits: Tensor = self.generic(z) + self.own(z.detach())
        return logits


class FedRod(PartlyShared):
    """FedAvg of a class-balanced model; each client also keeps a private head.

    Helps where clients' labels differ, and both a global model and models of clients are wanted.
    Against FedAvg it costs two products of the head's size more a step, and a head kept by each
    client that ever took part; bytes are FedAvg's.
    """

    staged: ClassVar[bool] = True
    real: ClassVar[bool] = True

    gamma: float = Field(default=1.0, ge=0, description="power of the class counts in the softmax")

    @property
    def needs_classes(self) -> str:
        """The setting that needs a classification."""
        return f"name={self.title}"

    def network(self, model: nn.Module) -> nn.Module:
        """Return the model with a second head.

        Raises:
            SettingsError: the head is not one fully connected layer, or is frozen.
        """
        doubled = copy.deepcopy(model)
        head = linear_head(self, doubled)
        if not all(parameter.requires_grad for parameter in head.parameters()):
            raise SettingsError(
                f"method.name={self.title}: trains two heads, and the model's is frozen; train it,"
                " or choose another method"
            )
        doubled.head = TwoHeads(head)
        return doubled

    def own_tensors(self, network: nn.Module) -> frozenset[str]:
        """Return the names of the clients' heads."""
        return names_of((OWN_HEAD,), network, "head")

    def client_init(self, state: ServerState) -> Groups:
        """Return no private head, and the head that its training will start from."""
        first = super().client_init(state)[OWN]
        return {OWN: zeros_like(first), FIRST_HEAD: first}

    def client_bytes(self, state: ServerState) -> int:
        """Return the bytes of a head."""
        return nbytes(super().client_init(state))

    def rules(self) -> Rules:
        """Return the rules of local training: SGD on the losses of both heads."""
        return Rules(
            start=_start, criterion=self._of_both_heads, finish=finish, from_samples=_count
        )

    def deployed(self, state: ServerState) -> Tensors:
        """Return the generic model."""
        return {**state.groups["model"], **self.client_init(state)[OWN]}

    def _of_both_heads(self, view: View, outputs: Outputs, batch: Batch) -> Tensor:
        z = cast(Tensor, outputs.hidden)
        generic = _logits(view, GENERIC, z)
        private = _logits(view, OWN_HEAD, z.detach())
        n = view.state[COUNTS]["n"]
        prior = torch.where(n > 0, self.gamma * n.clamp(min=1).log(), NONE * (self.gamma > 0))
        balanced = batch.loss(shifted(generic, prior))
        return balanced + batch.loss(generic.detach() + private)


def _logits(view: View, head: str, z: Tensor) -> Tensor:
    """Return the logits of a head at activations z [B, F], over the temperature."""
    weight = view.params[f"{head}.weight"]
    bias = view.params.get(f"{head}.bias")
    return view.scaled(F.linear(z.to(weight.dtype), weight, bias))


def _count(groups: Groups, samples: Batch) -> Groups:
    return {COUNTS: {"n": class_counts(samples, weight_in(groups["model"], GENERIC))}}


def _start(broadcast: Groups, state: Groups, personal: Groups) -> Tensors:
    return {**broadcast["model"], **state.get(FIRST_HEAD, state[OWN])}
