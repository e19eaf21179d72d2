"""The loss at the temperature of training: a column of evaluations where that is not 1."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import numpy as np
import pytest
import torch
from torch import nn

import raysim
from raysim.results.metrics import parse_metric
from raysim.results.runs import read_run
from raysim.samples.client_indices import Holdout
from raysim.testing.tasks import samples
from tests.driver.test_local_tests import logits_of, models_of, own_tests
from tests.tasks import UNEQUAL, make_settings, make_task

T = 0.25


def loss_of(models: list[Any], pairs: list[Any], temperature: float) -> float:
    """Return the mean loss of samples, each client's by its model."""
    sums = count = 0.0
    for model, (x, y) in zip(models, pairs, strict=True):
        logits = logits_of(model, x).double() / temperature
        sums += float(nn.functional.cross_entropy(logits, torch.as_tensor(y), reduction="sum"))
        count += len(y)
    return sums / count


@pytest.mark.parametrize("stack", [0, 3])
def test_losses_at_the_temperature_by_hand(tmp_path, stack):
    """Of all sets, of more than one batch, and of models of the clients' own."""
    task = replace(make_task(UNEQUAL), test=samples(2300, 7), client_tests=own_tests())
    options = {"method.name": "ditto", "evaluation.holdout": 0.2, "engine.vectorize": stack}
    options |= {"local.temperature": T, "rounds": 2, "fraction": 1.0}
    result = raysim.run(make_settings(tmp_path / "run", **options), task)
    last, own = result.metrics.to_pylist()[-1], models_of(result, task)
    held = [
        [each[Holdout(0.2, seed=0).divide(k, len(pair[1]))[1]] for each in pair]
        for k, pair in enumerate(task.clients)
    ]
    tests = [pair or (task.clients[0][0][:0], task.clients[0][1][:0]) for pair in own_tests()]
    sets = {
        "test": ([result.params], [task.test]),
        "holdout": ([result.params] * 6, held),
        "personal_holdout": (own, held),
        "local_test": ([result.params] * 6, tests),
        "personal_local_test": (own, tests),
    }
    for name, (models, pairs) in sets.items():
        assert last[f"{name}_loss"] == pytest.approx(loss_of(models, pairs, 1), 1e-5)
        at_temperature = last[f"{name}_loss_at_temperature"]
        assert at_temperature == pytest.approx(loss_of(models, pairs, T), 1e-5)
        assert result.summary[f"final_{name}_loss_at_temperature".replace("final_test_", "final_")]
    assert not np.isclose(last["test_loss_at_temperature"], last["test_loss"], rtol=0.01)
    names = [n for n in result.metrics.column_names if "at_temperature" in n]
    assert {*names} == {f"{name}_loss_at_temperature" for name in sets}


def test_at_temperature_1_the_loss_is_read_in_its_place(tmp_path):
    """No run at T=1 has another column; a table that compares temperatures has one metric."""
    metric = parse_metric("final(test_loss_at_temperature)")
    values = []
    for name, options in (("one", {}), ("cold", {"local.temperature": T})):
        result = raysim.run(make_settings(tmp_path / name, **options), make_task(UNEQUAL))
        assert ("test_loss_at_temperature" in result.metrics.column_names) == bool(options)
        values.append((metric.of(read_run(tmp_path / name)), result.summary["final_loss"]))
    assert values[0][0] == values[0][1] and values[1][0] != values[1][1]
    assert metric.column_in(read_run(tmp_path / "one")).better == "smaller"


def test_a_metric_of_a_task_must_not_have_its_name():
    with pytest.raises(raysim.SettingsError, match="'loss_at_temperature' is the engine's name"):
        raysim.Scoring(nn.functional.cross_entropy, {"loss_at_temperature": lambda p, y: 0.0})
