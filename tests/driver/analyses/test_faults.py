"""Rows after interruptions and damage; failures in an analysis cost its rows alone."""

from __future__ import annotations

from typing import Any

import pytest
import torch

import raysim
from raysim.analysis import accuracy
from raysim.analysis.activations import KlActivations
from raysim.analysis.base import MeasuredRound
from raysim.api.rules import Trained, View
from raysim.storage.rows import parted
from tests.driver.analyses.common import EVERYTHING, SIZES, settings, tables
from tests.driver.test_run import Poisoned
from tests.tasks import UNEQUAL, Notes, StopAfter, make_settings, make_task, model_of

QUICK = ("activations", "kl_activations", "weight_divergence")


def test_rows_are_the_same_after_an_interruption(runs, tmp_path):
    plain, analysed = runs
    task = make_task(SIZES)
    with pytest.raises(KeyboardInterrupt):
        raysim.run(settings(tmp_path, plain, fraction=0.5), task, StopAfter(3))
    raysim.resume(tmp_path, task)
    assert model_of(tmp_path) == model_of(plain)
    assert tables(tmp_path) == tables(analysed)


def test_rows_of_rounds_after_the_checkpoint_are_rolled_back(runs, tmp_path, monkeypatch):
    """Part files are closed at once; a driver that is killed seals nothing."""
    monkeypatch.setattr(parted, "FILE_ROWS", 1)
    monkeypatch.setattr("raysim.driver.rounds.commits.Commits.save_last", lambda run: None)
    plain, task = runs[0], make_task(SIZES)
    every = {"evaluation.every": 1, "checkpoint_every": 2, "analysis": QUICK}
    undisturbed, killed = tmp_path / "undisturbed", tmp_path / "killed"
    raysim.run(settings(undisturbed, plain, **every), task)
    with pytest.raises(KeyboardInterrupt):
        raysim.run(settings(killed, plain, **every), task, StopAfter(3))
    raysim.resume(killed, task)
    assert tables(killed) == tables(undisturbed)


def test_a_damaged_part_goes_back_to_the_checkpoint_before_it(runs, tmp_path, monkeypatch):
    monkeypatch.setattr(parted, "FILE_ROWS", 1)
    plain, analysed = runs
    task = make_task(SIZES)
    quick = {"analysis": QUICK, "fraction": 0.5}
    with pytest.raises(KeyboardInterrupt):
        raysim.run(settings(tmp_path, plain, **quick), task, StopAfter(4))
    sorted((tmp_path / "analysis/kl_activations.parquet").iterdir())[-1].write_bytes(b"")
    raysim.resume(tmp_path, task)
    assert tables(tmp_path) == {name: tables(analysed)[name] for name in QUICK}


@pytest.mark.parametrize("outcome", ["drop", "stop"])
def test_a_part_that_fails_costs_rows_and_no_client(tmp_path, monkeypatch, outcome):
    def failing(view: View, trained: Trained) -> Any:
        raise ValueError("a bug")

    options = {"on_client_error": outcome, "rounds": 2}
    plain = raysim.run(make_settings(tmp_path / "plain", **options), make_task(SIZES))
    monkeypatch.setattr(KlActivations, "client_part", lambda self, network: failing)
    options["analysis"] = "kl_activations"
    result = raysim.run(make_settings(tmp_path / "run", **options), make_task(SIZES))
    assert model_of(tmp_path / "run") == model_of(tmp_path / "plain")
    assert result.metrics["clients"] == plain.metrics["clients"]


def test_a_client_that_fails_in_a_pass_of_an_analysis_costs_its_rows(tmp_path, monkeypatch):
    def rows(self: KlActivations, found: MeasuredRound) -> Any:
        raise raysim.RunError("client 3: failed twice in round 1: bad (traceback in errors.log)")

    raysim.run(make_settings(tmp_path / "plain", rounds=1), make_task(SIZES))
    monkeypatch.setattr(KlActivations, "rows", rows)
    options, notes = {"analysis": "kl_activations", "rounds": 1}, Notes()
    raysim.run(make_settings(tmp_path / "run", **options), make_task(SIZES), notes)
    assert notes.notes == [
        "analysis=kl_activations: no rows: client 3: failed twice in round 1: bad"
    ]
    assert model_of(tmp_path / "run") == model_of(tmp_path / "plain")


def test_figures_that_are_not_finite_leave_the_client_in_the_round(runs, tmp_path, monkeypatch):
    def infinite(view: Any, trained: Any) -> dict[str, torch.Tensor]:
        return {"mean": torch.full((16,), 1e999 if len(trained.data.y) == 1 else 0.0)}

    monkeypatch.setattr("raysim.analysis.activations._mean_activations", infinite)
    overrides = {"analysis": "kl_activations", "reference": None, "fraction": 1.0, "rounds": 2}
    task = make_task(SIZES)
    raysim.run(make_settings(tmp_path / "a", **EVERYTHING | {**overrides, "analysis": []}), task)
    raysim.run(make_settings(tmp_path / "b", **EVERYTHING | overrides), task)
    assert model_of(tmp_path / "a") == model_of(tmp_path / "b")
    [found] = tables(tmp_path / "b").values()
    assert [row["client"] for row in found] == [0, 2, 3, 4, 5, 6, 7]


@pytest.mark.parametrize("fault", ["part", "training"])
def test_a_client_of_the_cohort_without_a_trained_model_is_no_other_client(
    tmp_path, monkeypatch, fault
):
    """It has no row in the rounds whose cohort it is in, and all others have theirs."""

    def part(view: View, trained: Trained) -> Any:
        if len(trained.data.y) == UNEQUAL[2]:
            raise ValueError("a bug")
        return measured(view, trained)

    options = {"analysis": "aggregation_drop", "evaluation.clients": True, "fraction": 0.5}
    options["rounds"] = 5
    undisturbed, broken = tmp_path / "undisturbed", tmp_path / "broken"
    raysim.run(make_settings(undisturbed, **options), make_task(UNEQUAL))
    if fault == "part":
        measured = accuracy.own_accuracy
        monkeypatch.setattr(accuracy, "own_accuracy", part)
    else:
        name = f"{Poisoned.__module__}:{Poisoned.__qualname__}"
        options |= {"method.name": name, "on_client_error": "drop"}
    raysim.run(make_settings(broken, **options), make_task(UNEQUAL))
    expected = tables(undisturbed)["aggregation_drop"]
    rows = [row for row in expected if row["client"] != 2 or not row["participant"]]
    assert 0 < len(expected) - len(rows) < 5  # rounds with client 2, of five
    found = tables(broken)["aggregation_drop"]
    if fault == "training":  # the global model is another one
        keys = ("round", "client", "participant")
        rows, found = ([{key: row[key] for key in keys} for row in each] for each in (rows, found))
    assert found == rows
