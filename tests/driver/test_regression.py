"""A task that is no classification: rounds against NumPy, its figures, and what it cannot have."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from io import StringIO
from pathlib import Path
from typing import Any, ClassVar

import numpy as np
import pyarrow.parquet as pq
import pytest
import torch
from rich.console import Console
from torch import nn

import raysim
from raysim.cli.live_view import PlainOutput
from raysim.federation.task import from_task
from raysim.samples.arrow import write_split
from raysim.testing.tasks import SmallNet
from tests.tasks import in_turn, make_settings, make_task

SIZES = (3, 40, 17, 8, 25, 1)
ROUNDS, EPOCHS, LR = 2, 3, 0.05
BASE = {
    "rounds": ROUNDS,
    "fraction": 0.5,
    "local.epochs": EPOCHS,
    "local.lr": LR,
    "local.batch_size": "full",
}


def squared_errors(outputs, targets):
    return (outputs - targets.view_as(outputs)).square().sum(1)


def mae(outputs, targets):
    return np.abs(outputs - targets.reshape(outputs.shape)).mean()


def linear(width):
    def build():
        return nn.Linear(4, width)

    return build


def draw(count, key, width):
    """Return inputs and noisy linear targets, [N] of one column and [N, D] of more."""
    generator = np.random.default_rng(key)
    x = generator.normal(size=(count, 4)).astype(np.float32)
    teacher = np.random.default_rng(99).normal(size=(4, width))
    y = x @ teacher + 0.1 * generator.normal(size=(count, width))
    return x, y if width > 1 else y[:, 0]


def regression(width, model=None):
    return raysim.Task(
        model or linear(width),
        [draw(size, key, width) for key, size in enumerate(SIZES)],
        draw(1500, 1000, width),
        raysim.Scoring(squared_errors, {"mae": mae}),
    )


def fedavg(w, b, clients, cohorts):
    """Return weights, bias, and each client's mean loss, of full-batch least squares."""
    losses = []
    for cohort in cohorts:
        total = sum(len(clients[k][0]) for k in cohort)
        mean_w, mean_b = np.zeros_like(w), np.zeros_like(b)
        for k in cohort:
            x, y = clients[k]
            own_w, own_b, own_losses = w, b, []
            for _ in range(EPOCHS):
                residual = x @ own_w.T + own_b - y
                own_losses.append((residual**2).sum(1).mean())
                own_w = own_w - LR * 2 * residual.T @ x / len(x)
                own_b = own_b - LR * 2 * residual.mean(0)
            losses.append(np.mean(own_losses))
            mean_w, mean_b = mean_w + len(x) / total * own_w, mean_b + len(x) / total * own_b
        w, b = mean_w, mean_b
    return w, b, losses


@pytest.mark.parametrize("width", [1, 2])
@pytest.mark.parametrize("stacked", [0, 3])
def test_two_rounds_of_least_squares(tmp_path, stacked, width):
    task = regression(width)
    result = raysim.run(make_settings(tmp_path, **BASE, **{"engine.vectorize": stacked}), task)
    start = from_task(task).network(0)
    w, b = (p.detach().numpy().astype(np.float64) for p in (start.weight, start.bias))
    rows = pq.read_table(tmp_path / "clients.parquet").sort_by([("round", "ascending")]).to_pylist()
    cohorts = [sorted(r["client"] for r in rows if r["round"] == n + 1) for n in range(ROUNDS)]
    assert [len(cohort) for cohort in cohorts] == [3, 3] and cohorts[0] != cohorts[1]
    clients = [(x.astype(np.float64), y.reshape(len(x), width)) for x, y in task.clients]
    w, b, losses = fedavg(w, b, clients, cohorts)
    assert np.abs(result.params["weight"].numpy() - w).max() < 1e-5
    assert np.abs(result.params["bias"].numpy() - b).max() < 1e-5
    logged = [r["train_loss"] for n in (1, 2) for r in sorted_rows(rows, n)]
    assert logged == pytest.approx(losses, rel=1e-4)

    x, y = task.test  # two batches
    errors = x @ w.T + b - y.reshape(len(x), width)
    last = result.metrics.to_pylist()[-1]
    assert last["test_loss"] == pytest.approx((errors**2).sum(1).mean(), rel=1e-4)
    assert last["test_mae"] == pytest.approx(np.abs(errors).mean(), rel=1e-4)


def sorted_rows(rows, number):
    return sorted((r for r in rows if r["round"] == number), key=lambda r: r["client"])


def test_records_have_the_task_s_metrics_and_no_accuracy(tmp_path):
    settings = make_settings(tmp_path, **BASE, **{"evaluation.holdout": 0.5, "evaluation.every": 2})
    printed = StringIO()
    result = raysim.run(settings, regression(1), PlainOutput(Console(file=printed), {}))
    first, last = result.metrics.to_pylist()
    evaluated = {name for name in last if name.startswith(("test_", "holdout_", "client_"))}
    assert evaluated == {"test_loss", "test_mae", "holdout_loss", "holdout_mae"}
    assert {first[name] for name in evaluated} == {None}
    finals = {f"final_{name.removeprefix('test_')}": last[name] for name in evaluated}
    assert finals.items() < result.summary.items()
    assert len(set(finals.values())) == 4 and "final_macro_f1" not in result.summary
    for name in ("final_accuracy", "best_accuracy", "rounds_to_target"):
        assert result.summary[name] is None
    final = result.summary["final_score"]
    assert final == last[result.summary["score"]]
    assert f"loss {final:.4f} after 2 rounds" in printed.getvalue()
    assert "accuracy" not in printed.getvalue()


class Slopes(raysim.Dataset):
    """Samples of `draw` with targets in two columns, prepared as a file."""

    shape: ClassVar = (4,)
    classes: ClassVar = 2

    @property
    def scoring(self) -> raysim.Scoring:
        return raysim.Scoring(squared_errors, {"mae": mae})

    def prepare(self, root: Path, progress: Any) -> Mapping[str, Path]:
        root.mkdir(parents=True, exist_ok=True)
        paths = {name: root / f"{name}.arrow" for name in ("train", "test")}
        for path, (x, y) in zip(paths.values(), (draw(90, 1, 2), draw(30, 2, 2)), strict=True):
            write_split(path, raysim.Split(x, y.astype(np.float32)))
        return paths


class Affine(raysim.Model):
    def build(self, shape: tuple[int, ...], classes: int) -> nn.Module:
        return nn.Linear(*shape, classes)


def test_a_dataset_gives_its_objective(tmp_path, monkeypatch):
    monkeypatch.setenv("RAYSIM_DATA", str(tmp_path / "data"))
    parts = {"dataset.name": f"{__name__}:Slopes", "model.name": f"{__name__}:Affine"}
    settings = make_settings(tmp_path / "run", **BASE, **parts, clients=6)
    result = raysim.run(settings)
    w, b = (result.params[name].numpy() for name in ("weight", "bias"))
    x, y = draw(30, 2, 2)
    errors = x @ w.T + b - y
    last = result.metrics.to_pylist()[-1]
    assert last["test_loss"] == pytest.approx((errors**2).sum(1).mean(), rel=1e-4)
    assert last["test_mae"] == pytest.approx(np.abs(errors).mean(), rel=1e-4)


class Staged(SmallNet):
    def __init__(self) -> None:
        super().__init__(inputs=4, classes=2)


METHODS = {
    "mifl": {"method.objective": "residual"},
    "fedmmd": {},
    "two_stream_l2": {},
    "fedmax": {"method.beta": 1},
    "fedma": {},
    "fsvrg": {},
    "fedfusion": {"method.operator": "single"},
    "divide_and_conquer": {"method.split": 1},
}


@pytest.mark.parametrize(("method", "stacked"), in_turn(METHODS, [0, 3]))
def test_methods_learn_a_regression(tmp_path, method, stacked):
    overrides = {"method.name": method, "engine.vectorize": stacked, **METHODS[method]}
    settings = make_settings(tmp_path, **BASE | {"rounds": 6, **overrides})
    losses = raysim.run(settings, regression(2, Staged)).metrics["test_loss"].to_pylist()
    assert np.isfinite(losses).all() and losses[-1] < 0.9 * losses[0]


class Matrices(Staged):
    """A network whose outputs are [B, 2, 1]."""

    def __init__(self) -> None:
        super().__init__()
        self.head = nn.Sequential(self.head, nn.Unflatten(1, (2, 1)))


def squared_errors_of_matrices(outputs, targets):
    return (outputs[:, :, 0] - targets).square().sum(1)


@pytest.mark.parametrize("method", ["mifl", "fedmmd", "two_stream_l2"])
@pytest.mark.parametrize("stacked", [0, 3])
def test_methods_that_compare_outputs_take_them_in_any_shape(tmp_path, method, stacked):
    settings = {"method.name": method, "engine.vectorize": stacked, **METHODS[method]}
    plain, task = regression(2, Staged), regression(2, Matrices)
    scoring = raysim.Scoring(squared_errors_of_matrices)
    task = raysim.Task(task.model, task.clients, task.test, scoring)
    runs = {"vectors": plain, "matrices": task}
    losses = [
        raysim.run(make_settings(tmp_path / name, **BASE, **settings), each).metrics["train_loss"]
        for name, each in runs.items()
    ]
    assert losses[1].to_pylist() == pytest.approx(losses[0].to_pylist(), rel=1e-5)


def smoothed(outputs, targets):
    """Cross-entropy against 0.8 of the label and 0.2 of all classes."""
    logs = torch.log_softmax(outputs, -1)
    picked = logs.gather(-1, targets.unsqueeze(-1)).squeeze(-1)
    return -0.8 * picked - 0.2 * logs.mean(-1)


def test_gradients_that_a_stacked_transform_asks_for_are_of_the_task_s_own_loss(tmp_path):
    """FSVRG's transform differentiates again."""
    clients = make_task((9, 17, 30, 12)).clients
    scoring = replace(raysim.CLASSIFICATION, losses=smoothed)
    task = raysim.Task(SmallNet, clients, clients[0], scoring)
    models = []
    for size in (0, 4):
        chosen = {"method.name": "fsvrg", "fraction": 1.0, "rounds": 2, "engine.vectorize": size}
        models.append(raysim.run(make_settings(tmp_path / str(size), **chosen), task).params)
    assert all(torch.allclose(models[0][n], models[1][n], atol=1e-5) for n in models[0])


def transposed(outputs, targets):
    """Compare [B, 1] with [B], which is [B, B], and mean it back to [B]."""
    return (outputs - targets).square().mean(1)


def columns(outputs, targets):
    return (outputs - targets).square()


def never(outputs, targets):
    raise ValueError("no\nloss")


class Flat(nn.Linear):
    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return super().forward(x)[:, 0]


SETTINGS = {
    "target_accuracy=0.5: the task's metrics are mae": {"target_accuracy": 0.5},
    "local.temperature=0.5: the task is no": {"local.temperature": 0.5},
    "evaluation.clients=true: the task is no": {"evaluation.clients": True},
}


@pytest.mark.parametrize("message", SETTINGS)
def test_settings_that_need_classes_are_refused(tmp_path, message):
    with pytest.raises(raysim.SettingsError, match=message):
        raysim.run(make_settings(tmp_path / "run", **BASE | SETTINGS[message]), regression(1))
    assert not (tmp_path / "run").exists()


OBJECTIVES = {
    "a sample's loss depends on other samples": raysim.Scoring(transposed),
    r"must return one loss for each sample \[2\]; .* it returned \[2, 2\]": raysim.Scoring(columns),
    r"outputs \[2, 1\] and targets \[2\]: no loss": raysim.Scoring(never),
}


@pytest.mark.parametrize("message", OBJECTIVES)
def test_objectives_that_cannot_be_used_are_refused(tmp_path, message):
    task = regression(1)
    task = raysim.Task(task.model, task.clients, task.test, OBJECTIVES[message])
    with pytest.raises(raysim.SettingsError, match=message):
        raysim.run(make_settings(tmp_path / "run", **BASE), task)
    assert not (tmp_path / "run").exists()


def test_outputs_without_a_second_dimension_are_refused(tmp_path):
    task = regression(1, lambda: Flat(4, 1))
    with pytest.raises(raysim.SettingsError, match=r"outputs have shape \[2\]: must be"):
        raysim.run(make_settings(tmp_path / "run", **BASE), task)
