"""Small tasks and settings for tests, and the processes that they start."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from pathlib import Path
from typing import Any

import torch
from torch import nn

import raysim
from raysim.driver.listeners.listener import Forwarding
from raysim.testing.tasks import SmallNet, samples

torch.set_num_threads(1)

EQUAL = (40,) * 6
UNEQUAL = (1, 3, 96, 17, 24, 48)


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


def make_settings(out: Path, **overrides: Any) -> raysim.Settings:
    defaults = {
        "rounds": 3,
        "fraction": 0.7,
        "target_accuracy": None,
        "local.epochs": 1,
        "local.batch_size": 8,
        "engine.backend": "inline",
        "out": str(out),
    }
    return raysim.load_config("mnist-fedavg", defaults | overrides)


LONG = {"rounds": 5, "local.epochs": 2, "checkpoint_every": 1}


def long_settings(out: Path, **overrides: Any) -> raysim.Settings:
    """Return the settings of a run that is killed, or of which every round is kept."""
    return make_settings(out, **LONG | overrides)


def in_turn(cases: Iterable[Any], ways: Iterable[Any], shift: int = 0) -> list[tuple[Any, Any]]:
    """Return each case with one of the ways, which take turns; cases are at least as many."""
    turns = [*ways]
    return [(case, turns[(n + shift) % len(turns)]) for n, case in enumerate(cases)]


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


class StopAfter(raysim.Listener):
    """Interrupts the run after a round."""

    def __init__(self, number: int) -> None:
        self._number = number

    def round_done(self, row: Mapping[str, Any]) -> None:
        if row["round"] == self._number:
            raise KeyboardInterrupt


class Fresh(Forwarding):
    """Clears lists when a run starts, of what its checks and its rehearsal have left in them."""

    def __init__(self, *lists: list[Any], to: raysim.Listener | None = None) -> None:
        super().__init__(to or raysim.Listener())
        self._lists = lists

    def started(self, run: raysim.Started) -> None:
        for each in self._lists:
            each.clear()
        super().started(run)


def model_of(run: Path) -> bytes:
    """Return the bytes of a run's model."""
    return (run / "model.safetensors").read_bytes()
