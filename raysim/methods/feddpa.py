"""FedDPA: each client has an adapter of its own beside the global one, and mixes both.

Source: Yang, Long, Shen, Jiang and Blumenstein, "Dual-Personalizing Adapter for Federated
Foundation Models", NeurIPS 2024, arXiv:2403.19211, its FedDPA-T, with the authors' code
(github.com/Lydia-yang/FedDPA).

    y = W x + (1 - w) s B A x + w s B_k A_k x        B A the global adapter, B_k A_k an own one

    own:     A_k, B_k <- local epochs of SGD from A_k, B_k, in the mixture, the global one fixed
    global:  A, B <- FedIT, which is FedAvg of the adapters alone, without A_k, B_k
    deploy:  the mixture

w is `weight`, 0.5 in the code. Both steps start from the round's broadcast, so their order changes
nothing; here the global adapter is trained first. A_k, B_k start as a copy of the first adapter. A
client that never took part deploys the global model alone. The global model is FedIT's bit for bit,
and with weight=0 so is what clients deploy. Other trained parts, such as a head, are trained with
the global adapter.

Deviations: the code trains A_k, B_k from the second round on. At test time it may weigh each input
by the cosine of its representation and those of five samples of the client; here w is the same for
all inputs. FedDPA-F, which trains A_k, B_k once after the last round, is not here.
"""

from __future__ import annotations

import copy
from collections.abc import Sequence
from dataclasses import replace
from functools import partial
from typing import Any

import torch
from pydantic import Field
from torch import nn

from raysim.api.method import Passes, Round, ServerState
from raysim.api.rules import Pass, Rules, Trained, Upload, View, nothing_received
from raysim.methods import partly_shared
from raysim.methods.adapted import Adapted
from raysim.methods.partly_shared import OWN
from raysim.numbers.adapters import DEFAULT, Adapter, Scales, adapted_layers, adapters_of
from raysim.numbers.tensors import Groups, Tensors, nbytes, only, parameter_names, without

MIX, WEIGHT = "mix", "weight"
"""Group of a client's state with w, which is 0 until the client has taken part."""


class FedDpa(Adapted):
    """FedAvg of an adapter, and an adapter of each client that takes part, mixed in its outputs.

    Helps where clients' data differ and a client also meets inputs of other kinds: the global
    adapter is kept whole beside its own. Costs twice FedAvg's local training, and an adapter kept
    by each client that ever took part; bytes are FedAvg's.
    """

    weight: float = Field(default=0.5, ge=0, le=1, description="share of the client's own adapter")

    @property
    def deploys_client_models(self) -> bool:
        """True: clients deploy the mixture."""
        return True

    def network(self, model: nn.Module) -> nn.Module:
        """Return the model with a second adapter in each adapted layer, and scales as buffers."""
        doubled = copy.deepcopy(model)
        for _, layer in [*adapted_layers(doubled)]:
            _double(layer)
        return doubled

    def own_tensors(self, network: nn.Module) -> frozenset[str]:
        """Return the names of the own adapters, and of the clients' other parts."""
        return super().own_tensors(network) | _own_names(network)

    def client_init(self, state: ServerState) -> Groups:
        """Start a client's adapter at the first one, with the weight 0."""
        return {**super().client_init(state), MIX: {WEIGHT: torch.tensor(0.0)}}

    def training_pass(self, now: Round, state: ServerState) -> Pass:
        """Return FedAvg's pass, which trains all but the own adapters."""
        pass_, adapters = super().training_pass(now, state), adapters_of(now.network)
        scales = frozenset(_scale_names(adapters))
        received = nbytes({"": without(pass_.broadcast["model"], scales)})
        return replace(
            pass_,
            rules=replace(pass_.rules, finish=partial(_finish, scales)),
            trainable=parameter_names(now.network) - _own_names(now.network),
            bytes_down=partial(_received, received),
        )

    def round(self, now: Round, state: ServerState) -> Passes:
        """Run FedAvg's round, then train the own adapters beside the adapter it broadcast."""
        after, metrics = yield from super().round(now, state)
        yield self._own_pass(now, state)
        return after, metrics

    def _own_pass(self, now: Round, state: ServerState) -> Pass:
        adapters, names = adapters_of(now.network), _own_names(now.network)
        start = partial(_mixed, adapters, self.weight)
        return replace(
            super().training_pass(now, state),
            rules=Rules(start=start, finish=partial(_keep, names, self.weight)),
            trainable=names,
            bytes_down=nothing_received,
            label="own",
        )

    def deployment(self, now: Round, state: ServerState) -> Pass:
        """Deploy the mixture of the global adapter and the client's own one."""
        start = partial(_mixed, adapters_of(now.network), None)
        return Pass(now.cohort, self.broadcast(state), Rules(start=start))

    def deployment_after(self, now: Round, state: ServerState) -> Sequence[Pass]:
        """Deploy the mixture after the training of the client's own adapter."""
        return [self._own_pass(now, state)]


def _double(layer: Any) -> None:
    """Give an adapted layer a second adapter, a copy of the first one that adds nothing."""
    for part in (layer.lora_A, layer.lora_B, layer.lora_dropout):
        part[OWN] = copy.deepcopy(part[DEFAULT])
    layer.scaling = Scales({DEFAULT: layer.scaling[DEFAULT], OWN: 0.0})
    layer.set_adapter([DEFAULT, OWN])


def _own_names(network: nn.Module) -> frozenset[str]:
    return frozenset(name for a in adapters_of(network, OWN) for name in (a.a, a.b))


def _scale_names(adapters: Sequence[Adapter]) -> list[str]:
    """Return the names of the scales of both adapters of each layer."""
    return [name for a in adapters for name in (a.scaling, _own_scale(a))]


def _own_scale(adapter: Adapter) -> str:
    return f"{adapter.scaling.removesuffix(DEFAULT)}{OWN}"


def _mixed(
    adapters: Sequence[Adapter],
    weight: float | None,
    broadcast: Groups,
    state: Groups,
    personal: Groups,
) -> Tensors:
    """Return the tensors at a weight w; None takes the client's."""
    tensors = dict(partly_shared.start(broadcast, state, personal))
    share = state[MIX][WEIGHT] if weight is None else torch.full_like(state[MIX][WEIGHT], weight)
    for adapter in adapters:
        scale = tensors[adapter.scaling]
        tensors[adapter.scaling] = (1 - share) * scale
        tensors[_own_scale(adapter)] = share * scale
    return tensors


def _finish(scales: frozenset[str], view: View, trained: Trained) -> Upload:
    """Send the shared tensors; the own ones stay as they were."""
    upload = partly_shared.finish(view, trained)
    state = {**upload.state, MIX: view.state[MIX]}
    return replace(upload, sums={"model": without(upload.sums["model"], scales)}, state=state)


def _keep(names: frozenset[str], weight: float, view: View, trained: Trained) -> Upload:
    """Keep the own adapter, which is trained now."""
    own = {**view.state[OWN], **only(view.params, names)}
    mix = {WEIGHT: torch.full_like(view.state[MIX][WEIGHT], weight)}
    return Upload(state={OWN: own, MIX: mix})


def _received(count: int, client: int) -> int:
    return count
