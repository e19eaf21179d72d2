"""Tables of results: cells, bold, ratios and settings that differ."""

from __future__ import annotations

from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import settings as hypothesis_settings
from hypothesis import strategies as st

from raysim.results.render import differences_of, grid_of, to_arrow, to_markdown
from raysim.results.tables import ResultCell, ResultTable, differing_settings
from tests.results.cells import declared


def table_of(cells, metric="final(test_accuracy)", unit="%", **fields):
    rows = tuple(dict.fromkeys(row for row, _ in cells))
    columns = tuple(dict.fromkeys(column for _, column in cells))
    return ResultTable("A table", metric, unit, rows, columns, declared(cells, metric), **fields)


def text_of(cell, **fields):
    return grid_of(table_of({("row", "column"): cell}, **fields)).rows[0][1].text


ROUNDS = {"metric": "rounds_to(test_accuracy, 0.9)", "unit": "rounds"}
TEXTS = {
    "three": (ResultCell({0: 0.9, 1: 0.91, 2: 0.92}), {}, "91.00 ± 1.00 (n=3)"),
    "two": (ResultCell({0: 0.9, 1: 0.92}), {}, "91.00 ± 1.41 (n=2)*"),
    "one": (ResultCell({4: 0.9}), {}, "90.00 (n=1)*"),
    "diverged": (ResultCell({0: 0.9, 1: 0.92}, diverged=1), {}, "91.00 ± 1.41 (2/3, 1 diverged)*"),
    "failed": (
        ResultCell({0: 0.9}, diverged=1, failed=1),
        {},
        "90.00 (1/3, 1 diverged, 1 failed)*",
    ),
    "all diverged": (ResultCell(diverged=3), {}, "- (0/3, 3 diverged)"),
    "not reached": (
        ResultCell({0: 7.5, 1: None, 2: None}, diverged=1),
        ROUNDS,
        "7.5 (1/4, 1 diverged, 2 not reached)*",
    ),
    "no value": (ResultCell({0: None}), {}, "- (0/1, 1 without a value)"),
    "not run": (ResultCell(published=91.2), {}, "not run [91.2]"),
    "missing": (ResultCell(lacking="train.bin"), {}, "no data (a)"),
    "published": (
        ResultCell({0: 0.5}, published=51.25, published_deviation=0.5, suspect="misprint"),
        {},
        "50.00 (n=1)* [51.25 ± 0.5 (a)]",
    ),
    "megabytes": (
        ResultCell({0: 1.5e6}),
        {"metric": "final(bytes)", "unit": "MB"},
        "1.5 (n=1)*",
    ),
    "unit of its own": (ResultCell({0: 2.5}, unit=""), {}, "2.5 (n=1)*"),
    "named unit of its own": (ResultCell({0: 7.25}, unit="rounds"), {}, "7.2 (n=1)* (a)"),
    "small deviation": (
        ResultCell({0: 2.3, 1: 2.3 + 2e-6}),
        {"unit": ""},
        "2.300 ± 1.414e-06 (n=2)*",
    ),
    "equal decimals": (ResultCell({0: 44.0, 1: 49.5}), {"unit": "J"}, "46.75 ± 3.89 (n=2)*"),
    "whole": (ResultCell({0: 3, 1: 5, 2: 4}), {"unit": "J"}, "4 ± 1 (n=3)"),
    "wide": (ResultCell({0: -3.0, 1: 3.02}), {"unit": ""}, "0.010 ± 4.257 (n=2)*"),
    "tiny": (ResultCell({0: 1e-9, 1: 3e-9}), {"unit": ""}, "2e-09 ± 1.414e-09 (n=2)*"),
    "other unit": (ResultCell({0: 0.123456}), {"unit": "nats"}, "0.1235 (n=1)*"),
}


@pytest.mark.parametrize("case", TEXTS)
def test_text_of_a_cell(case):
    cell, fields, text = TEXTS[case]
    assert text_of(cell, **fields) == text


def test_notes_say_what_is_shown():
    cells = {
        ("a", "x"): ResultCell(
            {0: 0.9}, diverged=1, published=91, suspect="bad scan", differing={"local.lr": 0.1}
        ),
        ("b", "x"): ResultCell(lacking="train.bin", metric="best(test_accuracy)"),
    }
    grid = grid_of(table_of(cells, notes=("30 rounds of 500",), baseline="b"))
    assert grid.notes == (
        "30 rounds of 500",
        "final(test_accuracy): the last value of test_accuracy.",
        "Cells: mean ± sample deviation over n seeds.",
        "No rows are compared, and none is bold: that takes two rows in which the same seeds, at"
        " least 5, have values.",
        "*: fewer than 3 seeds.",
        "2/3: of three seeds two have a value, and the mean is theirs; such a cell has no ratio.",
        "In brackets: the published value.",
        "a: local.lr=0.1",
        "b: the published value is suspect: bad scan",
        "c: best(test_accuracy): the largest test_accuracy over the rounds.",
        "d: needs train.bin",
    )
    assert [row[0].text for row in grid.rows] == ["a (a)", "b"]
    assert grid.title == "A table [%]" and grid.header == ("", "x")


def test_settings_that_differ_in_one_cell_are_marked_there():
    cells = {
        ("a", "x"): ResultCell({0: 0.9}, differing={"fraction": 1.0}),
        ("a", "y"): ResultCell({0: 0.9}),
    }
    (row,) = grid_of(table_of(cells)).rows
    assert [entry.text for entry in row] == ["a", "90.00 (n=1)* (a)", "90.00 (n=1)*"]


def test_settings_that_differ_stand_as_they_are_typed():
    differing = {"partition.limit": None, "method.update": False, "local.lr": 0.1}
    table = table_of({("a", "x"): ResultCell({0: 0.9}, differing=differing)})
    words = ["local.lr=0.1", "method.update=false", "partition.limit=none"]
    assert grid_of(table).notes[-1] == f"a: {', '.join(words)}"
    assert to_arrow(table).to_pylist()[0]["differing"] == words


def five(*values, **fields):
    return ResultCell(dict(enumerate(values if len(values) > 1 else values * 5)), **fields)


def test_bold():
    cells = {
        ("best", "x"): five(0.90, 0.92, 0.91, 0.93, 0.94),
        ("alike", "x"): five(0.91, 0.91, 0.92, 0.92, 0.93),
        ("worse", "x"): five(0.80, 0.81, 0.82, 0.80, 0.81),
        ("lucky", "x"): ResultCell({0: 0.99}, diverged=4),
        ("begun", "x"): ResultCell({2: 0.50}),  # of its seed, "alike" is the best
        ("other", "x"): ResultCell({0: 0.1}, metric="final(client_accuracy_d1)"),
        ("not run", "x"): ResultCell(),
    }
    table = table_of(cells)
    assert table.best("x") == {"best", "alike"}  # "other" is compared with none
    bold = {row[0].text: row[1].bold for row in grid_of(table).rows}
    assert [name for name, is_bold in bold.items() if is_bold] == ["best", "alike"]
    assert any("paired t-test over seeds, at a level of 5%" in n for n in grid_of(table).notes)


def test_nothing_is_bold_below_five_seeds():
    four = {
        (row, "x"): ResultCell({seed: value for seed in range(4)})
        for row, value in (("a", 0.5), ("b", 0.7))
    }
    table = table_of(four)
    assert table.best("x") == frozenset() and differences_of(table) is None
    assert not any("Bold" in note for note in grid_of(table).notes)


def test_differences_from_the_best_row():
    """By hand, with t = 2.776445: ends 0.5^0.5 t points from -3; (0.00127 / 5)^0.5 t from 0.072."""
    cells = {
        ("a", "x"): five(0.50),
        ("b", "x"): five(0.49, 0.48, 0.47, 0.46, 0.45),
        ("a", "y"): five(0.50),
        ("b", "y"): ResultCell({0: 0.9}),
        ("c", "y"): five(0.40, metric="final(test_loss)", unit=""),
        ("d", "y"): five(0.30, 0.35, 0.38, 0.30, 0.31, metric="final(test_loss)", unit=""),
    }
    table = table_of(cells)
    grid = differences_of(table)
    assert grid.header == ("", "x", "y")
    lost = "not compared"
    assert [[entry.text for entry in row] for row in grid.rows] == [
        ["a", "best", lost],
        ["b", "-3.00 [-4.96, -1.04], p=0.013", lost],
        ["c", lost, "0.0720 [0.0278, 0.1162], p=0.011"],
        ["d", lost, "best"],
    ]
    assert table.best("x") == {"a"} and table.best("y") == {"d"}
    apart = differences_of(table_of({("a", "x"): five(0.5), ("b", "x"): five(0.25)}))
    assert apart.rows[1][1].text == "-25.00 [-25.00, -25.00], p<0.001"
    fewer = grid_of(table_of({("a", "x"): five(0.5), ("b", "x"): ResultCell({0: 0.1})}))
    assert any(note.startswith("No rows are compared") for note in fewer.notes)
    rows = {(row["row"], row["column"]): row for row in to_arrow(table).to_pylist()}
    b = rows["b", "x"]
    assert [b[name] for name in ("difference", "difference_low", "difference_high", "p")] == (
        pytest.approx([-0.03, -0.0496324, -0.0103676, 0.0132356], rel=1e-5)
    )
    assert rows["a", "x"]["p"] is None


def test_a_reference_is_never_the_best():
    cells = {(row, "x"): five(value) for row, value in (("a", 0.5), ("b", 0.7), ("c", 0.6))}
    reference = {("iid", "x"): five(0.9)}
    assert table_of(cells | reference, reference_row="iid").best("x") == {"b"}
    assert table_of(cells | reference).best("x") == {"iid"}


def test_fewer_rounds_are_better():
    cells = {("slow", "x"): five(9.0), ("fast", "x"): five(3.0)}
    assert table_of(cells, **ROUNDS).best("x") == {"fast"}


def test_ratios():
    cells = {
        ("base", "x"): ResultCell({0: 90.0, 1: 110.0}, published=200),
        ("fast", "x"): ResultCell({0: 60.0, 1: 40.0}, published=80),
        ("never", "x"): ResultCell({0: None}),
        ("sometimes", "x"): ResultCell({0: 10.0, 1: None}, published=100),
        ("diverging", "x"): ResultCell({0: 10.0}, diverged=1),
    }
    table = table_of(cells, **ROUNDS, baseline="base")
    assert [table.ratio(row, "x") for row in table.rows] == [None, 2.0, None, None, None]
    texts = [row[1].text for row in grid_of(table).rows]
    assert texts[1] == "50.0 ± 14.1 (n=2)* 2.00x [80 2.50x]"
    assert texts[2] == "- (0/1, 1 not reached)"
    assert texts[3] == "10.0 (1/2, 1 not reached)* [100 2.00x]"
    legend = "2.00x: half of what base needs, by the means over the seeds of both."
    assert legend in grid_of(table).notes
    alone = replace(table, rows=("fast",))  # the base has cells, but is not shown
    assert [row[1].text for row in grid_of(alone).rows] == [texts[1]]
    published = {("fast", "x"): cells["fast", "x"], ("base", "x"): ResultCell(published=200)}
    unmeasured = table_of(published, **ROUNDS, baseline="base")
    (row,) = grid_of(replace(unmeasured, rows=("fast",))).rows
    assert row[1].text == "50.0 ± 14.1 (n=2)* [80 2.50x]"
    turned = table_of(cells, **ROUNDS, baseline="sometimes")
    assert {turned.ratio(row, "x") for row in table.rows} == {None}


PASSES = "a pass over the layers"


def test_rounds_of_other_kinds_are_not_compared():
    cells = {
        ("base", "x"): five(100.0),
        ("fast", "x"): five(50.0),
        ("passes", "x"): five(20.0, published=80, own_round=PASSES),
    }
    table = table_of(cells, **ROUNDS, baseline="base")
    assert table.best("x") == {"fast"}
    assert [table.ratio(row, "x") for row in table.rows] == [None, 2.0, None]
    two = {place: cell for place, cell in cells.items() if place[0] != "fast"}
    assert table_of(two, **ROUNDS).best("x") == frozenset()
    grid = grid_of(table)
    assert [row[1].text for row in grid.rows][1:] == [
        "50.0 ± 0.0 (n=5) 2.00x",
        "20.0 ± 0.0 (n=5) (a) [80]",
    ]
    assert grid.notes[-1] == (
        f"a: a round is {PASSES}: its measured rounds are not compared with other methods' rounds."
    )
    assert to_arrow(table)["own_round"].to_pylist() == ["", "", PASSES]
    # Of rounds that are all alike, of other metrics, and beside no value at all, both are there.
    alike = {place: replace(cell, own_round=PASSES) for place, cell in cells.items()}
    assert table_of(alike, **ROUNDS, baseline="base").ratio("passes", "x") == 5.0
    assert table_of(alike, **ROUNDS).best("x") == {"passes"}
    sent = table_of(cells, "bytes_to(test_accuracy, 0.9)", baseline="base")
    assert (sent.best("x"), sent.ratio("passes", "x")) == ({"passes"}, 5.0)
    assert not any(PASSES in note for note in grid_of(sent).notes)
    never = {**cells, ("passes", "x"): ResultCell({0: None}, own_round=PASSES)}
    assert table_of(never, **ROUNDS).best("x") == {"fast"}


def test_rows_of_other_seeds_have_a_ratio_and_are_not_compared():
    """By their own means, `hard` needs more rounds than `base`; of seed 1 both have, fewer."""
    cells = {
        ("base", "x"): ResultCell({0: 10.0, 1: 100.0}),
        ("hard", "x"): ResultCell({1: 80.0, 2: 90.0}),
    }
    table = table_of(cells, **ROUNDS, baseline="base")
    assert table.best("x") == frozenset() and table.ratio("hard", "x") == 100 / 80
    apart = table_of({**cells, ("hard", "x"): ResultCell({2: 5.0})}, **ROUNDS, baseline="base")
    assert apart.best("x") == frozenset() and apart.ratio("hard", "x") is None


def test_runs_in_progress_are_not_compared():
    cells = {
        ("base", "x"): five(100.0),
        ("on", "x"): five(50.0, in_progress=True),
        ("before", "x"): ResultCell({0: None}, in_progress=True),
        ("slow", "x"): five(120.0),
    }
    table = table_of(cells, **ROUNDS, baseline="base")
    assert table.best("x") == {"base"} and table.ratio("on", "x") is None
    texts = [row[1].text for row in grid_of(table).rows]
    assert texts[1:3] == ["50.0 ± 0.0 (n=5)", "- (0/1, 1 not reached so far)"]


def test_figures_that_count_nothing_have_no_ratio():
    cells = {
        (row, "x"): ResultCell({0: value}, published=value)
        for row, value in (("base", 0.5), ("good", 0.75))
    }
    for metric in ("final(test_accuracy)", "final(test_loss)"):
        table = table_of(cells, metric, baseline="base")
        assert table.ratio("good", "x") is table.published_ratio("good", "x") is None


def test_differing_settings():
    rows = {
        "fedavg": {"method.name": "fedavg", "local.lr": 0.1, "rounds": 30},
        "fedprox": {"method.name": "fedprox", "method.mu": 0.1, "local.lr": 0.1, "rounds": 30},
        "scaffold": {"method.name": "scaffold", "local.lr": 0.02, "rounds": 30},
    }
    expected = {row: {"method.name"} for row in rows}
    assert differing_settings(rows, expected) == {
        "fedavg": {},
        "fedprox": {},
        "scaffold": {"local.lr": 0.02},
    }
    for lr, values in zip((0.1, 0.05), rows.values(), strict=False):
        values["local.lr"] = lr
    found = differing_settings(rows, expected)
    assert found == {row: {"local.lr": rows[row]["local.lr"]} for row in rows}


@hypothesis_settings(max_examples=15)
@given(st.permutations([*enumerate([0.90, 0.92, None, 0.93, 0.94, 0.89])]))
def test_the_order_of_seeds_changes_no_output(values):
    def table(pairs):
        cells = {("a", "x"): ResultCell(dict(pairs)), ("b", "x"): five(0.9, 0.9, 0.9, 0.9, 0.95)}
        return table_of(cells)

    ordered = table(sorted(values, key=lambda pair: pair[0]))
    assert to_markdown(grid_of(table(values))) == to_markdown(grid_of(ordered))
    assert to_arrow(table(values)).equals(to_arrow(ordered))
