"""The benchmark of local steps runs, and shows each method beside FedAvg, its goal and a loop."""

from __future__ import annotations

import numpy as np
import pytest
import torch

from tests.benchmarks.bare_methods import CORRECTIONS, PENALTIES, bare_epoch
from tests.benchmarks.peers.networks import NETWORKS
from tests.benchmarks.peers.work import Case
from tests.benchmarks.steps import Stepper, table


def test_a_line_for_each_method(monkeypatch):
    monkeypatch.setattr("tests.benchmarks.steps.SAMPLES", {"2nn": 20})
    monkeypatch.setattr("tests.benchmarks.steps.WARM_UP", 0)
    heading, _, *lines = [
        [cell.strip() for cell in line.strip("|").split("|")]
        for line in table("2nn", ["fedavg", "fedprox", "feddyn"], 1)
    ]
    assert heading == ["2nn", "ms a step", "/ fedavg", "goal", "bare, ms", "/ bare"]
    assert [line[0] for line in lines] == ["fedavg", "fedprox", "feddyn"]
    assert [line[3] for line in lines] == ["-", "1.2", "-"]
    assert lines[0][2].startswith("1.00") and lines[2][4:] == ["-", "-"]
    assert all(float(line[1]) > 0 for line in lines) and float(lines[1][4]) > 0


def test_the_model_that_a_client_of_mifl_keeps_is_not_the_network():
    case = Case("2nn", 1, 20, 1, 10, lr=0.01)
    stepper = Stepper("mifl", "2nn", case, *NETWORKS["2nn"].samples(20, np.random.default_rng(0)))
    assert stepper.round() > 0
    own, live = stepper.state["model"], stepper.trainer.network.tensors()
    assert {n: torch.equal(t, live[n]) for n, t in own.items()} == dict.fromkeys(live, True)
    assert all(tensor.data_ptr() != live[name].data_ptr() for name, tensor in own.items())


@pytest.mark.parametrize("method", [*PENALTIES, *CORRECTIONS])
def test_a_bare_loop_takes_other_steps_than_fedavg(method):
    case = Case("2nn", 1, 20, 1, 10, lr=0.01)
    x, y = map(torch.from_numpy, NETWORKS["2nn"].samples(20, np.random.default_rng(0)))
    models = []
    for name in ("fedavg", method):
        torch.manual_seed(0)
        epoch = bare_epoch(name, case, x, y)
        torch.manual_seed(1)
        epoch()
        models.append(epoch.args[1])
    pairs = zip(*(model.parameters() for model in models), strict=True)
    assert not all(torch.equal(p, q) for p, q in pairs)
