"""`raysim table --tune`: a paper's rows, each at the best value of a searched setting."""

from __future__ import annotations

import json

import pytest

from raysim.workloads.tables import TABLES, tuned_by
from tests.tuning.tables.common import NAME, ROWS, make_table
from tests.tuning.tables.test_tuned import configs, values_of

CONTROL = {"FedProx at 0.01": {"method.mu": 0.1, "local.lr": 0.01}}
TUNE = ("--tune", "local.lr=0.001,0.3", "--tune-trials", "2", "--seeds", "1")


@pytest.fixture
def with_control(table, slots, tmp_path, monkeypatch):
    """Run the command on a table with a row that sets the learning rate itself."""
    slots.key = str
    monkeypatch.setitem(TABLES, NAME, make_table(tmp_path, {**ROWS, **CONTROL}))
    return table


def test_rows_are_searched_by_run_without_those_that_set_the_setting(with_control, slots, tmp_path):
    code, said, err = with_control(*TUNE)
    assert (code, err) == (0, "")
    cells = {(row, column) for row in ROWS for column in ("IID, long", "IID, short")}
    assert {*values_of(tmp_path / "out")} == cells
    assert "Left out, as they set tuned keys: FedProx at 0.01." in said and "[75.5]" in said
    assert "Tuned by 2 trials of 2 or 4 rounds for each cell" in said
    tried = [c for c in configs(tmp_path / "out/tuning") if "own_task" in c]
    of_trial = sorted((c["method"]["name"], c["rounds"], c["local"]["lr"]) for c in tried)
    assert of_trial == [
        (method, rounds, lr)
        for method in ("fedavg", "fedprox")
        for rounds in (2, 4)
        for lr in (0.001, 0.3)
    ]
    scores = {}
    for path in (tmp_path / "out/tuning").rglob("summary.json"):
        run = json.loads((path.parent / "config.json").read_text())
        score = json.loads(path.read_text())["final_holdout_accuracy"]
        scores.setdefault((run["method"]["name"], run["rounds"]), {})[run["local"]["lr"]] = score
    for run in configs(tmp_path / "out/runs"):
        of_run = scores[run["method"]["name"], run["rounds"]]
        assert of_run[run["local"]["lr"]] == max(of_run.values())


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (("--tune-trials", "2"), "--tune-trials=2: needs --tune KEY=LOW..HIGH, or KEY=A,B"),
        (("--tune", "local.lr"), "--tune=local.lr: is written KEY=LOW..HIGH, or KEY=A,B"),
        (("--tune", "local.rate=1..2"), "tune.space.local.rate: no row has it; did you mean"),
    ],
)
def test_wrong_ranges_are_one_line(with_control, slots, words, message):
    code, _, err = with_control(*words)
    assert (code, slots.started) == (2, []) and err.count("\n") == 1 and message in err


def test_a_table_whose_rows_all_set_the_setting_is_refused(table, tmp_path, monkeypatch):
    monkeypatch.setitem(TABLES, NAME, make_table(tmp_path, CONTROL))
    code, _, err = table(*TUNE)
    assert (code, err) == (2, f"raysim: --tune=local.lr: all rows of {NAME} set it\n")


@pytest.mark.parametrize("name", ["flexchill-1", "flexchill-2", "flexchill-c", "flexchill-d"])
def test_tables_of_temperature_are_tuned_without_their_controls(name):
    """Each temperature is left, and the note names the command that tunes them."""
    tuned = tuned_by(TABLES[name], {"space": {"local.lr": {"low": 1e-3, "high": 0.2}}})
    assert tuned.rows == ("T=4", "T=2", "T=1", "T=0.5", "T=0.25", "T=0.05")
    assert f"raysim table {name} --tune local.lr=1e-3..0.2:log" in tuned.notes[0]
