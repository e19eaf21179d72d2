"""Tiny federations: tasks with ordinary and odd networks, and datasets of settings."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from pathlib import Path
from random import Random
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn
from torch.nn import functional as F

import raysim
from raysim.numbers.seeds import stream
from raysim.samples.data import PARTITIONS
from raysim.testing.tasks import FAMILIES, SIZES, SmallNet, images, samples, words
from tests.combinations.drawing import Drawn, named

Draw = Callable[[int, int], tuple[Any, Any]]
TESTED = 60
"""Test samples of a task."""


class TwoInputs(nn.Module):
    """An embedding of words, and numbers beside it."""

    def __init__(self) -> None:
        super().__init__()
        self.embedding = nn.Embedding(7, 4)
        self.head = nn.Linear(9, 3)

    def forward(self, words: Tensor, numbers: Tensor) -> Tensor:
        logits: Tensor = self.head(torch.cat([self.embedding(words).mean(1), numbers], 1))
        return logits


def words_and_numbers(count: int, key: int) -> tuple[Any, Any]:
    x, y = words(count, key)
    return {"words": x, "numbers": samples(count, key, inputs=5)[0]}, y


class Regressor(SmallNet):
    """Two linear layers with one output."""

    def __init__(self) -> None:
        super().__init__(classes=1)

    def forward(self, x: Tensor) -> Tensor:
        return super().forward(x).squeeze(1)


def numbers(count: int, key: int) -> tuple[Any, Any]:
    """Draw samples with a number as their target."""
    x, _ = samples(count, key)
    return x, (2 * x[:, 0] + x[:, 1]).astype(np.float32)


class Double(SmallNet):
    """Two linear layers in float64."""

    def __init__(self) -> None:
        super().__init__()
        self.double()

    def forward(self, x: Tensor) -> Tensor:
        return super().forward(x.double())


class Dropped(SmallNet):
    """Two linear layers with dropout."""

    def __init__(self) -> None:
        super().__init__()
        self.hidden = nn.Sequential(nn.Linear(12, 16), nn.ReLU(), nn.Dropout(0.5))


class Normalised(SmallNet):
    """A convolution with GroupNorm, its weights stored channels last."""

    def __init__(self) -> None:
        super().__init__(width=8)
        convolution = nn.Conv2d(1, 4, 3, padding=1)
        self.features = nn.Sequential(convolution, nn.GroupNorm(2, 4), nn.ReLU(), nn.MaxPool2d(2))
        self.hidden = nn.Sequential(nn.Flatten(), nn.Linear(36, 8), nn.ReLU())
        self.to(memory_format=torch.channels_last)


class OddTensors(SmallNet):
    """Parameters and buffers of unusual shapes, types and names."""

    def __init__(self) -> None:
        super().__init__()
        self.scale = nn.Parameter(torch.tensor(1.0))
        self.none = nn.Parameter(torch.zeros(0, 4))
        self.register_parameter("a/ü x", nn.Parameter(torch.zeros(3)))
        self.register_buffer("flags", torch.tensor([True, False]))
        self.register_buffer("count", torch.tensor(3))
        self.register_buffer("scratch", torch.zeros(2), persistent=False)
        self.hidden[0].bias.requires_grad_(False)  # type: ignore[index, union-attr]

    def forward(self, x: Tensor) -> Tensor:
        return super().forward(x) * self.scale + self.none.sum() + self._parameters["a/ü x"]


class Tied(SmallNet):
    """Two layers that share their weight."""

    def __init__(self) -> None:
        super().__init__(width=12)
        self.second = nn.Linear(12, 12)
        self.second.weight = self.hidden[0].weight  # type: ignore[index, union-attr]

    def forward(self, x: Tensor) -> Tensor:
        logits: Tensor = self.head(torch.relu(self.second(self.hidden(self.features(x)))))
        return logits


class Complex(SmallNet):
    """A layer of complex weights."""

    def __init__(self) -> None:
        super().__init__(width=8)
        self.hidden = nn.Identity()
        self.weight = nn.Parameter(0.2 * torch.randn(8, 12, dtype=torch.complex64))

    def forward(self, x: Tensor) -> Tensor:
        logits: Tensor = self.head((self.features(x).to(torch.complex64) @ self.weight.t()).abs())
        return logits


class Attention(nn.Module):
    """A layer of a transformer's encoder."""

    def __init__(self) -> None:
        super().__init__()
        self.features = nn.Embedding(7, 8)
        self.hidden = nn.TransformerEncoderLayer(8, 2, 16, batch_first=True, dropout=0.1)
        self.head = nn.Linear(8, 3)

    def forward(self, x: Tensor) -> Tensor:
        logits: Tensor = self.head(self.hidden(self.features(x)).mean(1))
        return logits


class Centred(SmallNet):
    """Looks at its batch: inputs less their mean."""

    def forward(self, x: Tensor) -> Tensor:
        return super().forward(x - x.mean(0))


NETWORKS: Mapping[str, tuple[Callable[[], nn.Module], Draw]] = {
    **FAMILIES,
    "attention": (Attention, words),
    "centred": (Centred, samples),
    "complex": (Complex, samples),
    "double": (Double, samples),
    "dropout": (Dropped, samples),
    "normalised": (Normalised, images),
    "odd tensors": (OddTensors, samples),
    "regression": (Regressor, numbers),
    "tied": (Tied, samples),
    "two inputs": (TwoInputs, words_and_numbers),
}
"""Per family, its network and samples; the plain ones are drawn more often."""
PLAIN = ("mlp", "cnn", "residual", "lstm")


class Federation:
    """A tiny task, or settings of a dataset with its partition and model."""

    def __init__(self, draws: Random, folder: Path) -> None:
        """Draw a federation; its files are written into a folder."""
        self.settings: Drawn = {}
        self.sizes: tuple[int, ...] = ()
        self.family, self._own_tests = "files", draws.random() < 0.15
        if draws.random() < 0.2:
            self.settings = _by_settings(draws, folder)
            return
        self.family = draws.choice(PLAIN if draws.random() < 0.5 else list(NETWORKS))
        unequal = tuple(draws.randrange(1, 25) for _ in range(draws.randrange(4, 12)))
        self.sizes = draws.choice([SIZES, (10,) * 8, unequal, unequal])
        self.settings = {"clients": len(self.sizes)}

    def task(self) -> raysim.Task | None:
        """Make the task anew, as another process would."""
        if not self.sizes:
            return None
        model, draw = NETWORKS[self.family]
        return raysim.Task(
            model=model,
            clients=[draw(size, key) for key, size in enumerate(self.sizes)],
            test=draw(TESTED, 10_000),
            client_tests=[draw(5, 100 + k) if k % 3 else None for k in range(len(self.sizes))]
            if self._own_tests
            else None,
            scoring=raysim.REGRESSION if self.family == "regression" else raysim.CLASSIFICATION,
        )

    def test_loss(self, network: nn.Module) -> float | None:
        """Return a network's mean cross-entropy on the test set, by plain torch, if it has one."""
        if not self.sizes or self.family == "regression":
            return None
        x, y = NETWORKS[self.family][1](TESTED, 10_000)
        inputs = {k: torch.as_tensor(v) for k, v in x.items()} if isinstance(x, dict) else {}
        network.eval()
        with torch.no_grad():
            logits = network(**inputs) if inputs else network(torch.as_tensor(x))
        if logits.shape[-1] != 3:  # for example an autoencoder's, or a method's own network
            return None
        return F.cross_entropy(logits.double(), torch.as_tensor(y)).item()


def _by_settings(draws: Random, folder: Path) -> Drawn:
    """Return settings of a table in a file, a partition and a model."""
    path = folder / "samples.csv"
    generator = stream(0, "rows")
    x = generator.normal(size=(160, 4)).round(4)
    keys, noted = generator.integers(0, 6, 160), (x[:, 0] + x[:, 1] > 0).astype(int)
    rows = (f"{k},{','.join(map(str, row))},{y}" for k, row, y in zip(keys, x, noted, strict=True))
    path.write_text("\n".join(["place,a,b,c,d,y", *rows]))
    drawn = named(PARTITIONS, 1, draws)
    drawn |= {"dataset.name": "files", "dataset.path": str(path), "dataset.target": "y"}
    drawn |= {"dataset.client": "place", "dataset.standardise": draws.random() < 0.5}
    return drawn | {"model.name": draws.choice(["linear", "2nn"]), "clients": 5}
