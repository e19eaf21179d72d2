"""The benchmark of stacked models runs, and its loops by hand take the engine's steps."""

from __future__ import annotations

from functools import partial

import numpy as np
import pytest
import torch

from tests.benchmarks.peers.networks import NETWORKS
from tests.benchmarks.peers.work import Case
from tests.benchmarks.stacks import SIZES, ByHand, products, table
from tests.benchmarks.steps import Stepper

pytestmark = pytest.mark.ci


def stepper_of(samples: int, lr: float) -> Stepper:
    case = Case("2nn", 1, samples, 1, 10, lr=lr)
    return Stepper(
        "fedavg", "2nn", case, *NETWORKS["2nn"].samples(samples, np.random.default_rng(0))
    )


@pytest.mark.parametrize("fused", [False, True])
def test_each_model_of_a_stack_by_hand_takes_the_steps_of_its_learning_rate(fused):
    rates = [0.05, 0.2]
    start = stepper_of(40, 1.0).checkpoint.state.groups["model"]
    hand = ByHand(start, 2, rates, fused)
    for k, lr in enumerate(rates):
        stepper = stepper_of(40, lr)
        method, state = stepper.settings.method, stepper.checkpoint.state
        work = method.training_pass(stepper.inputs(), state)
        order = torch.from_numpy(stepper.job(work).batches().permutation(40))
        if k == 0:
            hand.epoch(stepper.data.x.flatten(1), stepper.data.y, order)
        trained, _ = stepper.trainer.run(stepper.job(work))
        own = trained.sums["model"]
        for layer, weight, bias in zip(hand.layers, hand.weights, hand.biases, strict=True):
            close = partial(torch.testing.assert_close, rtol=1e-5, atol=1e-6)
            close(own[f"{layer}.weight"], weight[k])
            close(own[f"{layer}.bias"], bias[k])


def test_a_line_for_each_number_of_models(monkeypatch):
    monkeypatch.setattr("tests.benchmarks.stacks.SAMPLES", 20)
    monkeypatch.setattr("tests.benchmarks.stacks.WARM_UP", 0)
    heading, _, *lines = [
        [cell.strip() for cell in line.strip("|").split("|")]
        for line in table(stepper_of(20, 0.01), [1, 3], 1)
    ]
    assert heading == ["models", "one by one, us", "stack, us", "by hand, us", "fused, us"]
    assert [line[0] for line in lines] == ["1", "3"]
    for _, *cells in lines:
        base, *others = [(float(us), float(gain.strip("()"))) for us, gain in map(str.split, cells)]
        assert base[1] == 1
        assert [gain for _, gain in others] == pytest.approx(
            [base[0] / us for us, _ in others], 0.02
        )


def test_the_products_of_a_step(monkeypatch):
    monkeypatch.setattr("tests.benchmarks.stacks.LARGE", 10)
    weights = sum(i * o for i, o in SIZES)
    operations = 2 * 10 * (3 * weights - SIZES[0][0] * SIZES[0][1])  # the inputs have no gradient
    assert products(1, 1).startswith(f"products of a step: {operations / 1e6:.1f} MFLOP")
