"""Decision regions against NumPy, from the models that a run leaves."""

from __future__ import annotations

import numpy as np
import pyarrow.parquet as pq
import pytest
from safetensors.torch import load_file

import raysim
from raysim.analysis.regions import GRID
from tests.driver.analyses.common import OF_ANY_INPUTS
from tests.tasks import make_settings, make_task


def predicted(model, x):
    weight, bias = (model[f"head.0.{name}"].double().numpy() for name in ("weight", "bias"))
    return (x @ weight.T + bias).argmax(1)


def test_classes_of_each_model_and_samples_of_each_client(tmp_path):
    options = {"rounds": 2, "engine.backend": "inline", "analysis": "decision_regions"}
    options |= {"keep_clients": True, "out": str(tmp_path), "fraction": 0.7}
    result = raysim.run(raysim.load_config("flexchill-plane", options))
    table = pq.read_table(tmp_path / "analysis/decision_regions.parquet")
    columns = {n: table[n].to_numpy()[table["round"].to_numpy() == 2] for n in table.column_names}
    client, sample = columns["client"], columns["kind"] == "sample"
    x, label = np.stack([columns["x1"], columns["x2"]], axis=1), columns["label"]
    cohort = sorted({*client.tolist()} - {-1})
    assert len(cohort) == 2  # of three
    folder = tmp_path / "client_models/round_000002"
    models = {client: load_file(folder / f"{client}.safetensors") for client in cohort}
    for number, model in {**models, -1: result.params}.items():
        rows = ~sample & (client == number)
        assert rows.sum() == GRID**2 and len(np.unique(x[rows, 0])) == GRID
        assert (label[rows] == predicted(model, x[rows])).mean() > 0.999
    assert {*client[sample].tolist()} == {*cohort}
    angles = 2 * np.pi * label[sample] / 6
    away = x[sample] - np.stack([np.cos(angles), np.sin(angles)], axis=1)
    assert np.abs(away).max() < 5 * 0.3  # each with its own class
    inside = (x[~sample].min(0) < x[sample]) & (x[sample] < x[~sample].max(0))
    assert inside.mean() > 0.98


def test_inputs_of_other_sizes_are_refused(tmp_path):
    chosen = make_settings(tmp_path / "run", analysis="decision_regions")
    message = r"analysis=decision_regions: needs inputs of two numbers; these are of shape \(12,\)"
    with pytest.raises(raysim.SettingsError, match=message):
        raysim.run(chosen, make_task((9, 9)))
    assert "decision_regions" not in OF_ANY_INPUTS
