"""Fixtures that all tests share: small tasks, settings, and one Ray instance."""

from __future__ import annotations

import os
import signal
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import ray
import torch
from torch import nn

import raysim
from raysim.core.seeds import stream

torch.set_num_threads(1)
# Ray's workers have a niceness of 15 by default: beside another busy process they would starve.
os.environ.setdefault("RAY_worker_niceness", "0")

EQUAL = (40,) * 6
UNEQUAL = (1, 3, 600, 17, 80, 250)


class SmallNet(nn.Module):
    """A two-layer network with the three stages."""

    def __init__(self, inputs: int = 12, width: int = 16, classes: int = 3) -> None:
        super().__init__()
        self.features = nn.Flatten()
        self.hidden = nn.Sequential(nn.Linear(inputs, width), nn.ReLU())
        self.head = nn.Linear(width, classes)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.head(self.hidden(self.features(x)))


def samples(count: int, key: int, inputs: int = 12, classes: int = 3) -> tuple[Any, Any]:
    """Draw samples whose class is a linear function of the input: separable data."""
    generator = stream(0, "samples", key)
    x = generator.normal(size=(count, inputs)).astype(np.float32)
    teacher = stream(0, "teacher").normal(size=(inputs, classes))
    return x, (x @ teacher).argmax(1)


def make_task(sizes: tuple[int, ...], model: Callable[[], nn.Module] = SmallNet) -> raysim.Task:
    clients = [samples(size, key) for key, size in enumerate(sizes)]
    return raysim.Task(model=model, clients=clients, test=samples(300, 10_000))


def make_settings(out: Path, **overrides: Any) -> raysim.Settings:
    defaults = {
        "rounds": 5,
        "fraction": 0.7,
        "target_accuracy": None,
        "local.epochs": 2,
        "local.batch_size": 8,
        "engine.backend": "inline",
        "checkpoint_every": 1,
        "out": str(out),
    }
    return raysim.load_config("mnist-fedavg", defaults | overrides)


class Notes(raysim.Listener):
    """Keeps what a run tells a user."""

    def __init__(self) -> None:
        self.notes: list[str] = []

    def note(self, text: str) -> None:
        self.notes.append(text)


def model_of(run: Path) -> bytes:
    """Return the bytes of a run's model."""
    return (run / "model.safetensors").read_bytes()


def pytest_configure() -> None:
    """A shell's background jobs ignore Ctrl-C, and so would the processes that tests start."""
    signal.signal(signal.SIGINT, signal.default_int_handler)


@pytest.fixture(scope="session")
def shared_ray() -> Iterator[None]:
    """One Ray instance with two declared GPUs, for all tests that need one."""
    os.environ["RAY_ACCEL_ENV_VAR_OVERRIDE_ON_ZERO"] = "0"
    ray.init("local", num_cpus=2, num_gpus=2, include_dashboard=False, log_to_driver=False)
    yield
    ray.shutdown()
