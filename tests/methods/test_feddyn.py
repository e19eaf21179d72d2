"""FedDyn against NumPy, with half of the clients a round."""

from __future__ import annotations

import numpy as np
import pyarrow.parquet as pq
import pytest
from safetensors.numpy import load_file

from tests.methods.test_oracle import LR, NAMES, assert_close, gradient, run
from tests.methods.test_transforms import EVERYTHING, MOMENTUM, ROUNDS, local_training, run_half

ALPHA = 0.3
NAME = {"method.name": "feddyn", "method.alpha": ALPHA}


def feddyn(w, clients, cohorts, local):
    """The last model and h; local_training's correction behind the momentum is not used."""
    h, own = [np.zeros_like(p) for p in w], [[np.zeros_like(p) for p in w] for _ in clients]
    for number, cohort in enumerate(cohorts):
        lr = LR * local.get("local.lr_decay", 1.0) ** number
        mean, none = [np.zeros_like(p) for p in w], [0.0] * len(w)
        for k in cohort:  # -h_k + alpha (w_k - w) = alpha (w_k - (w + h_k / alpha))
            anchor = [p + q / ALPHA for p, q in zip(w, own[k], strict=True)]
            end = local_training(w, clients[k], lr, none, local, ALPHA, anchor)
            own[k] = [q - ALPHA * (e - p) for q, e, p in zip(own[k], end, w, strict=True)]
            mean = [m + e / len(cohort) for m, e in zip(mean, end, strict=True)]
        share = len(cohort) / len(clients)
        h = [q - ALPHA * share * (m - p) for q, m, p in zip(h, mean, w, strict=True)]
        w = [m - q / ALPHA for m, q in zip(mean, h, strict=True)]
    return w, h


@pytest.mark.parametrize("stacked", [0, 2])
@pytest.mark.parametrize("local", [{}, MOMENTUM, EVERYTHING], ids=["sgd", "momentum", "everything"])
def test_rounds(tmp_path, local, stacked):
    result, w, clients, cohorts = run_half(tmp_path, {**NAME, **local, "engine.vectorize": stacked})
    assert sum(map(len, cohorts)) > len(set().union(*cohorts))  # clients come back to their h_k
    expected, h = feddyn(w, clients, cohorts, local)
    assert_close(result.params, expected)
    state = load_file(result.run_dir / f"checkpoints/round_{ROUNDS:06d}/state.safetensors")
    assert_close(state, h, [f"h/{name}" for name in NAMES])


def test_h_stays_where_it_is(tmp_path):
    result, w, _, cohorts = run_half(tmp_path, NAME)
    size = 4 * sum(p.size for p in w)
    for way in ("bytes_up", "bytes_down"):
        assert result.metrics[way].to_pylist() == [len(cohort) * size for cohort in cohorts]


def test_the_reported_objective_has_both_terms(tmp_path):
    """One client, two steps a round; h_k of round 2 is alpha times the change of round 1."""
    result, w, clients = run(tmp_path, (25,), **NAME)
    h, expected = [np.zeros_like(p) for p in w], []
    for _ in range(2):
        g = gradient(w, *clients[0])
        moved = [-LR * (d - q) for d, q in zip(g, h, strict=True)]
        terms = zip(moved, h, w, strict=True)
        second = sum((ALPHA / 2 * m**2).sum() - (q * (p + m)).sum() for m, q, p in terms)
        first = -sum((q * p).sum() for q, p in zip(h, w, strict=True))
        expected.append((first + second) / 2)
        (w, _), h = feddyn_client(w, h, clients[0])
    rows = pq.read_table(result.run_dir / "clients.parquet").to_pylist()
    found = [row["objective"] - row["train_loss"] for row in rows]
    assert found == pytest.approx(expected, rel=1e-3, abs=1e-7)
    assert abs(expected[1]) > 1e-4


def feddyn_client(w, h, client):
    """A round of FedDyn with one client, whose h_k is the server's h."""
    anchor = [p + q / ALPHA for p, q in zip(w, h, strict=True)]
    end = local_training(w, client, LR, [0.0] * len(w), {}, ALPHA, anchor, epochs=2)
    h = [q - ALPHA * (e - p) for q, e, p in zip(h, end, w, strict=True)]
    return ([e - q / ALPHA for e, q in zip(end, h, strict=True)], h), h
