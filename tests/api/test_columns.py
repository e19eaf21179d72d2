"""Declarations of columns: what is refused, and in which words."""

from __future__ import annotations

from dataclasses import replace

import pytest

from raysim import Column, Scoring, SettingsError
from raysim.api.scoring import CLASSIFICATION, REGRESSION, squared_errors

REFUSED = {
    "better": (lambda: Column("mape", better="lower"), r"^Column\('mape'\): better='lower': must"),
    "mode": (lambda: Column("mape", better="min"), "must be 'larger', 'smaller' or None$"),
    "fold": (lambda: Column("x", fold="mean"), "fold='mean': must be 'sum', 'last' or None$"),
    "name": (lambda: Column(""), "^Column.name='': must be a text$"),
    "unit": (lambda: Column("mape", unit=100), r"^Column\('mape'\): unit=100: must be a text$"),
    "no column": (
        lambda: Scoring(squared_errors, {"mape": max}, columns=["mape"]),
        "^Scoring.columns: 'mape' is no raysim.Column$",
    ),
}


@pytest.mark.parametrize("case", REFUSED)
def test_a_wrong_declaration_is_refused(case):
    declare, message = REFUSED[case]
    with pytest.raises(SettingsError, match=message):
        declare()


def test_a_metric_has_what_is_declared_whatever_its_name():
    names = ("mape", "wer", "loss_ratio", "mse_skill", "accuracy", "f1")
    undeclared = Scoring(squared_errors, dict.fromkeys(names, max)).scores
    assert {undeclared[name].better for name in names} == {None}
    assert {undeclared[name].unit for name in names} == {""}
    columns = [Column("mse_skill", "larger"), Column("f1", "smaller", "%")]
    scores = Scoring(squared_errors, dict.fromkeys(names, max), columns=columns).scores
    assert (scores["mse_skill"].larger, scores["f1"].larger, scores["wer"].larger) == (
        *(True, False, None),
    )


def test_metrics_in_place_of_built_in_ones_keep_what_is_declared_of_their_names():
    scores = replace(CLASSIFICATION, metrics={"accuracy": max, "auc": max}).scores
    assert {name: column.better for name, column in scores.items()} == {
        **{"loss": "smaller", "accuracy": "larger", "auc": None}
    }


def test_built_in_metrics_are_declared():
    found = {**CLASSIFICATION.scores, **REGRESSION.scores}
    assert {name: column.better for name, column in found.items()} == {
        **dict.fromkeys(("accuracy", "macro_f1", "r2"), "larger"),
        **dict.fromkeys(("loss", "mae"), "smaller"),
    }
    assert {name for name, column in found.items() if column.unit == "%"} == {
        *("accuracy", "macro_f1")
    }


@pytest.mark.parametrize(
    ("values", "better", "best"),
    [
        ([1, 3, 2], "larger", 3),
        ([1, 3, 2], "smaller", 1),
        ([1], None, None),
        ([], "larger", None),
    ],
)
def test_the_best_value(values, better, best):
    assert Column("x", better).best(values) == best
