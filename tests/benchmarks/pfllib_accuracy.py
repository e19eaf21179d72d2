"""Accuracy by round of PFLlib's own code on the clients of one of raysim's presets.

Usage: python -m tests.benchmarks.pfllib_accuracy CLONE PRESET -algo FedDBE -gr 10 [...]

CLONE is a clone of github.com/TsingZ0/PFLlib, which needs `pip install calmsize`; PRESET one of
`pfllib-fmnist-pathological` and `pfllib-fmnist-practical`. What follows goes to its `main.py`,
whose defaults are those of the preset: batches of 10, lr 0.005, 20 clients. It runs in a folder
whose files of clients hold the training and test samples that raysim gives them with seed 0. Prints
what it prints: "Averaged Test Accuracy" of round r is that after r rounds, before the next one.
"""

from __future__ import annotations

import runpy
import sys
import tempfile
from dataclasses import replace
from os import chdir
from pathlib import Path
from types import ModuleType
from typing import Any

import numpy as np
import torch

import raysim
from raysim.federation.federation import from_settings
from raysim.federation.opened import OpenedSamples
from raysim.workloads.datasets.fetch import data_root

UNUSED = ("cvxpy",)
"""What it imports at the start for a method that is not run here."""


def write_clients(preset: str, folder: Path) -> None:
    """Write the clients' samples of a preset as PFLlib's files."""
    settings = raysim.load_config(preset)
    federation = from_settings(settings, data_root, lambda *_: None).with_local_test(settings)
    own = federation.local_test
    assert own is not None
    parts = {"train": federation, "test": replace(federation, client_indices=own.indices)}
    for part, held in parts.items():
        opened = OpenedSamples(held, torch.device("cpu"))
        (folder / part).mkdir(parents=True)
        for client in range(len(held.client_indices.sizes)):
            samples = opened.client(client)
            data: Any = {"x": samples.x.numpy(), "y": samples.y.numpy()}
            np.savez(folder / part / f"{client}.npz", data=data)


def main() -> None:
    clone, preset, *arguments = sys.argv[1:]
    for name in UNUSED:
        sys.modules[name] = ModuleType(name)
    system = Path(clone).resolve() / "system"
    with tempfile.TemporaryDirectory() as work:
        write_clients(preset, Path(work) / "dataset" / "FashionMNIST")
        (Path(work) / "system").mkdir()
        chdir(Path(work) / "system")
        sys.path.insert(0, str(system))
        sys.argv = ["main.py", "-data", "FashionMNIST", "-dev", "cpu", "-nc", "20", *arguments]
        torch.set_num_threads(1)
        runpy.run_path(str(system / "main.py"), run_name="__main__")


if __name__ == "__main__":
    main()
