"""FedAdam against NumPy, and what a server optimiser must not do to the state."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from safetensors.numpy import load_file

import raysim
from raysim.methods.fedavg import FedAvg
from tests.methods.test_oracle import LR, NAMES, SIZES, assert_close
from tests.methods.test_transforms import MOMENTUM, ROUNDS, local_training, run_half
from tests.tasks import StopAfter, make_settings, make_task

NAME = {"method.name": "fedadam"}
LR_SERVER, BETA1, BETA2, TAU = 0.05, 0.7, 0.8, 0.01
ADAM = {
    **NAME,
    "method.lr_server": LR_SERVER,
    "method.beta1": BETA1,
    "method.beta2": BETA2,
    "method.tau": TAU,
}


def mean_of(w, clients, cohort, local, weighting):
    """The mean of the cohort's models."""
    weights = np.array([len(clients[k][1]) if weighting == "examples" else 1 for k in cohort])
    none = [0.0] * len(w)
    ends = [local_training(w, clients[k], LR, none, local, 0.0) for k in cohort]
    return [np.average(parts, axis=0, weights=weights) for parts in zip(*ends, strict=True)]


def fedadam(w, clients, cohorts, local, weighting):
    m, v = [np.zeros_like(p) for p in w], [np.full_like(p, TAU**2) for p in w]
    for cohort in cohorts:
        mean = mean_of(w, clients, cohort, local, weighting)
        delta = [q - p for p, q in zip(w, mean, strict=True)]
        m = [BETA1 * a + (1 - BETA1) * d for a, d in zip(m, delta, strict=True)]
        v = [BETA2 * a + (1 - BETA2) * d**2 for a, d in zip(v, delta, strict=True)]
        w = [p + LR_SERVER * a / (np.sqrt(b) + TAU) for p, a, b in zip(w, m, v, strict=True)]
    return w, m, v


@pytest.mark.parametrize("weighting", ["examples", "uniform"])
@pytest.mark.parametrize("local", [{}, MOMENTUM], ids=["sgd", "momentum"])
def test_rounds(tmp_path, local, weighting):
    result, w, clients, cohorts = run_half(tmp_path, {**ADAM, **local, "weighting": weighting})
    expected, m, v = fedadam(w, clients, cohorts, local, weighting)
    assert_close(result.params, expected)
    state = load_file(result.run_dir / f"checkpoints/round_{ROUNDS:06d}/state.safetensors")
    for group, values in (("m", m), ("v", v)):
        assert_close(state, values, [f"{group}/{name}" for name in NAMES])


class Counted(FedAvg):
    """FedAvg with two more groups in the server's state: rounds so far, and an untouched one."""

    def init(self, network):
        return (
            super()
            .init(network)
            .replace(rounds={"count": torch.zeros(1)}, offset={"count": torch.tensor([10.0])})
        )

    def server_update(self, now, state, reduced):
        after = super().server_update(now, state, reduced)
        return after.replace(rounds={"count": state.groups["rounds"]["count"] + 1})

    def metrics(self, state):
        return {"count": float(state.groups["rounds"]["count"] + state.groups["offset"]["count"])}


@pytest.mark.parametrize("name", ["fedadam", f"{__name__}:Counted"])
def test_state_of_the_server_does_not_travel(tmp_path, name):
    result, w, _, cohorts = run_half(tmp_path, {"method.name": name})
    size = 4 * sum(p.size for p in w)
    for way in ("bytes_up", "bytes_down"):
        assert result.metrics[way].to_pylist() == [len(cohort) * size for cohort in cohorts]


def test_state_of_the_server_is_not_lost(tmp_path):
    name = {"method.name": f"{__name__}:Counted", "rounds": 4}
    task = make_task(SIZES)
    with pytest.raises(KeyboardInterrupt):
        raysim.run(make_settings(tmp_path / "run", **name), task, StopAfter(2))
    result = raysim.resume(tmp_path / "run", task)
    assert result.metrics["count"].to_pylist() == [11.0, 12.0, 13.0, 14.0]
