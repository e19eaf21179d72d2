"""FedRoD against NumPy: the generic model, and the heads that clients keep."""

from __future__ import annotations

from types import SimpleNamespace

import numpy as np
import pytest
import torch

import raysim
from raysim.methods.fedrod import FedRod, TwoHeads
from raysim.testing.tasks import SmallNet
from tests.methods import common
from tests.methods.common import Normed, outputs, pull_back
from tests.methods.reference import SIZES, Reference, T
from tests.methods.test_oracle import assert_close
from tests.tasks import make_settings, make_task

NAME = {"method.name": "fedrod"}
SHARED = ("hidden.0.weight", "hidden.0.bias", "head.generic.weight", "head.generic.bias")
OWN = ("head.own.weight", "head.own.bias")


def slope_of(counts, gamma):
    """The gradient of both losses at (body, generic head, own head), given the class counts."""
    prior = np.where(counts > 0, gamma * np.log(np.maximum(counts, 1)), -np.inf)

    def slope(w, x, y):
        shared, own = w[:4], w[4:]
        hidden, g = outputs(shared, x)
        p = hidden @ own[0].T + own[1]
        d_generic, d_own = (derivative(logits, y) for logits in (g / T + prior, (g + p) / T))
        return [*pull_back(shared, x, d_logits=d_generic), d_own.T @ hidden, d_own.sum(0)]

    return slope


def derivative(logits, y):
    """The derivative of the mean cross-entropy by logits before the division by T."""
    p = np.exp(logits - logits.max(1, keepdims=True))
    return (p / p.sum(1, keepdims=True) - np.eye(3)[y]) / (len(y) * T)


def deployed_by(client, state, server):
    """The tensors from which a client of this state is evaluated."""
    work = FedRod().deployment(SimpleNamespace(cohort=(client,)), server)
    assert not work.epochs and {*work.broadcast} == {"model"}
    return work.rules.start(work.broadcast, state, {})


@pytest.mark.parametrize(("gamma", "stacked"), [(0.7, 0), (0.02, 2)])
def test_rounds(tmp_path, gamma, stacked):
    """One of the clients has no sample of a class."""
    given = {**NAME, "method.gamma": gamma, "engine.vectorize": stacked}
    run = Reference(tmp_path, {**given, "evaluation.holdout": 0.2})
    counts = [np.bincount(y, minlength=3) for _, y in run.clients]
    assert any((n == 0).any() for n in counts)
    w, own = run.start, {}
    for number, cohort in enumerate(run.cohorts):
        ends = {}
        for k in cohort:
            head = own.get(k, run.start[2:])
            ends[k] = run.train([*w, *head], number, k, slope_of(counts[k], gamma))
            own[k] = ends[k][4:]
        w = run.mean(cohort, [ends[k][:4] for k in cohort])
    params, states = run.result.params, common.newest_states(run.result.run_dir)
    assert_close(params, w, SHARED)
    assert not any(params[name].any() for name in OWN)
    assert states.keys() == own.keys() and sum(map(len, run.cohorts)) > len(own)
    server = FedRod().init(FedRod().network(SmallNet())).replace(model=params)
    for k, head in own.items():
        state = {"own": {name: states[k][f"own/{name}"] for name in OWN}}
        assert states[k].keys() == {f"own/{name}" for name in OWN}
        assert_close(deployed_by(k, state, server), [*w, *head], [*SHARED, *OWN])


def test_a_client_that_never_took_part_deploys_the_generic_model():
    network = FedRod().network(Normed())
    server = FedRod().init(network)
    found = deployed_by(0, FedRod().client_init(server), server)
    assert found.keys() == dict(network.state_dict()).keys()
    x, z = torch.randn(7, 12), torch.randn(7, 16)
    network.load_state_dict(found)
    assert torch.equal(network.eval()(x), network.head.generic(network.hidden(x)))
    heads = TwoHeads(torch.nn.Linear(16, 3))
    assert torch.equal(heads(z), heads.generic(z) + heads.own(z))
    assert torch.equal(heads.own.weight, heads.generic.weight)  # from which it will start


def test_own_heads_cost_no_bytes(tmp_path):
    given = {**NAME, "fraction": 0.4, "rounds": 2}
    result = raysim.run(make_settings(tmp_path / "run", **given), make_task(SIZES, Normed))
    model = sum(t.numel() * t.element_size() for n, t in result.params.items() if n not in OWN)
    for way in ("bytes_up", "bytes_down"):
        assert result.metrics[way].to_pylist() == [2 * model] * 2


def test_without_gamma_the_generic_model_is_fedavg_s(tmp_path):
    """Its loss is then the cross-entropy, bit for bit."""
    plain = raysim.run(make_settings(tmp_path / "plain"), make_task(SIZES)).params
    given = {**NAME, "method.gamma": 0}
    found = raysim.run(make_settings(tmp_path / "fedrod", **given), make_task(SIZES)).params
    for name, tensor in plain.items():
        assert torch.equal(found[name.replace("head.", "head.generic.")], tensor), name
