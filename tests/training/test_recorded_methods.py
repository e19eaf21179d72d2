"""Recorded steps of every registered method: runs with them and without have the same bits."""

from __future__ import annotations

import pytest

import raysim
from raysim.api.method import METHODS
from raysim.training import recorded_steps, sequential
from raysim.training.recorded_steps import RecordedSteps
from tests.adapters import task_for
from tests.methods.test_contract import SETTINGS
from tests.tasks import make_settings, make_task, model_of

SIZES = (40, 17, 27)
LOCAL = {
    "plain": {},
    "everything": {
        "local.momentum": 0.5,
        "local.nesterov": True,
        "local.weight_decay": 0.01,
        "local.temperature": 0.5,
    },
}
TRANSFORMING = {
    *("chain", "ditto", "drfa", "fedasync", "fedat", "feddyn", "fedprox", "momentum", "scaffold"),
}
"""Methods whose transforms are recorded with the step."""
TAKING_GRADIENTS = {
    *("fsvrg", "per_fedavg", "pfedme"),
}
"""Methods whose transforms take further gradients, which are not recorded."""
FIGURES = ["train_loss", "objective", "test_loss"]


@pytest.fixture
def recorders(monkeypatch):
    """Return the recorders of the runs that follow, which write steps down soon."""
    monkeypatch.setattr(recorded_steps, "STEPS_BEFORE", 3)
    built = []
    monkeypatch.setattr(
        sequential, "RecordedSteps", lambda *args: built.append(RecordedSteps(*args)) or built[-1]
    )
    return built


def test_recorded_steps_follow_what_rules_write_into_buffers(tmp_path, monkeypatch, recorders):
    """FedDBE's running mean of the features, in a pass that gathers it and in one that pulls."""
    given = {"method.name": "feddbe", "method.kappa": 30, "rounds": 2, "fraction": 1.0}
    raysim.run(make_settings(tmp_path / "recorded", **given), make_task(SIZES))
    (recorder,) = recorders
    assert all(any(kind.scripts.values()) for kind in recorder._kinds.values())
    assert len(recorder._kinds) > 1
    monkeypatch.setattr(sequential, "can_record_steps", lambda: False)
    raysim.run(make_settings(tmp_path / "plain", **given), make_task(SIZES))
    assert model_of(tmp_path / "recorded") == model_of(tmp_path / "plain")


@pytest.mark.parametrize("local", ["plain", pytest.param("everything", marks=pytest.mark.full)])
@pytest.mark.parametrize("method", [*METHODS])
def test_a_run_with_recorded_steps_has_the_bits_of_plain_ones(
    tmp_path, monkeypatch, recorders, method, local
):
    options = {"method.name": method, "fraction": 1.0, "rounds": 2, "checkpoint_every": 9}
    options |= LOCAL[local] | SETTINGS.get(method, {})
    if method == "fsvrg":
        options["method.step"] = "constant"  # "scaled" refuses local.momentum
    task = task_for(method, make_task(SIZES))
    found = raysim.run(make_settings(tmp_path / "recorded", **options), task)
    (recorder,) = recorders
    kinds = {key: [*kind.scripts.values()] for key, kind in recorder._kinds.items()}
    gradients = [each for key, scripts in kinds.items() if not key[0][2] for each in scripts]
    whole = [each for key, scripts in kinds.items() if key[0][2] for each in scripts]
    behind = method == "scaffold" and "local.momentum" in options
    assert bool(whole) == (method in TRANSFORMING | TAKING_GRADIENTS and not behind)
    assert all(gradients) and any(gradients + whole)
    assert not any(whole) if method in TAKING_GRADIENTS else all(whole)
    monkeypatch.setattr(sequential, "can_record_steps", lambda: False)
    plain = raysim.run(make_settings(tmp_path / "plain", **options), task)
    assert len(recorders) == 1
    assert model_of(tmp_path / "recorded") == model_of(tmp_path / "plain")
    assert found.metrics.select(FIGURES).equals(plain.metrics.select(FIGURES))
