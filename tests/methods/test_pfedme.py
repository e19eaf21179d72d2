"""pFedMe against NumPy: unequal clients, three of five a round, settings that are no defaults."""

from __future__ import annotations

from itertools import islice

import numpy as np
import pytest

from tests.methods.personal import DEPLOYED_LOSS, SHORT, deployed_loss, moved
from tests.methods.reference import MOMENTUM, WEIGHT_DECAY, Reference, plain
from tests.methods.test_oracle import NAMES, assert_close

LAM, INNER, LR_P, DECAY, BETA, DEPLOY = 2.0, 3, 0.07, 0.02, 1.5, 4
NAME = {
    "method.name": "pfedme",
    "method.lam": LAM,
    "method.inner_steps": INNER,
    "method.personal_lr": LR_P,
    "method.decay": DECAY,
    "method.beta": BETA,
    "method.deploy_steps": DEPLOY,
    **SHORT,
}


def train(reference, w, batches, lr, data):
    """The client's w_k and theta after its steps; momentum is of w_k alone."""
    (x, y), theta, velocity = data, w, [np.zeros_like(p) for p in w]
    for rows in batches:
        for _ in range(INNER):
            slope = moved(plain(theta, x[rows], y[rows]), theta, WEIGHT_DECAY + DECAY)
            theta = moved(theta, moved(slope, moved(theta, w, -1), LAM), -LR_P)
        pull = [LAM * (p - t) for p, t in zip(w, theta, strict=True)]
        velocity = moved(pull, velocity, reference.momentum)
        w = moved(w, velocity, -lr)
    return w, theta


@pytest.mark.parametrize(("momentum", "stacked"), [(0.0, 0), (MOMENTUM, 0), (MOMENTUM, 3)])
def test_rounds(tmp_path, momentum, stacked):
    reference = Reference(tmp_path, {**NAME, "engine.vectorize": stacked}, momentum)
    w = reference.start
    for number, cohort in enumerate(reference.cohorts):
        ends = []
        for k in cohort:
            batches, lr = reference.batches(number, 0, k, 2), reference.lr(number)
            ends.append(train(reference, w, batches, lr, reference.clients[k])[0])
        mean = reference.mean(cohort, ends)
        w = [(1 - BETA) * p + BETA * m for p, m in zip(w, mean, strict=True)]
    assert_close(reference.result.params, w)


def test_every_client_deploys_its_own_theta(tmp_path):
    """Batches of an evaluation after round n are those of pass -1 of round n + 1."""
    reference = Reference(tmp_path, NAME)
    w = [reference.result.params[name].numpy().astype(float) for name in NAMES]
    number = len(reference.cohorts)
    thetas = []
    for k, data in enumerate(reference.clients):
        batches = islice(reference.batches(number, -1, k, DEPLOY), DEPLOY)
        thetas.append(train(reference, w, batches, reference.lr(number), data)[1])
    expected = deployed_loss(reference.clients, thetas.__getitem__)
    assert expected < deployed_loss(reference.clients, lambda k: w) - 0.05
    found = reference.result.metrics[DEPLOYED_LOSS].to_pylist()[-1]
    assert found == pytest.approx(expected, abs=2e-5)


def test_without_a_tie_the_global_model_stays(tmp_path):
    free = Reference(tmp_path, {**NAME, "rounds": 2, "method.lam": 0.0, "method.beta": 1.0})
    assert_close(free.result.params, free.start)
