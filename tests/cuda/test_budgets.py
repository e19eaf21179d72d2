"""Kernels, waits and copies of a step, a client and a round: as many as `budgets.toml` says.

They are those of the last round: the second, or a later one where the first ones capture graphs. A
change of the code that changes one must change the table, too; the failing test shows the row as it
is, and the lines with most.
"""

from __future__ import annotations

import tomllib
from collections import Counter
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import raysim
from raysim.testing.tasks import FAMILIES
from raysim.training.stacked import cuda_graphs
from tests.benchmarks.peers.networks import NETWORKS
from tests.cuda.device import CudaDevice
from tests.cuda.runs import NEVER
from tests.tasks import make_settings

TABLE = Path(__file__).with_name("budgets.toml")
BUDGETS: dict[str, dict[str, dict[str, list[int]]]] = tomllib.loads(TABLE.read_text())
KINDS = ("launches", "syncs", "to the device", "to the host")
METHODS: dict[str, dict[str, Any]] = {
    "fedavg": {},
    **{name: {"method.name": name} for name in ("scaffold", "mifl", "fedmmd")},
    "adam": {"local.optimizer": "adam"},
}
BATCH = 16
STACKED = ("stack", "graphs")
ROUNDS = {"alone": 2, "recorded": 6, "stack": 2, "graphs": 4}


class Watch(raysim.Listener):
    """Keeps the device's counts at the end of each round."""

    def __init__(self, gpu: CudaDevice) -> None:
        self._gpu = gpu
        self.counts: list[Counter[str]] = []
        self.where: list[Counter[tuple[str, str]]] = []

    def round_done(self, row: Mapping[str, Any]) -> None:
        self.counts.append(self._gpu.counts.copy())
        self.where.append(self._gpu.where.copy())


def task_of(network: str, clients: int, samples: int) -> raysim.Task:
    """Return a task of a network of the comparison, or of a family of small ones."""
    if network in FAMILIES:
        model, draw = FAMILIES[network]
        sets = [draw(samples, key) for key in range(clients + 1)]
    else:
        model, generator = NETWORKS[network].build, np.random.default_rng(0)
        sets = [NETWORKS[network].samples(samples, generator) for _ in range(clients + 1)]
    return raysim.Task(model=model, clients=sets[:-1], test=sets[-1])


def round_of(
    folder: Path, case: str, mode: str, clients: int, steps: int, *, lines: bool = False
) -> tuple[np.ndarray, Counter[tuple[str, str]], list[int]]:
    """Return the counts of the last round, by line, and the kernels of each graph."""
    network, method = case.split(" ")
    own = {"rounds": ROUNDS[mode], "fraction": 1.0, "local.epochs": 1, "local.batch_size": BATCH}
    own |= {"checkpoint_every": NEVER, "engine.vectorize": clients * (mode in STACKED)}
    own |= {"local.lr": 0.01, "engine.gpus_per_actor": 1.0} | METHODS[method]
    settings = make_settings(folder / f"{clients}-{steps}-{lines}", **own)
    with CudaDevice(lines=lines) as gpu:
        watch = Watch(gpu)
        raysim.run(settings, task_of(network, clients, BATCH * steps), watch)
    before, after = watch.counts[-2:]
    counts = np.array([after[kind] - before[kind] for kind in KINDS])
    return counts, watch.where[-1] - watch.where[-2], [graph.kernels for graph in gpu.graphs]


def measured(folder: Path, case: str, mode: str) -> dict[str, list[int]]:
    """Return a row of the table."""
    few, _, kernels = round_of(folder, case, mode, 2, 2)
    longer, _, _ = round_of(folder, case, mode, 2, 3)
    more, _, _ = round_of(folder, case, mode, 3, 2)
    at_once = 2 if mode in STACKED else 1  # clients of which a step is one
    step = (longer - few) * at_once // 2
    alone = at_once == 1
    client = more - few - (2 * step if alone else 0)
    whole = few - 2 * client - (4 if alone else 2) * step
    assert ((longer - few) * at_once % 2 == 0).all(), "steps differ"
    row = {"step": step.tolist(), "client": client.tolist(), "round": whole.tolist()}
    return row | {"graph": [max(kernels)]} if kernels else row


def shown(row: Mapping[str, list[int]]) -> str:
    """Return a row as the table has it."""
    return "{ " + ", ".join(f"{part} = {counts}" for part, counts in row.items()) + " }"


@pytest.mark.parametrize(
    ("case", "mode"), [(case, mode) for case, rows in BUDGETS.items() for mode in rows]
)
def test_as_many_as_the_table_says(tmp_path, monkeypatch, case, mode):
    replays = 1 if mode in ("graphs", "recorded") else NEVER
    monkeypatch.setattr(cuda_graphs, "MIN_REPLAYS", replays)
    row = measured(tmp_path, case, mode)
    if row != BUDGETS[case][mode]:
        _, where, _ = round_of(tmp_path, case, mode, 2, 2, lines=True)
        most = [f"{count:5d} {kind}: {line}" for (kind, line), count in where.most_common(12)]
        pytest.fail("\n".join([f"{mode} = {shown(row)}", *most]))


def test_sixteen_steps_of_a_client_alone_are_four_launches(tmp_path, monkeypatch):
    monkeypatch.setattr(cuda_graphs, "MIN_REPLAYS", 1)
    once, _, _ = round_of(tmp_path, "2nn fedavg", "recorded", 2, 16)
    twice, _, _ = round_of(tmp_path, "2nn fedavg", "recorded", 2, 32)
    assert (twice - once).tolist() == [2 * 4, 0, 0, 0]
