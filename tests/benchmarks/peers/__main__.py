"""Runs one system: `python -m tests.benchmarks.peers SYSTEM CASE FOLDER [SETTINGS]`.

CASE is a case as JSON, FOLDER holds its data, SETTINGS are the system's own, as JSON.
"""

import json
import sys
from importlib import import_module
from pathlib import Path

import torch

from tests.benchmarks.peers.turns import Turns
from tests.benchmarks.peers.work import Case

MODULES = {"raysim": "ours", "bare": "bare", "flower": "flower", "pfl": "private"}

if __name__ == "__main__":
    name, case, folder, *settings = sys.argv[1:]
    turns = Turns()
    torch.set_num_threads(1)
    module = import_module(f"tests.benchmarks.peers.{MODULES[name]}")
    module.run(
        Case.from_json(case), Path(folder), turns, **json.loads(settings[0] if settings else "{}")
    )
