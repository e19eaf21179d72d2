"""Figures of analyses, worked out in NumPy from the model that a run leaves."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow.parquet as pq
import pytest
from safetensors.torch import load_file
from sklearn.metrics import confusion_matrix

import raysim
from tests.results.test_report import page_of
from tests.tasks import make_settings, make_task

STANDING = {"local.lr": 1e-12, "rounds": 1, "fraction": 1.0}
"""Steps of no length: all trained models are the model that the run leaves."""
TEMPERATURE = 0.5


@pytest.fixture(scope="module")
def task() -> raysim.Task:
    return make_task((30, 20, 9))


@pytest.fixture(scope="module")
def run(task: raysim.Task, tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("run")
    names = ["kl_activations", "label_heat_map", "label_information", "temperature"]
    names += ["weight_divergence", "confusion"]
    overrides = {"analysis": names, "local.temperature": TEMPERATURE}
    raysim.run(make_settings(path, **STANDING, **overrides), task)
    return path


def rows(run: Path, name: str) -> list[dict[str, Any]]:
    return pq.read_table(run / f"analysis/{name}.parquet").to_pylist()


def outputs(run: Path, x: Any) -> tuple[Any, Any]:
    """Return the activations and the logits of the run's model."""
    model = {name: t.double().numpy() for name, t in load_file(run / "model.safetensors").items()}
    hidden = np.maximum(x @ model["hidden.0.weight"].T + model["hidden.0.bias"], 0)
    return hidden, hidden @ model["head.weight"].T + model["head.bias"]


def softmax(values: Any) -> Any:
    return np.exp(values) / np.exp(values).sum(axis=-1, keepdims=True)


def test_divergence_of_activations(run, task):
    means = [outputs(run, x)[0].mean(axis=0) for x, _ in task.clients]
    common = softmax(np.mean(means, axis=0))
    found = rows(run, "kl_activations")
    assert [row["client"] for row in found] == [0, 1, 2]
    for row, mean in zip(found, means, strict=True):
        own = softmax(mean)
        to_client, to_mean = (
            (common * np.log(common / own)).sum(),
            (own * np.log(own / common)).sum(),
        )
        assert row["kl_mean_client"] == pytest.approx(to_client, rel=1e-4)
        assert row["kl_client_mean"] == pytest.approx(to_mean, rel=1e-4)
        assert to_client > 1e-4 and to_client != pytest.approx(to_mean, rel=1e-3)


def test_gradient_norm_at_the_first_layer_is_that_at_the_temperature(run, task):
    """Its gradient is d x^T with d = W^T (p - y) / T where the activation is positive."""
    head = load_file(run / "model.safetensors")["head.weight"].double().numpy()
    x, y = task.clients[2]
    hidden, logits = outputs(run, x)
    found = [row for row in rows(run, "temperature") if row["client"] == 2]
    assert len(found) == len(y) == 9
    for n, row in enumerate(found):
        error = softmax(logits[n] / TEMPERATURE) - np.eye(3)[y[n]]
        back = head.T @ error / TEMPERATURE * (hidden[n] > 0)
        expected = np.linalg.norm(back) * np.sqrt(x[n] @ x[n] + 1)  # weights and biases
        assert row["gradient_norm"] == pytest.approx(expected, rel=1e-4)
        assert row["correct"] == (logits[n].argmax() == y[n])
        assert row["distance_before"] == row["distance_after"]  # of a step of no length


def passed(model, x):
    """Return the activations and the logits of an input."""
    hidden = np.maximum(model["hidden.0.weight"] @ x + model["hidden.0.bias"], 0)
    return hidden, model["head.weight"] @ hidden + model["head.bias"]


def distance(model, x):
    """Return the first step along the sign of the input's gradient that changes the class."""
    hidden, logits = passed(model, x)
    error = softmax(logits) - np.eye(3)[logits.argmax()]
    sign = np.sign(model["hidden.0.weight"].T @ (model["head.weight"].T @ error * (hidden > 0)))
    steps = np.logspace(-4, 0, 100)
    return next((t for t in steps if passed(model, x + t * sign)[1].argmax() != logits.argmax()), 1)


def test_distance_after_a_step_down_the_loss_of_a_sample(task, tmp_path):
    """The step is p - lr dl/dp, l being the sample's loss at T."""
    far = {"analysis": "temperature", "local.temperature": 0.05, "local.lr": 0.02}
    raysim.run(make_settings(tmp_path, rounds=1, fraction=1.0, **far), task)
    path = tmp_path / "model.safetensors"
    model = {name: tensor.double().numpy() for name, tensor in load_file(path).items()}
    x, y = task.clients[2]
    found = [row for row in rows(tmp_path, "temperature") if row["client"] == 2]
    assert len(found) == len(y)
    for n, row in enumerate(found):
        hidden, logits = passed(model, x[n])
        error = (softmax(logits / 0.05) - np.eye(3)[y[n]]) / 0.05
        back = model["head.weight"].T @ error * (hidden > 0)
        step = {
            "head.weight": np.outer(error, hidden),
            "head.bias": error,
            "hidden.0.weight": np.outer(back, x[n]),
            "hidden.0.bias": back,
        }
        moved = {name: model[name] - 0.02 * step[name] for name in model}
        assert row["distance_before"] == pytest.approx(distance(model, x[n]), rel=0.1)
        assert row["distance_after"] == pytest.approx(distance(moved, x[n]), rel=0.1)
    assert any(row["distance_before"] != row["distance_after"] for row in found)


def test_samples_of_each_client_and_class(run, task):
    found = {(row["client"], row["label"]): row["samples"] for row in rows(run, "label_heat_map")}
    counted = {
        (client, label): int((y == label).sum())
        for client, (_, y) in enumerate(task.clients)
        for label in range(3)
        if (y == label).any()
    }
    assert found == counted and sum(found.values()) == 59


def test_divergence_from_a_reference_is_not_that_from_the_initial_model(task, tmp_path):
    """Of the weights of a layer: the cosine distance / ||reference||, and the norm's share."""
    reference, path = tmp_path / "reference", tmp_path / "run"
    raysim.run(make_settings(reference, rounds=3, fraction=1.0), task)
    chosen = {"analysis": "weight_divergence,norm_divergence", "reference": str(reference)}
    raysim.run(make_settings(path, rounds=1, fraction=1.0, **chosen), task)
    models = [load_file(each / "model.safetensors") for each in (reference, path)]
    both = [rows(path, name) for name in ("weight_divergence", "norm_divergence")]
    for row, of_norm in zip(*both, strict=True):
        parts = [
            np.concatenate(
                [t.double().numpy().ravel() for n, t in m.items() if n == f"{row['path']}.weight"]
            )
            for m in models
        ]
        before, after = parts
        cosine = before @ after / np.linalg.norm(before) / np.linalg.norm(after)
        expected = (1 - cosine) / np.linalg.norm(before)
        assert expected > 1e-5 and row["divergence"] == pytest.approx(expected, rel=1e-3)
        share = np.linalg.norm(before - after) / np.linalg.norm(before)
        assert of_norm == row | {"divergence": pytest.approx(share, rel=1e-6)}


def test_information_of_labels(run, task):
    def information(x: Any, y: Any) -> float:
        predicted = outputs(run, x)[1].argmax(axis=1)
        joint = np.array(
            [[np.mean((y == a) & (predicted == b)) for b in range(3)] for a in range(3)]
        )
        apart = joint.sum(axis=1, keepdims=True) * joint.sum(axis=0)
        return float((joint[joint > 0] * np.log(joint[joint > 0] / apart[joint > 0])).sum())

    [row] = rows(run, "label_information")
    train = [np.concatenate(part) for part in zip(*task.clients, strict=True)]
    assert row["train"] == pytest.approx(information(*train), rel=1e-9)
    assert row["test"] == pytest.approx(information(*task.test), rel=1e-9)

    def gaussian(x: Any, y: Any) -> float:
        """Eq. 5 of MIFL, of logits and of 1 for the own class, each class around its mean."""
        given, logits = np.eye(3)[y], outputs(run, x)[1]
        a, b = given - given.mean(axis=0), logits - logits.mean(axis=0)
        rho = (a * b).sum() / np.sqrt((a * a).sum() * (b * b).sum())
        return float(-np.log(1 - rho**2) / 2)

    assert row["train_gaussian"] == pytest.approx(gaussian(*train), rel=1e-5)
    # The probe of 200 of the 300 test samples is drawn by the seed.
    assert row["test_gaussian"] == pytest.approx(gaussian(*task.test), rel=0.5)
    assert row["test_gaussian"] != row["train_gaussian"] > 1e-4


def test_weights_that_stand_do_not_diverge(run):
    assert [row["divergence"] for row in rows(run, "weight_divergence")] == pytest.approx([0, 0])


def test_information_of_clients_is_the_figure_of_mifl(task, tmp_path):
    overrides = {"method.name": "mifl", "analysis": "client_information"}
    raysim.run(make_settings(tmp_path, rounds=2, fraction=1.0, **overrides), task)
    clients = pq.read_table(tmp_path / "clients.parquet").to_pylist()
    expected = {(r["round"], r["client"]): r["mi"] for r in clients if r["steps"]}
    found = rows(tmp_path, "client_information")
    assert {(r["round"], r["client"]): r["information"] for r in found} == expected


def test_confusion_counts_test_samples_by_class_and_predicted_class(run, task):
    x, y = task.test
    logits = outputs(run, x)[1]
    expected = confusion_matrix(y, logits.argmax(1))
    found = {(row["target"], row["predicted"]): row["samples"] for row in rows(run, "confusion")}
    assert found == {(i, j): n for (i, j), n in np.ndenumerate(expected) if n}


@pytest.mark.parametrize("given", ["words", "names", "some names"])
def test_classes_have_their_names_in_tables_and_pictures(task, tmp_path, given):
    """A class without one, of which the network has an output, has its number."""
    words = np.array(["cat", "dog", "2" if given == "some names" else "elk"])
    if given == "words":
        *clients, test = ((x, words[y]) for x, y in (*task.clients, task.test))
        named = replace(task, clients=clients, test=test)
    else:
        named = replace(task, class_names=[*words][: 2 if given == "some names" else 3])
    tables = {"confusion": ("target", "predicted"), "label_heat_map": ("label",)}
    raysim.run(make_settings(tmp_path, analysis=[*tables], **STANDING), named)
    for table, columns in tables.items():
        for row in rows(tmp_path, table):
            assert [row[f"{of}_name"] for of in columns] == [words[row[of]] for of in columns]
    if given == "names":
        assert all(f">{word}<" in page_of([tmp_path], lambda run: None) for word in words)
