"""A round's figures are means over examples of the clients' figures."""

from __future__ import annotations

import numpy as np
import pyarrow.parquet as pq
import pytest

import raysim
from raysim.api.rules import Pass
from raysim.driver.rounds.round_log import RoundLog
from tests.tasks import UNEQUAL, make_settings, make_task


def test_losses_of_a_round_are_weighted_by_the_clients_samples(tmp_path):
    overrides = {"method.name": "fedprox", "method.mu": 3.0, "rounds": 2, "fraction": 1.0}
    overrides["local.epochs"] = 2
    result = raysim.run(make_settings(tmp_path, **overrides), make_task(UNEQUAL))
    clients = pq.read_table(tmp_path / "clients.parquet").to_pylist()
    for row in result.metrics.to_pylist():
        own = [client for client in clients if client["round"] == row["round"]]
        samples = [client["samples"] for client in own]
        assert sorted(samples) == sorted(UNEQUAL)
        for name in ("train_loss", "objective"):
            losses = [client[name] for client in own]
            assert row[name] == pytest.approx(np.average(losses, weights=samples), rel=1e-6)
            assert row[name] != pytest.approx(np.mean(losses), rel=1e-2)


def test_bytes_in_vain_count_under_the_label_of_their_pass_and_in_the_round():
    log = RoundLog()
    log.count_lost_traffic(Pass((1,), {}, epochs=1, lr=0.1), 2, 3)
    for up, down in ((10, 20), (100, 200)):
        log.count_lost_traffic(Pass((1,), {}, epochs=1, lr=0.1, label="pre"), up, down)
    found = log.figures()
    assert (found["pre_bytes_up"], found["pre_bytes_down"]) == (110, 220)
    assert (found["bytes_up"], found["bytes_down"]) == (112, 223)
