"""Results of a table's runs, as its cells hold them."""

from __future__ import annotations

import pyarrow.parquet as pq
import pytest

from raysim.tuning.tables.command import folder_of
from raysim.tuning.tables.plan import make_plan
from raysim.tuning.tables.results import TableResults
from raysim.workloads.tables import TABLES
from tests.tuning.tables.common import NAME, make_table

ROWS = ("FA", "FSVRG", "MFA", "FMA", "MIFL")


def test_cells_of_fedma_count_rounds_of_its_own(tmp_path):
    plan = make_plan(TABLES["mifl-5"], seeds=range(1))
    folder = folder_of(plan, tmp_path / "out")
    with folder.lock():
        folder.enter(plan.labels, plan.labels)
        found = TableResults(plan, folder).table()
    own = {row: {cell.own_round for cell in found.cells if cell.row == row} for row in ROWS}
    passes = "a pass over the layers, with a trip to the clients for each layer"
    assert own == {row: {passes if row == "FMA" else ""} for row in ROWS}


METHODS = {"FedAvg": "fedavg", "FedProx": "fedprox", "Momentum": "momentum"}
RATES = (0.1, 0.05, 0.02)


@pytest.mark.parametrize("as_methods", [True, False])
def test_a_setting_that_differs_in_every_row_is_named_unless_it_makes_the_rows(
    as_methods, table, slots, tmp_path, monkeypatch
):
    names = METHODS if as_methods else [f"lr {rate}" for rate in RATES]
    rows = {
        name: {"local.lr": rate} | ({"method.name": METHODS[name]} if as_methods else {})
        for name, rate in zip(names, RATES, strict=True)
    }
    monkeypatch.setitem(TABLES, NAME, make_table(tmp_path, rows, {"IID": {"rounds": 1}}))
    assert table("--seeds", "1")[0] == 0
    cells = pq.read_table(tmp_path / "out/table.parquet").to_pylist()
    expected = [[f"local.lr={rate}"] if as_methods else [] for rate in RATES]
    assert [cell["differing"] for cell in cells] == expected


def test_the_settings_of_a_row_whose_runs_diverged_are_named(table, slots, tmp_path, monkeypatch):
    rows = {
        name: {"local.lr": rate, "method.name": method}
        for (name, method), rate in zip(METHODS.items(), (0.1, 0.1, 1e12), strict=True)
    }
    monkeypatch.setitem(TABLES, NAME, make_table(tmp_path, rows, {"IID": {"rounds": 1}}))
    assert table("--seeds", "1")[0] == 0
    cells = pq.read_table(tmp_path / "out/table.parquet").to_pylist()
    assert [cell["diverged"] for cell in cells] == [0, 0, 1]
    assert [cell["differing"] for cell in cells] == [[], [], ["local.lr=1000000000000.0"]]


def test_rows_differ_in_what_some_have_of_their_own_and_not_in_what_all_have(tmp_path):
    """As in FLex&Chill's table 8, where T=1 is there twice, once with IID clients."""
    plan = make_plan(TABLES["flexchill-8"], only=("accuracy",))
    folder = folder_of(plan, tmp_path)
    with folder.lock():
        folder.enter(plan.labels, [cell.label for cell in plan.chosen])
        for cell in plan.chosen:
            folder.record_failure(cell.run, "no luck")
        found = TableResults(plan, folder).table()
    differing = {row: dict(found.cell(row, "accuracy").differing) for row in found.rows}
    reference = differing.pop("reference (T=1, iid)")
    assert reference == {"partition.name": "iid"}
    controls = {row: differing.pop(row) for row in found.rows if row.startswith("control")}
    assert [*differing.values()] == [{}] * 6
    assert controls["control of 4 at lr=0.4"] == {"local.lr": 0.4} and len(controls) == 5


def test_a_target_that_is_missed_shows_the_best_that_was_reached(
    table, slots, tmp_path, monkeypatch
):
    """Of two runs of a round, 100.1% being out of reach; the larger of their best accuracies."""
    columns = {"IID": {"rounds": 1}, "rounds": {"rounds": 1}}
    metrics = {"rounds": "rounds_to(test_accuracy, 1.001)"}
    rows = {"FedAvg": {"method.name": "fedavg", "target_accuracy": None}}
    monkeypatch.setitem(TABLES, NAME, make_table(tmp_path, rows, columns, metrics))
    assert table("--seeds", "2")[0] == 0
    accuracy, rounds = pq.read_table(tmp_path / "out/table.parquet").to_pylist()
    best = max(each["value"] for each in accuracy["values"])
    assert [each["value"] for each in rounds["values"]] == [None, None]
    written = (tmp_path / "out/table.md").read_text()
    assert f"(0/2, 2 not reached, at best {100 * best:.2f}%)" in written
