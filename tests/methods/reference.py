"""A run in NumPy at settings that are not the defaults, for oracles of methods.

Partial participation, clients of unequal sizes and numbers of steps, short last batches, a
temperature, momentum, weight decay and a learning rate that decays to its least value. The cohorts
are read from the run's table, the batches from the documented random streams; all else is worked
out in float64 and shares no code with the engine.
"""

from __future__ import annotations

import numpy as np
import pyarrow.parquet as pq

import raysim
from raysim.numbers.seeds import stream
from raysim.testing.tasks import SmallNet
from tests.methods.test_oracle import gradient, start_of
from tests.tasks import make_settings, make_task

SIZES = (3, 40, 17, 8, 25)
EPOCHS, BATCH, LR, DECAY, MOMENTUM, WEIGHT_DECAY, T = 2, 8, 0.1, 0.9, 0.5, 0.01, 2.0
LR_MIN, DECAYS = 0.85, 2
"""The least learning rate in units of the first, and the decays after which it is reached."""
OVERRIDES = {
    "rounds": 4,
    "fraction": 0.6,
    "local.epochs": EPOCHS,
    "local.batch_size": BATCH,
    "local.lr": LR,
    "local.lr_decay": DECAY,
    "local.momentum": MOMENTUM,
    "local.weight_decay": WEIGHT_DECAY,
    "local.temperature": T,
}


class Reference:
    """A run of a method, and what its clients and its server do in NumPy.

    Args:
        tmp_path: Where the run's directory is made.
        overrides: Settings beside OVERRIDES.
        momentum: That of the local steps.
        model: Builds the network.
        first: Gives the first global weights of a task.

    Attributes:
        result: What the run returned.
        start: The first global weights.
        clients: Per client, the inputs in float64 and labels that it trains on.
        kept: With `local.keep`, per client and pass, the momentum at the end of its last round.
        passes: Per round and pass, the clients that trained.
        cohorts: Per round, the clients that trained in its last pass.
    """

    def __init__(self, tmp_path, overrides, momentum=MOMENTUM, model=SmallNet, first=start_of):
        task = make_task(SIZES, model)
        least = {"local.lr_min": LR_MIN * overrides.get("local.lr", LR)}
        settings = OVERRIDES | least | {"local.momentum": momentum} | overrides
        self.result = raysim.run(make_settings(tmp_path / "run", **settings), task)
        self.start = first(task)
        share = overrides.get("evaluation.holdout", 0)
        held = [held_out(client, n, share) for client, n in enumerate(SIZES)]
        self.clients = [
            (np.delete(x.astype(np.float64), rows, 0), np.delete(y, rows))
            for (x, y), rows in zip(task.clients, held, strict=True)
        ]
        self.sizes = [len(y) for _, y in self.clients]
        self.momentum, self.first_lr = momentum, settings["local.lr"]
        self.keeps, self.kept = settings.get("local.keep", False), {}
        self.decays = DECAYS if settings["local.lr_min"] else settings["rounds"]
        rows = pq.read_table(self.result.run_dir / "clients.parquet").to_pylist()
        self.passes = [{} for _ in range(settings["rounds"])]
        for row in rows:
            if row["steps"]:
                self.passes[row["round"] - 1].setdefault(row["pass"], []).append(row["client"])
        self.cohorts = [passes[max(passes)] for passes in self.passes]
        wanted = round(settings["fraction"] * len(SIZES))
        assert all(len(cohort) == wanted for cohort in self.cohorts)
        assert len({*map(tuple, self.cohorts)}) > 1 or wanted == len(SIZES)

    def lr(self, number):
        return self.first_lr * DECAY ** min(number, self.decays)

    def batches(self, number, index, client, epochs):
        """The rows of each batch; `index` is the pass."""
        draws, n = stream(0, "batches", number, index, client), self.sizes[client]
        for _ in range(epochs):
            order = draws.permutation(n) if n > BATCH else np.arange(n)
            yield from np.split(order, range(BATCH, n, BATCH))

    def steps(self, client):
        return EPOCHS * -(-self.sizes[client] // BATCH)

    def train(
        self,
        w,
        number,
        client,
        slope=None,
        index=0,
        lr=None,
        behind=None,
        epochs=EPOCHS,
        trained=None,
    ):
        """Local SGD from w.

        Args:
            w: The broadcast weights.
            number: The round, from 0.
            client: The client.
            slope: `slope(weights, x, y)`: the gradient of the whole objective; by default that of
                the cross-entropy at temperature T.
            index: The pass.
            lr: Learning rate; by default that of the round.
            behind: What is added to the direction behind the momentum.
            epochs: Local epochs.
            trained: Which weights are trained; by default all.
        """
        (x, y), lr = self.clients[client], lr or self.lr(number)
        velocity = self.kept.get((client, index)) if self.keeps else None
        velocity = velocity or [np.zeros_like(p) for p in w]
        for rows in self.batches(number, index, client, epochs):
            found = (slope or plain)(w, x[rows], y[rows])
            found = [g + WEIGHT_DECAY * p for g, p in zip(found, w, strict=True)]
            velocity = [self.momentum * v + g for v, g in zip(velocity, found, strict=True)]
            ahead = behind or [0.0] * len(w)
            steps = [lr * (v + b) for v, b in zip(velocity, ahead, strict=True)]
            w = [
                p - step if trained is None or i in trained else p
                for i, (p, step) in enumerate(zip(w, steps, strict=True))
            ]
        if self.keeps:
            self.kept[client, index] = velocity
        return w

    def mean(self, cohort, values):
        """The mean of clients' tensors, weighted by their samples."""
        total = sum(self.sizes[client] for client in cohort)
        weights = [self.sizes[client] / total for client in cohort]
        return weighted(values, weights)

    def fedavg(self, penalty=None):
        """FedAvg with `penalty(weights, broadcast, x)`: the gradient of what is added."""
        w, self.kept = self.start, {}
        for number, cohort in enumerate(self.cohorts):

            def slope(local, x, y, start=w):
                added = penalty(local, start, x) if penalty else [0.0] * len(local)
                return [g + a for g, a in zip(plain(local, x, y), added, strict=True)]

            w = self.mean(cohort, [self.train(w, number, k, slope) for k in cohort])
        return w


def held_out(client, n, share):
    """The rows that a client of n samples holds out: at least one where any is."""
    count = max(round(share * n), 1) if share else 0
    return stream(0, "holdout", client).choice(n, count, replace=False, shuffle=False)


def plain(w, x, y):
    """The gradient of the cross-entropy at temperature T."""
    return gradient(w, x, y, T)


def weighted(values, weights):
    return [
        sum(share * value for share, value in zip(weights, parts, strict=True))
        for parts in zip(*values, strict=True)
    ]
