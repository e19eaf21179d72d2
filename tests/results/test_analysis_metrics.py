"""Figures of analyses against values worked out by hand."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from raysim.errors import SettingsError
from raysim.results.metrics import parse_metric
from raysim.results.runs import read_run
from tests.results.conftest import make_rows

Rows = Sequence[Mapping[str, Any]]


def cka_rows(number: int, offset: float) -> list[dict[str, Any]]:
    """Return rows of a round: layers 1 and 2 of four pairs of models, all of different values."""
    pairs = [("client 0", "after"), ("before", "reference"), ("after", "reference"), ("x", "after")]
    return [
        {
            "round": number,
            "layer": layer,
            "first": a,
            "second": b,
            "cka": offset + layer / 8 + k / 64,
        }
        for layer in (1, 2)
        for k, (a, b) in enumerate(pairs)
    ]


CKA = [*cka_rows(2, 0.0), *cka_rows(4, 0.25)]
"""In round 4, after and reference: 0.25 + 1/8 + 2/64, and 1/8 more at layer 2."""
JOINING = [
    {"round": number, "client": client, "epochs": epochs, "accuracy": accuracy - lost}
    for number, lost in ((2, 0.5), (4, 0.0))
    for client, curve in ((3, (0.5, 0.6, 0.9, 0.9)), (5, (0.5, 0.8, 0.86, 0.88)))
    for epochs, accuracy in zip((0, 1, 2, 4), curve, strict=True)
]
"""Means in round 4: 0.5, 0.7, 0.88, 0.89."""


@pytest.fixture
def analysed(write_run):
    """Write a run of five rounds, evaluated in rounds 2 and 4, with the rows of analyses."""

    def write(name: str = "run", rows: Mapping[str, Rows] | None = None, **overrides: Any) -> Path:
        found = {"cka": CKA, "new_client": JOINING} if rows is None else rows
        settings = {"analysis": ["cka", "new_client"], "reference": "there", **overrides}
        path = write_run(name, make_rows([None, 0.5, None, 0.75, None]), **settings)
        for analysis, each in found.items():
            folder = path / "analysis" / f"{analysis}.parquet"
            folder.mkdir(parents=True)
            pq.write_table(pa.Table.from_pylist([*each]), folder / "part-000000.parquet")
        return path

    return write


VALUES = {
    "analysis(cka, layer_1)": 0.25 + 1 / 8 + 2 / 64,
    "analysis(cka, layer_2)": 0.25 + 2 / 8 + 2 / 64,
    # 0.88 is reached at 2 epochs: 0.01 below 0.89.
    "analysis(new_client, epochs)": 2.0,
    "analysis(new_client, epochs_0)": 0.5,
    "analysis(new_client, epochs_1)": 0.7,
    "analysis( new_client,epochs_4 )": 0.89,
}


@pytest.mark.parametrize("text", VALUES)
def test_value(analysed, text):
    metric = parse_metric(text)
    assert metric.of(read_run(analysed())) == pytest.approx(VALUES[text], abs=1e-12)
    column = metric.column_in(read_run(analysed("other")))
    definition = metric.definition(column)
    assert definition.startswith(f"{metric}: ") and definition.endswith(".")
    assert column.larger == (text != "analysis(new_client, epochs)")
    assert column.unit == ("%" if "epochs_" in text else "")


def test_epochs_are_interpolated(analysed):
    curve = zip((0, 1, 2, 4), (0.5, 0.75, 0.75, 0.86), strict=True)
    rows = [{"round": 4, "client": 0, "epochs": e, "accuracy": a} for e, a in curve]
    record = read_run(analysed(rows={"new_client": rows}))
    # From 0.75 at 2 epochs to 0.86 at 4: 0.85 after ten elevenths of the way.
    expected = 2 + 2 * 10 / 11
    assert parse_metric("analysis(new_client, epochs)").of(record) == pytest.approx(expected)


@pytest.mark.parametrize("text", VALUES)
def test_rows_of_an_earlier_round_are_not_those_of_the_last(analysed, text):
    earlier = {"cka": cka_rows(2, 0.0), "new_client": [r for r in JOINING if r["round"] == 2]}
    assert parse_metric(text).of(read_run(analysed(rows=earlier))) is None
    assert parse_metric(text).of(read_run(analysed("none", rows={}))) is None


def test_a_value_that_is_no_number_is_none(analysed):
    rows = [{**row, "cka": float("nan")} for row in CKA]
    record = read_run(analysed(rows={"cka": rows}))
    assert parse_metric("analysis(cka, layer_1)").of(record) is None


LACKING = {
    "analysis(cka, layer_3)": ({}, "has 1, 2"),
    "analysis(new_client, epochs_3)": ({}, "has 0, 1, 2, 4"),
    "analysis(cka, layer_1)": ({"reference": None}, "is a run without a reference"),
    "analysis(new_client, epochs)": ({"analysis": ["cka"]}, "is a run without analysis=new_client"),
}


@pytest.mark.parametrize("text", LACKING)
def test_a_run_without_the_figure(analysed, text):
    overrides, says = LACKING[text]
    path = analysed(**overrides)
    with pytest.raises(SettingsError) as caught:
        parse_metric(text).of(read_run(path))
    assert str(caught.value) == f"{text}: {path} {says}"
