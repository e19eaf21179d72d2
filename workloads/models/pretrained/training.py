"""Trained parts of a pretrained network: adapters, a prompt, and chosen weights."""

from __future__ import annotations

from collections.abc import Iterable
from fnmatch import fnmatchcase
from typing import TYPE_CHECKING, Any

import torch
from torch import nn

from raysim.api.components import cause
from raysim.errors import SettingsError, visible
from raysim.workloads.models.pretrained.extra import quiet
from raysim.workloads.models.pretrained.network import Encoder, InFloat32
from raysim.workloads.models.stages import Staged

if TYPE_CHECKING:
    from raysim.workloads.models.pretrained.model import HuggingFace, Lora

ALL_LINEAR = "all-linear"
USUAL = ("query", "value", "q_proj", "v_proj", "q_lin", "v_lin", "qkv_proj", "Wqkv")
"""Names of the layers that are adapted where `peft` knows none for an architecture."""
IN_BASE = "features.0.network."
"""Beginning of the names of a base's parameters."""
SHOWN = 3
"""Names of a network that a message shows."""


def choose_trained(model: HuggingFace, network: Staged) -> None:
    """Add adapters and a prompt to a network, and choose which of its weights are trained.

    Of those, new weights are trainable already. What is trained is float32.

    Raises:
        SettingsError: a setting does not suit the network.
    """
    features: Any = network.features[0]
    new = [parameter for parameter in network.parameters() if parameter.requires_grad]
    if model.lora.rank:
        _adapt(features.network.base_model, model.lora, model.path)
    if model.prompt:
        features.prompt = _prompt(features, model.prompt)
    for parameter in new:  # peft has frozen all but its adapters
        parameter.requires_grad_(model.trained is not None)
    if model.trained == "all":
        network.requires_grad_(True)
    elif model.trained == "head":
        network.head.requires_grad_(True)
    elif model.trained:
        _unfreeze(network, model.trained)
    if model.dtype != "float32":
        _cast_trained(network, model.dtype)


def _cast_trained(network: Staged, dtype: str) -> None:
    """Cast trained parameters on a base in half precision, and the network's output, to float32.

    Raises:
        SettingsError: one of them computes with the base's states.
    """
    for name, parameter in network.named_parameters():
        if parameter.requires_grad and parameter.dtype != torch.float32:
            if name.startswith(IN_BASE):
                tied = any(parameter is of_head for of_head in network.head.parameters())
                what = "is the head by another name" if tied else "is new"
                raise SettingsError(
                    f"model.dtype={dtype}: {name.removeprefix(IN_BASE)} {what} and trained, but"
                    " computes in the type of the base; use float32, or model.train=none"
                )
            parameter.data = parameter.data.float()
    is_float: Any = network.head[0].weight.dtype == torch.float32
    (network.features if is_float else network.head).append(InFloat32())


def _adapt(base: Any, lora: Lora, path: str) -> None:
    """Put peft's adapters into the layers of a base.

    Raises:
        SettingsError: a target names no layer, or none that has adapters; or the rank is too high.
    """
    from peft import LoraConfig, inject_adapter_in_model
    from peft.tuners.lora import LoraLayer
    from peft.utils.constants import TRANSFORMERS_MODELS_TO_LORA_TARGET_MODULES_MAPPING as KNOWN

    targets = lora.targets or tuple(KNOWN.get(base.config.model_type, ())) or _usual(base)
    _check_targets(base, targets, lora.rank, path)
    config = LoraConfig(
        r=lora.rank,
        lora_alpha=lora.rank if lora.alpha is None else lora.alpha,
        target_modules=ALL_LINEAR if targets == (ALL_LINEAR,) else [*targets],
        lora_dropout=lora.dropout,
        init_lora_weights=True if lora.init == "kaiming" else lora.init,
    )
    try:
        with quiet():
            inject_adapter_in_model(config, base)
    except ValueError as error:
        raise SettingsError(
            f"model.lora.targets={','.join(targets)}: cannot be adapted: {cause(error)}"
        ) from error
    for layer in base.modules():
        if isinstance(layer, LoraLayer):
            layer.lora_A.float().requires_grad_(not lora.freeze_a)
            layer.lora_B.float()


def _check_targets(base: nn.Module, targets: Iterable[str], rank: int, path: str) -> None:
    """Check that each target ends the name of a layer, and that the rank is below its sizes.

    Raises:
        SettingsError: one does not, or stands next to all layers.
    """
    linear = {name: layer for name, layer in base.named_modules() if _sizes(layer)}
    ends = list(dict.fromkeys(name.rpartition(".")[2] for name in linear))
    if not targets:
        raise SettingsError(
            f"model.lora.targets=none: nothing is usual for the architecture of model.path={path};"
            f" choose of {', '.join(ends)}, or {ALL_LINEAR}"
        )
    if ALL_LINEAR in targets and len({*targets}) > 1:
        raise SettingsError(
            f"model.lora.targets={','.join(targets)}: {ALL_LINEAR} stands for all layers; leave out"
            " the others"
        )
    for target in targets:
        found = {
            name: layer
            for name, layer in linear.items()
            if target == ALL_LINEAR or f".{name}".endswith(f".{target}")
        }
        if not found:
            raise SettingsError(
                f"model.lora.targets={visible(target)}: names no layer of the network that can be"
                f" adapted; it has {', '.join(ends)}"
            )
        for name, layer in found.items():
            if rank > min(sizes := _sizes(layer)):
                raise SettingsError(
                    f"model.lora.rank={rank}: above the sizes of layer {name},"
                    f" {sizes[0]} x {sizes[1]}; at most {min(sizes)}"
                )


def _usual(base: nn.Module) -> tuple[str, ...]:
    """Return the names of a base's layers of queries and values, if it has the usual names."""
    ends = dict.fromkeys(name.rpartition(".")[2] for name, _ in base.named_modules())
    return tuple(name for name in ends if name in USUAL)


def _sizes(layer: nn.Module) -> tuple[int, ...]:
    """Return the two sizes of the weights of a layer that may be adapted; none of others."""
    weight = getattr(layer, "weight", None)
    if isinstance(layer, nn.Embedding) or not isinstance(weight, nn.Parameter):
        return ()
    return tuple(weight.shape) if weight.dim() == 2 else ()


def _prompt(features: Encoder, vectors: int) -> nn.Parameter:
    """Return the first vectors of a prompt: embeddings of drawn tokens."""
    table: Any = features.network.get_input_embeddings()  # type: ignore[operator]
    drawn = torch.randint(len(table.weight), (vectors,))
    return nn.Parameter(table.weight.detach()[drawn].clone())


def _unfreeze(network: nn.Module, pattern: str) -> None:
    """Train the parameters whose names match a pattern.

    Raises:
        SettingsError: none does.
    """
    named = dict(network.named_parameters())
    chosen = [name for name in named if fnmatchcase(name, pattern)]
    if not chosen:
        shown = ", ".join([*named][-SHOWN:])
        raise SettingsError(
            f"model.train={visible(pattern)}: matches no parameter of the network, such as {shown};"
            " allowed are auto, head, all, none, or a pattern such as *LayerNorm*"
        )
    for name in chosen:
        named[name].requires_grad_(True)
