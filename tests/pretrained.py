"""Tiny pretrained networks of random weights, with a tokenizer of a few words, as files."""

from __future__ import annotations

from pathlib import Path
from typing import Any

WORDS = ("[PAD]", "[UNK]", "[CLS]", "[SEP]", "the", "a", "cat", "dog", "sat", "ran")
SIZES = {
    "vocab_size": 40,
    "hidden_size": 32,
    "num_hidden_layers": 2,
    "num_attention_heads": 4,
    "intermediate_size": 48,
    "max_position_embeddings": 64,
    "pad_token_id": 0,
    "initializer_range": 0.2,
}


def save_network(folder: Path, kind: str = "bert", **sizes: Any) -> Path:
    """Write a network of random weights, "bert" or "llama", and its tokenizer; return the folder.

    The Llama is a causal language model with tied embeddings.
    """
    from transformers import BertConfig, BertModel, LlamaConfig, LlamaForCausalLM

    from raysim.numbers.seeds import seeded
    from raysim.workloads.models.pretrained.extra import quiet

    with seeded(0, "tiny"):
        if kind == "bert":
            network: Any = BertModel(BertConfig(**SIZES | sizes))
        else:
            kv = {"num_key_value_heads": 2, "tie_word_embeddings": True}
            network = LlamaForCausalLM(LlamaConfig(**SIZES | kv | sizes))
    with quiet():
        network.save_pretrained(folder)
    save_tokenizer(folder)
    return folder


def save_tokenizer(folder: Path, words: tuple[str, ...] = WORDS, end: str | None = None) -> None:
    """Write a fast tokenizer of whole words, split at spaces; `end` ends a text.

    It has a token for padding if "[PAD]" is a word.
    """
    from tokenizers import Tokenizer
    from tokenizers.models import WordLevel
    from tokenizers.pre_tokenizers import Whitespace
    from transformers import PreTrainedTokenizerFast

    special = {"unk_token": "[UNK]"}
    tokenizer = Tokenizer(WordLevel({word: n for n, word in enumerate(words)}, **special))
    tokenizer.pre_tokenizer = Whitespace()
    special |= {"pad_token": "[PAD]"} if "[PAD]" in words else {}
    special |= {"eos_token": end} if end else {}
    PreTrainedTokenizerFast(tokenizer_object=tokenizer, **special).save_pretrained(folder)
