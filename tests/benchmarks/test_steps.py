"""The benchmark of local steps runs, and shows each method beside FedAvg, its goal and a loop."""

from __future__ import annotations

import numpy as np
import pytest
import torch

import raysim.methods  # noqa: F401 - registers them
from raysim.api.method import METHODS
from raysim.methods.fedavg import FedAvg
from tests.benchmarks.bare.methods import WITHOUT
from tests.benchmarks.peers.networks import NETWORKS
from tests.benchmarks.peers.work import Case
from tests.benchmarks.steps import Stepper, table

pytestmark = pytest.mark.ci


class Unknown(FedAvg):
    """A method of a user's own."""


def stepper_of(method: str) -> Stepper:
    case = Case("2nn", 1, 20, 1, 10, lr=0.01)
    return Stepper(method, "2nn", case, *NETWORKS["2nn"].samples(20, np.random.default_rng(0)))


def test_a_line_for_each_method(monkeypatch):
    monkeypatch.setattr("tests.benchmarks.steps.SAMPLES", {"2nn": 20})
    monkeypatch.setattr("tests.benchmarks.steps.WARM_UP", 0)
    heading, _, *lines = [
        [cell.strip() for cell in line.strip("|").split("|")]
        for line in table("2nn", [*METHODS], 1)
    ]
    assert heading == ["2nn", "ms a step", "/ fedavg", "goal", "bare, ms", "/ bare"]
    by_method = {name: cells for name, *cells in lines}
    assert [*by_method] == [*METHODS] and by_method["fedavg"][1].startswith("1.00")
    assert (by_method["fedprox"][2], by_method["feddyn"][2]) == ("1.2", "-")
    assert {name for name, cells in by_method.items() if cells[3] == "-"} == WITHOUT
    for own, _, _, bare, ratio in (by_method[name] for name in by_method.keys() - WITHOUT):
        assert float(own) > 0 and float(bare) > 0
        assert float(ratio.split()[0]) == pytest.approx(
            float(own) / float(bare), rel=0.005, abs=0.02
        )


def test_a_method_without_a_bare_loop_has_a_line():
    stepper = stepper_of("tests.benchmarks.test_steps:Unknown")
    own, bare = stepper.round()
    assert own > 0 and bare is None


def test_the_model_that_a_client_of_mifl_keeps_is_not_the_network():
    stepper = stepper_of("mifl")
    stepper.round()
    own, live = stepper.state["model"], stepper.trainer.network.tensors()
    assert {n: torch.equal(t, live[n]) for n, t in own.items()} == dict.fromkeys(live, True)
    assert all(tensor.data_ptr() != live[name].data_ptr() for name, tensor in own.items())
