"""Studies: their settings and ranges are checked before anything starts."""

from __future__ import annotations

import pytest
from optuna.distributions import CategoricalDistribution, FloatDistribution, IntDistribution

import raysim
from raysim.tuning.studies import STUDIES
from raysim.tuning.study import Study, grid_points
from tests.tuning.common import make_study


@pytest.mark.parametrize("name", STUDIES)
def test_every_study_resolves(name):
    resolved = STUDIES[name].resolve({"rounds": 3})
    assert resolved.settings.rounds == 3
    assert resolved.settings.evaluation.holdout == 0.1
    assert resolved.settings.target_accuracy is None
    assert set(resolved.space) == set(STUDIES[name].space)


def test_the_ranges_that_were_asked_for():
    beta = STUDIES["fedmax-beta"].space["method.beta"]
    assert isinstance(beta, FloatDistribution) and (beta.low, beta.high, beta.log) == (1, 1e4, True)
    l2 = STUDIES["activation-l2-beta"].space["method.beta"]
    assert isinstance(l2, FloatDistribution) and (l2.low, l2.high) == (1e-4, 1e-1)
    temperature = STUDIES["temperature"].space["local.temperature"]
    assert isinstance(temperature, FloatDistribution)
    assert (temperature.low, temperature.high) == (0.05, 4)
    assert set(STUDIES["fedavg-schedule"].space) == {
        "local.lr",
        "local.epochs",
        "local.batch_size",
        "fraction",
    }


def test_an_override_fixes_what_was_tried(tmp_path):
    resolved = make_study(tmp_path).resolve({"method.mu": 0.3})
    assert set(resolved.space) == {"local.lr"}
    assert resolved.settings.to_dict()["method"]["mu"] == 0.3


@pytest.mark.parametrize(
    ("overrides", "message"),
    [
        ({"method.mu": 0.1, "local.lr": 0.1}, "local.lr, method.mu: all are fixed"),
        ({"evaluation.holdout": 0.0}, "evaluation.holdout=0.0: must be above 0; a study selects"),
        (
            {"dataset.name": "tests.driver.test_regression:Slopes"},
            r"dataset.name=tests.driver.test_regression:Slopes: has no accuracy, by which a study",
        ),
        ({"out": "here"}, "out=here: use the option --out for a study"),
        ({"local.lr": -1.0}, "local.lr=-1.0: must be greater than 0"),
        ({"method.name": "fedavg"}, "method.mu: no such setting"),
    ],
)
def test_refusals(tmp_path, overrides, message):
    with pytest.raises(raysim.SettingsError, match=message):
        make_study(tmp_path).resolve(overrides)


def test_a_range_that_the_settings_refuse(tmp_path):
    base = make_study(tmp_path)
    wrong = Study("", base.preset, {"local.momentum": FloatDistribution(0.0, 1.0)})
    with pytest.raises(raysim.SettingsError, match=r"local.momentum=1.0: must be less than 1"):
        wrong.resolve({})


def test_grid():
    assert grid_points(CategoricalDistribution(("a", "b"))) == ["a", "b"]
    assert grid_points(IntDistribution(1, 7, step=3)) == [1, 4, 7]
    assert grid_points(FloatDistribution(0.0, 4.0)) == [0.5 * i for i in range(9)]
    powers = [10 ** (i / 2 - 4) for i in range(9)]
    points = grid_points(FloatDistribution(1e-4, 1.0, log=True))
    assert points == pytest.approx(powers) and points[0] == 1e-4 and points[-1] == 1.0
