"""MOON: local representations are drawn to the global model's, away from the client's own last one.

Source: Li, He and Song, "Model-Contrastive Federated Learning", CVPR 2021, eq. 3 and algorithm 1,
with the authors' code (github.com/QinbinLi/MOON).

    loss + mu * mean over the batch of
        -log( exp(cos(z, z_glob)/tau) / (exp(cos(z, z_glob)/tau) + sum_j exp(cos(z, z_j)/tau)) )

z is the representation of the network in training, z_glob the broadcast model's, z_j the
representations of the `pool` models that the client trained last; all but z are held fixed, in
evaluation mode. mu=0 is FedAvg on the same network, bit for bit.

    projection=256:    z is the output of a projection, fully connected layers of F and of 256
                       numbers with a ReLU between them, which stands before the head
    projection=none:   z is the output of the stage `hidden`

The projection is part of the network of all methods that the paper compares: `moon` with mu=0 is
its FedAvg, and `chain` puts others on this network: method.methods.moon.mu=0
method.methods.scaffold={}. The head becomes a new layer, of 256 inputs. Choices and discrepancies:

- A client's first previous model is the first network, as option load_first_net of the code means:
  it is never put into the pool there, so that the first round has no second term. Here that term is
  a constant in the first round, where the first network is the broadcast one.
- The code's clients begin with different networks, and its pool holds the models of the last
  rounds; a client that sat out has its model in the pool again. Here the pool holds models of the
  client's last turns. The code's shift of a pool of three or more copies the same model into
  several places.
- A representation of zeros, as a ReLU may give without a projection, has the cosine 0 with any
  other, and no gradient; in the code, which always projects, the gradient would be unbounded.
- PFLlib has no projection, and mu=0 by default. The paper tunes mu among 0.1, 1, 5 and 10; 1 is
  the code's default, next to local.momentum=0.9 and local.weight_decay=1e-5.

Legend: B batch, F outputs of the stage `hidden`.
"""

from __future__ import annotations

import copy
from typing import ClassVar, cast

import torch
import torch.nn.functional as F
from pydantic import Field
from torch import Tensor, nn

from raysim.api.method import ServerState
from raysim.api.rules import Batch, Outputs, Rules, Trained, Upload, View
from raysim.methods.fedavg import FedAvg
from raysim.methods.linear_head import linear_head
from raysim.numbers.tensors import Groups, at_least_float32, nbytes
from raysim.user_input.limits import Count

FIRST = "first"
"""Group of the first network, in the server's state."""
PREVIOUS = "previous_{}"
"""Groups of a client's previous models, 0 the oldest."""


class Moon(FedAvg):
    """FedAvg with a contrast between the global model and the client's own last one.

    Helps where clients' data differ: local models learn representations more like the global one.
    It is a method for the global model. Costs `pool` models kept by each client that ever took
    part, one more on the server, and 1 + `pool` more forward passes a step; bytes are FedAvg's on
    the same network.
    """

    staged: ClassVar[bool] = True
    real: ClassVar[bool] = True

    mu: float = Field(default=1.0, ge=0, description="strength of the contrast")
    tau: float = Field(default=0.5, gt=0, description="temperature of the contrast")
    pool: Count = Field(default=1, description="previous models that a client keeps")
    projection: Count | None = Field(
        default=256, description="outputs of the projection before the head; none: no projection"
    )

    def network(self, model: nn.Module) -> nn.Module:
        """Return the model with the projection before its head.

        Raises:
            SettingsError: the head is not one fully connected layer.
        """
        if self.projection is None:
            return model
        head = linear_head(self, model)
        projected, features = copy.deepcopy(model), head.in_features
        first, second = nn.Linear(features, features), nn.Linear(features, self.projection)
        added = nn.Sequential(first, nn.ReLU(), second).to(head.weight.dtype)
        projected.hidden = nn.Sequential(projected.get_submodule("hidden"), *added)
        projected.head = nn.Linear(self.projection, head.out_features).to(head.weight.dtype)
        return projected

    def init(self, network: nn.Module) -> ServerState:
        """Start from the network as it was built, which clients remember as their first."""
        state = super().init(network)
        return state.replace(first=state.groups["model"])

    def client_init(self, state: ServerState) -> Groups:
        """Start with the first network as the only previous model."""
        return {PREVIOUS.format(0): state.groups[FIRST]}

    def client_bytes(self, state: ServerState) -> int:
        """Return the bytes of a full pool."""
        return self.pool * nbytes(self.client_init(state))

    def rules(self) -> Rules:
        """Return the rules of local training: SGD on the loss plus the contrast."""
        return Rules(penalties=(self._contrast,), finish=self._finish)

    def _contrast(self, view: View, outputs: Outputs, batch: Batch) -> Tensor:
        others = [view.start, *previous_of(view.state)]
        z = _representation(outputs)  # [B, F]
        fixed = [_representation(view.at(model, batch.x)) for model in others]
        points = (z != 0).any(dim=-1)  # a row of zeros has no direction, and an infinite slope
        alike = [torch.where(points, F.cosine_similarity(z, o, dim=-1), 0.0) for o in fixed]
        logits = torch.stack(alike, dim=-1) / self.tau  # [B, 1 + pool]
        return self.mu * batch.mean(-F.log_softmax(logits, dim=-1)[..., 0])

    def _finish(self, view: View, trained: Trained) -> Upload:
        kept = [*previous_of(view.state), view.params][-self.pool :]
        pool = {PREVIOUS.format(number): model for number, model in enumerate(kept)}
        return Upload(sums={"model": view.params}, state=pool)


def previous_of(state: Groups) -> list[dict[str, Tensor]]:
    """Return a client's previous models, the oldest first."""
    names = [PREVIOUS.format(number) for number in range(len(state))]
    return [dict(state[name]) for name in names if name in state]


def _representation(outputs: Outputs) -> Tensor:
    return at_least_float32(cast(Tensor, outputs.hidden)).flatten(1)
