"""Runs on a table of a user's own: against NumPy, on every kind of partition, and resumed."""

from __future__ import annotations

import json
from typing import Any

import numpy as np
import pytest
import torch

import raysim
from raysim.driver.listeners.progress import RunProgress, final_score
from raysim.numbers.seeds import torch_seed
from raysim.storage.rows.metrics import declared_in
from tests.workloads.datasets.files import layouts

SITES = np.array(["a", "b", "b", "c", "c", "c"] * 20)
DRAW = np.random.default_rng(3)
AGE, LOAD = DRAW.normal(50, 20, 120).round(1), DRAW.normal(0, 1, 120).round(2)
SICK = (AGE / 20 + LOAD + DRAW.normal(0, 1, 120) > 2.5).astype(int)
PART = np.where(np.arange(120) % 4 == 3, "test", "train")
TRAIN = PART == "train"
ROUNDS, EPOCHS, LR = 15, 2, 0.1


@pytest.fixture
def settings(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("RAYSIM_DATA", str(tmp_path / "data"))
    words = np.where(SICK, "yes", "no")
    given = {"site": SITES, "age": AGE, "load": LOAD, "sick": words, "part": PART}
    layouts.text(tmp_path / "patients.csv", given)

    def settings(**changes: Any) -> raysim.Settings:
        chosen = {
            **{"dataset.name": "files", "dataset.path": str(tmp_path / "patients.csv")},
            **{"dataset.target": "sick", "dataset.split": "part", "dataset.client": "site"},
            **{"dataset.standardise": True, "partition.name": "natural", "clients": 3},
            **{"model.name": "linear", "fraction": 1.0, "rounds": ROUNDS, "seed": 5},
            **{"local.epochs": EPOCHS, "local.batch_size": "full", "local.lr": LR},
            **{"target_accuracy": None, "engine.backend": "inline", "out": str(tmp_path / "run")},
        }
        return raysim.load_config("mnist-fedavg", {**chosen, **changes})

    return settings


@pytest.fixture
def run(settings):
    return lambda **changes: raysim.run(settings(**changes))


def standardised(*columns: np.ndarray) -> np.ndarray:
    x = np.stack(columns, axis=1)
    return (x - x[TRAIN].mean(0)) / x[TRAIN].std(0)


def fedavg(w: np.ndarray, b: np.ndarray, step: Any) -> tuple[np.ndarray, np.ndarray]:
    """Return the weights after rounds of full-batch steps of unequal clients."""
    for _ in range(ROUNDS):
        mean_w, mean_b = np.zeros_like(w), np.zeros_like(b)
        for site in "abc":
            own_w, own_b = w, b
            rows = TRAIN & (site == SITES)
            for _ in range(EPOCHS):
                grad_w, grad_b = step(own_w, own_b, rows)
                own_w, own_b = own_w - LR * grad_w, own_b - LR * grad_b
            weight = rows.sum() / TRAIN.sum()
            mean_w, mean_b = mean_w + weight * own_w, mean_b + weight * own_b
        w, b = mean_w, mean_b
    return w, b


def start(inputs: int, outputs: int) -> tuple[np.ndarray, np.ndarray]:
    torch.manual_seed(torch_seed(5, "init"))
    layer = torch.nn.Linear(inputs, outputs)
    return layer.weight.detach().double().numpy(), layer.bias.detach().double().numpy()


def last(result: Any) -> dict[str, Any]:
    return result.metrics.to_pylist()[-1]


def test_logistic_regression(run):
    x = standardised(AGE, LOAD)

    def step(w, b, rows):
        z = x[rows] @ w.T + b
        p = np.exp(z) / np.exp(z).sum(1, keepdims=True) - np.eye(2)[SICK[rows]]
        return p.T @ x[rows] / rows.sum(), p.mean(0)

    result = run()
    w, b = fedavg(*start(2, 2), step)
    assert np.abs(result.params["head.0.weight"].numpy() - w).max() < 1e-5
    assert np.abs(result.params["head.0.bias"].numpy() - b).max() < 1e-5
    right = ((x @ w.T + b).argmax(1) == SICK)[~TRAIN].mean()
    assert last(result)["test_accuracy"] == pytest.approx(right) and right > 0.6


def test_linear_regression_with_its_metrics(settings, tmp_path):
    """The target is standardised, too; predictions and metrics are in its own unit."""
    x, y = standardised(AGE), 600 * LOAD + 3000
    mean, deviation = y[TRAIN].mean(), y[TRAIN].std()
    scaled = (y - mean) / deviation

    def step(w, b, rows):
        errors = 2 * (x[rows] @ w.T + b - scaled[rows, None])
        return errors.T @ x[rows] / rows.sum(), errors.mean(0)

    given = {"site": SITES, "age": AGE, "load": y, "part": PART}
    layouts.text(tmp_path / "patients.csv", given)
    chosen = {"dataset.target": "load", "dataset.task": "regression", "dataset.features": ["age"]}
    result = raysim.run(settings(**chosen), None, progress := RunProgress())
    w, b = fedavg(*start(1, 1), step)
    assert np.abs(result.params["head.0.weight"].numpy() - w).max() < 1e-5
    assert np.abs(result.params["head.0.bias"].numpy() - b).max() < 1e-5
    predicted = (x @ w.T + b)[:, 0] * deviation + mean
    errors = (predicted - y)[~TRAIN]
    row, spread = last(result), np.square(y[~TRAIN] - y[~TRAIN].mean()).sum()
    assert row["test_loss"] == pytest.approx(np.square(errors / deviation).mean(), rel=1e-4)
    assert row["test_mae"] == pytest.approx(np.abs(errors).mean(), rel=1e-4)
    assert row["test_r2"] == pytest.approx(1 - np.square(errors).sum() / spread, abs=1e-4)
    network = raysim.load(result.run_dir)
    found = network(torch.tensor(x, dtype=torch.float32)).detach().numpy()[:, 0]
    assert np.allclose(found, predicted, rtol=1e-4)
    final = dict([final_score(result.summary, declared_in(result.metrics.schema))])
    shown, mae, r2 = progress.values(row), f"{row['test_mae']:.4g}", f"{row['test_r2']:.4g}"
    assert (shown["MAE"], shown["R2"]) == (mae, r2)
    assert final == {"MAE": f"{mae}, R2 {r2}"}


class Told(raysim.Listener):
    def __init__(self) -> None:
        self.notes: list[str] = []

    def note(self, text: str) -> None:
        self.notes.append(text)


def test_notes_on_the_data_are_shown_at_each_start(settings):
    for _ in range(2):  # the second finds the data prepared
        raysim.run(
            settings(out=None, rounds=1, **{"dataset.standardise": False}), None, told := Told()
        )
        assert [note for note in told.notes if "'age' up to" in note]


@pytest.mark.parametrize("form", ["overrides", "file", "file of a preset", "none"])
def test_all_natural_clients_take_part_if_no_number_is_given(settings, tmp_path, form):
    given = settings().to_dict()
    dataset = {k: v for k, v in given["dataset"].items() if v is not None}
    overrides = {f"dataset.{name}": value for name, value in dataset.items()}
    source, chosen = "mnist-fedavg", {**overrides, "partition.name": "natural"}
    if form == "none":
        chosen |= {"partition.name": "by_key", "partition.key": "client", "clients": None}
    if form.startswith("file"):
        parts = {"dataset": dataset, "partition": {"name": "natural"}}
        more = {"preset": source} if "preset" in form else {"model": {"name": "linear"}}
        more |= {} if "preset" in form else {"method": {"name": "fedavg"}}
        (tmp_path / "own.json").write_text(json.dumps({**parts, **more}))
        source, chosen = str(tmp_path / "own.json"), {}
    assert raysim.load_config(source, chosen).clients == 3
    assert raysim.load_config(source, {**chosen, "clients": 2}).clients == 2
    with pytest.raises(raysim.RaysimError, match="has no natural clients; of files"):
        raysim.load_config(source, {**chosen, "dataset.client": None, "partition.name": "natural"})
    if form == "none":
        with pytest.raises(raysim.RaysimError, match="clients="):
            raysim.load_config(source, {**overrides, "partition.name": "iid", "clients": None})


PARTITIONS = {
    "iid": {},
    "shards": {"partition.per_client": 2},
    "dirichlet": {},
    "by_key": {"partition.key": "client"},
    "sorted_by": {"partition.columns": ["client"]},
    "classes": {"partition.per_client": 1},
}


@pytest.mark.parametrize("name", PARTITIONS)
def test_every_other_partition_works_on_it(run, name):
    result = run(**{"partition.name": name, **PARTITIONS[name], "rounds": 1})
    assert last(result)["clients"] == 3


def test_a_changed_file_is_another_dataset_for_a_run(run, tmp_path):
    run(rounds=2)
    grown = raysim.resume(tmp_path / "run", overrides={"rounds": 3})
    assert len(grown.metrics) == 3
    path = tmp_path / "patients.csv"
    path.write_text(path.read_text().replace(f"{AGE[0]}", "99.5", 1))
    with pytest.raises(raysim.RaysimError, match="training samples was"):
        raysim.resume(tmp_path / "run", overrides={"rounds": 4})
