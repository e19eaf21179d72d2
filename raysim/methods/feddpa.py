"""FedDPA: each client has an own adapter next to the global one, and mixes both.

Source: Yang, Long, Shen, Jiang and Blumenstein, "Dual-Personalizing Adapter for Federated
Foundation Models", NeurIPS 2024, arXiv:2403.19211, its FedDPA-T, with the authors' code
(github.com/Lydia-yang/FedDPA).

    y = W x + (1 - w) s B A x + w s B_k A_k x        B A the global adapter, B_k A_k an own one

    own:     A_k, B_k <- local epochs of SGD from A_k, B_k, in the mixture, the global one fixed
    global:  A, B <- FedIT, which is FedAvg of the adapters alone, without A_k, B_k
    deploy:  the mixture

w is `weight`, 0.5 in the code. Both adapters start from the round's broadcast, so the order of the
steps changes nothing unless parts are a client's own; here the global adapter is trained first.
A_k, B_k start as a copy of the first adapter. A client that never took part deploys the global
model alone. The global model is FedIT's bit for bit, and with weight=0 so is what clients deploy:
the own adapter's dropout draws only where that adapter is trained. Other trained parts, such as a
head, are trained with the global adapter.

Deviations: the code trains A_k, B_k from the second round on. At test time it may weigh each input
by the cosine of its representation and those of five samples of the client; here w is the same for
all inputs. FedDPA-F, which trains A_k, B_k once after the last round, is not here.
"""

from __future__ import annotations

import copy
from collections.abc import Collection, Mapping, Sequence
from dataclasses import replace
from functools import partial
from typing import Any

import torch
from pydantic import Field
from torch import Tensor, nn

from raysim.api.method import Passes, Round, ServerState
from raysim.api.rules import Finish, Pass, Rules, Trained, Upload, View, nothing_received
from raysim.methods import partly_shared
from raysim.methods.adapted import Adapted
from raysim.methods.partly_shared import OWN
from raysim.numbers.adapters import DEFAULT, Adapter, Scales, adapted_layers, adapters_of
from raysim.numbers.tensors import Groups, Tensors, only, parameter_names

TRAINED = "trained"
"""Group of a client's shared tensors after their training, until it deploys them."""


class FedDpa(Adapted):
    """FedAvg of an adapter, and an adapter of each client that takes part, mixed in its outputs.

    Helps where clients' data differ and a client also meets inputs of other kinds: the global
    adapter is kept whole next to its own. Costs twice FedAvg's local training, and an adapter kept
    by each client that ever took part; bytes are FedAvg's.
    """

    weight: float = Field(default=0.5, ge=0, le=1, description="share of the client's own adapter")

    @property
    def deploys_client_models(self) -> bool:
        """True: clients deploy the mixture."""
        return True

    def network(self, model: nn.Module) -> nn.Module:
        """Return the model with a second adapter in each adapted layer, and scales as buffers.

        Raises:
            SettingsError: the model's adapters do not suit the method.
        """
        super().own_tensors(model)
        doubled = copy.deepcopy(model)
        for _, layer in [*adapted_layers(doubled)]:
            _double(layer)
        return doubled

    def own_tensors(self, network: nn.Module) -> frozenset[str]:
        """Return the names of the own adapters, of all scales, and of the clients' other parts."""
        scales = _scales(adapters_of(network), 0)
        return super().own_tensors(network) | _own_names(network) | scales.keys()

    def training_pass(self, now: Round, state: ServerState) -> Pass:
        """Return FedAvg's pass, which trains all tensors except the own adapters."""
        pass_, scales = super().training_pass(now, state), _scales(adapters_of(now.network), 0)
        rules = Rules(start=partial(_at_scales, scales), finish=partial(_finish, scales.keys()))
        own = _own_names(now.network)
        return replace(pass_, rules=rules, trainable=parameter_names(now.network) - own)

    def round(self, now: Round, state: ServerState) -> Passes:
        """Run FedAvg's round, then train the own adapters next to the broadcast one."""
        after, metrics = yield from super().round(now, state)
        yield self._own_pass(now, state)
        return after, metrics

    def _own_pass(self, now: Round, state: ServerState) -> Pass:
        names, scales = _own_names(now.network), _scales(adapters_of(now.network), self.weight)
        finish = partial(_keep, names | scales.keys())
        return replace(
            super().training_pass(now, state),
            rules=Rules(start=partial(_at_scales, scales), finish=finish),
            trainable=names,
            bytes_down=nothing_received,
            label="own",
        )

    def deployment_after(self, now: Round, state: ServerState) -> Sequence[Pass]:
        """Deploy the mixture of both adapters as the client has trained them, as in a round."""
        shared = self.training_pass(now, state)
        hold = replace(shared.rules, finish=partial(_hold, shared.rules.finish))
        own = self._own_pass(now, state)
        deploy = replace(own.rules, finish=_deploy)
        return [replace(shared, rules=hold), replace(own, rules=deploy)]


class _OwnDropout(nn.Module):
    """Dropout before an own adapter, without draws in the passes that do not train it."""

    def __init__(self, dropout: nn.Module, a: nn.Module) -> None:
        super().__init__()
        self.dropout = dropout
        self._a = (a,)  # in a tuple, as A is the layer's part

    def forward(self, x: Tensor) -> Tensor:
        dropped: Tensor = self.dropout(x) if self._a[0].training else x
        return dropped


def _double(layer: Any) -> None:
    """Give an adapted layer a second adapter, a copy of the first one that adds nothing."""
    for part in (layer.lora_A, layer.lora_B):
        part[OWN] = copy.deepcopy(part[DEFAULT])
    dropout = copy.deepcopy(layer.lora_dropout[DEFAULT])
    layer.lora_dropout[OWN] = _OwnDropout(dropout, layer.lora_A[OWN])
    layer.scaling = Scales({DEFAULT: layer.scaling[DEFAULT], OWN: 0.0})
    layer.set_adapter([DEFAULT, OWN])


def _own_names(network: nn.Module) -> frozenset[str]:
    return frozenset(name for a in adapters_of(network, OWN) for name in (a.a, a.b))


def _scales(adapters: Sequence[Adapter], weight: float) -> dict[str, float]:
    """Return the scales of both adapters of each layer at a weight w, by name."""
    scales = {}
    for adapter in adapters:
        scales[adapter.scaling] = (1 - weight) * adapter.scale
        scales[f"{adapter.scaling.removesuffix(DEFAULT)}{OWN}"] = weight * adapter.scale
    return scales


def _at_scales(
    scales: Mapping[str, float], broadcast: Groups, state: Groups, personal: Groups
) -> Tensors:
    """Return the tensors with some scales; the client keeps the scales of its last mixture."""
    tensors = partly_shared.start(broadcast, state, personal)
    at = {name: torch.full_like(tensors[name], scale) for name, scale in scales.items()}
    return {**tensors, **at}


def _finish(scales: Collection[str], view: View, trained: Trained) -> Upload:
    """Send the shared tensors; the client keeps the scales of its last mixture."""
    upload, kept = partly_shared.finish(view, trained), view.state[OWN]
    return replace(upload, state={OWN: {**upload.state[OWN], **only(kept, scales)}})


def _hold(finish: Finish, view: View, trained: Trained) -> Upload:
    """Hold what a client would send until its own adapter is trained."""
    upload = finish(view, trained)
    return replace(upload, sums={}, round_state={TRAINED: upload.sums["model"]})


def _deploy(view: View, trained: Trained) -> Upload:
    """Return the shared tensors that the client has trained before, next to its own ones."""
    return Upload(sums={"model": view.state[TRAINED]})


def _keep(names: Collection[str], view: View, trained: Trained) -> Upload:
    """Keep the own adapter, which is trained now, and the scales of the mixture."""
    return Upload(state={OWN: {**view.state[OWN], **only(view.params, names)}})
