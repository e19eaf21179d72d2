"""Language models on sequences of unequal length: rounds and scores against NumPy.

The network is a table of logits by token: the next token's depends on the last one alone, so that
its gradient is worked out by hand.
"""

from __future__ import annotations

from typing import ClassVar

import numpy as np
import pyarrow.parquet as pq
import pytest
import torch
from torch import nn

import raysim
from raysim.api.scoring import FORWARD_TOKENS, IGNORED, NO_TOKEN
from raysim.federation.task import from_task
from raysim.numbers.seeds import stream
from tests.tasks import make_settings

TOKENS, SIZES, ROUNDS, EPOCHS, BATCH, LR = 7, (3, 14, 9, 6), 2, 2, 4, 0.7
BASE = {
    "rounds": ROUNDS,
    "fraction": 0.5,
    "local.epochs": EPOCHS,
    "local.batch_size": BATCH,
    "local.lr": LR,
}


class Bigrams(nn.Module):
    seen: ClassVar[list[int]] = []
    """Lengths of the batches in training, of all copies."""

    def __init__(self) -> None:
        super().__init__()
        self.table = nn.Embedding(TOKENS, TOKENS)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        if self.training:
            self.seen.append(x.shape[1])
        return self.table(x.clamp(min=0))


def texts(count, key):
    """Return sequences of tokens, and the next token of each position or IGNORED at a third."""
    draws = np.random.default_rng(key)
    x = [draws.integers(0, TOKENS, draws.integers(2, 45)) for _ in range(count)]
    y = [np.where(draws.random(len(each)) < 1 / 3, IGNORED, np.roll(each, -1)) for each in x]
    return x, [each.tolist() for each in y]


def task_of(model=Bigrams):
    clients = [texts(size, key) for key, size in enumerate(SIZES)]
    return raysim.Task(model, clients, texts(60, 99), raysim.LANGUAGE_MODEL, sequences=True)


def pairs_of(x, y):
    """Return the counted pairs of token and next token of each sequence."""
    rows = zip(x, map(np.array, y), strict=True)
    return [(own[wanted != IGNORED], wanted[wanted != IGNORED]) for own, wanted in rows]


def log_softmax(logits):
    shifted = logits - logits.max(-1, keepdims=True)
    return shifted - np.log(np.exp(shifted).sum(-1, keepdims=True))


def trained(w, pairs, number, client):
    draws = stream(0, "batches", number, 0, client)
    for _ in range(EPOCHS):
        n = len(pairs)
        order = draws.permutation(n) if n > BATCH else np.arange(n)
        for rows in np.split(order, range(BATCH, n, BATCH)):
            given, wanted = (np.concatenate([pairs[row][part] for row in rows]) for part in (0, 1))
            slope = np.exp(log_softmax(w[given])) - np.eye(TOKENS)[wanted]
            step = np.zeros_like(w)
            np.add.at(step, given, slope / len(given))
            w = w - LR * step
    return w


@pytest.mark.parametrize(
    "settings",
    [{}, {"engine.vectorize": 3}, {"weighting": "tokens", "local.accumulate": 3}],
    ids=["alone", "stacked", "accumulated"],
)
def test_rounds_and_scores_against_numpy(tmp_path, settings):
    task = task_of()
    result = raysim.run(make_settings(tmp_path, **BASE, **settings), task)
    clients = [pairs_of(*client) for client in task.clients]
    weights = SIZES
    if settings.get("weighting"):
        weights = [sum(len(given) for given, _ in pairs) for pairs in clients]
    rows = pq.read_table(tmp_path / "clients.parquet").to_pylist()
    cohorts = [[r["client"] for r in rows if r["round"] == n + 1] for n in range(ROUNDS)]
    assert [len(cohort) for cohort in cohorts] == [2, 2] and cohorts[0] != cohorts[1]
    w = from_task(task).network(0).table.weight.detach().numpy().astype(np.float64)
    for number, cohort in enumerate(cohorts):
        total = sum(weights[k] for k in cohort)
        w = sum(weights[k] / total * trained(w, clients[k], number, k) for k in cohort)
    assert np.abs(result.params["table.weight"].numpy() - w).max() < 1e-6

    tests = pairs_of(*task.test)
    assert len(tests) * 48 > 2 * FORWARD_TOKENS  # several passes, of unequal numbers of tokens
    losses = [-log_softmax(w[x])[np.arange(len(y)), y] for x, y in tests]
    right = [w[x].argmax(-1) == y for x, y in tests]
    loss = np.concatenate(losses).mean()
    assert loss != pytest.approx(np.mean([np.mean(each) for each in losses if len(each)]), rel=1e-3)
    last = result.metrics.to_pylist()[-1]
    expected = {
        "test_loss": loss,
        "test_perplexity": np.exp(loss),
        "test_accuracy": np.concatenate(right).mean(),
        "test_exact_match": np.mean([each.all() for each in right if len(each)]),
    }
    assert expected["test_accuracy"] > 0
    assert {name: last[name] for name in expected} == pytest.approx(expected, rel=1e-5)


@pytest.mark.parametrize("stacked", [0, 2])
def test_batches_are_cut_to_multiples_of_16(tmp_path, stacked):
    task = task_of()
    Bigrams.seen.clear()
    settings = {**BASE, "local.batch_size": 1, "engine.vectorize": stacked}
    raysim.run(make_settings(tmp_path, **settings), task)
    assert {*Bigrams.seen} == {16, 32, 48}
    x, y = task.clients[0]
    padded = from_task(task).train
    assert padded.x.dtype == np.int64 and padded.x.shape == (sum(SIZES), 48)
    assert padded.x[0].tolist() == [*x[0], *[NO_TOKEN] * (48 - len(x[0]))]
    assert padded.y[0].tolist() == [*y[0], *[IGNORED] * (48 - len(x[0]))]
