"""Small tasks and settings for tests, and the processes that they start."""

from __future__ import annotations

from collections.abc import Callable
from contextlib import closing
from pathlib import Path
from typing import Any

import torch
from torch import nn

import raysim
from raysim.core.steps import Steps
from raysim.execution.base import advance
from raysim.execution.ray_runtime import OpenExecutor
from raysim.testing.tasks import SmallNet, samples

torch.set_num_threads(1)

EQUAL = (40,) * 6
UNEQUAL = (1, 3, 160, 17, 40, 80)


class RawUnits(nn.Flatten):
    """Scales inputs in units of 1e-7 by running moments: buffers of about 1e6 and 1e14."""

    def __init__(self, inputs: int = 12) -> None:
        super().__init__()
        self.register_buffer("mean", torch.zeros(inputs))
        self.register_buffer("square", torch.zeros(inputs))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        x = 1e7 * super().forward(x)
        if self.training:
            with torch.no_grad():
                self.mean.lerp_(x.mean(0), 0.1)
                self.square.lerp_(x.square().mean(0), 0.1)
        return (x - self.mean) / (self.square + 1).sqrt()


class RawNet(SmallNet):
    """Two linear layers below features in raw units."""

    def __init__(self, width: int = 16) -> None:
        super().__init__(width=width)
        self.features = RawUnits()


def make_task(sizes: tuple[int, ...], model: Callable[[], nn.Module] = SmallNet) -> raysim.Task:
    clients = [samples(size, key) for key, size in enumerate(sizes)]
    return raysim.Task(model=model, clients=clients, test=samples(300, 10_000))


def run_round(passes: raysim.Passes, run: Callable[[raysim.Pass], raysim.Reduced]) -> Any:
    """Run a round by a function that runs its passes; return what it returns."""
    try:
        work = next(passes)
        while True:
            work = passes.send(run(work))
    except StopIteration as end:
        return end.value


def ended(steps: Steps[Any]) -> Any:
    """Take the steps of a run to their end; return what they return."""
    try:
        while True:
            advance(steps)
    except StopIteration as end:
        return end.value


def steps_on(open_executor: Callable[[Any], Any], steps: Steps[Any]) -> Steps[Any]:
    """Take the steps of a run on another executor.

    Args:
        open_executor: Returns it, given what it is to work on.
        steps: The steps.
    """
    answer = None
    with closing(steps):
        try:
            while True:
                found = steps.send(answer)
                is_opening = isinstance(found, OpenExecutor)
                answer = open_executor(found.spec) if is_opening else (yield found)
        except StopIteration as end:
            return end.value


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

    @property
    def of_clients(self) -> list[str]:
        """Those about single clients."""
        return [note for note in self.notes if "client " in note]


def model_of(run: Path) -> bytes:
    """Return the bytes of a run's model."""
    return (run / "model.safetensors").read_bytes()
