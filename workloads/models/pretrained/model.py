"""Pretrained networks of Hugging Face as models: all of it, its head or adapters are trained.

Sources:
- LoRA: Hu et al., "LoRA: Low-Rank Adaptation of Large Language Models", ICLR 2022: the output of a
  layer is W x + (alpha / r) B A x, with B = 0 and A random at first. The adapters are those of
  Hugging Face's `peft`. `lora.alpha` is by default the rank, so that the factor is 1.
- `lora.freeze_a`: Sun et al., "Improving LoRA in Privacy-preserving Federated Learning", ICLR 2024
  (FFA-LoRA): A keeps its drawn values.
- `prompt`: Lester, Al-Rfou and Constant, "The Power of Scale for Parameter-Efficient Prompt
  Tuning", EMNLP 2021: trained vectors stand before the tokens' embeddings. They start as the
  embeddings of tokens that are drawn from the vocabulary, one of the paper's ways.

An adapted layer:

    y = W x + s B A x        s = alpha / r, r = lora.rank; W is frozen, B = 0 at first

New weights are drawn from the run's seed: the head of a classification, adapters and prompts.
With `random` all are, so that cost is measured without files: `model.random.num_hidden_layers=2`.

The head of a classification is shared by all clients; `train=none` freezes it, and
`method.name=fedper method.own=head` leaves each client its own.
"""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Annotated, Any, Literal, Self

from pydantic import AfterValidator, BeforeValidator, Field, model_validator
from torch import nn

from raysim.samples.data import Model
from raysim.user_input.group import SettingsGroup
from raysim.workloads.models.parts import DropoutRate, unsuitable
from raysim.workloads.models.pretrained.folders import CONFIG, absolute, folder_of
from raysim.workloads.models.stages import Staged

AUTO, HEAD, ALL = "auto", "head", "all"


def _names(value: object) -> object:
    """Return names, a list or written as `a,b` or `[a,b]`, as a tuple."""
    if isinstance(value, str):
        return tuple(name.strip() for name in value.strip("[]").split(","))
    return tuple(value) if isinstance(value, list) else value


class Lora(SettingsGroup):
    """Settings of adapters of low rank."""

    rank: Annotated[int, Field(ge=0, le=4096)] = Field(
        default=8, description="rank r of the adapters; 0: none"
    )
    alpha: Annotated[float, Field(gt=0)] | None = Field(
        default=None, description="adapters count alpha / rank times; none: the rank, so once"
    )
    targets: Annotated[tuple[str, ...], BeforeValidator(_names)] | None = Field(
        default=None,
        description="adapted layers, by the ends of their names, or all-linear; none: those that"
        " peft knows for the architecture, or of queries and values",
    )
    dropout: DropoutRate = Field(default=0.0, description="dropout rate of the adapters' inputs")
    init: Literal["kaiming", "gaussian"] = Field(
        default="kaiming",
        description="A at first: uniform as LoRA's authors draw it, or normal of deviation"
        " 1 / rank; B is 0",
    )
    freeze_a: bool = Field(default=False, description="train B alone (FFA-LoRA)")

    @property
    def scale(self) -> float:
        """Factor of the adapters' outputs."""
        return 1.0 if self.alpha is None else self.alpha / self.rank


class HuggingFace(Model):
    """Pretrained network of Hugging Face, fine-tuned by adapters, prompts or its own weights.

    Inputs are numbers of tokens [T] from 0 up, then -1 where there is none. The stages are
    `features`, the network up to its last states; `hidden`, which is empty; and `head`, its last
    layer. Encoders (BERT, RoBERTa, DistilBERT, ...) classify; decoders (Llama, Qwen, GPT-2, ...)
    also predict the next token. A decoder classifies by the state of the last token.

    Files are read as safetensors; no code of a network runs. Needs `pip install
    'raysim-fl[finetune]'`.
    """

    path: Annotated[str, AfterValidator(absolute)] = Field(
        description="folder of config.json and model.safetensors; minilm or smollm2 (dequantised"
        " Q4_1), which are fetched; or NAME@COMMIT of Hugging Face's hub"
    )
    random: dict[str, Annotated[int, Field(ge=1)]] = Field(
        default_factory=dict,
        description="sizes in place of those of config.json, by its names: all weights are then"
        " drawn by the seed, and the folder needs none; without any, weights are the files'",
    )
    task: Literal["classification", "causal-lm"] = Field(
        default="classification", description="one class a text, or the next token at each position"
    )
    train: Literal["auto", "head", "all"] | str | None = Field(
        default=AUTO,
        description="weights that are trained besides adapters and prompts: none, head, all, or a"
        " pattern of parameters' names such as *LayerNorm*; auto: the head of a classification,"
        " none of a causal-lm",
    )
    lora: Lora = Lora()
    prompt: Annotated[int, Field(ge=0, le=4096)] = Field(
        default=0, description="trained vectors before the tokens' embeddings (soft prompt)"
    )
    dtype: Literal["float32", "bfloat16"] = Field(
        default="float32", description="type of the frozen weights; others are float32"
    )
    checkpointing: bool = Field(
        default=False,
        description="compute activations of layers again instead of keeping them, which saves"
        " memory and costs time",
    )

    @model_validator(mode="after")
    def _trains_something(self) -> Self:
        rank = self.lora.rank
        if self.train == "":
            raise ValueError("train=: must be auto, head, all, none, or a pattern of names")
        if self.train == ALL and rank:
            raise ValueError(
                f"lora.rank={rank}: adds nothing to train={ALL}, which trains all weights; use"
                " lora.rank=0"
            )
        if self.dtype != "float32" and self.trained not in (None, HEAD):
            raise ValueError(
                f"dtype={self.dtype}: is for frozen weights; with train={self.train} use float32"
            )
        if self.lora.freeze_a and not rank:
            raise ValueError("lora.freeze_a=true: needs lora.rank")
        if not (self.trained or rank or self.prompt):
            raise ValueError(
                "lora.rank=0: leaves nothing to train; choose train, lora.rank or prompt"
            )
        return self

    @property
    def tokenizer(self) -> str:
        """Folder of the tokeniser that numbers its inputs."""
        return self.path

    @property
    def trained(self) -> str | None:
        """Weights that are trained besides adapters and prompts: `train` without `auto`."""
        if self.train != AUTO:
            return self.train
        return HEAD if self.task == "classification" else None

    def build(self, shape: tuple[int, ...], classes: int) -> Staged:
        """Read the network for windows [T] of tokens, and add what is trained.

        Raises:
            SettingsError: the inputs are no windows of tokens, or the settings do not suit the
                network.
            DataError: the folder lacks weights, or they cannot be read.
        """
        from raysim.workloads.models.pretrained.reading import read_network
        from raysim.workloads.models.pretrained.training import choose_trained

        if len(shape) != 1 or shape[0] < 1:
            raise unsuitable(self, shape, "numbers of tokens [length], as dataset.text makes them")
        network, drawn = read_network(self, shape[0], classes)
        choose_trained(self, network)
        features: Any = network.features[0]  # of names that adapters have changed
        features.drawn = frozenset(name for name, p in network.named_parameters() if p in drawn)
        return network

    def files(self) -> Mapping[str, Path]:
        """Return the network's configuration."""
        return {"model.path": folder_of(self.path) / CONFIG}

    def read(self, module: nn.Module) -> frozenset[str]:
        """Return the names of the tensors that are read from files, or follow from them.

        Others are drawn: those of adapters, and new weights.
        """
        from raysim.workloads.models.pretrained.network import Encoder

        if self.random:
            return frozenset()
        drawn = {n for part in module.modules() if isinstance(part, Encoder) for n in part.drawn}
        tensors = (*module.named_parameters(), *module.named_buffers())
        names = (name for name, _ in tensors)
        return frozenset(name for name in names if name not in drawn and ".lora_" not in name)
