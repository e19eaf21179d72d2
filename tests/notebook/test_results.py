"""A result at the end of a cell."""

from __future__ import annotations

from html.parser import HTMLParser
from pathlib import Path

import pyarrow as pa
import pytest
import torch

import raysim
from raysim.driver.start import context
from raysim.storage.column_names import OF_SCORES
from raysim.storage.rows.metrics import with_declared
from tests.cli import test_live_view

SUMMARY = {**test_live_view.SUMMARY, "stopped_by": "patience"}
VALUES = {"round": [1, 2], "test_loss": [1.0, 0.5], "test_accuracy": [0.25, 0.75]}
METRICS = with_declared(pa.table(VALUES), OF_SCORES)
PARAMS = {"weight": torch.zeros(40, 30), "bias": torch.zeros(40)}


class Rows(HTMLParser):
    """Names and values of a table."""

    def __init__(self, html: str) -> None:
        super().__init__()
        self._cells: list[str] = []
        self._open = False
        self.feed(html)
        self.values = dict(zip(self._cells[::2], self._cells[1::2], strict=True))

    def handle_starttag(self, tag, attrs):
        self._open = tag in ("th", "td")
        if self._open:
            self._cells.append("")

    def handle_endtag(self, tag):
        self._open = False

    def handle_data(self, data):
        if self._open:
            self._cells[-1] += data


def result(**changes):
    return raysim.Result(Path("runs/<mine>"), {**SUMMARY, **changes}, METRICS, PARAMS)


def test_its_repr_is_one_short_line():
    found = repr(result())
    assert found == "Result('runs/<mine>': accuracy 97.12% (best 97.34%), 50 rounds, 12.3 s)"
    assert repr(result(score=None)) == "Result('runs/<mine>': 50 rounds, 12.3 s)"


def test_its_table():
    assert Rows(result()._repr_html_()).values == {
        "accuracy": "97.12% (best 97.34%)",
        "rounds": "50, ended by patience",
        "rounds to target_accuracy": "46.2",
        "time": "12.3 s, median 0.234 s a round",
        "sent": "up 1.5 MB, down 2.5 MB",
        "metrics": "2 rounds, 3 columns; as a data frame: .metrics.to_pandas()",
        "params": "2 tensors, 1,240 values",
        "run_dir": "runs/<mine>",
    }


def test_its_table_with_a_clock_and_without_a_target():
    virtual = {"virtual_seconds": 3725.4, "virtual_joules": 12_345.6, "lost_clients": 3}
    more = {"rounds_to_target": None, "stopped_by": "rounds", "score": "test_loss"}
    more["final_score"] = 0.25
    values = Rows(result(**more, **virtual)._repr_html_()).values
    assert values["loss"] == "0.2500" and values["rounds"] == "50"
    assert values["virtual time"] == "1.03 h, 12.3 kJ of all clients"
    assert values["lost"] == "3 clients lost"
    assert not {"accuracy", "rounds to target_accuracy"} & {*values}


def test_without_pandas_it_says_what_to_install(monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(context, "find_spec", lambda name: None if name == "pandas" else ...)
    values = Rows(result()._repr_html_()).values
    assert values["metrics"].endswith(
        ".metrics.to_pandas() (first: pip install 'raysim-fl[pandas]')"
    )
