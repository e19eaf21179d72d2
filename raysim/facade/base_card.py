"""Base of a pretrained network in its model card, and lines that load and call the network."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any

from raysim.errors import visible
from raysim.workloads.models.pretrained.folders import hub_name
from raysim.workloads.models.pretrained.model import HuggingFace
from raysim.workloads.models.pretrained.packs import PACKS

if TYPE_CHECKING:
    from raysim.facade.predictions import TrainedModel

USES = {
    "huggingface": """\
```python
from transformers import {kind}, AutoTokenizer

tokenizer = AutoTokenizer.from_pretrained(".")
network = {kind}.from_pretrained(".")
{use}
```

The adapters are merged into the weights, which are float32.
""",
    "peft": """\
```python
from peft import PeftModel
from transformers import {kind}, AutoTokenizer

base = {base}
tokenizer = AutoTokenizer.from_pretrained(".")
network = {kind}.from_pretrained(base, {how})
network = PeftModel.from_pretrained(network, ".")
{use}
```

`adapter_model.safetensors` has the adapters, and the layers that differ from the base's.
""",
}
CLASSIFY = 'outputs = network(**tokenizer("A text.", return_tensors="pt")).logits'
TEXT = 'given = tokenizer("A text", return_tensors="pt")'
PROMPT = """\
prompt = (tokenizer.bos_token or "") + "A prompt\\n"
given = tokenizer(prompt, add_special_tokens=False, return_tensors="pt")"""
CHAT = """\
chat = [{"role": "user", "content": "A prompt"}]
how = {"add_generation_prompt": True, "return_dict": True, "return_tensors": "pt"}
given = tokenizer.apply_chat_template(chat, **how)"""
GENERATE = """
ids, there = given["input_ids"], given["attention_mask"]
tokens = network.generate(ids, attention_mask=there, max_new_tokens=64)
print(tokenizer.decode(tokens[0, ids.shape[1] :], skip_special_tokens=True))"""
"""Lines that call a network as it was trained: with a text, or with a prompt."""


def use_of(model: TrainedModel, network: HuggingFace, to: str, arguments: Mapping[str, Any]) -> str:
    """Return the lines that load and call a pretrained network of a format.

    Args:
        model: The model.
        network: Its settings of the network.
        to: The format, a key of USES.
        arguments: Arguments with which transformers reads the base of adapters.
    """
    is_language = network.task == "causal-lm"
    name, commit = hub_name(network.path)
    base = f'"{name}"' if commit else f'"..."  # {_where(network)}'
    how = {**({"revision": commit} if commit else {}), **arguments}
    return USES[to].format(
        kind="AutoModelForCausalLM" if is_language else "AutoModelForSequenceClassification",
        use=_call_of(model) + GENERATE if is_language else CLASSIFY,
        base=base,
        how=", ".join(f"{name}={value!r}".replace("'", '"') for name, value in how.items()),
    )


def _where(network: HuggingFace) -> str:
    if network.path in PACKS:
        return f"the folder that `raysim data fetch {network.path}` prints"
    return f"folder of the pretrained network {shown(network.path)}"


def _call_of(model: TrainedModel) -> str:
    """Return the lines that make the inputs of a language model, as in training."""
    from raysim.workloads.models.pretrained.tokenizer import tokenizer_of

    if model.text is None or not model.text.answer:
        return TEXT
    return CHAT if tokenizer_of(model.text.tokenizer).chat_template else PROMPT


def shown(path: str) -> str:
    """Return a value of `model.path` without the folders above a folder."""
    of_hub = hub_name(path)[1]
    return visible(path if of_hub else Path(path).name).replace("`", "")


def header_of(network: HuggingFace) -> Mapping[str, str]:
    """Return the fields of a card's header that its base determines."""
    if network.random:
        return {}
    if pack := PACKS.get(network.path):
        return {"license": pack.licence, "base_model": pack.origin}
    name, commit = hub_name(network.path)
    return {"base_model": name} if commit else {}


def about_base(network: HuggingFace) -> str:
    """Return what is known of a base, in words."""
    name = shown(network.path)
    if network.random:
        return f"The architecture is that of {name}; its weights were drawn, not pretrained."
    if pack := PACKS.get(network.path):
        return (
            f"The pretrained network is {name} (model.path): {pack.about}, from {pack.origin},"
            f" licence {pack.licence}, in the package {pack.package.name} {pack.package.version}."
        )
    return f"The pretrained network is {name} (model.path)."
