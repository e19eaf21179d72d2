"""A tokeniser of a few words, and tables of texts, for tests of text."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

from torch import Tensor, nn

from raysim.samples.data import Model

WORDS = "[UNK] [CLS] [SEP] </s> cheap pills now lunch at noon we meet buy user bot : add 1 2 3 4"
NUMBER = {word: number for number, word in enumerate(WORDS.split())}


def write_tokenizer(folder: Path, *, ends: bool = True, **config: Any) -> Path:
    """Write a tokeniser of WORDS, which puts [CLS] and [SEP] around a text if `ends`.

    Args:
        folder: The folder.
        ends: Whether it does.
        config: More of its settings, `chat_template` or `eos_token` say.
    """
    from tokenizers import Tokenizer
    from tokenizers.models import WordLevel
    from tokenizers.pre_tokenizers import WhitespaceSplit
    from tokenizers.processors import TemplateProcessing

    tokenizer = Tokenizer(WordLevel(NUMBER, unk_token="[UNK]"))  # noqa: S106
    tokenizer.pre_tokenizer = WhitespaceSplit()
    if ends:
        special = [(word, NUMBER[word]) for word in ("[CLS]", "[SEP]")]
        tokenizer.post_processor = TemplateProcessing(
            single="[CLS] $A [SEP]", special_tokens=special
        )
    folder.mkdir(parents=True, exist_ok=True)
    tokenizer.save(str(folder / "tokenizer.json"))
    about = {"tokenizer_class": "PreTrainedTokenizerFast", "unk_token": "[UNK]", **config}
    (folder / "tokenizer_config.json").write_text(json.dumps(about))
    config_file = {"model_type": "bert", "vocab_size": len(NUMBER)}
    (folder / "config.json").write_text(json.dumps(config_file))
    return folder


def numbers(text: str) -> list[int]:
    """Return the numbers of a text's words."""
    return [NUMBER.get(word, 0) for word in text.split()]


class Bag(nn.Module):
    """Class logits of the mean of a text's embedded tokens."""

    def __init__(self, classes: int) -> None:
        super().__init__()
        self.words = nn.Embedding(len(NUMBER), 8)
        self.head = nn.Linear(8, classes)

    def forward(self, x: Tensor) -> Tensor:
        present = (x >= 0).unsqueeze(-1)
        embedded = self.words(x.clamp(min=0)) * present
        return self.head(embedded.sum(1) / present.sum(1))


class BagOfTokens(Model):
    """Model whose tokeniser lies in a folder."""

    path: str

    @property
    def tokenizer(self) -> str:
        return self.path

    def build(self, shape: tuple[int, ...], classes: int) -> nn.Module:
        return Bag(classes)


class Bigram(nn.Module):
    """Logits [B, T, V] of the next token, of the last one alone."""

    def __init__(self) -> None:
        super().__init__()
        self.next = nn.Embedding(len(NUMBER), len(NUMBER))

    def forward(self, x: Tensor) -> Tensor:
        return self.next(x.clamp(min=0))


class NextToken(BagOfTokens):
    """Language model whose tokeniser lies in a folder."""

    def build(self, shape: tuple[int, ...], classes: int) -> nn.Module:
        return Bigram()
