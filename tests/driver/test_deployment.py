"""What a client does before it is evaluated is a pass, whose result is scored and dropped."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest
from pydantic import Field
from torch import nn

import raysim
from raysim.methods.fedavg import FedAvg
from raysim.samples.client_indices import Holdout
from raysim.testing.tasks import SmallNet
from tests.driver.test_regression import BASE, LR, SIZES, draw, regression
from tests.tasks import UNEQUAL, make_settings, make_task, model_of

HOLDOUT = 0.3
WIDTH = 2
FIGURES = ("personal_holdout_loss", "personal_holdout_mae")
FIGURES += ("personal_local_test_loss", "personal_local_test_mae")


class FineTuned(FedAvg):
    """FedAvg whose clients train the global model further before they are evaluated."""

    tuning_epochs: int = Field(default=2, ge=0)

    def deployment(self, now, state):
        if not self.tuning_epochs:
            return None
        return replace(self.training_pass(now, state), epochs=self.tuning_epochs)


def one_step(view, trained):
    gradient = view.gradient(view.params, trained.data)
    stepped = {name: view.params[name] - LR * gradient[name] for name in view.trainable}
    return raysim.Upload(sums={"model": {**view.params, **stepped}})


class OneStep(FedAvg):
    """FedAvg whose clients take one step from the global model, in `finish`."""

    def deployment(self, now, state):
        return raysim.Pass(now.cohort, self.broadcast(state), raysim.Rules(finish=one_step))


def broken(view, trained):
    raise ZeroDivisionError("nothing")


class Broken(FedAvg):
    """FedAvg whose clients fail before they are evaluated."""

    def deployment(self, now, state):
        return raysim.Pass(now.cohort, self.broadcast(state), raysim.Rules(finish=broken))


class Diverging(FedAvg):
    """FedAvg whose clients take far too large steps before they are evaluated."""

    def deployment(self, now, state):
        return replace(self.training_pass(now, state), lr=1e30)


def nothing(view, trained):
    return raysim.Upload()


class Silent(FedAvg):
    """FedAvg whose clients take two epochs, of which they would send nothing."""

    def deployment(self, now, state):
        rules = raysim.Rules(finish=nothing)
        return replace(self.training_pass(now, state), epochs=2, rules=rules)


class NoPass(FedAvg):
    """FedAvg whose deployment is a group of tensors."""

    def deployment(self, now, state):
        return state.groups["model"]


class Failing(FedAvg):
    """FedAvg whose deployment asks for a group that there is not."""

    def deployment(self, now, state):
        return raysim.Pass(now.cohort, {"c": state.groups["c"]})


def name_of(kind):
    return f"{__name__}:{kind.__name__}"


def task_of_lines():
    """Least squares in which clients have test samples of their own, but for one."""
    tests = [draw(7 + k, 200 + k, WIDTH) if k != 4 else None for k in range(len(SIZES))]
    return replace(regression(WIDTH), client_tests=tests)


def settings_of(folder, kind, **more):
    base = {**BASE, "evaluation.holdout": HOLDOUT, "local.epochs": 3}
    return make_settings(folder, **{**base, "method.name": name_of(kind), **more})


def tuned(w, b, x, y, steps):
    """Take full-batch steps of least squares from a model."""
    for _ in range(steps):
        residual = x @ w.T + b - y
        w, b = w - LR * 2 * residual.T @ x / len(x), b - LR * 2 * residual.mean(0)
    return w, b


def expected_figures(task, params, steps):
    """Return loss and error of each client's own model on its own samples."""
    w, b = (params[name].numpy().astype(np.float64) for name in ("weight", "bias"))
    errors = {"holdout": [], "local_test": []}
    for k, (x, y) in enumerate(task.clients):
        kept, held = Holdout(HOLDOUT, seed=0).divide(k, len(x))
        own_w, own_b = tuned(w, b, x[kept].astype(np.float64), y[kept], steps)
        errors["holdout"].append(x[held] @ own_w.T + own_b - y[held])
        if task.client_tests[k] is not None:
            own_x, own_y = task.client_tests[k]
            errors["local_test"].append(own_x @ own_w.T + own_b - own_y)
    found = {}
    for name, parts in errors.items():
        every = np.concatenate(parts)
        found[f"personal_{name}_loss"] = (every**2).sum(1).mean()
        found[f"personal_{name}_mae"] = np.abs(every).mean()
    return found


@pytest.mark.parametrize(
    ("kind", "more", "steps"),
    [
        (FineTuned, {}, 2),
        (FineTuned, {"method.tuning_epochs": 5}, 5),
        (OneStep, {}, 1),
        (Silent, {}, 2),
    ],
    ids=["two epochs", "five epochs", "a step in finish", "nothing sent"],
)
def test_clients_are_scored_with_what_comes_of_the_pass(tmp_path, kind, more, steps):
    """All of them, whether they took part or not; the global model and its columns stay."""
    task = task_of_lines()
    result = raysim.run(settings_of(tmp_path / "own", kind, **more), task)
    last = result.metrics.to_pylist()[-1]
    expected = expected_figures(task, result.params, steps)
    assert {name: last[name] for name in FIGURES} == pytest.approx(expected, rel=1e-4)
    assert last["personal_holdout_loss"] < last["holdout_loss"]
    plain = raysim.run(settings_of(tmp_path / "plain", FedAvg), task)
    times = ("seconds", "evaluation_seconds", "checkpoint_seconds")
    columns = [name for name in plain.metrics.column_names if name not in times]
    assert result.metrics.select(columns).equals(plain.metrics.select(columns))
    assert model_of(tmp_path / "own") == model_of(tmp_path / "plain")


def test_none_scores_the_global_model(tmp_path):
    settings = settings_of(tmp_path, FineTuned, **{"method.tuning_epochs": 0})
    last = raysim.run(settings, task_of_lines()).metrics.to_pylist()[-1]
    assert [last[name] for name in FIGURES] == [
        last[name.removeprefix("personal_")] for name in FIGURES
    ]


class Dropping(SmallNet):
    """With BatchNorm, whose moments a forward pass changes, and dropout."""

    def __init__(self):
        super().__init__()
        self.hidden = nn.Sequential(self.hidden, nn.BatchNorm1d(16), nn.Dropout(0.3))


@pytest.mark.usefixtures("resident_actors")
def test_its_draws_are_its_own_and_the_same_on_any_worker(tmp_path):
    """Batches of eight in an order of their own: on actors, and in a run that is resumed."""
    more = {"local.batch_size": 8, "evaluation.clients": True, "rounds": 3}
    task = make_task((9, 8, *UNEQUAL[2:]), Dropping)
    ways = {"inline": {}, "actors": {"engine.backend": "ray", "engine.actors": 2}}
    found = {}
    for way, engine in ways.items():
        settings = settings_of(tmp_path / way, FineTuned, **more, **engine)
        found[way] = raysim.run(settings, task).metrics
    settings = settings_of(tmp_path / "resumed", FineTuned, **more)
    rounds = raysim.rounds(settings, task)
    next(rounds)
    rounds.close()
    found["resumed"] = raysim.resume(tmp_path / "resumed", task=task).metrics
    columns = [n for n in found["inline"].column_names if n.startswith(("personal_", "client_acc"))]
    assert len(columns) == 3 + 10
    for metrics in found.values():
        assert metrics.select(columns).equals(found["inline"].select(columns))


@pytest.mark.parametrize(
    ("kind", "message"),
    [
        (Broken, r"^client \d: its deployment failed: ZeroDivisionError\('nothing'\)"),
        (Diverging, r"^client \d: its deployed model is not finite \(tensor weight\): try a sm"),
        (NoPass, "NoPass: deployment returned .*; must return a Pass, or None$"),
        (Failing, "Failing: deployment failed: KeyError: 'c' "),
    ],
    ids=["a client fails", "a client diverges", "no pass", "failing"],
)
@pytest.mark.parametrize("backend", ["inline", "ray"])
@pytest.mark.usefixtures("resident_actors")
def test_bad_deployments_are_one_line(tmp_path, kind, message, backend):
    settings = settings_of(tmp_path / "run", kind, **{"engine.backend": backend})
    with pytest.raises(raysim.RaysimError, match=message) as raised:
        raysim.run(settings, task_of_lines())
    assert "\n" not in str(raised.value)
    assert not (tmp_path / "run").exists()
