"""`local.tail_average`: the mean of the models of a client's last steps, as torch has it."""

from __future__ import annotations

import pytest
import torch

import raysim
from tests.methods.common import Normed
from tests.tasks import EQUAL, in_turn, make_settings, make_task
from tests.training.test_optimizers import LR, MODES, ROUNDS, assert_equal, mode, run
from tests.training.torch_reference import Reference, cohorts, task

__all__ = ["mode"]  # the fixture
SGD = {"local.momentum": 0.8}
CASES = {"last half": (0.5, None), "all": (1.0, None), "of 31 steps": (0.3, 31)}
"""Share of the last steps, and local steps, of clients of 52, 7, 21 and 30 samples."""


def make(parameters, lr):
    return torch.optim.SGD(parameters, lr, momentum=0.8)


@pytest.mark.parametrize(("case", "mode"), in_turn(CASES, MODES, 2), indirect=["mode"])
def test_the_average_is_that_of_torch(tmp_path, case, mode):
    share, steps = CASES[case]
    work = {"local.steps": steps, "local.epochs": 1 if steps else 2}
    result = run(tmp_path / "run", **SGD, **work, **mode, **{"local.tail_average": share})
    expected = Reference(make, [LR] * ROUNDS, steps=steps, tail=share).run(cohorts(result))
    assert_equal(result.params, expected)
    last = Reference(make, [LR] * ROUNDS, steps=steps).run(cohorts(result))
    assert max((result.params[n] - t).abs().max() for n, t in last.items()) > 1e-4


def test_a_share_of_one_step_is_the_last_model(tmp_path):
    runs = [run(tmp_path / str(s), **{"local.tail_average": s}) for s in (0.0, 1e-9)]
    assert all(torch.equal(runs[0].params[name], t) for name, t in runs[1].params.items())


def test_statistics_of_batchnorm_stay_those_of_the_last_step(tmp_path):
    runs = [
        raysim.run(
            make_settings(tmp_path / str(share), rounds=1, **{"local.tail_average": share}),
            make_task(EQUAL, Normed),
        ).params
        for share in (0.0, 1.0)
    ]
    same = {name for name, tensor in runs[0].items() if torch.equal(tensor, runs[1][name])}
    buffers = {name for name, _ in Normed().named_buffers()}
    assert same & {*buffers, "head.weight"} == buffers


@pytest.mark.usefixtures("resident_actors")
def test_same_bits_on_actors_and_resumed(tmp_path):
    given = {"local.tail_average": 0.5, "method.name": "ditto"}
    whole = run(tmp_path / "whole", **given)
    run(tmp_path / "run", rounds=2, **given, **{"engine.backend": "ray", "engine.actors": 2})
    resumed = raysim.resume(tmp_path / "run", task(), overrides={"rounds": ROUNDS})
    assert all(torch.equal(resumed.params[name], t) for name, t in whole.params.items())


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        ({}, "local.tail_average=1.5: must be less than or equal to 1"),
        ({"method.name": "scaffold"}, "local.tail_average=0.5: does not go with method.name=sca"),
        ({"method.name": "fednova"}, "local.tail_average=0.5: does not go with method.name=fedn"),
        (
            {"method.name": "chain", "method.methods": {"fedprox": {"mu": 0.1}, "scaffold": {}}},
            "local.tail_average=0.5: does not go with method.name=chain, which needs",
        ),
    ],
)
def test_refused_before_anything_starts(tmp_path, settings, message):
    share = {"local.tail_average": 0.5 if settings else 1.5}
    with pytest.raises(raysim.SettingsError) as error:
        make_settings(tmp_path / "run", **settings, **share)
    assert str(error.value).startswith(message)
