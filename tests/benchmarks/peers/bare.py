"""The bare loop: plain PyTorch, one process a core, and nothing but local steps.

Data and model are resident, the clients of a round are divided evenly, and every client starts from
the same weights: there is no aggregation, no server and no log.
"""

from __future__ import annotations

import multiprocessing as mp
import os
from multiprocessing.connection import Connection
from pathlib import Path

import numpy as np
import torch

from tests.benchmarks.peers.turns import Turns
from tests.benchmarks.peers.work import Case, open_data, train, travelling


def work(case: Case, folder: Path, layout: str, pipe: Connection) -> None:
    """Train the clients received, one after another, whenever there are any."""
    torch.set_num_threads(1)
    x, y = open_data(folder)
    model = case.build().to(memory_format=getattr(torch, layout))
    start = {name: tensor.clone() for name, tensor in travelling(model).items()}
    while (clients := pipe.recv()) is not None:
        for client in clients:
            model.load_state_dict(start, strict=False)
            train(model, x[client], y[client], case)
        pipe.send(None)


def run(case: Case, folder: Path, turns: Turns, layout: str = "contiguous_format") -> None:
    """Train rounds in torch's memory format `layout`."""
    context = mp.get_context("spawn")
    pipes: list[Connection] = []
    for _ in range(min(os.cpu_count() or 1, case.cohort)):
        here, there = context.Pipe()
        context.Process(target=work, args=(case, folder, layout, there), daemon=True).start()
        pipes.append(here)
    generator = np.random.default_rng(0)
    while turns.wait():
        cohort = generator.choice(case.clients, case.cohort, replace=False)
        for number, pipe in enumerate(pipes):
            pipe.send(cohort[number :: len(pipes)].tolist())
        for pipe in pipes:
            pipe.recv()
    for pipe in pipes:
        pipe.send(None)
