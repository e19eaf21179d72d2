"""PFLlib (github.com/TsingZ0/PFLlib): its own servers and clients, from a clone of its repository.

Its modules are imported as its `system/main.py` does, from `system`, and read the clients' samples
from files of its format. It trains clients one after another in one process. Evaluation is as
seldom as its settings allow: before the first round alone.
"""

from __future__ import annotations

import os
import sys
from argparse import Namespace
from importlib import import_module
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import nn

from tests.benchmarks.peers.turns import EndedError, Turns
from tests.benchmarks.peers.work import MU, ROUNDS, Case, open_data

SERVERS = {"fedavg": "FedAvg", "ditto": "Ditto", "fedrep": "FedRep"}
"""Its classes, in modules `flcore.servers.server...`."""
OFF = (
    *("few_shot", "time_select", "auto_break", "dlg_eval", "client_drop_rate", "train_slow_rate"),
    *("send_slow_rate", "num_new_clients", "fine_tuning_epoch_new", "random_join_ratio"),
    "learning_rate_decay",
)
"""Its settings that are switched off, as by default."""


def write_data(case: Case, folder: Path) -> Path:
    """Write the clients' samples as PFLlib's files, half of a batch as tests; return `system`."""
    x, y = (tensor.numpy() for tensor in open_data(folder))
    own = folder / f"pfllib-{os.getpid()}"
    for part, rows in (("train", slice(None)), ("test", slice(case.batch // 2))):
        files = own / "dataset" / "case" / part
        files.mkdir(parents=True, exist_ok=True)
        for client in range(case.clients):
            held: Any = {"x": x[client][rows], "y": y[client][rows]}
            np.savez_compressed(files / f"{client}.npz", data=held)
    system = own / "system"
    system.mkdir()
    return system


def arguments_of(case: Case, model: nn.Module) -> Namespace:
    """Return the arguments of its `main.py` for a case."""
    return Namespace(
        **dict.fromkeys(OFF, False),
        model=model,
        algorithm=SERVERS[case.method],
        dataset="case",
        device="cpu",
        num_classes=10,
        global_rounds=ROUNDS,
        local_epochs=case.epochs,
        plocal_epochs=case.epochs,
        batch_size=case.batch,
        local_learning_rate=case.lr,
        learning_rate_decay_gamma=1.0,
        mu=MU,
        num_clients=case.clients,
        join_ratio=case.cohort / case.clients,
        eval_gap=ROUNDS,
        goal="test",
        time_threthold=1e9,
        save_folder_name="items",
        top_cnt=ROUNDS,
        dlg_gap=ROUNDS,
        batch_num_per_client=2,
    )


def run(case: Case, folder: Path, turns: Turns, clone: str, threads: int) -> None:
    """Train rounds by the PFLlib of a clone, with a number of torch's threads."""
    torch.set_num_threads(threads)
    os.chdir(write_data(case, folder))
    sys.path.insert(0, str(Path(clone) / "system"))
    split: Any = import_module("flcore.trainmodel.models").BaseHeadSplit
    built: Any = case.build()
    model = split(nn.Sequential(built.features, built.hidden), built.head)
    name = SERVERS[case.method]
    module = import_module(f"flcore.servers.server{name.lower().replace('fed', '')}")

    class TakingTurns(getattr(module, name)):  # type: ignore[misc]
        """Holds its rounds up, each of which begins by selecting clients."""

        def select_clients(self) -> Any:
            if not turns.wait():
                raise EndedError
            return super().select_clients()

    try:
        TakingTurns(arguments_of(case, model), 0).train()
    except EndedError:
        return
