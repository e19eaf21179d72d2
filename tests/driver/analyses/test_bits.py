"""Analyses change no bit of a run, whatever it consists of."""

from __future__ import annotations

from typing import Any

import pytest

import raysim
import raysim.methods
from raysim.api.method import METHODS
from raysim.api.rules import Trained, Upload, View
from raysim.driver.uploads import client_figures as riding
from tests.adapters import task_for
from tests.driver.analyses.common import (
    EVERYTHING,
    OF_ANY_INPUTS,
    SIZES,
    figures,
    settings,
    states,
    tables,
)
from tests.tasks import make_settings, make_task, model_of

FIELDS = {
    "chain": {"method.methods": {"fedprox": {}, "scaffold": {}}},
    "fedfusion": {"method.operator": "single"},
    "fsvrg": {"fraction": 1.0},
}


def test_no_bit_of_the_model_and_no_figure_differs(runs):
    plain, analysed = runs
    assert model_of(analysed) == model_of(plain)
    assert figures(analysed) == figures(plain)
    assert not (plain / "analysis").exists()
    assert {*tables(analysed)} == {*OF_ANY_INPUTS}


def test_stacked_clients_keep_their_bits(tmp_path):
    """Own test samples of unequal number must not change which clients are stacked."""
    stacked = {"engine.vectorize": 3, "rounds": 2, "fraction": 0.7}
    task = make_task((24,) * 8)
    raysim.run(make_settings(tmp_path / "plain", **EVERYTHING | stacked), task)
    raysim.run(settings(tmp_path / "analysed", tmp_path / "plain", **stacked), task)
    assert model_of(tmp_path / "analysed") == model_of(tmp_path / "plain")
    assert {*tables(tmp_path / "analysed")} >= {"kl_activations", "aggregation_drop"}


@pytest.mark.full
@pytest.mark.parametrize("method", [*METHODS])
def test_every_method_keeps_its_bits(method, tmp_path):
    overrides = {"method.name": method, "rounds": 2, **FIELDS.get(method, {})}
    task = task_for(method, make_task((20,) * 7))
    raysim.run(make_settings(tmp_path / "plain", **EVERYTHING | overrides), task)
    raysim.run(settings(tmp_path / "analysed", tmp_path / "plain", **overrides), task)
    assert model_of(tmp_path / "analysed") == model_of(tmp_path / "plain")
    assert figures(tmp_path / "analysed") == figures(tmp_path / "plain")
    assert states(tmp_path / "analysed") == states(tmp_path / "plain")


@pytest.mark.full
@pytest.mark.parametrize("actors", [1, 2])
def test_rows_are_the_same_on_actors(actors, runs, tmp_path, resident_actors):
    plain, analysed = runs
    engine = {"engine.backend": "ray", "engine.actors": actors, "fraction": 0.5}
    raysim.run(settings(tmp_path, plain, **engine), make_task(SIZES))
    assert model_of(tmp_path) == model_of(plain)
    assert tables(tmp_path) == tables(analysed)


def test_a_client_that_joins_has_no_state_of_the_training_before(tmp_path, monkeypatch):
    norms: list[float] = []
    figures = riding._figures

    def noting(parts: Any, view: View, trained: Trained, upload: Upload) -> Upload:
        norms.append(sum(float(t.norm()) for g in view.state.values() for t in g.values()))
        return figures(parts, view, trained, upload)

    monkeypatch.setattr(riding, "_figures", noting)
    scaffold = {"method.name": "scaffold", "evaluation.clients": True, "fraction": 0.3, "rounds": 1}
    options = scaffold | {"analysis": "new_client"}
    raysim.run(make_settings(tmp_path, **options), make_task((20,) * 6))
    assert len(norms) > 10 and not any(norms)


def test_clients_that_join_leave_no_state_behind(tmp_path):
    scaffold = {"method.name": "scaffold", "evaluation.clients": True, "fraction": 0.3, "rounds": 2}
    task = make_task((20,) * 6)
    raysim.run(make_settings(tmp_path / "plain", **scaffold), task)
    raysim.run(make_settings(tmp_path / "joined", analysis="new_client", **scaffold), task)
    assert tables(tmp_path / "joined")["new_client"]
    assert states(tmp_path / "joined") == states(tmp_path / "plain") != []
    assert model_of(tmp_path / "joined") == model_of(tmp_path / "plain")
