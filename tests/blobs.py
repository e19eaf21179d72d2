"""A small registered-style dataset and model, for settings that name their parts."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any, ClassVar

import torch
from torch import nn

import raysim
from raysim.samples.arrow import write_split
from raysim.testing.tasks import SmallNet, samples
from tests.tasks import RawNet


class Blobs(raysim.Dataset):
    """4000 training and 2500 test samples of a linear teacher."""

    shape: ClassVar = (12,)
    classes: ClassVar = 3

    def prepare(self, root: Path, progress: Any) -> Mapping[str, Path]:
        paths = {name: root / f"blobs-{name}.arrow" for name in ("train", "test")}
        root.mkdir(parents=True, exist_ok=True)
        for path, data in zip(paths.values(), (samples(4000, 1), samples(2500, 2)), strict=True):
            if not path.exists():
                write_split(path, raysim.Split(*data))
        return paths

    def decode(self, x: torch.Tensor) -> torch.Tensor:
        return x / 2


class Pooled(Blobs):
    """All samples are for training."""

    has_test: ClassVar = False


class Raw(raysim.Model):
    def build(self, shape: tuple[int, ...], classes: int) -> nn.Module:
        return RawNet()


class Linear(raysim.Model):
    def build(self, shape: tuple[int, ...], classes: int) -> nn.Module:
        return SmallNet()


class FrozenHidden(Linear):
    """The same with its first layer frozen."""

    def build(self, shape: tuple[int, ...], classes: int) -> nn.Module:
        network = super().build(shape, classes)
        network.hidden.requires_grad_(False)
        return network
