"""Columns: a method or a task may not give values under the names of the engine's."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import numpy as np
import pytest

import raysim
from raysim.analysis import ANALYSES
from raysim.analysis.base import Analysis
from raysim.methods.fedavg import FedAvg
from raysim.storage.summary import FIGURES
from tests.tasks import make_settings, make_task

GIVEN: dict[str, Any] = {}
"""The metrics of a round, and the numbers of a client, that the methods here give."""


class OfRound(FedAvg):
    """Gives metrics of a round."""

    def metrics(self, state):
        return GIVEN


class OfClient(FedAvg):
    """Gives numbers of a client."""

    def rules(self):
        def finish(view, trained):
            return replace(raysim.Upload(sums={"model": view.params}), metrics=GIVEN)

        return raysim.Rules(finish=finish)


class OfLabel(FedAvg):
    """Labels its pass."""

    def round(self, now, state):
        yield replace(self.training_pass(now, state), label=GIVEN["label"])
        return (yield from super().round(now, state))


def refusal(kind: type, out: Any, monkeypatch: pytest.MonkeyPatch, given: dict[Any, Any]) -> str:
    monkeypatch.setitem(globals(), "GIVEN", given)
    chosen = make_settings(out, rounds=2, **{"method.name": f"{__name__}:{kind.__name__}"})
    with pytest.raises(raysim.RaysimError) as caught:
        raysim.run(chosen, make_task((9, 9)))
    return str(caught.value)


@pytest.mark.parametrize(
    "name",
    [
        *("test_accuracy", "test_loss", "round", "lr", "seconds", "clients", "bytes_up", "bytes"),
        *("total_seconds", "virtual_seconds", "client_accuracy_d5", "clients_dropped", "objective"),
        *("worker_training_seconds", "driver_reduction_seconds"),
    ],
)
def test_a_methods_metric_with_the_name_of_a_column_is_refused(tmp_path, monkeypatch, name):
    expected = f"the metric {name!r} has the name of a column of the engine; choose another name"
    assert refusal(OfRound, tmp_path, monkeypatch, {name: 5.0}).endswith(expected)
    assert not (tmp_path / "metrics.parquet").exists()


class OfSummary(FedAvg):
    """Declares what is given."""

    columns = property(lambda self: [raysim.Column(*GIVEN)])  # type: ignore[assignment]


@pytest.mark.parametrize(
    "given",
    [
        *(("accuracy", None, "", "last"), ("score", None, "", "last"), ("rounds", None, "", "sum")),
        *(
            ("score", None, "", "sum"),
            ("epsilon", None, "", "sum"),
            ("stopped_by", None, "", "sum"),
        ),
    ],
)
def test_a_declared_column_whose_figure_is_the_engines_is_refused(tmp_path, monkeypatch, given):
    said = refusal(OfSummary, tmp_path, monkeypatch, given)
    expected = f"the declared column {given[0]!r}: its fold={given[3]!r} has the name of another"
    assert expected in said
    assert not tmp_path.joinpath("metrics.parquet").exists()


def test_the_figures_of_a_summary_are_known(tmp_path):
    """Those of no column, under a claim of privacy."""
    claim = {"channel.gaussian.noise": 1.0, "channel.gaussian.clip": 1.0}
    chosen = {**claim, "selection.name": "poisson", "evaluation.holdout": 0.3, "fraction": 0.5}
    chosen |= {"aggregation.weighting": "fixed"}
    result = raysim.run(make_settings(tmp_path, rounds=1, **chosen), make_task((9, 9)))
    columns = {*result.metrics.column_names} | {f"final_{n}" for n in result.metrics.column_names}
    assert {*result.summary} - columns - {"final_loss", "final_macro_f1"} <= {*FIGURES}


def test_a_methods_metric_may_be_missing_in_a_round(tmp_path, monkeypatch):
    monkeypatch.setitem(globals(), "GIVEN", {"drift": None, "large": np.bool_(True)})
    chosen = make_settings(tmp_path, rounds=1, **{"method.name": f"{__name__}:OfRound"})
    (row,) = raysim.run(chosen, make_task((9, 9))).metrics.to_pylist()
    assert row["drift"] is None and row["large"] == 1


@pytest.mark.parametrize("given", [{"drift": "a"}, {"drift": [1.0]}, {3: 1.0}])
def test_a_methods_metric_must_be_a_number_with_a_name(tmp_path, monkeypatch, given):
    assert "must be a " in refusal(OfRound, tmp_path, monkeypatch, given)


@pytest.mark.parametrize("name", ["client", "samples", "train_loss", "pass", "virtual_seconds"])
def test_a_clients_number_with_the_name_of_a_column_is_refused(tmp_path, monkeypatch, name):
    said = refusal(OfClient, tmp_path, monkeypatch, {name: 5.0})
    assert f"{name!r} has the name of a column of the engine" in said


def test_a_label_whose_columns_are_the_engines_is_refused(tmp_path, monkeypatch):
    said = refusal(OfLabel, tmp_path, monkeypatch, {"label": "lost"})
    expected = "Pass.label='lost': its column 'lost_clients' has the name of a column of the engine"
    assert expected in said
    assert not (tmp_path / "metrics.parquet").exists()


def test_an_analysis_cannot_give_the_round(tmp_path, monkeypatch):
    class Numbered(Analysis):
        def rows(self, found):
            return {"round": np.zeros(2), "value": np.zeros(2)}

    monkeypatch.setattr(ANALYSES, "get", lambda name: Numbered)
    chosen = make_settings(tmp_path / "run", rounds=2, analysis="label_heat_map")
    expected = "analysis=label_heat_map: the column 'round' has the name of a column of the engine"
    with pytest.raises(raysim.SettingsError, match=expected):
        raysim.run(chosen, make_task((9, 9)))


@pytest.mark.parametrize(
    ("name", "of"),
    {
        "loss": "the loss",
        "samples": "the number of a client's samples",
        "score": "the main score",
        "e_mean": "the spread of 'e' over clients",
        "e_d5": "the spread of 'e' over clients",
    }.items(),
)
def test_a_tasks_metric_cannot_have_the_name_of_an_engines_column(name, of):
    metrics = dict.fromkeys(("e", name), lambda predicted, targets: 0.0)
    expected = f"^Scoring.metrics: '{name}' is the engine's name of {of}; choose another name$"
    with pytest.raises(raysim.SettingsError, match=expected):
        raysim.Scoring(lambda outputs, targets: outputs, metrics)


def test_a_metric_may_end_as_a_spread_does_where_there_is_none_of_it():
    raysim.Scoring(lambda outputs, targets: outputs, {"e_mean": lambda predicted, targets: 0.0})
