"""The page of symptoms quotes messages that raysim prints."""

from __future__ import annotations

import ast
import errno
import os
import re
from collections.abc import Callable, Iterator, Mapping
from itertools import chain
from pathlib import Path

import pytest

from tests.docs.blocks import ROOT, Block, blocks_of, pattern
from tests.docs.reader import Reader

pytestmark = pytest.mark.ci

QUOTED = [
    block
    for block in blocks_of(ROOT / "docs/faq.md")
    if block.language == "text" and block.mark != "printed"
]
FULL_GPU = """
import torch
from torch import nn

import raysim


class Net(nn.Linear):
    def forward(self, x):
        if self.training and len(x) > 8:  # more than in the rehearsal, which takes no GPU
            raise torch.OutOfMemoryError("CUDA out of memory. Tried to allocate 2.00 GiB.")
        return super().forward(x.flatten(1))


class Large(raysim.Model):
    def build(self, shape, classes):
        return Net(784, classes)
"""


def train_on_a_full_gpu(reader: Reader, monkeypatch: pytest.MonkeyPatch) -> None:
    (reader.folder / "my_large.py").write_text(FULL_GPU)
    reader.follow(Block("", "", "raysim run mnist-fedavg model.name=my_large:Large", "exit", "2"))


def train_on_a_full_disk(reader: Reader, monkeypatch: pytest.MonkeyPatch) -> None:
    """One that is full when the first checkpoint is written."""

    def full(file: int) -> None:
        if "checkpoints" in Path(f"/proc/self/fd/{file}").readlink().parts:
            raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

    monkeypatch.setattr(os, "fsync", full)
    reader.follow(Block("", "", "raysim run mnist-fedavg out=full", "exit", "75"))


PRINTED: Mapping[str, Callable[[Reader, pytest.MonkeyPatch], None]] = {
    "CUDA out of memory": train_on_a_full_gpu,
    "cannot be written": train_on_a_full_disk,
}
"""What has raysim print a message that it puts together, by words of it."""


def test_every_message_is_looked_at():
    assert len(QUOTED) >= len(PRINTED) + 2
    assert [sum(words in block.text for block in QUOTED) for words in PRINTED] == [1] * len(PRINTED)


@pytest.mark.parametrize("words", PRINTED)
def test_a_message_is_printed(words: str, reader: Reader, monkeypatch: pytest.MonkeyPatch):
    PRINTED[words](reader, monkeypatch)
    (block,) = [block for block in QUOTED if words in block.text]
    assert re.search(pattern(block.text.strip()), reader.said), reader.said


def texts(source: str) -> Iterator[str]:
    """Yield the strings of a source, with ... for their values, without its docstrings."""
    nodes = [*ast.walk(ast.parse(source))]
    docstrings = {node.value for node in nodes if isinstance(node, ast.Expr)}
    for node in nodes:
        if isinstance(node, ast.JoinedStr):
            parts = [
                part.value if isinstance(part, ast.Constant) else "..." for part in node.values
            ]
            yield "".join(map(str, parts))
        elif isinstance(node, ast.Constant) and node not in docstrings:
            yield str(node.value)


def test_other_messages_are_each_one_string_of_the_sources():
    folders = [ROOT / folder for folder in ("raysim", "workloads", "tuning", "cluster")]
    paths = chain.from_iterable(folder.rglob("*.py") for folder in folders)
    known = {text for path in paths for text in texts(path.read_text(encoding="utf-8"))}
    others = [block for block in QUOTED if not any(words in block.text for words in PRINTED)]
    unknown = [block.place for block in others if block.text.strip() not in known]
    assert unknown == []
