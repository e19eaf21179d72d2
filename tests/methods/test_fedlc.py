"""FedLC against NumPy: margins by the client's counts, or by those of all clients."""

from __future__ import annotations

import numpy as np
import pytest
import torch

import raysim
from raysim.api.rules import Batch
from raysim.methods.linear_head import class_counts, shifted
from raysim.testing.tasks import SmallCnn
from tests.methods import common
from tests.methods.common import outputs, pull_back
from tests.methods.reference import SIZES, Reference, T
from tests.methods.test_oracle import assert_close
from tests.tasks import make_settings, make_task

TAU = 0.7
NAME = {"method.name": "fedlc", "method.tau": TAU}


def slope_of(counts):
    """The gradient of the calibrated cross-entropy, given the samples of each class."""
    margins = TAU * np.maximum(counts, 1e-8) ** -0.25

    def slope(w, x, y):
        logits = outputs(w, x)[1] / T - margins
        p = np.exp(logits - logits.max(1, keepdims=True))
        p /= p.sum(1, keepdims=True)
        return pull_back(w, x, d_logits=(p - np.eye(3)[y]) / (len(y) * T))

    return slope


@pytest.mark.parametrize("stacked", [0, 2])
@pytest.mark.parametrize("counts", ["client", "global"])
def test_rounds(tmp_path, counts, stacked):
    """One of the clients has no sample of a class."""
    given = {**NAME, "method.counts": counts, "engine.vectorize": stacked}
    run = Reference(tmp_path, {**given, "evaluation.holdout": 0.2})
    own = [np.bincount(y, minlength=3) for _, y in run.clients]
    assert any((n == 0).any() for n in own)
    slopes = [slope_of(n if counts == "client" else sum(own)) for n in own]
    w = run.start
    for number, cohort in enumerate(run.cohorts):
        index = int(counts == "global" and number == 0)
        ends = [run.train(w, number, k, slopes[k], index) for k in cohort]
        w = run.mean(cohort, ends)
    assert_close(run.result.params, w)


def test_counts_of_all_clients_are_sent_once(tmp_path):
    given = {**NAME, "method.counts": "global", "rounds": 2, "fraction": 0.4}
    result = raysim.run(make_settings(tmp_path / "run", **given), make_task(SIZES))
    model, counts = sum(4 * t.numel() for t in result.params.values()), 3 * 4
    each = 2 * (model + counts)
    assert result.metrics["bytes_down"].to_pylist() == [5 * counts + each, each]
    assert result.metrics["bytes_up"].to_pylist() == [5 * counts + 2 * model, 2 * model]


@pytest.mark.parametrize("counts", ["client", "global"])
def test_it_chains(tmp_path, counts):
    """With a FedProx without strength it is itself, bit for bit."""
    own = {"tau": TAU, "counts": counts}
    chained = {"method.name": "chain", "method.methods": {"fedlc": own, "fedprox": {"mu": 0}}}
    runs = ({**NAME, "method.counts": counts}, chained)
    found = [
        raysim.run(make_settings(tmp_path / str(number), **given), make_task(SIZES)).params
        for number, given in enumerate(runs)
    ]
    assert all(torch.equal(tensor, found[1][name]) for name, tensor in found[0].items())


def test_one_logit_has_the_margin_between_both_classes():
    y, weight = torch.tensor([1, 1, 1, 0]), torch.zeros(1, 5)
    assert class_counts(Batch(y, y), weight).tolist() == [1, 3]
    by = torch.tensor([0.25, 2.0])
    one, two = shifted(torch.tensor([[0.5]]), by), shifted(torch.tensor([[0.0, 0.5]]), by)
    assert one.item() == (two[0, 1] - two[0, 0]).item() == 2.25


class DeepHead(SmallCnn):
    """A network whose head is more than one layer."""

    def __init__(self):
        super().__init__()
        self.head = torch.nn.Sequential(self.head, torch.nn.Identity())


@pytest.mark.parametrize("method", ["feddbe", "fedlc", "fedproto", "fedrod", "moon"])
def test_another_head_is_refused(tmp_path, method):
    message = f"method.name={method}: needs a model with one nn.Linear as its stage head; .* Sequen"
    common.assert_refused(tmp_path, {"method.name": method}, message, DeepHead)


@pytest.mark.parametrize(
    ("method", "name", "value"), [("feddbe", "kappa", 2), ("fedlc", "counts", "global")]
)
def test_passes_before_the_first_round_go_with_no_kept_optimizer(tmp_path, method, name, value):
    given = {"method.name": method, "local.keep": True, "local.momentum": 0.5}
    message = f"which needs local.keep=false with method.{name}={value}"
    common.assert_refused(tmp_path, {**given, f"method.{name}": value}, message)
    raysim.run(make_settings(tmp_path / "run", **given, rounds=1), make_task((5,)))


@pytest.mark.parametrize("method", ["fedlc", "fedproto", "fedrod"])
def test_a_regression_is_refused(tmp_path, method):
    x, y = np.zeros((5, 12), np.float32), np.zeros(5)
    task = raysim.Task(raysim.testing.tasks.SmallNet, [(x, y)], (x, y), raysim.REGRESSION)
    with pytest.raises(raysim.SettingsError, match=rf"^method\.name={method}: the task is no"):
        raysim.run(make_settings(tmp_path / "run", **{"method.name": method}), task)
