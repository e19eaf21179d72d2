"""Reading of a pretrained network: its files checked, its weights mapped, and its stages.

Weights in the type of the file stay mapped from it, so that they take no memory of a process.
"""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any

import torch
from torch import nn

from raysim.api.components import cause, suggest
from raysim.errors import DataError, SettingsError
from raysim.workloads.models.pretrained.extra import check_extra, quiet
from raysim.workloads.models.pretrained.folders import check_weights, configuration, folder_of
from raysim.workloads.models.pretrained.network import Decoder, Encoder, LastToken, limits_of
from raysim.workloads.models.stages import Staged

if TYPE_CHECKING:
    from raysim.workloads.models.pretrained.model import HuggingFace

POOLER = "pooler."
"""Part of the names of weights that the file of an encoder may lack."""
ELSEWHERE = {"model_type": ("esm",), "classifier_pooling": ("mean", "late")}
"""Settings of networks that read the mask [B, T] in other places than attention."""


def read_network(
    model: HuggingFace, tokens: int, classes: int
) -> tuple[Staged, frozenset[nn.Parameter]]:
    """Return a pretrained network in three stages, and its parameters that no file has.

    All of its weights are frozen but new ones.

    Args:
        model: The model.
        tokens: Number of tokens of an input T.
        classes: Number of classes, or of tokens in the vocabulary.

    Raises:
        SettingsError: the network does not suit task or inputs, or the extra is missing.
        DataError: the files lack something, or cannot be read.
    """
    network, new = as_read(model, classes)
    _check_inputs(model, network, tokens, classes)
    network.requires_grad_(False)
    of_base = {id(parameter) for parameter in network.base_model.parameters()}
    for name, parameter in network.named_parameters():
        if name in new or (model.task == "classification" and id(parameter) not in of_base):
            parameter.requires_grad_(True)
    drawn = frozenset(p for name, p in network.named_parameters() if name in new)
    return staged(network, model), drawn


def as_read(model: HuggingFace, classes: int) -> tuple[Any, frozenset[str]]:
    """Return a pretrained network as transformers reads it, and the names of weights it draws.

    Args:
        model: The model.
        classes: Number of classes; of no meaning for the next token.

    Raises:
        SettingsError: there is no such folder, or the extra is missing.
        DataError: the files lack something, or cannot be read.
    """
    origin = f"model.path={model.path}"
    check_extra(origin)
    folder = folder_of(model.path)
    _check_configuration(configuration(folder, origin), origin, model.task)
    if model.random:
        return _drawn(model, folder, origin, classes), frozenset()
    check_weights(folder, origin)
    return _loaded(model, folder, origin, classes)


def head_of(network: Any) -> str:
    """Return the name of a network's head: the last linear layer outside of its base."""
    of_base = {id(layer) for layer in network.base_model.modules()}
    names: list[str] = [
        name
        for name, layer in network.named_modules()
        if isinstance(layer, nn.Linear) and id(layer) not in of_base
    ]
    return names[-1]


def _check_configuration(values: Mapping[str, Any], origin: str, task: str) -> None:
    from transformers.models.auto.modeling_auto import MODEL_FOR_MASKED_LM_MAPPING_NAMES as FILLING

    if "quantization_config" in values:
        raise DataError(
            f"{origin}: its weights are quantised, and so cannot be trained on or averaged exactly;"
            " use the network's weights in bfloat16 or float32, with model.dtype=bfloat16"
        )
    if values.get("is_encoder_decoder"):
        raise DataError(f"{origin}: is an encoder with a decoder; must be one of the two")
    kind = values.get("model_type")
    if task == "causal-lm" and kind in FILLING and not values.get("is_decoder"):
        raise DataError(
            f"{origin}: is an encoder ({kind}), and model.task={task} needs a decoder (Llama, Qwen,"
            " GPT-2, ...); use another model.path, or model.task=classification with classes"
        )


def _loaded(
    model: HuggingFace, folder: Path, origin: str, classes: int
) -> tuple[Any, frozenset[str]]:
    """Return a folder's network for a task, and the names of weights that were drawn.

    Raises:
        DataError: the files cannot be read, or lack weights other than a classification's.
    """
    kind, sizes = _kind(model, classes)
    try:
        with quiet():
            network, told = kind.from_pretrained(
                folder,
                dtype=getattr(torch, model.dtype),
                attn_implementation="sdpa",
                local_files_only=True,
                trust_remote_code=False,
                use_safetensors=True,
                ignore_mismatched_sizes=True,
                output_loading_info=True,
                **sizes,
            )
    except Exception as error:  # transformers, and files, may raise anything
        if "trust_remote_code" in str(error):
            raise DataError(f"{origin}: needs code of its own, which is never run") from error
        if "scaled_dot_product_attention" in str(error):
            raise DataError(
                f"{origin}: transformers has its attention without scaled_dot_product_attention,"
                " which is needed"
            ) from error
        raise DataError(f"{origin}: cannot be read: {cause(error)}") from error
    other = {name for name, *_ in told["mismatched_keys"]}
    of_base = {f"{network.base_model_prefix}.{n}" for n, _ in network.base_model.named_parameters()}
    new = other | {*told["missing_keys"]}
    needed = of_base & new if model.task == "classification" else new
    if wrong := sorted(needed & other):
        raise DataError(f"{origin}: its weights are not of its config.json: {wrong[0]} differs")
    if lacking := sorted(name for name in needed if POOLER not in name):
        raise DataError(f"{origin}: its weights lack {len(lacking)} tensors, such as {lacking[0]}")
    return network, frozenset(new)


def _kind(model: HuggingFace, classes: int) -> tuple[Any, dict[str, Any]]:
    """Return the class of transformers for a task, and settings of its configuration."""
    import transformers

    if model.task == "classification":
        return transformers.AutoModelForSequenceClassification, {"num_labels": classes}
    return transformers.AutoModelForCausalLM, {}


def _drawn(model: HuggingFace, folder: Path, origin: str, classes: int) -> Any:
    """Return a network of a folder's configuration and of `model.random`, of drawn weights.

    Raises:
        SettingsError: the configuration has no such size, or does not allow it.
        DataError: the configuration cannot be read.
    """
    from transformers import AutoConfig

    kind, sizes = _kind(model, classes)
    how = {"local_files_only": True, "trust_remote_code": False}
    try:
        with quiet():
            config = AutoConfig.from_pretrained(folder, **how, **sizes)
    except Exception as error:  # as above
        raise DataError(f"{origin}: cannot be read: {cause(error)}") from error
    known = [name for name, value in config.to_dict().items() if type(value) is int]
    for name, size in model.random.items():
        if name not in known:
            raise SettingsError(f"model.random.{name}: no such size; {suggest(name, known)}")
        setattr(config, name, size)
    try:
        with quiet():
            dtype = getattr(torch, model.dtype)
            return kind.from_config(config, dtype=dtype, attn_implementation="sdpa")
    except Exception as error:  # of sizes that do not go together
        shown = ",".join(f"{name}={size}" for name, size in model.random.items())
        raise SettingsError(f"model.random={shown}: cannot be built: {cause(error)}") from error


def _check_inputs(model: HuggingFace, network: Any, tokens: int, classes: int) -> None:
    """Check that a network takes inputs of so many tokens, of such a vocabulary.

    Raises:
        SettingsError: it does not.
    """
    config = network.config.get_text_config()
    origin = f"model.path={model.path}"
    rows = network.get_input_embeddings().weight.shape[0]
    if model.task == "causal-lm" and classes > rows:
        raise SettingsError(
            f"{origin}: embeds {rows} tokens, but the texts have a vocabulary of {classes}: their"
            " tokenizer is not this network's"
        )
    whole = tokens + model.prompt
    for limit, most in limits_of(network).items():
        if whole > most:
            prompt = f" and {model.prompt} vectors of model.prompt" if model.prompt else ""
            raise SettingsError(
                f"{origin}: takes at most {most} tokens ({limit}); inputs have {tokens}{prompt}"
            )
    if capped := [k for k, v in config.to_dict().items() if v and "logit" in k and "cap" in k]:
        raise SettingsError(f"{origin}: caps logits ({capped[0]}), which is not supported")
    if elsewhere := [n for n, values in ELSEWHERE.items() if getattr(config, n, None) in values]:
        value = getattr(config, elsewhere[0])
        raise SettingsError(
            f"{origin}: reads the attention mask outside of attention ({elsewhere[0]}={value}),"
            " which is not supported"
        )


def staged(network: Any, model: HuggingFace) -> Staged:
    """Return a network in three stages; its last layer is the head."""
    filler = network.config.get_text_config().pad_token_id or 0
    kind: type[Encoder] = Encoder
    name = head_of(network)
    head = network.get_submodule(name)
    if model.task == "causal-lm":
        kind = Decoder
    elif name == "score":  # as transformers' decoders have it
        kind = LastToken
    network.set_submodule(name, nn.Identity())
    if model.checkpointing:
        network.activation_checkpointing_enable()
        network.config.get_text_config().use_cache = False  # what is computed again is not cached
    return Staged(nn.Sequential(kind(network, filler)), nn.Sequential(), nn.Sequential(head))
