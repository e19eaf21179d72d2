"""Runs of raysim from their beginning to their end: seconds of their rounds, and their models."""

from __future__ import annotations

import hashlib
import tempfile
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from time import perf_counter
from typing import Any

import torch

import raysim
from raysim.driver.listeners.listener import Started
from tests.benchmarks.gpu.work import LR, System, device_of_benchmark
from tests.benchmarks.peers.work import Case

WARM_UP = 2
"""First rounds that do not count, if there are more: data is read, steps are recorded."""


class Timed(raysim.Listener):
    """Notes when rounds end."""

    def __init__(self, after_first: Callable[[], None] | None = None) -> None:
        self.at, self.notes = list[float](), list[str]()
        self._after_first = after_first

    def started(self, run: Started) -> None:
        self.at.append(perf_counter())

    def round_done(self, row: Mapping[str, Any]) -> None:
        self.at.append(perf_counter())
        if self._after_first and len(self.at) == 2:
            self._after_first()

    def note(self, text: str) -> None:
        self.notes.append(text)


@dataclass(frozen=True)
class Ran:
    """A run that has ended.

    Attributes:
        seconds: Of each round that counts.
        notes: Lines for the user.
        params: The model.
    """

    seconds: list[float]
    notes: list[str]
    params: Mapping[str, torch.Tensor]

    @property
    def digest(self) -> str:
        """Return a text that is another one for other bits of the model."""
        found = hashlib.sha256()
        for name, tensor in sorted(self.params.items()):
            found.update(name.encode() + tensor.contiguous().numpy().tobytes())
        return found.hexdigest()

    def distance(self, other: Ran) -> float:
        """Return the norm of the difference of two models, over the other one's norm."""
        pairs = [(self.params[n].double(), p.double()) for n, p in other.params.items()]
        apart = sum(float((mine - its).square().sum()) for mine, its in pairs)
        return float((apart / sum(float(its.square().sum()) for _, its in pairs)) ** 0.5)


def run(
    system: System,
    case: Case,
    rounds: int,
    *,
    listener: Timed | None = None,
    device: bool | None = None,
    **own: Any,
) -> Ran:
    """Run raysim.

    Args:
        system: The system.
        case: Its work.
        rounds: Rounds of the run.
        listener: Told of its rounds.
        device: Whether it runs on the GPU; None where there is one.
        own: Further settings, with "__" for a dot in their names.
    """
    if device is None:
        device = device_of_benchmark().type == "cuda"
    settings = system.overrides(case, device=device) | {"rounds": rounds}
    settings |= {name.replace("__", "."): value for name, value in own.items()}
    timed = listener or Timed()
    with tempfile.TemporaryDirectory() as out:
        out_run = str(Path(out) / "run")
        config = raysim.load_config("mnist-fedavg", {**settings, "out": out_run})
        params = raysim.run(config, listener=timed).params
    seconds = [end - begun for begun, end in zip(timed.at, timed.at[1:], strict=False)]
    return Ran(seconds[WARM_UP:] or seconds, timed.notes, params)


def work(network: str, clients: int, samples: int) -> Case:
    """Return rounds of so many clients, all of them, on batches of 10."""
    return Case(network, clients, samples, clients, lr=LR)
