"""Schedules of rates are those of torch."""

from __future__ import annotations

import warnings

import pytest
import torch
from torch.optim.lr_scheduler import MultiStepLR, ReduceLROnPlateau

import raysim
from raysim.api.rates import table_value

LOSSES = [
    1.0,
    0.9,
    0.95,
    0.9,
    0.899995,
    0.5,
    0.6,
    0.7,
    0.5,
    0.4,
    0.41,
    0.42,
    0.43,
    0.44,
    0.45,
    0.46,
]


def local(**settings):
    given = {f"local.{name}": value for name, value in settings.items()}
    return raysim.load_config("mnist-fedavg", given).local


def rates_of_torch(scheduler_of, values):
    """Rates before each round; the scheduler is told its value."""
    optimizer = torch.optim.SGD([torch.zeros(1)], lr=0.1)
    scheduler, rates = scheduler_of(optimizer), []
    for value in values:
        rates.append(optimizer.param_groups[0]["lr"])
        optimizer.step()
        scheduler.step(*value)
    return rates


@pytest.mark.parametrize("patience", [0, 1, 3])
@pytest.mark.parametrize(
    ("metric", "values"),
    [("train_loss", LOSSES), ("holdout_accuracy", [1 - each for each in LOSSES])],
)
def test_a_plateau_is_that_of_torch(metric, values, patience):
    """Also with rounds that were not evaluated, and behind a warm-up, whose rounds do not count."""
    options = {"factor": 0.2, "patience": patience, "threshold": 0.001}
    mode = "max" if metric == "holdout_accuracy" else "min"
    expected = rates_of_torch(
        lambda o: ReduceLROnPlateau(o, mode=mode, min_lr=0.005, **options), [(v,) for v in values]
    )
    settings = local(
        **{"lr": 0.1, "schedule": "plateau", "lr_min": 0.005, "lr_metric": metric},
        **{f"lr_{name}": value for name, value in options.items()},
        warmup_rounds=2,
    )
    state, found = {}, []
    for number, value in enumerate([0.0, 0.0, *(v for each in values for v in (each, None))]):
        found.append(settings.rate_at(number, 100, 0.1, state))
        state = settings.after(number, 0.1, state, {metric: value})
    assert found[:2] == pytest.approx([0.1 / 3, 0.2 / 3])
    assert found[2::2] == pytest.approx(expected, rel=1e-12) and len({*expected}) > 1


def test_a_table_of_steps_is_that_of_torch():
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        expected = rates_of_torch(lambda o: MultiStepLR(o, milestones=[3, 5], gamma=0.1), [()] * 8)
    settings = local(lr=0.1, schedule="table", lr_rounds=[4, 6], lr_values=[0.01, 0.001])
    found = [settings.rate_at(number, 8, 0.1) for number in range(8)]
    assert found == pytest.approx(expected, rel=1e-12) and len({*found}) == 3


@pytest.mark.parametrize(
    ("between", "expected"),
    [
        ("hold", [4.0, 8.0, 8.0, 2.0, 2.0]),
        ("linear", [4.0, 8.0, 5.0, 2.0, 2.0]),
        ("geometric", [4.0, 8.0, 4.0, 2.0, 2.0]),
    ],
)
def test_values_between_given_rounds(between, expected):
    found = [table_value(number, 4.0, (2, 4), (8.0, 2.0), between) for number in range(1, 6)]
    assert found == pytest.approx(expected)
