"""The networks of the comparison, built with torch alone, and samples of their shapes.

They are raysim's models of the same names, module by module (a test compares them), as the peers'
environments lack raysim; every system trains what is built here. `pfl-cifar-cnn` is the CNN of
pfl-research's CIFAR-10 benchmark: two 3x3 convolutions of 32 and 64 channels without padding, one
pooling, 128 units, dropout 0.25 and 0.5.

Legend: B batch, n samples.
"""

from __future__ import annotations

import os
from collections import OrderedDict
from collections.abc import Callable
from dataclasses import dataclass
from itertools import pairwise
from typing import Any

import numpy as np
import numpy.typing as npt
from torch import Tensor, nn

FOLDER = "PRETRAINED_FOLDER"
"""Variable of the environment with the folder of a pretrained network."""
Samples = tuple[npt.NDArray[Any], npt.NDArray[np.int64]]


def staged(features: list[nn.Module], hidden: list[nn.Module], head: nn.Module) -> nn.Module:
    """Return the three stages that raysim's models have, one after another."""
    stages = {"features": features, "hidden": hidden, "head": [head]}
    return nn.Sequential(OrderedDict((name, nn.Sequential(*part)) for name, part in stages.items()))


def perceptron() -> nn.Module:
    return staged(
        [nn.Flatten(), nn.Linear(784, 200), nn.ReLU()],
        [nn.Linear(200, 200), nn.ReLU()],
        nn.Linear(200, 10),
    )


def mnist_cnn() -> nn.Module:
    return staged(
        [
            *(nn.Conv2d(1, 32, 5, padding=2), nn.MaxPool2d(2), nn.ReLU()),
            *(nn.Conv2d(32, 64, 5, padding=2), nn.MaxPool2d(2), nn.ReLU()),
        ],
        [nn.Flatten(), nn.Linear(64 * 7 * 7, 128), nn.ReLU()],
        nn.Linear(128, 10),
    )


def flexchill_cnn() -> nn.Module:
    return staged(
        [
            *(nn.Conv2d(3, 10, 5), nn.MaxPool2d(2), nn.ReLU()),
            *(nn.Conv2d(10, 20, 5), nn.MaxPool2d(2), nn.ReLU()),
        ],
        [nn.Flatten(), nn.Linear(20 * 5 * 5, 256), nn.ReLU()],
        nn.Linear(256, 10),
    )


def cifar_cnn() -> nn.Module:
    features: list[nn.Module] = []
    channels = [3, 32, 64, 64, 64, 64]
    for number, (inputs, outputs) in enumerate(pairwise(channels)):
        features.append(nn.Conv2d(inputs, outputs, 3, padding=1, bias=False))
        features += [nn.MaxPool2d(2)] if number % 2 == 0 else []
        features.append(nn.ReLU())
    hidden = [nn.Flatten(), nn.Linear(64 * 4 * 4, 512), nn.ReLU()]
    return staged(features, hidden, nn.Linear(512, 10))


def pfl_cnn() -> nn.Module:
    return staged(
        [
            *(nn.Conv2d(3, 32, 3), nn.ReLU(), nn.Conv2d(32, 64, 3), nn.ReLU()),
            *(nn.MaxPool2d(2), nn.Dropout(0.25)),
        ],
        [nn.Flatten(), nn.Linear(64 * 14 * 14, 128), nn.ReLU(), nn.Dropout(0.5)],
        nn.Linear(128, 10),
    )


def resnet18() -> nn.Module:
    import torchvision

    network = torchvision.models.resnet18(weights=None, num_classes=10)
    for module in network.modules():
        if isinstance(module, nn.ReLU):
            module.inplace = False
    parts = OrderedDict(network.named_children())
    head, pooling = parts.pop("fc"), parts.pop("avgpool")
    return nn.Sequential(
        OrderedDict(
            features=nn.Sequential(parts),
            hidden=nn.Sequential(pooling, nn.Flatten()),
            head=nn.Sequential(head),
        )
    )


class LastState(nn.Module):
    def forward(self, given: tuple[Tensor, tuple[Tensor, Tensor]]) -> Tensor:
        return given[1][0][-1]


def char_lstm() -> nn.Module:
    lstm = nn.LSTM(8, 256, batch_first=True)
    return staged([nn.Embedding(80, 8)], [lstm, LastState()], nn.Linear(256, 80))


@dataclass(frozen=True)
class Network:
    """A network: what builds it, the shape of one input, and its classes or symbols."""

    build: Callable[[], nn.Module]
    shape: tuple[int, ...]
    classes: int = 10

    def samples(self, n: int, generator: np.random.Generator) -> Samples:
        """Draw inputs [n, ...] and labels [n]: images in [0, 1), windows of symbols."""
        if len(self.shape) == 1:
            x: npt.NDArray[Any] = generator.integers(0, self.classes, (n, *self.shape))
        else:
            x = generator.random((n, *self.shape), dtype=np.float32)
        return x, generator.integers(0, self.classes, n)


NETWORKS = {
    "2nn": Network(perceptron, (1, 28, 28)),
    "mnist-cnn-128": Network(mnist_cnn, (1, 28, 28)),
    "flexchill-cnn": Network(flexchill_cnn, (3, 32, 32)),
    "cifar-cnn-5": Network(cifar_cnn, (3, 32, 32)),
    "resnet18": Network(resnet18, (3, 32, 32)),
    "char-lstm": Network(char_lstm, (80,), classes=80),
    "pfl-cifar-cnn": Network(pfl_cnn, (3, 32, 32)),
}


class LastLogits(nn.Module):
    """Logits of the token after windows of tokens, by a language model with adapters."""

    def __init__(self) -> None:
        from peft import LoraConfig, get_peft_model
        from transformers import AutoModelForCausalLM

        super().__init__()
        base = AutoModelForCausalLM.from_pretrained(os.environ[FOLDER], local_files_only=True)
        lora = LoraConfig(r=8, lora_alpha=8, target_modules=["q_proj", "v_proj"])
        self.network = get_peft_model(base, lora)

    def forward(self, x: Tensor) -> Tensor:
        logits: Tensor = self.network(input_ids=x, use_cache=False, logits_to_keep=1).logits
        return logits[:, -1]


PRETRAINED = {"smollm2-lora": Network(LastLogits, (64,), classes=49152)}
"""Networks that need transformers and peft, and the files of a folder."""


def convolves(module: nn.Module) -> bool:
    return any(isinstance(each, nn.Conv2d) for each in module.modules())


def plain_cnn(module: nn.Module) -> bool:
    """Say whether a network has convolutions and no BatchNorm: channels-last suits it on a CPU."""
    return convolves(module) and not any(isinstance(m, nn.BatchNorm2d) for m in module.modules())
