"""A model whose worker holds still in the middle of a client, or fails from then on, on orders.

Orders are files of a folder; the worker that trains the marked client takes one by renaming it to
`held.PID` or `broken.PID`. A held worker goes on when its file is gone.
"""

from __future__ import annotations

import os
from contextlib import suppress
from functools import partial
from pathlib import Path
from time import monotonic, sleep

import torch
from torch import nn

import raysim
from raysim.testing.tasks import SmallNet
from tests.tasks import RawUnits, make_task

MARKED, MARK = 2, 7.0
"""The client at which orders are taken, and its first input."""
HELD_SECONDS = 240.0
"""Longest time to hold still."""
SCRATCH_BYTES = 2**27
"""Memory that a worker takes for a moment when it goes on."""
BROKEN = "CUDA error: an illegal memory access was encountered"
"""Error of every call of a process whose device is broken."""


class Orders(nn.Flatten):
    """Takes the orders of a folder at the marked client's samples."""

    def __init__(self, folder: Path) -> None:
        super().__init__()
        self.folder = folder

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        if bool((x[:, 0] == MARK).any()):  # and it is not recorded, as it branches on values
            self._take("broken")
            if held := self._take("held"):
                end = monotonic() + HELD_SECONDS
                while held.exists() and monotonic() < end:
                    sleep(0.02)
                bytearray(SCRATCH_BYTES)  # where memory is limited meanwhile, it is felt
        if (self.folder / f"broken.{os.getpid()}").exists():
            raise RuntimeError(BROKEN)
        return super().forward(x)

    def _take(self, order: str) -> Path | None:
        taken = self.folder / f"{order}.{os.getpid()}"
        with suppress(FileNotFoundError):
            (self.folder / order).rename(taken)
            return taken
        return None


class HeldNet(SmallNet):
    """Two linear layers below orders and features in raw units."""

    def __init__(self, folder: Path, width: int = 16) -> None:
        super().__init__(width=width)
        self.features = nn.Sequential(Orders(folder), RawUnits())


def held_task(sizes: tuple[int, ...], folder: Path, width: int = 16) -> raysim.Task:
    """Return a task with a marked client, whose workers take the orders of a folder."""
    task = make_task(sizes, partial(HeldNet, folder, width))
    task.clients[MARKED][0][:, 0] = MARK
    return task
