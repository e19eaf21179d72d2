"""Ditto against NumPy: the global model is FedAvg's, and each client keeps a model of its own."""

from __future__ import annotations

from types import SimpleNamespace

import numpy as np
import pytest

import raysim
from raysim.methods.ditto import Ditto
from tests.methods import common
from tests.methods.test_oracle import LR, NAMES, assert_close
from tests.methods.test_transforms import EVERYTHING, MOMENTUM, local_training, run_half

LAM = 0.6
NAME = {"method.name": "ditto", "method.lam": LAM}


def ditto(w, clients, cohorts, local):
    """The last global model, and the personal models by client."""
    own, first = {}, w
    for number, cohort in enumerate(cohorts):
        lr, none = LR * local.get("local.lr_decay", 1.0) ** number, [0.0] * len(w)
        ends = [local_training(w, clients[k], lr, none, local, 0.0) for k in cohort]
        for k in cohort:
            own[k] = local_training(own.get(k, first), clients[k], lr, none, local, LAM, anchor=w)
        sizes = [len(clients[k][1]) for k in cohort]
        w = [np.average(parts, axis=0, weights=sizes) for parts in zip(*ends, strict=True)]
    return w, own


def deployed_by(client, state):
    """The model from which a client of this state is evaluated."""
    work = Ditto().deployment(SimpleNamespace(cohort=(client,)), raysim.ServerState({}))
    assert not work.epochs and work.rules.finish is raysim.Rules().finish
    return work.rules.start({}, state, {})


@pytest.mark.parametrize("stacked", [0, 2])
@pytest.mark.parametrize("local", [{}, MOMENTUM, EVERYTHING], ids=["sgd", "momentum", "everything"])
def test_rounds(tmp_path, local, stacked):
    result, w, clients, cohorts = run_half(tmp_path, {**NAME, **local, "engine.vectorize": stacked})
    expected, own = ditto(w, clients, cohorts, local)
    assert_close(result.params, expected)
    states = common.newest_states(result.run_dir)
    assert states.keys() == own.keys() and sum(map(len, cohorts)) > len(own)
    for client, model in own.items():
        state = {"personal": {name: states[client][f"personal/{name}"] for name in NAMES}}
        assert_close(deployed_by(client, state), model)


def test_personal_models_cost_no_bytes_and_leave_the_global_one_alone(tmp_path):
    result, w, _, cohorts = run_half(tmp_path / "ditto", NAME)
    size = 4 * sum(p.size for p in w)
    for way in ("bytes_up", "bytes_down"):
        assert result.metrics[way].to_pylist() == [len(cohort) * size for cohort in cohorts]
        assert result.metrics[f"personal_{way}"].to_pylist() == [0] * len(cohorts)
    assert min(result.metrics["personal_train_loss"].to_pylist()) > 0
    common.assert_equals_fedavg(tmp_path, NAME)


def test_a_client_that_never_took_part_deploys_the_first_model():
    first, model = {"w": object()}, {"w": object()}
    state = raysim.ServerState({"model": model, "first": first})
    assert deployed_by(0, Ditto().client_init(state)) is first
