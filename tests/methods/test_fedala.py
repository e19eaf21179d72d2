"""FedALA against NumPy: unequal clients, three of five a round, settings that are no defaults."""

from __future__ import annotations

import numpy as np
import pytest
import torch

from raysim.numbers.seeds import torch_generator
from tests.methods.personal import DEPLOYED_LOSS, SHORT, deployed_loss, loss_of, moved
from tests.methods.reference import BATCH, WEIGHT_DECAY, Reference, plain
from tests.methods.test_oracle import assert_close

ETA, SHARE, THRESHOLD, WINDOW, MOST = 3.0, 0.6, 0.0008, 3, 9
NAME = {
    "method.name": "fedala",
    "method.eta": ETA,
    "method.share": SHARE,
    "method.threshold": THRESHOLD,
    "method.window": WINDOW,
    "method.max_epochs": MOST,
    **SHORT,
}


class Client:
    """What a client keeps: its old tensors, W, and whether it has learned W before."""

    def __init__(self, w, p):
        self.old, self.weights, self.learned = w[-p:], [np.ones_like(t) for t in w[-p:]], False
        self.p, self.epochs = p, 0

    def start(self, w, x, y, draws):
        """Learn W; return the model to start from."""
        moves = moved(w[-self.p :], self.old, -1)
        differs = any(move.any() for move in moves)
        count = max(int(SHARE * len(y)), 1)
        first = int(torch.randint(0, len(y) - count + 1, (), generator=draws))
        x, y = x[first : first + count], y[first : first + count]
        losses, most = [], MOST if differs and not self.learned else 1
        while len(losses) < most:
            for at in range(0, count, BATCH):
                data = x[at : at + BATCH], y[at : at + BATCH]
                theta = self.mixture(w, moves)
                slope = moved(plain(theta, *data), theta, WEIGHT_DECAY)[-self.p :]
                steps = [ETA * g * m for g, m in zip(slope, moves, strict=True)]
                self.weights = [
                    np.clip(a - s, 0, 1) for a, s in zip(self.weights, steps, strict=True)
                ]
            losses.append(loss_of(theta, *data) / len(data[1]))
            if len(losses) > WINDOW and np.std(losses[-WINDOW:]) < THRESHOLD:
                break
        self.learned |= differs
        self.epochs = len(losses)
        return self.mixture(w, moves)

    def mixture(self, w, moves):
        top = [o + m * a for o, m, a in zip(self.old, moves, self.weights, strict=True)]
        return [*w[: -self.p], *top]


@pytest.mark.parametrize(("p", "stacked"), [(2, 0), (3, 3), (0, 0)])
def test_rounds_and_deployed_models(tmp_path, p, stacked):
    reference = Reference(tmp_path, {**NAME, "method.p": p, "engine.vectorize": stacked})
    w, top, epochs = reference.start, p or 4, set()
    clients = [Client(w, top) for _ in reference.clients]
    losses = reference.result.metrics[DEPLOYED_LOSS].to_pylist()
    for number, cohort in enumerate(reference.cohorts):
        ends = []
        for k in cohort:
            draws = torch_generator(0, "client/samples", number, 0, k)
            start = clients[k].start(w, *reference.clients[k], draws)
            epochs.add(clients[k].epochs)
            ends.append(reference.train(start, number, k, index=1))
            clients[k].old = ends[-1][-top:]
        w = reference.mean(cohort, ends)
        deployed = []
        for k, data in enumerate(reference.clients):
            tried = Client(w, top)
            vars(tried).update(vars(clients[k]))
            draws = torch_generator(0, "client/samples", number + 1, -1, k)
            deployed.append(tried.start(w, *data, draws))
        expected = deployed_loss(reference.clients, deployed.__getitem__)
        assert losses[number] == pytest.approx(expected, abs=2e-5)
    assert_close(reference.result.params, w)
    assert {1, MOST} < epochs  # some settled before
    changed = [np.abs(a - 1).max() for client in clients for a in client.weights]
    assert max(changed) > 0.1
