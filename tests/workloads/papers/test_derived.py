"""Published values agree with what the papers derive from them, and with each other.

A digit that is read wrongly changes a printed speedup, improvement or difference.
"""

from __future__ import annotations

from collections import Counter, defaultdict
from math import inf

import pytest

from raysim.workloads.tables import TABLES, PaperCell

# Printed beside the rounds: those of the baseline over a row's, in the order of the columns.
SPEEDUPS = {
    ("mifl-2a", "MIFL"): "1.20 1.38 1.33 1.39 1.70  1.39 1.26 1.36 1.28 1.28"
    "  1.40 1.24 1.39 1.37 -  1.00 1.74 1.53 1.58 1.30",
    ("mifl-2b", "MIFL"): "1.82 1.62 1.50 1.43 1.12  1.06 1.42 1.50 1.48 1.48"
    "  1.24 1.22 1.34 1.41 1.30  1.00 1.49 1.60 1.69 1.66"
    "  3.31 3.06 3.00 2.90 2.74  2.00 2.57 1.89 2.50 2.00"
    "  1.71 3.15 2.36 2.49 2.44  1.98 1.52 1.68 2.29 1.32",
    ("mifl-3", "MIFL"): "1.62 3.06 1.50 1.73 1.56 1.65 1.94 2.57 2.00"
    "  1.31 3.15 1.70 2.76 1.39 1.18 2.07 1.52 1.98"
    "  1.20 1.85 1.35 2.02 1.44 1.20 1.45 1.08 1.19",
    ("mifl-4", "MIFL"): "3.32 2.76 1.09  1.31 1.19 1.63  1.34 1.49 1.26  1.28 1.66 1.14",
    ("mifl-6a", "MIFL-Update"): "1.22 1.26 1.21  1.20 1.15 1.25  1.24 1.10 1.03",
    ("mifl-6a", "MIFL-Aggregation"): "1.11 1.15 1.15  1.13 1.07 1.14  1.12 1.08 1.02",
    ("mifl-6a", "MIFL"): "1.48 1.48 1.42  1.36 1.30 1.49  1.35 1.20 1.08",
    ("mifl-6b", "MIFL-Update"): "1.21 1.22 1.50  1.53 1.11 1.27  1.56 1.36 1.31",
    ("mifl-6b", "MIFL-Aggregation"): "1.19 1.12 1.20  1.16 1.10 1.12  1.41 1.20 1.15",
    ("mifl-6b", "MIFL"): "1.50 1.65 2.57  1.70 1.18 1.52  1.96 1.63 1.63",
}
# Printed in FLex&Chill's table 1, by temperature, for FEMNIST, CIFAR-10 and CIFAR-100: the
# difference of the accuracy to T=1, and the rounds of T=1 over a row's.
CHILLED = {
    "T=4": "-5.06 0.44  -3.76 0.84  -0.20 0.69",
    "T=2": "-1.46 0.64  -0.99 0.93  -0.36 0.69",
    "T=1": "0.00 1.00  0.00 1.00  0.00 1.00",
    "T=0.5": "1.13 1.50  0.18 1.56  1.52 1.12",
    "T=0.25": "0.85 2.32  2.07 1.90  2.38 1.32",
    "T=0.05": "2.20 6.00  3.37 2.37  -2.72 0.74",
}
# Printed in the row "Improvement": FedMAX less the best of the others.
IMPROVEMENTS = {
    "fedmax-1": "1.81 5.64 4.98  1.69 6.73 8.73  1.81 2.50 9.57  1.69 6.45 14.71",
    "fedmax-2": "0.0089 -0.0001 -0.0096 0.008",  # the last one cut off
}
# Printed reductions of the rounds against FedAvg, in per cent.
REDUCTIONS = {
    ("fedmmd-fig4", "FedMMD"): "20.2 23.4",
    ("fedfusion-2", "FedFusion+Single"): "13.0 11.3",
    ("fedfusion-2", "FedFusion+Multi"): "22.0 21.5",
    ("fedfusion-2", "FedFusion+Conv"): "66.0 64.1",
}


def agree(found: float, printed: str, cell: PaperCell, slack: float) -> None:
    """Check a derived value; where it is not the printed one, the cell names that as its doubt."""
    assert (abs(found - float(printed)) <= slack) or f"printed with {printed}" in cell.suspect, cell


def test_every_row_beside_which_speedups_are_printed_is_compared():
    printed = {name for name in TABLES if name.startswith("mifl-")}
    printed -= {"mifl-5", "mifl-choices"}
    rows = {(name, row) for name in printed for row in TABLES[name].rows if row != "FA"}
    assert rows == {*SPEEDUPS}
    assert {*CHILLED} == {r for r in TABLES["flexchill-1"].rows if not r.startswith("control")}


@pytest.mark.parametrize(("name", "row"), SPEEDUPS)
def test_speedups(name, row):
    table = TABLES[name]
    for column, printed in zip(table.columns, SPEEDUPS[name, row].split(), strict=True):
        before, after = (table.cell(each, column) for each in (table.baseline, row))
        if printed == "-":
            assert before.text == "- (86.54% at 1929)" and before.published is None
            assert before.is_published and column == "2nn noniid E=1 B=inf C=1.0"
        else:
            agree(before.published / after.published, printed, after, 0.0051)


@pytest.mark.parametrize("row", CHILLED)
def test_differences_and_ratios_by_temperature(row):
    """The paper subtracts before it rounds."""
    table, printed = TABLES["flexchill-1"], iter(CHILLED[row].split())
    for column in table.columns:
        before, after = table.cell("T=1", column), table.cell(row, column)
        if column.endswith("accuracy"):
            agree(after.published - before.published, next(printed), after, 0.0101)
        elif column.endswith("rounds"):
            agree(before.published / after.published, next(printed), after, 0.0051)
    assert next(printed, None) is None


@pytest.mark.parametrize("name", IMPROVEMENTS)
def test_improvements(name):
    table = TABLES[name]
    for column, printed in zip(table.columns, IMPROVEMENTS[name].split(), strict=True):
        *others, best = (table.cell(row, column) for row in table.rows)
        slack = 10.0 ** -len(printed.partition(".")[2])
        agree(
            best.published - max(other.published for other in others), printed, best, slack * 0.95
        )


@pytest.mark.parametrize(("name", "row"), REDUCTIONS)
def test_reductions(name, row):
    table = TABLES[name]
    for column, printed in zip(table.columns, REDUCTIONS[name, row].split(), strict=True):
        before, after = (table.cell(each, column) for each in ("FedAvg", row))
        found = 100 * (1 - after.published / before.published)
        if "printed is 23.4%" in after.suspect:
            assert (printed, round(found, 1)) == ("23.4", 43.8)
        else:
            agree(found, printed, after, 0.051)


def test_an_experiment_has_one_value_in_all_tables():
    """By hand: 28 of MIFL's stand in two or three tables, FLex&Chill's twelve non-IID ones in two.

    Rounds to a target do not depend on when a run gives up.
    """
    values = defaultdict(list)
    for table in TABLES.values():
        for cell in table.cells:
            if cell.is_published:
                metric = table.metric_of(cell)
                fewer = {"rounds": 1} if metric.startswith("rounds_to(") else {}
                values[metric, repr(cell.resolve(fewer))].append((table.name, cell))
    repeated = [found for found in values.values() if len(found) > 1]
    for found in repeated:
        assert len({cell.published for _, cell in found}) == 1, found
    papers = Counter(found[0][0].partition("-")[0] for found in repeated)
    assert papers == {"fedmax": 8, "mifl": 28, "flexchill": 12}


def test_runs_give_up_when_the_notes_say():
    """Of a shortened table the note holds for the table in full alone, and says so."""
    found = {}
    for table in TABLES.values():
        if "gives up" not in " ".join(table.notes):
            continue
        assert "In full, a run gives up after at least 1.5 times the rounds" in " ".join(
            table.notes
        )
        early = [c for c in table.cells if c.settings["rounds"] < 1.5 * (c.published or inf)]
        found[table.name] = [(c.row, c.column, c.settings["rounds"]) for c in early]
    exception = ("FA", "2nn noniid E=1 B=inf C=1.0", 2500)
    assert found.pop("mifl-2a") == [exception]
    assert "FA's in the column 2nn noniid E=1 B=inf C=1.0" in " ".join(TABLES["mifl-2a"].notes)
    assert TABLES["mifl-2a"].notes[-1].endswith(" after 2500.") and exception[2] < 1.5 * 1929
    assert [*found] == [f"mifl-{n}" for n in ("2b", "3", "4", "5", "6a", "6b")]
    assert not any(found.values())
