"""Folders of a trained network that transformers and peft load.

Both begin from the network as transformers reads it from the run's base, so that its configuration
and the names of its tensors are transformers' own. Weights are written in float32.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeGuard

import torch
from torch import Tensor, nn

from raysim.errors import RunError
from raysim.numbers.adapters import Adapter, adapters_of
from raysim.storage.checkpoints import save_tensors
from raysim.workloads.models.pretrained.extra import quiet
from raysim.workloads.models.pretrained.folders import folder_of, hub_name
from raysim.workloads.models.pretrained.network import Encoder, LastToken
from raysim.workloads.models.pretrained.reading import as_read, head_of
from raysim.workloads.models.pretrained.tokenizer import FILE, tokenizer_of
from raysim.workloads.models.stages import Staged

if TYPE_CHECKING:
    from raysim.workloads.models.pretrained.model import HuggingFace

ADAPTERS = "adapter_model.safetensors"
"""Name of the file of adapters, as peft has it."""
IN_PEFT = "base_model.model."
"""Beginning of the names of tensors in that file."""
IN_NETWORK, IN_HEAD = "features.0.network.", "head.0."
"""Beginnings of the names of a base's tensors, and of its head's, in a network of this folder."""
ENDS = 8
"""Rows that check an export; each ends in another one of the first tokens."""

Compute = Callable[[Tensor], Tensor]
"""Computes the logits of tokens [B, T], -1 where there is none."""


def is_plain(network: nn.Module) -> TypeGuard[Staged]:
    """Return whether a network is as the model has built it, without parts of a method."""
    if not (isinstance(network, Staged) and isinstance(network.features[0], Encoder)):
        return False
    return all(name.startswith((IN_NETWORK, IN_HEAD)) for name, _ in network.named_parameters())


def write_whole(
    model: HuggingFace,
    network: Staged,
    outputs: int,
    classes: Sequence[str],
    folder: Path,
    *,
    padding: int,
) -> Compute:
    """Write the network with its adapters merged; return what transformers computes of the files.

    Args:
        model: The model.
        network: The trained network, in float32.
        outputs: Number of classes, or of tokens in the vocabulary.
        classes: Names of the classes; empty if they have none.
        folder: The folder.
        padding: The token that fills rows.
    """
    plain, _ = as_read(model, outputs)
    plain = plain.float()
    tensors = _merged(network, head_of(plain))
    for name, parameter in plain.named_parameters():
        parameter.data = tensors[name]
    if classes:
        plain.config.id2label = dict(enumerate(classes))
        plain.config.label2id = {name: number for number, name in enumerate(classes)}
    if finds_last_token(network):
        plain.config.pad_token_id = padding
    with quiet():
        plain.save_pretrained(folder)
        again = type(plain).from_pretrained(folder, dtype=torch.float32, local_files_only=True)
    return _computing(again.eval(), padding)


def write_adapters(
    model: HuggingFace, network: Staged, outputs: int, run: Path, folder: Path, *, padding: int
) -> Compute:
    """Write the adapters, and layers that differ from the base's; return what peft computes.

    Args:
        model: The model.
        network: The trained network, in float32.
        outputs: Number of classes, or of tokens in the vocabulary.
        run: The run directory, for errors.
        folder: The folder.
        padding: The token that fills rows.

    Raises:
        RunError: weights that have adapters are not the base's.
    """
    from peft import PeftModel

    plain, new = as_read(model, outputs)
    plain = plain.float()
    tensors, adapters = _named(network, head_of(plain)), _by_layer(network)
    changed = {
        _module(name, plain.base_model_prefix)
        for name, parameter in plain.named_parameters(remove_duplicate=False)
        if name in new or not torch.equal(parameter, tensors[name])
    }
    if moved := sorted(changed & adapters.keys()):
        raise RunError(
            f"{run}: --to=peft: weights that have adapters are not the base's any more, such as"
            f" {moved[0]}; --to=huggingface writes the whole network"
        )
    written = {
        name: t for name, t in tensors.items() if _module(name, plain.base_model_prefix) in changed
    }
    rank = 0
    for path, of_layer in adapters.items():
        a, b = _joined(network, of_layer, model.lora.scale)
        written |= {f"{path}.lora_A.weight": a, f"{path}.lora_B.weight": b}
        rank = len(a)
    save_tensors(folder / ADAPTERS, {f"{IN_PEFT}{name}": t for name, t in written.items()})
    with quiet():
        _config(model, adapters, rank, changed).save_pretrained(str(folder))
        how = {**arguments(model, network, outputs, padding), "local_files_only": True}
        base = type(plain).from_pretrained(folder_of(model.path), **how)
        again = PeftModel.from_pretrained(base, str(folder)).float()
    return _computing(again.eval(), padding)


def arguments(model: HuggingFace, network: Staged, outputs: int, padding: int) -> dict[str, Any]:
    """Return the arguments with which transformers reads a base as the run did.

    Args:
        model: The model.
        network: The trained network.
        outputs: Number of classes, or of tokens in the vocabulary.
        padding: The token that fills rows.
    """
    how: dict[str, Any] = {"dtype": model.dtype}
    if model.task == "classification":
        how |= {"num_labels": outputs, "ignore_mismatched_sizes": True}
    if finds_last_token(network):
        how |= {"pad_token_id": padding}
    return how


def finds_last_token(network: Staged) -> bool:
    """Return whether transformers looks for the last token that is not padding.

    It takes no notice of a mask, so that the token that fills rows must end no text.
    """
    return isinstance(network.features[0], LastToken)


def tokenizer_for(network: Staged, path: str) -> Any:
    """Return the tokeniser in a folder, with a token that fills rows; None without a tokeniser."""
    if not (folder_of(path) / FILE).is_file():
        return None
    with quiet():
        tokenizer: Any = tokenizer_of(path)
    if finds_last_token(network):
        taken = tokenizer("a \ufffd")["input_ids"]  # with what it adds, and takes for unknown words
        named = (tokenizer.pad_token, tokenizer.eos_token, *tokenizer.all_special_tokens)
        of_token = {t: tokenizer.convert_tokens_to_ids(t) for t in named if t is not None}
        free = (token for token, number in of_token.items() if number not in taken)
        tokenizer.pad_token = next(free, None)
        tokenizer.padding_side = "right"
    return tokenizer


def padding_of(network: Staged, tokenizer: Any) -> int | None:
    """Return the token that fills rows; None: there is none.

    Args:
        network: The network.
        tokenizer: Its tokeniser, as `tokenizer_for` returns it.
    """
    features: Any = network.features[0]
    if not finds_last_token(network):
        return int(features.filler)
    found = features.network.config.get_text_config() if tokenizer is None else tokenizer
    padding: int | None = found.pad_token_id
    return padding


def example_of(network: Staged, length: int, padding: int) -> Tensor:
    """Return rows of tokens [n, length]; all but the first are half as long, and end unlike."""
    features: Any = network.features[0]
    vocabulary = len(features.network.get_input_embeddings().weight)
    ends = [token for token in range(min(ENDS, vocabulary)) if token != padding]
    rows, generator = 1 + len(ends), torch.Generator().manual_seed(0)
    x = torch.randint(vocabulary - 1, (rows, length), generator=generator)
    x += x >= padding  # which is in no text
    half = (length + 1) // 2
    x[1:, half - 1] = torch.tensor(ends)
    x[1:, half:] = -1
    return x


def _config(
    model: HuggingFace, adapters: Mapping[str, Sequence[Adapter]], rank: int, saved: set[str]
) -> Any:
    """Return peft's configuration of adapters, and of modules that are saved whole."""
    from peft import LoraConfig

    name, commit = hub_name(model.path)
    return LoraConfig(
        base_model_name_or_path=name or Path(model.path).name,  # no path of the author's
        revision=commit or None,
        task_type="CAUSAL_LM" if model.task == "causal-lm" else "SEQ_CLS",
        inference_mode=True,
        r=rank,
        lora_alpha=model.lora.scale * rank,
        lora_dropout=model.lora.dropout,
        fan_in_fan_out=any(adapter.transposed for (adapter, *_) in adapters.values()),
        target_modules=sorted(adapters),
        modules_to_save=sorted(saved) or None,
    )


def _computing(network: Any, filler: int) -> Compute:
    """Return a function that gives a network of transformers tokens and their mask."""

    def compute(x: Tensor) -> Tensor:
        present = x >= 0
        given = {"input_ids": torch.where(present, x, filler), "attention_mask": present.long()}
        logits: Tensor = network(**given).logits
        return logits

    return compute


def _module(name: str, base: str) -> str:
    """Return the module of a parameter; outside of the base, the whole module next to it."""
    return name.rpartition(".")[0] if name.startswith(f"{base}.") else name.partition(".")[0]


def _named(network: Staged, head: str) -> dict[str, Tensor]:
    """Return the parameters of a network without its adapters, by transformers' names.

    Args:
        network: The network.
        head: Name of the head in the network as transformers has it.
    """
    own = {name for adapter in _adapters(network) for name in (adapter.a, adapter.b)}
    return {
        _name(name, head): parameter.detach()
        for name, parameter in network.named_parameters(remove_duplicate=False)
        if name not in own
    }


def _name(name: str, head: str) -> str:
    """Return transformers' name of a parameter."""
    if name.startswith(IN_HEAD):
        return f"{head}.{name.removeprefix(IN_HEAD)}"
    return name.removeprefix(IN_NETWORK).replace(".base_layer.", ".")


def _merged(network: Staged, head: str) -> dict[str, Tensor]:
    """Return the parameters of a network with its adapters merged, by transformers' names."""
    tensors, own = _named(network, head), dict(network.named_parameters())
    for adapter in _adapters(network):
        name = _name(adapter.weight, head)
        change = adapter.scale * adapter.product(
            {n: own[n].detach().double() for n in (adapter.a, adapter.b)}
        )
        weight = tensors[name]
        tensors[name] = (weight.double() + adapter.in_weight(change, weight)).to(weight.dtype)
    return tensors


def _joined(network: nn.Module, adapters: Sequence[Adapter], scale: float) -> tuple[Tensor, Tensor]:
    """Return A and B of adapters of a layer as those of one, whose outputs count `scale` times."""
    own = dict(network.named_parameters())
    a = torch.cat([own[adapter.a].detach() for adapter in adapters])
    b = torch.cat([own[adapter.b].detach() * (adapter.scale / scale) for adapter in adapters], 1)
    return a, b


def _by_layer(network: nn.Module) -> dict[str, list[Adapter]]:
    """Return the adapters of each layer, by transformers' name of it."""
    layers: dict[str, list[Adapter]] = {}
    for adapter in _adapters(network):
        layers.setdefault(adapter.path.removeprefix(IN_NETWORK), []).append(adapter)
    return layers


def _adapters(network: nn.Module) -> Iterator[Adapter]:
    """Yield the adapters of all names; a method may have added some."""
    names = dict.fromkeys(
        name for layer in network.modules() for name in getattr(layer, "lora_A", ())
    )
    for name in names:
        yield from adapters_of(network, name)
