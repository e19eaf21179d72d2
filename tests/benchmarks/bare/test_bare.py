"""The bare loops do the engine's arithmetic: the same parameters, uploads and kept tensors.

In every case the client's tensors from the round before are moved at random, so that what is equal
with one client alone (SCAFFOLD's c and c_k, say) is not.
"""

from __future__ import annotations

from collections.abc import Mapping
from functools import partial
from typing import Any, TypeVar

import numpy as np
import pytest
import torch

import raysim.methods  # noqa: F401 - registers them
from raysim.api.method import METHODS
from raysim.api.rules import Pass, Reduced, Upload
from raysim.numbers.tensors import Groups
from tests.benchmarks.bare.loop import Given, Loop, Term
from tests.benchmarks.bare.methods import WITHOUT
from tests.benchmarks.peers.networks import NETWORKS
from tests.benchmarks.peers.work import Case
from tests.benchmarks.steps import Stepper

pytestmark = pytest.mark.ci

SETTINGS: dict[str, dict[str, Any]] = {
    "activation_l2": {"beta": 0.02},
    "centralized": {},
    "chain": {"methods": {"fedprox": {"mu": 0.3}, "scaffold": {"lr_global": 0.7}}},
    "ditto": {"lam": 0.7},
    "divide_and_conquer": {"split": 2, "finetune_epochs": 2, "finetune_lr_factor": 0.3},
    "fedadam": {"lr_server": 0.02},
    "fedasync": {"mu": 0.3},
    "fedat": {"mu": 0.2, "tiers": 1},
    "fedavg": {},
    "fedbabu": {},
    "fedbn": {},
    "fedbuff": {"lr_global": 0.5},
    "feddbe": {"kappa": 50, "momentum": 0.5},
    "feddyn": {"alpha": 0.05},
    "fedfusion": {"ema": 0.2},
    "fedlc": {"tau": 3},
    "fedma": {"gamma": 0.1},
    "fedmax": {"beta": 200},
    "fedmmd": {"lam": 0.5},
    "fednova": {"max_epochs": 3},
    "fedper": {},
    "fedproto": {"lam": 3},
    "fedprox": {"mu": 0.3},
    "fedrep": {"head_epochs": 2},
    "fedrod": {"gamma": 2},
    "fsvrg": {"h": 0.02},
    "lg_fedavg": {},
    "local": {},
    "mifl": {"prune": 0.1},
    "moon": {"mu": 2},
    "momentum": {"gamma": 0.8},
    "scaffold": {"lr_global": 0.7},
    "two_stream_l2": {"lam": 0.05},
}
PLAIN = {"chain", "fednova", "fsvrg", "momentum", "scaffold"}
"""Methods whose loops take plain SGD."""
LR = {"resnet18": 0.005}
LOCAL = {"local.momentum": 0.9, "local.nesterov": True, "local.weight_decay": 0.02}
OTHERS = [
    *(("mnist-cnn-128", name) for name in ("divide_and_conquer", "fedfusion", "fedma", "fsvrg")),
    *(
        ("resnet18", name)
        for name in ("divide_and_conquer", "fedbuff", "fedfusion", "fsvrg", "mifl")
    ),
]
"""Networks with maps and with BatchNorm, of the methods whose loops look at layers or buffers."""


class Compared(Stepper):
    """A stepper that compares the bare loop with the engine in every pass."""

    compared = 0

    def run(self, pass_: Pass) -> Reduced:
        if self.checkpoint.number and self.job(pass_).epochs:
            by_hand = bare(self).run(Given.of(self.job(pass_), pass_.label))
            engine, _ = self.trainer.run(self.job(pass_))
            near(bare(self).model.state_dict(), self.trainer.network.tensors())
            for upload in by_hand:
                same_upload(upload, engine)
            self.compared += 1
        return super().run(pass_)


S = TypeVar("S", bound=Stepper)


def bare(stepper: Stepper) -> Loop:
    assert stepper.bare is not None
    return stepper.bare


def near(own: Mapping[str, torch.Tensor], other: Mapping[str, torch.Tensor]) -> None:
    torch.testing.assert_close(dict(own), dict(other), rtol=1e-5, atol=3e-7, check_dtype=False)


def same_upload(by_hand: Upload, engine: Upload) -> None:
    for own, other in ((by_hand.sums, engine.sums), (by_hand.state, engine.state)):
        for name, group in own.items():
            near(group, other[name])
    assert dict(by_hand.scalars) == pytest.approx(
        {n: engine.scalars[n] for n in by_hand.scalars}, rel=1e-6
    )


def stepper_of(name: str, kind: type[S], network: str = "2nn", noise: float = 0.03) -> S:
    """Return a stepper after its first round, with what the client keeps moved at random."""
    case = Case(network, 1, 25, 1, 10, lr=LR.get(network, 0.05))
    samples = NETWORKS[network].samples(case.samples, np.random.default_rng(0))
    given = {f"method.{key}": value for key, value in SETTINGS[name].items()}
    local = {} if name in PLAIN else LOCAL
    stepper = kind(name, network, case, *samples, {**given, **local})
    stepper.round()
    stepper.state = moved(stepper.state, noise)
    return stepper


def moved(groups: Groups, by: float) -> Groups:
    generator = torch.Generator().manual_seed(0)

    def near_by(tensor: torch.Tensor) -> torch.Tensor:
        noise = by * torch.randn(tensor.shape, generator=generator)
        return tensor + noise if tensor.is_floating_point() else tensor

    return {name: {n: near_by(t) for n, t in group.items()} for name, group in groups.items()}


@pytest.mark.parametrize(
    ("network", "name"), [*(("2nn", name) for name in METHODS if name not in WITHOUT), *OTHERS]
)
def test_a_bare_loop_does_the_engine_s_arithmetic(network, name):
    stepper = stepper_of(name, Compared, network)
    stepper.round()
    passes = {"ditto": 2, "fedrep": 2, "fedma": 3 if network == "2nn" else 4}
    assert stepper.compared == passes.get(name, 1)


@pytest.mark.parametrize("noise", [0.0, 0.3])
def test_mifl_near_the_client_s_own_model_and_far_from_it(noise):
    stepper = stepper_of("mifl", Compared, noise=noise)
    stepper.round()
    assert stepper.compared == 1


ADDING = [
    *("activation_l2", "chain", "ditto", "fedasync", "fedat", "feddbe", "feddyn", "fedlc"),
    *(
        "fedmmd",
        "fedprox",
        "fedrod",
        "fsvrg",
        "mifl",
        "momentum",
        "moon",
        "scaffold",
        "two_stream_l2",
    ),
]


class Without(Stepper):
    """A stepper that compares the loop of the last pass with plain SGD on the same batches."""

    def run(self, pass_: Pass) -> Reduced:
        if self.job(pass_).epochs:
            plain = Loop(bare(self).model, bare(self).local, [partial(Term, None)])
            self.both = [self.trained(loop, pass_) for loop in (bare(self), plain)]
        return super().run(pass_)

    def trained(self, loop: Loop, pass_: Pass) -> dict[str, torch.Tensor]:
        loop.run(Given.of(self.job(pass_), pass_.label))
        return {name: tensor.clone() for name, tensor in loop.model.state_dict().items()}


@pytest.mark.parametrize("name", ADDING)
def test_what_a_method_adds_moves_the_parameters_further_than_the_comparison_allows(name):
    stepper = stepper_of(name, Without)
    stepper.round()
    with pytest.raises(AssertionError, match="not close"):
        near(*stepper.both)
