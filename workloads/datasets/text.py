"""Text as inputs: numbers of tokens, made once when a dataset is prepared.

A tokeniser lies in a folder, in most cases with the network that it belongs to. Prepared data is
named by the digest of its files, so that another tokeniser makes other data.

Legend: n texts, T tokens of an input.
"""

from __future__ import annotations

import hashlib
from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property, lru_cache, partial
from typing import TYPE_CHECKING, Annotated, Self

import numpy as np
from pydantic import AfterValidator, Field, PrivateAttr

from raysim.api.components import cause
from raysim.api.scoring import NO_TOKEN
from raysim.errors import DataError, SettingsError
from raysim.numbers.arrays import Array
from raysim.samples.data import Dataset, Model
from raysim.workloads.models.pretrained.extra import check_extra
from raysim.workloads.models.pretrained.folders import absolute, configuration, folder_of
from raysim.workloads.models.pretrained.model import HuggingFace
from raysim.workloads.models.pretrained.tokenizer import tokenizer_of

if TYPE_CHECKING:
    from transformers import PreTrainedTokenizerFast

SETTING, MODEL_SETTING = "dataset.tokenizer", "model.path"

FILES = (
    *("tokenizer.json", "tokenizer_config.json", "special_tokens_map.json", "added_tokens.json"),
    *("vocab.txt", "vocab.json", "merges.txt", "chat_template.jinja"),
)
"""Files of a tokeniser."""
BATCH = 1000
"""Texts that are tokenised at once."""
CHARACTERS = 32
"""Characters of a text that are read for each of its tokens; what follows is cut.

Of 6,046 mails, in 33 MB, the first 64 tokens were the same, and took 4 seconds in place of 20.
"""

Ids = Sequence[int]
"""Numbers of a text's tokens."""


class TextDataset(Dataset):
    """Base of datasets whose inputs may be texts."""

    tokenizer: Annotated[str, AfterValidator(partial(absolute, setting=SETTING))] | None = Field(
        default=None, description="folder of the tokeniser of texts; none: the model's"
    )
    length: int = Field(
        default=128, ge=2, le=100_000, description="most tokens of a text; longer ones are cut"
    )
    _named_by: str = PrivateAttr(default=SETTING)
    """Setting that names the tokeniser, for errors."""

    @property
    def sequences(self) -> bool:
        """Say whether inputs are sequences of tokens."""
        return bool(self.text_setting)

    @property
    def text_setting(self) -> str:
        """Setting that makes inputs of texts, as it is typed; empty where none does."""
        return ""

    @property
    def is_language(self) -> bool:
        """Say whether the next token is predicted."""
        return False

    @property
    def task_setting(self) -> str:
        """Setting that decides whether a class or the next token is predicted, as it is typed."""
        return self.text_setting

    def for_model(self, model: Model) -> Self:
        """Return the dataset of a run with this model: its tokeniser is the default.

        Raises:
            SettingsError: there is no such folder, or the model is for another task.
            DataError: the tokeniser has more tokens than the model embeds.
        """
        wanted = "causal-lm" if self.is_language else "classification"
        if self.text_setting and isinstance(model, HuggingFace) and model.task != wanted:
            targets = "tokens" if self.is_language else "classes"
            raise SettingsError(
                f"model.task={model.task}: does not go with {self.task_setting}, whose targets are"
                f" {targets} and which needs model.task={wanted}"
            )
        if not self.text_setting or model.tokenizer is None:
            return self
        if self.tokenizer is None:
            chosen = self.model_copy(update={"tokenizer": model.tokenizer})
            chosen._named_by = MODEL_SETTING
            return chosen
        _check_fit(self.tokenizer, model.tokenizer)
        return self

    @property
    def end_tokens(self) -> Sequence[int]:
        """Tokens that end a text, as the tokeniser and its chat template say."""
        return self.tokeniser.ends

    def as_text(self, tokens: Array) -> Sequence[str]:
        """Return rows of tokens [n, T] as texts, without the marks of a chat."""
        rows = [row[row != NO_TOKEN].tolist() for row in tokens]
        texts = self.tokeniser.loaded.batch_decode(rows, skip_special_tokens=True)
        return [str(text) for text in texts]

    @property
    def tokeniser(self) -> Tokeniser:
        """The tokeniser of texts, which is not loaded yet.

        Raises:
            SettingsError: none is named, or there is no such folder.
            DataError: its folder has none.
        """
        if self.tokenizer is None:
            raise SettingsError(
                f"{self.text_setting}: needs a tokeniser, that of a run's model (model.name="
                "huggingface model.path=FOLDER) or of dataset.tokenizer=FOLDER"
            )
        return Tokeniser.of(self.tokenizer, self._named_by)


@dataclass(frozen=True)
class Tokeniser:
    """Tokeniser of a pretrained network.

    Attributes:
        name: Its folder, as settings name it.
        digest: The sha256 of its files.
        setting: The setting that names it, for errors.
    """

    name: str
    digest: str
    setting: str

    @classmethod
    def of(cls, name: str, setting: str = SETTING) -> Self:
        """Return the tokeniser of a folder, or of another value of `model.path`.

        Args:
            name: The folder, as the setting has it.
            setting: The setting that names it, for errors.

        Raises:
            SettingsError: there is no such folder, or the libraries are not installed.
            DataError: it cannot be fetched.
        """
        check_extra(f"{setting}={name}")  # before a pack is fetched
        folder = folder_of(name, setting)
        digest = hashlib.sha256()
        for file in (folder / name for name in FILES):
            if file.is_file():
                digest.update(f"{file.name} {file.stat().st_size} ".encode())
                digest.update(file.read_bytes())
        return cls(name, digest.hexdigest(), setting)

    @cached_property
    def loaded(self) -> PreTrainedTokenizerFast:
        """The tokeniser, as the library has it.

        Raises:
            SettingsError: the library is not installed.
            DataError: the folder has no tokeniser.
        """
        return tokenizer_of(self.name, self.setting)

    @property
    def end(self) -> int | None:
        """The token that ends a text; None if there is none.

        Raises:
            SettingsError: the library is not installed.
            DataError: the folder has no tokeniser.
        """
        end: int | None = self.loaded.eos_token_id
        return end

    @property
    def ends(self) -> Sequence[int]:
        """Tokens that end a text or an answer.

        Raises:
            SettingsError: the library is not installed.
            DataError: the folder has no tokeniser.
        """
        own = [] if self.end is None else [self.end]
        return [*dict.fromkeys([*own, *self._marks])]

    @cached_property
    def _marks(self) -> Ids:
        """Special tokens that the chat template puts after an answer."""
        if self.loaded.chat_template is None:
            return []
        try:
            after = self._chat("prompt", "answer").rpartition("answer")[2]
        except DataError:  # which texts without prompts need not know
            return []
        special = {n for n, token in self.loaded.added_tokens_decoder.items() if token.special}
        ids = self.loaded(after, add_special_tokens=False)["input_ids"]
        return [number for number in ids if number in special]

    def numbers(
        self, texts: Sequence[str], most: int, *, special: bool = True
    ) -> tuple[list[Ids], list[bool]]:
        """Return the numbers of texts' tokens, and which texts are cut.

        Args:
            texts: The texts.
            most: Most tokens of a text.
            special: Whether the tokeniser puts its special tokens around a text.
        """
        ids: list[Ids] = []
        cut: list[bool] = []
        how = {"truncation": True, "max_length": most, "add_special_tokens": special}
        for start in range(0, len(texts), BATCH):
            part = texts[start : start + BATCH]
            encoded = self.loaded([text[: most * CHARACTERS] for text in part], **how).encodings
            ids += [text.ids for text in encoded]
            cut += [
                bool(tokens.overflowing) or len(text) > most * CHARACTERS
                for tokens, text in zip(encoded, part, strict=True)
            ]
        return ids, cut

    def ended(self, ids: Ids) -> Ids:
        """Return the tokens of a whole text with the one that ends it, if the tokeniser has one."""
        end = self.end
        return ids if end is None or (ids and ids[-1] == end) else [*ids, end]

    def asked(self, prompt: str) -> str:
        """Return the text of a prompt, up to where its answer begins.

        Raises:
            DataError: the chat template fails.
        """
        if self.loaded.chat_template is None:
            return f"{self.loaded.bos_token or ''}{prompt}\n"
        return self._chat(prompt, add_generation_prompt=True)

    def answered(self, asked: str, prompt: str, answer: str) -> str:
        """Return the text of an answer, as it follows that of its prompt, up to its end.

        It ends as the chat template says; without a special token there, as the tokeniser says.

        Args:
            asked: The text of the prompt, as `asked` returns it.
            prompt: The prompt.
            answer: The answer.

        Raises:
            DataError: the chat template fails, or gives a text that begins in another way.
        """
        end = "" if self._marks else self.loaded.eos_token or ""
        if self.loaded.chat_template is None:
            return f"{answer}{end}"
        whole = self._chat(prompt, answer).rstrip()
        if not whole.startswith(asked):
            raise DataError(
                f"{self.setting}={self.name}: its chat template does not put an answer after the"
                " text of its prompt"
            )
        return f"{whole.removeprefix(asked)}{end}"

    def _chat(self, prompt: str, answer: str | None = None, **how: bool) -> str:
        chat = [{"role": "user", "content": prompt}]
        if answer is not None:
            chat += [{"role": "assistant", "content": answer}]
        try:
            return str(self.loaded.apply_chat_template(chat, tokenize=False, **how))
        except Exception as error:  # a template is a program of its own
            raise DataError(
                f"{self.setting}={self.name}: its chat template fails: {cause(error)}"
            ) from error


@lru_cache
def _check_fit(tokenizer: str, model: str) -> None:
    """Check that a model embeds all tokens of a tokeniser.

    Args:
        tokenizer: The tokeniser's folder, as settings name it.
        model: The model's.

    Raises:
        SettingsError: there is no such folder, or the library is not installed.
        DataError: the tokeniser has more tokens, or cannot be read.
    """
    rows = configuration(folder_of(model), f"{MODEL_SETTING}={model}").get("vocab_size")
    tokens = len(tokenizer_of(tokenizer, SETTING)) if tokenizer != model else 0
    if isinstance(rows, int) and tokens > rows:
        raise DataError(
            f"{SETTING}={tokenizer}: has {tokens} tokens, but {MODEL_SETTING}={model} embeds"
            f" {rows}; leave it out, or take a tokeniser that fits"
        )


def padded(flat: Array, lengths: Array, width: int) -> Array:
    """Return the numbers of n texts, one after another, as an array [n, T] of int32.

    NO_TOKEN follows a text's last token.
    """
    array = np.full((len(lengths), width), NO_TOKEN, np.int32)
    array[np.arange(width) < lengths[:, None]] = flat
    return array
