"""FedNova against NumPy: unequal clients, and clients that do unequal work."""

from __future__ import annotations

import numpy as np
import pyarrow.parquet as pq
import pytest

from tests.methods import common
from tests.methods.test_oracle import LR, assert_close
from tests.methods.test_transforms import EPOCHS, MOMENTUM, local_training, run_half

NAME = {"method.name": "fednova"}


def fednova(w, clients, cohorts, local, epochs):
    """The last model; `epochs` [round, client] are the clients' epochs, of one step each."""
    for number, cohort in enumerate(cohorts):
        sizes = np.array([len(clients[k][1]) for k in cohort])
        shares, none = sizes / sizes.sum(), [0.0] * len(w)
        taus = np.array([epochs[number, k] for k in cohort])
        total = [np.zeros_like(p) for p in w]
        for k, share, tau in zip(cohort, shares, taus, strict=True):
            end = local_training(w, clients[k], LR, none, local, 0.0, epochs=tau)
            d = [(p - q) / tau for p, q in zip(w, end, strict=True)]
            total = [s + share * step for s, step in zip(total, d, strict=True)]
        w = [p - (shares @ taus) * s for p, s in zip(w, total, strict=True)]
    return w


def steps_of(result):
    rows = pq.read_table(result.run_dir / "clients.parquet").to_pylist()
    return {(row["round"] - 1, row["client"]): row["steps"] for row in rows}


@pytest.mark.parametrize("stacked", [0, 2])
@pytest.mark.parametrize("local", [{}, MOMENTUM], ids=["sgd", "momentum"])
def test_rounds_of_unequal_work(tmp_path, local, stacked):
    overrides = {**NAME, **local, "method.max_epochs": 5, "engine.vectorize": stacked}
    result, w, clients, cohorts = run_half(tmp_path, overrides)
    steps = steps_of(result)
    assert len({*steps.values()}) > 2 and {*steps.values()} <= {*range(1, 6)}
    assert_close(result.params, fednova(w, clients, cohorts, local, steps))


def test_equal_work_is_fedavg(tmp_path):
    result, w, clients, cohorts = run_half(tmp_path, NAME)
    steps = steps_of(result)
    assert {*steps.values()} == {EPOCHS}
    assert_close(result.params, fednova(w, clients, cohorts, {}, steps))
    plain, *_ = run_half(tmp_path / "plain", {"method.name": "fedavg"})
    assert_close(result.params, [t.numpy() for t in plain.params.values()], plain.params)


def test_clients_send_one_number_beside_the_model(tmp_path):
    result, w, _, cohorts = run_half(tmp_path, NAME)
    size = 4 * sum(p.size for p in w)
    assert result.metrics["bytes_down"].to_pylist() == [len(cohort) * size for cohort in cohorts]
    assert result.metrics["bytes_up"].to_pylist() == [len(c) * (size + 4) for c in cohorts]


def test_buffers_become_the_mean(tmp_path):
    common.assert_buffers_become_the_mean(tmp_path, NAME)
