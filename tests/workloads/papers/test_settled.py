"""Settings that the papers leave open, as their authors' code or our reading of it settles them."""

from __future__ import annotations

from typing import Any

import pytest

from raysim.user_input import dotted
from raysim.workloads.figures import FIGURES
from raysim.workloads.presets import PRESETS
from raysim.workloads.tables import TABLES

VGG9: dict[str, Any] = {"method.gamma": 7.0, "method.average": "posterior", "rounds": 2}
FUSION: dict[str, Any] = {
    "local.momentum": 0.9,
    "local.weight_decay": 5e-4,
    "local.lr_min": 1e-4,
    "method.ema": 0.9,
    "method.conv_start": "torch",
    "evaluation.trained": True,
    "patience_metric": "trained_accuracy_mean",
}
FUSION_MNIST = FUSION | {"local.keep": True, "model.initialisation": "xavier_uniform"}
FEDMAX: dict[str, Any] = {
    "weighting": "uniform",
    "local.nesterov": True,
    "local.momentum": 0.1,
    "local.weight_decay": 5e-4,
    "dataset.augmented": True,
}
FEDMMD_MNIST: dict[str, Any] = {
    "local.lr": 1e-4,
    "local.lr_decay": 1.0,
    "model.dropout": 0.0,
    "model.initialisation": "truncated_normal",
}
SETTLED: dict[str, dict[str, Any]] = {
    "dnc-colour-fedma": VGG9 | {"weighting": "examples"},
    "dnc-imbalance-fedma": VGG9 | {"weighting": "examples"},
    "dnc-shakespeare-fedma": {"method.gamma": 1e-3, "method.average": "mean", "rounds": 3},
    "dnc-imbalance": {"weighting": "uniform"},
    "fedmax-cifar10-noniid": FEDMAX,
    "fedmmd-cifar10-binary": {"local.lr": 0.02, "local.lr_decay": 0.999, "model.dropout": 0.0},
    "fedmmd-mnist-binary": FEDMMD_MNIST | {"local.epochs": 2, "local.batch_size": 50},
    "fedmmd-mnist-noniid": FEDMMD_MNIST,
    "fedfusion-mnist-permuted": FUSION_MNIST | {"clients": 2, "partition.name": "permuted"},
    "fedfusion-mnist-binary": FUSION_MNIST,
    "fedfusion-cifar10-iid": FUSION | {"local.keep": False},
    "mifl-cifar10": {"dataset.augmented": True, "method.objective": "penalty"},
}


@pytest.mark.parametrize("name", SETTLED)
def test_a_preset_has_what_was_settled(name):
    values = dotted(PRESETS[name].settings.to_dict())
    assert {key: values[key] for key in SETTLED[name]} == SETTLED[name]


ROWS: dict[tuple[str, str], dict[str, Any]] = {
    ("fedmax-1", "FedProx"): {"method.mu": 1.0, "method.reduction": "mean"},
    ("dnc-1", "FedProx"): {"method.mu": 0.001},
    ("dnc-2", "FedProx"): {"method.mu": 0.001},
    ("dnc-3", "FedProx"): {"method.mu": 0.001},
    ("mifl-5", "FSVRG"): {"fraction": 1.0},
}


@pytest.mark.parametrize(("name", "row"), ROWS)
def test_a_row_has_what_was_settled(name, row):
    table, expected = TABLES[name], ROWS[name, row]
    for column in table.columns:
        settings = table.cell(row, column).settings
        assert {key: settings.get(key) for key in expected} == expected, column


L2 = {"4a": [0.1, 0.01], "4b": [0.1, 0.01], "4c": [0.001], "4d": [0.001]}


@pytest.mark.parametrize("name", L2)
def test_two_streams_are_held_together_by_their_strength_for_the_dataset(name):
    figure = FIGURES[f"fedmmd-{name}"]
    runs = [figure.overrides(run) for run in figure.runs]
    assert [each["method.lam"] for each in runs if "method.lam" in each] == L2[name]
