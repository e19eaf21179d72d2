"""Small federations of five model families, which train in milliseconds."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn

import raysim
from raysim.numbers.seeds import stream

Samples = tuple[Any, Any]

SIZES = (1, 9, 30, 17, 24, 12)
"""Samples of each client; in batches of 8, the last batch of 1 and of 9 holds a single sample."""


class SmallNet(nn.Module):
    """Two linear layers, in the three stages."""

    def __init__(self, inputs: int = 12, width: int = 16, classes: int = 3) -> None:
        super().__init__()
        self.features: nn.Module = nn.Flatten()
        self.hidden: nn.Module = nn.Sequential(nn.Linear(inputs, width), nn.ReLU())
        self.head = nn.Linear(width, classes)

    def forward(self, x: Tensor) -> Tensor:
        """Return the logits [B, C]."""
        logits: Tensor = self.head(self.hidden(self.features(x)))
        return logits


class SmallCnn(SmallNet):
    """Two convolutions and two linear layers, on images of 6x6."""

    def __init__(self) -> None:
        super().__init__(width=8)
        self.features = nn.Sequential(
            *(nn.Conv2d(1, 4, 3, padding=1), nn.ReLU(), nn.MaxPool2d(2)),
            *(nn.Conv2d(4, 6, 3, padding=1), nn.ReLU()),
        )
        self.hidden = nn.Sequential(nn.Flatten(), nn.Linear(6 * 9, 8), nn.ReLU())


class Residual(nn.Module):
    """A convolution with BatchNorm and a shortcut around it."""

    def __init__(self) -> None:
        super().__init__()
        self.before = nn.Conv2d(1, 4, 3, padding=1, bias=False)
        self.inner = nn.Sequential(nn.Conv2d(4, 4, 3, padding=1, bias=False), nn.BatchNorm2d(4))

    def forward(self, x: Tensor) -> Tensor:
        """Return the activations [B, 4, H, W]."""
        x = self.before(x)
        return torch.relu(x + self.inner(x))


class SmallResidual(SmallNet):
    """A residual block with BatchNorm before the linear layers, on images of 6x6."""

    def __init__(self) -> None:
        super().__init__(width=8)
        self.features = nn.Sequential(Residual(), nn.MaxPool2d(2))
        self.hidden = nn.Sequential(nn.Flatten(), nn.Linear(4 * 9, 8), nn.ReLU())


class LastState(nn.Module):
    """An LSTM's last state."""

    def __init__(self) -> None:
        super().__init__()
        self.lstm = nn.LSTM(4, 6, batch_first=True)

    def forward(self, x: Tensor) -> Tensor:
        """Return the activations [B, 6]."""
        states: Tensor = self.lstm(x)[0]
        return states[:, -1]


class SmallLstm(SmallNet):
    """An embedding, an LSTM and a linear layer, on words of 5 symbols."""

    def __init__(self) -> None:
        super().__init__(width=6)
        self.features = nn.Embedding(7, 4)
        self.hidden = LastState()


class OddLayers(nn.Module):
    """Layers with a scalar and an empty parameter, a boolean buffer and a weight in two places."""

    flag: Tensor

    def __init__(self) -> None:
        super().__init__()
        self.first, self.inner, self.twin = nn.Linear(12, 8), nn.Linear(8, 8), nn.Linear(8, 8)
        self.twin.weight = self.inner.weight
        self.scale = nn.Parameter(torch.tensor(1.5))
        self.empty = nn.Parameter(torch.zeros(0, 4))
        self.register_buffer("flag", torch.tensor([True, False] * 4))

    def forward(self, x: Tensor) -> Tensor:
        """Return the activations [B, 8]."""
        x = torch.relu(self.inner(torch.relu(self.first(x))))
        return torch.where(self.flag, self.twin(x), x) * self.scale


class SmallOdd(SmallNet):
    """Linear layers with tensors that are shared, or are no matrices of floats."""

    def __init__(self) -> None:
        super().__init__(width=8)
        self.hidden = OddLayers()


def samples(count: int, key: int, inputs: int = 12, classes: int = 3) -> Samples:
    """Draw samples with classes that are a linear function of the input: separable data."""
    generator = stream(0, "samples", key)
    x = generator.normal(size=(count, inputs)).astype(np.float32)
    teacher = stream(0, "teacher").normal(size=(inputs, classes))
    return x, (x @ teacher).argmax(1)


def images(count: int, key: int) -> Samples:
    """Draw images of 6x6 with classes that are a linear function of the pixels."""
    x, y = samples(count, key, inputs=36)
    return x.reshape(-1, 1, 6, 6), y


def words(count: int, key: int) -> Samples:
    """Draw words of 5 symbols; the class is the last symbol's."""
    x = stream(0, "words", key).integers(0, 7, (count, 5))
    return x, x[:, -1] % 3


FAMILIES: Mapping[str, tuple[Callable[[], nn.Module], Callable[[int, int], Samples]]] = {
    "mlp": (SmallNet, samples),
    "cnn": (SmallCnn, images),
    "residual": (SmallResidual, images),
    "lstm": (SmallLstm, words),
    "odd": (SmallOdd, samples),
}
"""For each model family, its network and samples."""


def small_task(family: str, sizes: tuple[int, ...] = SIZES) -> raysim.Task:
    """Return a task of a model family with clients of these sizes."""
    model, draw = FAMILIES[family]
    clients = [draw(size, key) for key, size in enumerate(sizes)]
    return raysim.Task(model=model, clients=clients, test=draw(200, 10_000))
