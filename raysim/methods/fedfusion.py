"""FedFusion: clients fuse the features of the global model with their own.

Source: Yao et al., "Federated Learning with Additional Mechanisms on Clients to Reduce
Communication Costs", arXiv:1908.05891, 2019, eq. 6-8 and algorithm 2.

The local model is head(hidden(Fuse(E_l(x), E_g(x)))): E_l the features stage in training, E_g the
broadcast one, frozen and in evaluation mode.

    operator="conv":    Fuse = W (E_l || E_g) + b        W [C, 2C] a 1x1 convolution
    operator="multi":   Fuse = lam E_g + (1 - lam) E_l   lam [C] one weight per channel, from 0
    operator="single":  Fuse = lam E_g + (1 - lam) E_l   lam one scalar, from 0

    server:  E_l, Fuse, hidden, head <- sum_k p_k (client k's)              p_k as in FedAvg
             lam <- (1 - ema) * sum_k p_k lam_k + ema * lam                 multi and single

W starts from (I || 0) without a b, so that the first model equals the model without fusion. With
conv_start="torch", as in the authors' code (github.com/thu-media/FedFusion), W and b [C] start from
the random weights of PyTorch's convolutions. The paper has no b, and no first values.

Choices where the paper leaves it open: the global model is evaluated as it was trained, the
averaged E_l with the E_g that this round's clients received. E_g is not sent: it is the E_l that
was sent. Deviation: its maps are computed again in every step, not recorded once a round.

In the tables of rounds `fusion_mean`, `fusion_min` and `fusion_max` are of lam;
`fusion_local_norm` and `fusion_frozen_norm` are the norms of the halves of W for E_l and E_g.

Legend: B batch, C channels: of maps [B, C, height, width], or the last axis of the features where
their last layer is no convolution, [B, C] or [B, length, C].
"""

from __future__ import annotations

import copy
from collections.abc import Sequence
from typing import ClassVar, Literal, Self

import torch
import torch.nn.functional as F
from pydantic import Field
from torch import Tensor, nn

from raysim.api.columns import Column
from raysim.api.method import Metrics, Round, ServerState
from raysim.api.rules import Reduced, Rules, Trained, Upload, View
from raysim.errors import SettingsError
from raysim.methods.fedavg import FedAvg
from raysim.numbers.layers import CONVOLUTIONS
from raysim.numbers.tensors import Groups, Tensors

LOCAL, FROZEN, FUSION = "features.local.", "features.frozen.", "features.fusion"
Operator = Literal["conv", "multi", "single"]
ConvStart = Literal["identity", "torch"]


class FedFusion(FedAvg):
    """FedAvg with local features fused with the frozen ones of the global model.

    `multi` helps where clients hold few classes, `conv` where their inputs are distributed
    differently, and new clients reach a good model sooner. Costs a second features stage in
    memory and its forward pass every step; FedAvg's bytes and the fusion's: 2C^2, with
    conv_start="torch" C more, or C, or 1 numbers.
    """

    staged: ClassVar[bool] = True
    real: ClassVar[bool] = True
    columns: ClassVar[Sequence[Column]] = (
        *map(Column, ("fusion_local_norm", "fusion_frozen_norm")),
        *map(Column, ("fusion_mean", "fusion_min", "fusion_max")),
    )

    operator: Operator = Field(default="multi", description="how the features are fused")
    conv_start: ConvStart = Field(
        default="identity",
        description="first weights of conv: (I || 0) without a bias, or PyTorch's with one",
    )
    ema: float = Field(
        default=0.9, ge=0, lt=1, description="share of the old lam that the server keeps"
    )

    def moved(self, model: nn.Module) -> frozenset[str]:
        """Return the names of E_g's parameters that are trained in E_l; none before `network`."""
        parameters = dict(model.named_parameters())
        trained = {name for name, p in parameters.items() if p.requires_grad}
        copies = {FROZEN + n.removeprefix(LOCAL) for n in trained if n.startswith(LOCAL)}
        return frozenset(copies & parameters.keys())

    def network(self, model: nn.Module) -> nn.Module:
        """Return the model with its features stage replaced by the fused one.

        Raises:
            SettingsError: the channels that the operator weighs are unknown.
        """
        fused = copy.deepcopy(model)
        fused.features = Fused(model.get_submodule("features"), self.operator, self.conv_start)
        dtype = next(p.dtype for p in model.parameters() if p.requires_grad)
        for parameter in fused.features.parameters(recurse=False):
            parameter.data = parameter.to(dtype)
        return fused

    def rules(self) -> Rules:
        """Return the rules of local training: SGD on all but the frozen features."""
        return Rules(start=_start, finish=_finish)

    def broadcast(self, state: ServerState) -> Groups:
        """Return the model without the frozen features, which clients copy from the sent ones."""
        return {"model": _without_frozen(state.groups["model"])}

    def server_update(self, now: Round, state: ServerState, reduced: Reduced) -> ServerState:
        """Smooth the fusion weights; E_g becomes the E_l that this round's clients were given."""
        before, mean = state.groups["model"], dict(reduced.means["model"])
        if self.operator != "conv":
            mean[FUSION] = (1 - self.ema) * mean[FUSION] + self.ema * before[FUSION]
        return state.replace(model=_with_frozen(mean, before))

    def metrics(self, state: ServerState) -> Metrics:
        """Return the spread of lam, or the norms of the halves of W."""
        return _metrics(state.groups["model"][FUSION])


class Fused(nn.Module):
    """Features stage of FedFusion: Fuse(E_l(x), E_g(x)).

    Attributes:
        local: E_l, which is trained.
        frozen: E_g, which is not trained and stays in evaluation mode.
        fusion: W [C, 2C] or lam [C] or lam [].
        fusion_bias: b [C] of W, if there is one.
        axis: Axis of the features' channels.
    """

    def __init__(
        self, features: nn.Module, operator: Operator, conv_start: ConvStart = "identity"
    ) -> None:
        super().__init__()
        self.local = copy.deepcopy(features)
        self.frozen = copy.deepcopy(features).requires_grad_(False).eval()
        channels, self.axis = _channels(features, operator)
        self.fusion_bias: nn.Parameter | None = None
        if operator == "conv" and conv_start == "torch":
            # A 1x1 convolution over the last axis: its first weights, too.
            convolution = nn.Linear(2 * channels, channels)
            self.fusion, self.fusion_bias = convolution.weight, convolution.bias
        else:
            self.fusion = nn.Parameter(_first_fusion(channels, operator))

    def train(self, mode: bool = True) -> Self:
        """Enter or leave training mode with all but the frozen features."""
        super().train(mode)
        self.frozen.eval()
        return self

    def forward(self, x: Tensor) -> Tensor:
        """Return the fused features of inputs x [B, ...]."""
        with torch.no_grad():  # on a copy: a stage may change its input in place
            frozen = self.frozen(x.clone()).movedim(self.axis, -1)  # [B, ..., C]
        local = self.local(x).movedim(self.axis, -1)
        self._check(local)
        if self.fusion.dim() == 2:
            fused: Tensor = F.linear(
                torch.cat([local, frozen], dim=-1), self.fusion, self.fusion_bias
            )
        else:
            fused = self.fusion * frozen + (1 - self.fusion) * local
        return fused.movedim(-1, self.axis)

    def _check(self, features: Tensor) -> None:
        if self.fusion.dim() and features.shape[-1] != len(self.fusion):
            operator = "conv" if self.fusion.dim() == 2 else "multi"
            raise SettingsError(
                f'method.operator="{operator}": the features stage gives {features.shape[-1]}'
                f" channels but its last layer has {len(self.fusion)}; allowed is a stage that"
                " ends with the channels of its last convolution, linear, embedding or recurrent"
                ' layer; method.operator="single" allows any'
            )


def _first_fusion(channels: int, operator: Operator) -> Tensor:
    """Return weights that make the fused features the local ones."""
    if operator == "single":
        return torch.zeros(())
    return torch.zeros(channels) if operator == "multi" else torch.eye(channels, 2 * channels)


def _channels(features: nn.Module, operator: Operator) -> tuple[int, int]:
    """Return the number of channels that a stage's last layer gives, and their axis."""
    for module in reversed(list(features.modules())):
        if isinstance(module, CONVOLUTIONS):
            return module.out_channels, 1
        if isinstance(module, nn.Linear):
            return module.out_features, -1
        if isinstance(module, nn.Embedding):
            return module.embedding_dim, -1
        if isinstance(module, nn.RNNBase):
            return (module.proj_size or module.hidden_size) * (1 + module.bidirectional), -1
    if operator == "single":
        return 0, -1
    raise SettingsError(
        f'method.operator="{operator}": needs a model with a convolution, a linear, an embedding or'
        ' a recurrent layer in the features stage; method.operator="single" allows any'
    )


def _without_frozen(model: Tensors) -> dict[str, Tensor]:
    return {name: tensor for name, tensor in model.items() if not name.startswith(FROZEN)}


def _with_frozen(model: Tensors, tensors: Tensors) -> dict[str, Tensor]:
    """Return a model with E_g filled from the E_l of `tensors`."""
    copied = {
        FROZEN + name.removeprefix(LOCAL): tensor
        for name, tensor in tensors.items()
        if name.startswith(LOCAL)
    }
    return {**model, **copied}


def _start(broadcast: Groups, state: Groups, personal: Groups) -> Tensors:
    return _with_frozen(broadcast["model"], broadcast["model"])


def _finish(view: View, trained: Trained) -> Upload:
    return Upload(sums={"model": _without_frozen(view.params)})


def _metrics(fusion: Tensor) -> Metrics:
    """Return the spread of lam, or the norms of the halves of W that weigh E_l and E_g."""
    if fusion.dim() == 2:
        local, frozen = fusion.chunk(2, dim=1)
        return {
            "fusion_local_norm": float(local.norm()),
            "fusion_frozen_norm": float(frozen.norm()),
        }
    return {
        "fusion_mean": float(fusion.mean()),
        "fusion_min": float(fusion.min()),
        "fusion_max": float(fusion.max()),
    }
