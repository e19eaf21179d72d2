"""Chains of methods whose clients keep something of their own: what they send, and refusals."""

from __future__ import annotations

import pytest
import torch

import raysim
from tests.methods import common
from tests.tasks import make_settings, make_task

BODY, HEAD, PARAMETERS = 1096, 204, 1164
"""Bytes of the parts of `common.Normed`, and of its parameters."""
MODEL = BODY + HEAD
NORMS = 4 * (4 * 16) + 8
"""Bytes of its layer of BatchNorm."""
NO_ROUND = "its round is not FedAvg's"
NO_MODEL = "sends no model"
NOT_SENT = "which does not send"
NO_PULL = "states no `pull`"
PROTOTYPES = "neither sends a model"
EXTRA = {"fedprox": 0, "momentum": PARAMETERS, "scaffold": PARAMETERS, "fednova": 4}
"""Bytes that a method's clients send beside the model, or the tensors in its place."""


def beside(model, **refused):
    """What clients send in chains with others, of which some are refused."""
    return {other: model + extra for other, extra in EXTRA.items()} | refused


def partly(shared):
    """What clients send that keep a part of the model."""
    return beside(shared, momentum=NOT_SENT, scaffold=NOT_SENT)


CHAINS = {
    "apfl": beside(MODEL),
    "fedala": dict.fromkeys(EXTRA, NO_ROUND),
    "fedbabu": partly(BODY),
    "fedbn": partly(MODEL - NORMS),
    "feddbe": partly(MODEL),
    "fedlc": beside(MODEL),
    "fedper": partly(BODY),
    "fedproto": partly(HEAD) | {"fednova": PROTOTYPES, "fedprox": NO_MODEL},
    "fedrep": dict.fromkeys(EXTRA, NO_ROUND),
    "fedrod": partly(MODEL),
    "lg_fedavg": partly(HEAD),
    "local": partly(0) | dict.fromkeys(("fednova", "fedprox"), NO_MODEL),
    "moon": beside(MODEL),
    "per_fedavg": beside(MODEL, fednova=NO_PULL),
    "pfedme": beside(MODEL, fednova=NO_PULL),
}
"""Per method and another, the bytes that a client sends, or why they are not chained."""


@pytest.mark.parametrize("other", EXTRA)
@pytest.mark.parametrize("method", CHAINS)
def test_a_chain_sends_no_more_than_each_method_or_is_refused_before_it_starts(
    tmp_path, method, other
):
    expected, out = CHAINS[method][other], tmp_path / "run"
    given = {method: {"projection": None} if method == "moon" else {}, other: {}}
    if other == "fednova":  # moves the model first
        given = dict(reversed(given.items()))
    task = make_task((9, 30, 17), common.Normed)
    chained = {"method.name": "chain", "method.methods": given, "rounds": 1, "local.epochs": 1}
    if isinstance(expected, str):
        with pytest.raises(raysim.SettingsError, match=rf"^method\.methods.*{expected}"):
            raysim.run(make_settings(out, **chained), task)
        assert not out.exists()
        return
    result = raysim.run(make_settings(out, **chained), task)
    assert result.metrics["bytes_up"].to_pylist() == [2 * expected]
    assert all(tensor.isfinite().all() for tensor in result.params.values())


def test_beside_fednova_no_model_travels(tmp_path):
    chained = {
        "method.name": "chain",
        "method.methods": {"fednova": {}, "scaffold": {}, "moon": {"projection": None}},
    }
    settings = make_settings(tmp_path, **chained, rounds=1, fraction=1.0)
    result = raysim.run(settings, make_task((9, 30), common.Normed))
    assert result.metrics["bytes_up"].to_pylist() == [2 * (MODEL + 4 + PARAMETERS)]


@pytest.mark.parametrize("stacked", [0, 2])
@pytest.mark.parametrize("method", ["fedper", "fedbabu", "lg_fedavg"])
def test_fednova_of_the_shared_tensors_leaves_the_others_to_clients(tmp_path, method, stacked):
    """With as many steps for all clients FedNova is FedAvg, so the chain is the method alone."""
    runs = []
    for number, given in enumerate(({"fednova": {}, method: {}}, {method: {}})):
        options = {"method.name": "chain", "method.methods": given, "engine.vectorize": stacked}
        settings = make_settings(tmp_path / str(number), fraction=1.0, **options)
        runs.append(raysim.run(settings, make_task((24, 24, 24))))
    models, states = ([run.params for run in runs], [common.newest_states(r.run_dir) for r in runs])
    assert states[0].keys() == states[1].keys()
    pairs = [models, *zip(*(s.values() for s in states), strict=True)]
    for one, two in pairs:
        assert one.keys() == two.keys()
        assert all(torch.allclose(one[n], two[n], rtol=1e-4, atol=1e-6) for n in one)
