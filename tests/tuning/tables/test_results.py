"""Results of a table's runs, as its cells hold them."""

from __future__ import annotations

from raysim.tuning.tables.folder import TableFolder
from raysim.tuning.tables.plan import TableOptions, make_plan
from raysim.tuning.tables.results import TableResults
from raysim.workloads.tables import TABLES

ROWS = ("FA", "FSVRG", "MFA", "FMA", "MIFL")


def test_cells_of_fedma_count_rounds_of_its_own(tmp_path):
    plan, folder = make_plan(TABLES["mifl-5"], TableOptions(seeds=1)), TableFolder(tmp_path / "out")
    with folder.lock(plan):
        found = TableResults(plan, folder).table()
    own = {
        row: {cell.own_round for (r, _), cell in found.cells.items() if r == row} for row in ROWS
    }
    passes = "a pass over the layers, with a trip to the clients for each layer"
    assert own == {row: {passes if row == "FMA" else ""} for row in ROWS}
