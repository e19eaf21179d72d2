from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.cli.test_app import raysim_command
from tests.cluster.head import Head, started

__all__ = ["raysim_command"]

SETTINGS = """
rounds = 3
clients = 4
fraction = 0.5
checkpoint_every = 1

[dataset]
name = "synthetic"
users = 4
samples = 20
test_samples = 5

[partition]
name = "by_key"
key = "user"

[model]
name = "synthetic-mlp"

[method]
name = "my_method:Patient"

[engine]
actors = 1
"""

METHOD = '''
"""FedAvg that takes its time."""

import os
import time

from raysim.methods.fedavg import FedAvg


class Patient(FedAvg):
    """FedAvg that waits for PAUSE seconds before every round."""

    def round(self, now, state):
        time.sleep(float(os.environ.get("PAUSE", "0")))
        return super().round(now, state)
'''


@pytest.fixture(scope="session")
def head(tmp_path_factory) -> Iterator[Head]:
    with started(tmp_path_factory.mktemp("head")) as running:
        yield running


@pytest.fixture
def working_directory(tmp_path: Path) -> Path:
    """A user's folder: settings, a method, names of packages, much that belongs on no cluster."""
    folder = tmp_path / "work"
    for path, text in {
        "my.toml": SETTINGS,
        "my_method.py": METHOD,
        "notes/read.me": "mine",
        "cluster/__init__.py": "raise RuntimeError('cluster/ hides a package')",
        "safetensors.py": "raise RuntimeError('safetensors.py hides a package')",
        ".env": "PASSWORD=1",
        ".git/config": "",
        "runs/first/model.safetensors": "large",
        "data/images.bin": "large",
        "environment/pyvenv.cfg": "",
        "large.npy": "large",
        ".gitignore": "*.npy",
    }.items():
        (folder / path).parent.mkdir(parents=True, exist_ok=True)
        (folder / path).write_text(text)
    return folder
