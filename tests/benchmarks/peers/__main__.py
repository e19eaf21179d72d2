"""Runs one system: `python -m tests.benchmarks.peers SYSTEM CASE FOLDER [SETTINGS]`.

CASE is a case as JSON, FOLDER holds its data, SETTINGS are the system's own, as JSON.
"""

import json
import os
import sys
from importlib import import_module
from pathlib import Path

import torch

from tests.benchmarks.peers.turns import Turns
from tests.benchmarks.peers.work import Case

MODULES = {
    "raysim": "ours",
    "bare": "bare",
    "flower": "flower",
    "pfl": "private",
    "pfllib": "pfllib",
}


def share_gpu() -> None:
    """Have all processes of torchrun on a machine take its first GPU.

    pfl, when it is imported, gives each a GPU of its own and connects them by NCCL, which does not
    connect processes on the same one; gloo does.
    """
    from torch import distributed

    connect = distributed.init_process_group
    distributed.init_process_group = lambda backend: connect(backend="gloo")
    os.environ["LOCAL_RANK"] = "0"


if __name__ == "__main__":
    name, case, folder, *settings = sys.argv[1:]
    turns = Turns()
    torch.set_num_threads(1)
    if name == "pfl" and torch.cuda.is_available():
        share_gpu()
    module = import_module(f"tests.benchmarks.peers.{MODULES[name]}")
    module.run(
        Case.from_json(case), Path(folder), turns, **json.loads(settings[0] if settings else "{}")
    )
