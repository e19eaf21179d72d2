"""FedDBE against NumPy: shifts that clients keep, and the pull to the mean feature of all."""

from __future__ import annotations

from types import SimpleNamespace

import numpy as np
import pytest
import torch

import raysim
from raysim.methods.feddbe import FedDbe
from tests.methods import common
from tests.methods.common import Normed, outputs, pull_back
from tests.methods.reference import SIZES, Reference, T, weighted
from tests.methods.test_fedrod import derivative
from tests.methods.test_oracle import assert_close
from tests.tasks import make_settings, make_task

MOMENTUM, KAPPA = 0.3, 40.0
NAME = {"method.name": "feddbe"}
PULLED = {**NAME, "method.kappa": KAPPA, "method.momentum": MOMENTUM}
SHARED = ("hidden.0.weight", "hidden.0.bias", "head.layer.weight", "head.layer.bias")


class Slope:
    """The gradient of a client's objective at (body, head, shift), which follows the features.

    Attributes:
        running: Running mean of the features.
    """

    def __init__(self, kappa, mean):
        self.kappa, self.mean, self.running = kappa, mean, np.zeros(16)

    def __call__(self, w, x, y):
        *shared, shift = w
        hidden = outputs(shared, x)[0]
        d_logits = derivative(((hidden + shift) @ shared[2].T + shared[3]) / T, y)
        self.running = (1 - MOMENTUM) * self.running + MOMENTUM * hidden.mean(0)
        pull = self.kappa * (self.running - self.mean) / len(shift) * MOMENTUM / len(x)
        body = pull_back(shared, x, d_hidden=pull, d_logits=d_logits)[:2]
        d_shift = (d_logits @ shared[2]).sum(0)
        return [*body, d_logits.T @ (hidden + shift), d_logits.sum(0), d_shift]


def mean_feature(run):
    """The mean over all clients of the last running means before round 1."""
    found = []
    for k in range(len(SIZES)):
        slope = Slope(0, 0)
        run.train([*run.start, np.zeros(16)], 0, k, slope, trained=range(4))
        found.append([slope.running])
    return weighted(found, [n / sum(run.sizes) for n in run.sizes])[0]


@pytest.mark.parametrize("stacked", [0, 2])
@pytest.mark.parametrize("given", [NAME, PULLED], ids=["shift", "pulled"])
def test_rounds(tmp_path, given, stacked):
    run = Reference(tmp_path, {**given, "engine.vectorize": stacked, "evaluation.holdout": 0.2})
    kappa = given.get("method.kappa", 0)
    mean = mean_feature(run) if kappa else 0
    w, own = run.start, {}
    for number, cohort in enumerate(run.cohorts):
        index, ends = int(bool(kappa) and number == 0), {}
        for k in cohort:
            start = [*w, own.get(k, np.zeros(16))]
            ends[k] = run.train(start, number, k, Slope(kappa, mean), index)
            own[k] = ends[k][4]
        w = run.mean(cohort, [ends[k][:4] for k in cohort])
    params, states = run.result.params, common.newest_states(run.result.run_dir)
    assert_close(params, w, SHARED)
    assert states.keys() == own.keys() and sum(map(len, run.cohorts)) > len(own)
    for k, shift in own.items():
        assert states[k].keys() == {"own/head.shift"}
        assert_close(states[k], [shift], ["own/head.shift"])
    assert not params["head.shift"].any() and not params["head.running"].any()


def test_the_pull_moves_the_model(tmp_path):
    runs = [Reference(tmp_path / str(k), {**PULLED, "method.kappa": k}) for k in (1e-9, KAPPA)]
    first, second = (run.result.params["hidden.0.weight"] for run in runs)
    assert (first - second).abs().max() > 1e-3


def test_clients_deploy_their_own_shift():
    network = FedDbe().network(Normed())
    server = FedDbe().init(network)
    work = FedDbe().deployment(SimpleNamespace(cohort=(0,)), server)
    assert not work.epochs and {*work.broadcast} == {"model"}
    x, shift = torch.randn(7, 12), torch.randn(16)
    kept = {"own": {"head.shift": shift}}
    for state, b in ((FedDbe().client_init(server), torch.zeros(16)), (kept, shift)):
        network.load_state_dict(work.rules.start(work.broadcast, state, {}))
        z = network.eval().hidden(x)
        assert torch.equal(network(x), network.head.layer(z + b))


@pytest.mark.parametrize("given", [NAME, PULLED], ids=["shift", "pulled"])
def test_bytes(tmp_path, given):
    """Shifts cost none; the mean feature is sent once by all, and received with every model."""
    given = {**given, "fraction": 0.4, "rounds": 2}
    metrics = raysim.run(make_settings(tmp_path / "run", **given), make_task(SIZES)).metrics
    model, mean = 4 * (12 * 16 + 16 + 16 * 3 + 3), 4 * 16
    pulled = "method.kappa" in given
    gathered = (5 * mean, 5 * model) if pulled else (0, 0)
    up, down = 2 * model, 2 * (model + pulled * mean)
    assert metrics["bytes_up"].to_pylist() == [gathered[0] + up, up]
    assert metrics["bytes_down"].to_pylist() == [gathered[1] + down, down]
    assert ("initial_train_loss" in metrics.column_names) == pulled
