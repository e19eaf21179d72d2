"""The page of symptoms quotes messages that raysim prints."""

from __future__ import annotations

import ast
import re
from collections.abc import Iterator

from tests.docs.blocks import ROOT, Block, blocks_of
from tests.docs.reader import Reader

QUOTED = [
    block
    for block in blocks_of(ROOT / "docs/faq.md")
    if block.language == "text" and block.mark != "printed"
]
SHORTEST = 6
"""Fewest characters of a part of a message to look for."""
FULL_GPU = """
import torch
from torch import nn

import raysim


class Net(nn.Linear):
    def forward(self, x):
        if self.training:
            raise torch.OutOfMemoryError("CUDA out of memory. Tried to allocate 2.00 GiB.")
        return super().forward(x.flatten(1))


class Large(raysim.Model):
    def build(self, shape, classes):
        return Net(784, classes)
"""


def texts() -> Iterator[str]:
    """Yield the texts in the sources, with ... for their values."""
    for folder in ("raysim", "workloads", "tuning", "cluster"):
        for path in (ROOT / folder).rglob("*.py"):
            for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
                if isinstance(node, ast.JoinedStr):
                    parts = [each for each in node.values if isinstance(each, ast.Constant)]
                    yield from (str(each.value) for each in parts)
                elif isinstance(node, ast.Constant) and isinstance(node.value, str):
                    yield node.value


def parts_of(block: Block) -> list[str]:
    """Return the parts of a message between its values, and between what it is put together of."""
    parts = (part.strip() for part in re.split(r"\.\.\.|: |; |, then ", block.text))
    return [part for part in parts if len(part) >= SHORTEST]


def test_messages_are_those_of_the_sources(reader: Reader):
    """That of a full GPU is printed by a model that raises torch's error."""
    path = reader.folder / "my_large.py"
    path.write_text(FULL_GPU)
    reader.follow(Block("", "", "raysim run mnist-fedavg model.name=my_large:Large", "exit", "2"))
    known = "\n".join([*texts(), reader.said])
    assert len(QUOTED) >= 5
    missing = [part for block in QUOTED for part in parts_of(block) if part not in known]
    assert missing == []
