"""Figures that are curves of a table's runs have the runs of its cells, as the captions say."""

from __future__ import annotations

from typing import Any

import pytest

import raysim
from raysim.user_input import dotted
from raysim.workloads.figures import FIGURES
from raysim.workloads.tables import TABLES

FULL = {"local.batch_size": "full"}
MNIST_2NN = {"dataset.name": "mnist", "model.name": "2nn"}
MNIST_CNN = {"dataset.name": "mnist", "model.name": "mnist-cnn-128"}
MIMIC = {"dataset.name": "mimic3", "partition.name": "sorted_by", "model.name": "3nn-mimic"}
IID, SHARDS = {"partition.name": "iid"}, {"partition.name": "shards"}
CHILLED = {"dataset.name": "cifar10", "partition.name": "dirichlet", "rounds": 100}

# By hand, from the captions: table, panels, and settings that all runs have.
CAPTIONS: dict[str, tuple[str, int, dict[str, Any]]] = {
    "fedmax-4": ("fedmax-1", 6, {"rounds": 3000, "local.epochs": 1}),
    "fedmax-5": ("fedmax-1", 6, {"rounds": 600, "local.epochs": 5}),
    "fedmax-6": ("fedmax-2", 4, {"rounds": 300, "model.name": "resnet50"}),
    "dnc-8": ("dnc-1", 1, {"partition.p": 0.95, "local.epochs": 20}),
    "fedfusion-5": ("fedfusion-1", 4, {}),
    "flexchill-4": ("flexchill-1", 3, {"rounds": 300, "evaluation.clients": True}),
    "flexchill-9": ("flexchill-c", 2, {**CHILLED, "rounds": 300}),
    "flexchill-10": ("flexchill-d", 5, {**CHILLED, "local.epochs": 5}),
    "flexchill-11": ("flexchill-d", 3, {**CHILLED, "local.batch_size": 32}),
    "flexchill-12": ("flexchill-d", 4, {**CHILLED, "fraction": 0.1}),
    "flexchill-13": ("flexchill-d", 3, {**CHILLED, "local.epochs": 5}),
    "mifl-4a": ("mifl-2a", 5, {**MNIST_2NN, **IID, **FULL, "local.epochs": 1}),
    "mifl-4b": ("mifl-2a", 5, {**MNIST_2NN, **SHARDS, "local.batch_size": 10, "local.epochs": 1}),
    "mifl-4c": ("mifl-2b", 5, {**MNIST_CNN, **SHARDS, **FULL, "local.epochs": 5}),
    "mifl-4d": ("mifl-3", 9, {**MNIST_CNN, **IID, "fraction": 0.1}),
    "mifl-4e": ("mifl-3", 9, {**MNIST_CNN, **SHARDS, "fraction": 0.1}),
    "mifl-4f": ("mifl-3", 9, {**MIMIC, "fraction": 0.1}),
    "mifl-6a": ("mifl-2a", 5, {**MNIST_2NN, **IID, **FULL, "local.epochs": 1}),
    "mifl-6c": ("mifl-3", 9, {**MNIST_CNN, **SHARDS, "fraction": 0.1}),
    "mifl-6e": ("mifl-3", 9, {**MIMIC, "fraction": 0.1}),
    "mifl-8": ("mifl-4", 4, {"fraction": 0.1, "local.epochs": 5}),
    "mifl-9": ("mifl-5", 2, {**MNIST_CNN, **SHARDS, "local.batch_size": 50}),
    "mifl-10": ("mifl-6b", 3, {**MNIST_CNN, **SHARDS}),
    "mifl-c4": ("mifl-4", 4, {"fraction": 0.1, "local.epochs": 5}),
    "mifl-c5": ("mifl-5", 4, {"local.batch_size": 50}),
    "mifl-c6a": ("mifl-6a", 9, {"fraction": 0.1}),
    "mifl-c6b": ("mifl-6b", 6, {**IID, "fraction": 0.1}),
}


def test_all_curves_of_tables_are_compared_with_their_captions():
    assert CAPTIONS.keys() == {
        name
        for name, figure in FIGURES.items()
        if figure.draw == "curves" and any(run.panel for run in figure.runs)
    }


@pytest.mark.parametrize("name", CAPTIONS)
def test_the_runs_are_those_of_the_table(name):
    figure = FIGURES[name]
    table, panels, common = CAPTIONS[name]
    drawn = {(run.label, run.panel): run for run in figure.runs}
    assert len({panel for _, panel in drawn}) == panels
    assert len(drawn) == len(figure.runs) == panels * len(TABLES[table].rows)
    cells = {
        (cell.row, cell.column.removesuffix(" accuracy")): cell for cell in TABLES[table].cells
    }
    for place, run in drawn.items():
        settings = raysim.load_config(run.preset, figure.overrides(run))
        measured = {"analysis": [], "evaluation.train_set": False}
        assert settings.override(measured) == cells[place].resolve()
        others = {} if run.label in ("FedMA", "FSVRG") else common  # passes; all clients
        found = dotted(settings.to_dict())
        assert {key: found[key] for key in others} == others, place


def test_of_runs_that_columns_share_one_is_drawn():
    """MIFL's table 4 reads three columns off a run, which ends at the last of their targets."""
    panels = dict.fromkeys(run.panel for run in FIGURES["mifl-8"].runs)
    assert [panel.split()[-1] for panel in panels] == ["80%", "80%", "70%", "70%"]
