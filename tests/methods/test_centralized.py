"""Centralized training against NumPy, and against one client that holds all samples."""

from __future__ import annotations

import numpy as np
import pyarrow.compute as pc
import pyarrow.parquet as pq
import pytest
import torch
from safetensors.torch import load_file

import raysim
from tests.methods import common
from tests.methods.test_oracle import LR, SIZES, assert_close, gradient, run
from tests.tasks import UNEQUAL, make_settings, make_task

CENTRALIZED = {"method.name": "centralized"}


def test_steps_of_the_cohort_on_the_samples_of_all_clients(tmp_path):
    """In full batches: two of four clients with three epochs are six steps a round."""
    given = {"rounds": 4, "fraction": 0.5, "local.epochs": 3, "local.lr_decay": 0.7}
    result, w, clients = run(tmp_path, **CENTRALIZED, **given)
    x, y = (np.concatenate(parts) for parts in zip(*clients, strict=True))
    for number in range(4):
        for _ in range(6):
            g = gradient(w, x, y)
            w = [p - LR * 0.7**number * d for p, d in zip(w, g, strict=True)]
    assert_close(result.params, w)
    for way in ("bytes_up", "bytes_down"):
        assert result.metrics[way].to_pylist() == [0] * 4
    rows = pq.read_table(result.run_dir / "clients.parquet").to_pylist()
    assert [(row["samples"], row["steps"]) for row in rows] == [(sum(SIZES), 6)] * 4


KEPT = {"local.momentum": 0.9, "local.keep": True}


@pytest.mark.parametrize(
    ("sizes", "part", "more"),
    [(UNEQUAL, 1, {}), (UNEQUAL, 1, KEPT), ((16,) * 4, 2, KEPT)],
    ids=["all", "all, kept", "half, kept"],
)
def test_one_client_that_holds_all_samples_has_the_same_bits(tmp_path, sizes, part, more):
    """Of unequal clients, whose epochs have unlike numbers of steps; and of cohorts that change."""
    steps = sum(2 * -(-n // 8) for n in sizes) // part
    task = make_task(sizes)
    given = {"fraction": 1 / part, "rounds": 4, "local.epochs": 2, **more}
    raysim.run(make_settings(tmp_path / "central", **CENTRALIZED, **given), task)
    pooled = tuple(np.concatenate(parts) for parts in zip(*task.clients, strict=True))
    one = raysim.Task(model=task.model, clients=[pooled], test=task.test)
    given |= {"local.steps": steps, "local.epochs": 1, "fraction": 1.0}
    raysim.run(make_settings(tmp_path / "one", **given), one)
    files = [load_file(tmp_path / name / "model.safetensors") for name in ("central", "one")]
    assert all(torch.equal(tensor, files[1][name]) for name, tensor in files[0].items())


@pytest.mark.parametrize(
    ("kept", "samples"),
    [
        ({"evaluation.holdout": 0.25}, {30 + 6 + 15}),
        ({"evaluation.local_test": 0.25}, {30 + 6 + 15}),
        (  # of three clients one is new
            {"evaluation.local_test": 0.25, "evaluation.new_clients": 0.3},
            {30 + 6, 30 + 15, 6 + 15},
        ),
    ],
)
def test_what_is_kept_from_training_is_not_pooled(tmp_path, kept, samples):
    given = {**CENTRALIZED, **kept, "rounds": 1}
    raysim.run(make_settings(tmp_path, **given), make_task((40, 8, 20)))
    (row,) = pq.read_table(tmp_path / "clients.parquet").to_pylist()
    assert row["samples"] in samples


def test_all_clients_that_may_train_take_part_in_each_round(tmp_path):
    given = {"evaluation.local_test": 0.25, "evaluation.new_clients": 0.3, "fraction": 0.5}
    given |= {"rounds": 3, "evaluation.every": 2}
    result = raysim.run(make_settings(tmp_path, **CENTRALIZED, **given), make_task((40, 8, 20, 12)))
    rows = pq.read_table(tmp_path / "client_accuracy.parquet").to_pylist()
    of_last = [(row["is_new"], row["participations"]) for row in rows if row["round"] == 3]
    assert sorted(of_last) == [(0, 3)] * 3 + [(1, 0)]
    (_, *last) = result.metrics.filter(pc.is_valid(result.metrics["test_loss"])).to_pylist()
    assert last[0]["seen_local_test_accuracy"] == last[0]["local_test_accuracy"]
    assert last[0]["unseen_local_test_accuracy"] is None


def test_a_clock_of_devices_is_refused(tmp_path):
    message = r"clock\.name=devices: does not go with method\.name=centralized"
    common.assert_refused(tmp_path, {**CENTRALIZED, "clock.name": "devices"}, message)
