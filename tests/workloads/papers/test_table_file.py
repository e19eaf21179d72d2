"""Reading of tables: what they inherit, and malformed files."""

from __future__ import annotations

import pytest

from raysim.errors import SettingsError
from raysim.workloads.papers.table_file import read_tables

SMALL = """
[[table]]
name = "one"
title = "Accuracy"
reference = "table 1"
metric = "final(test_accuracy)"
unit = "%"
preset = "mnist-fedavg"
settings = { rounds = 5, local.epochs = 1 }
printed = "rounds local.epochs"
chosen = "target_accuracy"
inferred = "local.lr method.name"
columns = [
    { name = "a" },
    { name = "b", metric = "final(test_loss)", unit = "", settings = { local.epochs = 2 } },
]

[[table.rows]]
name = "first"
settings = { local.epochs = 3, target_accuracy = "none" }
values = [1.5, "-"]
deviations = [0.1, 0.2]

[[table.rows]]
name = "second"
preset = "mnist-noniid"
suspect = "implausible"
settings = { method.name = "fedprox", local.lr = 0.5 }

[[table.suspects]]
row = "first"
column = "b"
reason = "misprint"
"""


def read(tmp_path, text):
    path = tmp_path / "small.toml"
    path.write_text(text)
    return read_tables(path)


def test_a_cell_has_stages_without_settings_in_order(tmp_path):
    chain = 'method = { name = "chain", methods = { scaffold = {}, fedprox = { mu = 0.5 } } }'
    marks = "method.name method.methods.scaffold method.methods.fedprox.mu"
    text = SMALL.replace('method.name = "fedprox"', chain).replace('method.name"', f'{marks}"')
    (table,) = read(tmp_path, text)
    methods = table.cells[-1].resolve().method.methods
    assert [*methods] == ["scaffold", "fedprox"] and methods["fedprox"].mu == 0.5


def test_a_cell_inherits_from_table_column_and_row(tmp_path):
    (table,) = read(tmp_path, SMALL)
    assert (table.name, table.rows, table.columns) == ("one", ("first", "second"), ("a", "b"))
    assert (table.paper.name, table.source, [*table.seeds]) == ("MIFL", "MIFL, table 1", [0, 1, 2])
    assert table.metrics == ("final(test_accuracy)", "final(test_loss)")
    a, b, c, d = table.cells
    assert (a.row, a.column, d.row, d.column) == ("first", "a", "second", "b")
    assert a.settings == {"rounds": 5, "local.epochs": 3, "target_accuracy": None}
    assert a.origins == {
        "rounds": "printed",
        "local.epochs": "printed",
        "target_accuracy": "chosen",
    }
    assert d.settings == {
        "rounds": 5,
        "local.epochs": 2,
        "method.name": "fedprox",
        "local.lr": 0.5,
    }
    assert d.origins["local.lr"] == "inferred"
    assert (a.preset, c.preset) == ("mnist-fedavg", "mnist-noniid")
    assert (a.published, a.published_deviation, a.text, a.suspect) == (1.5, 0.1, "", "")
    assert (b.published, b.published_deviation, b.text, b.suspect) == (None, 0.2, "-", "misprint")
    assert (c.published, c.text, c.suspect) == (None, "", "implausible")
    assert [cell.is_published for cell in table.cells] == [True, True, False, False]
    assert (table.metric_of(a), table.unit_of(a)) == ("final(test_accuracy)", "%")
    assert (table.metric_of(b), table.unit_of(b)) == ("final(test_loss)", "")


def test_a_rows_metric_and_unit_are_before_a_columns(tmp_path):
    own = 'preset = "mnist-noniid"\nmetric = "best(test_loss)"\nunit = "nats"'
    (table,) = read(tmp_path, SMALL.replace('preset = "mnist-noniid"', own))
    found = [(table.metric_of(cell), table.unit_of(cell)) for cell in table.cells]
    assert found[2:] == [("best(test_loss)", "nats")] * 2
    assert found[:2] == [("final(test_accuracy)", "%"), ("final(test_loss)", "")]


MALFORMED = {
    "an unknown key": (
        'unit = "%"',
        'unit = "%"\ncolor = 1',
        "one: color: no such key; known are",
    ),
    "a lacking key": ('title = "Accuracy"\n', "", "one: title: is lacking"),
    "a key of a row": (
        "deviations",
        "deviation",
        "one: rows.0.deviation: no such key; did you mean 'deviations'",
    ),
    "a key of a column": (
        '"a" }',
        '"a", color = 1 }',
        "one: columns.0.color: no such key; known",
    ),
    "a value of a column": ('"a" }', '"a", values = [1] }', "one: column a: values and deviations"),
    "a key of a sweep": ('unit = "%"', 'unit = "%"\nmetrics = []', "one: metrics: is a sweep's"),
    "values of a row": ('[1.5, "-"]', "[1.5]", "one: row first: 1 values for 2 columns"),
    "deviations": ("[0.1, 0.2]", "[0.1, 0.2, 0.3]", "one: row first: 3 deviations for 2 columns"),
    "a row twice": ('"second"', '"first"', "one: first: two rows have this name"),
    "a column twice": ('name = "b"', 'name = "a"', "one: a: two columns have this name"),
    "an unknown preset": ('"mnist-noniid"', '"nothing"', "second, a: there is no preset 'nothing'"),
    "no preset": ('preset = "mnist-fedavg"\n', "", "one: first, a: has no preset"),
    "a preset without a paper": ('"mnist-noniid"', '"mnist-million"', "must be of one paper"),
    "two papers": ('"mnist-noniid"', '"dnc-colour"', "must be of one paper"),
    "no origin": ('chosen = "target_accuracy"\n', "", "one: target_accuracy: has no origin"),
    "an origin too many": ('"target_accuracy"', '"target_accuracy seed"', "one: seed: has an"),
    "two origins": ('"target_accuracy"', '"target_accuracy rounds"', "rounds: is printed and"),
    "a suspect cell": ('column = "b"', 'column = "c"', "suspects: there is no cell first, c"),
    "a baseline": ('unit = "%"', 'unit = "%"\nbaseline = "x"', "baseline: there is no row x"),
    "a reference": ('unit = "%"', 'unit = "%"\nreference_row = "x"', "reference_row: there is no"),
    "no TOML": ("[[table]]", "[[table]", "small.toml: "),
}


@pytest.mark.parametrize("case", MALFORMED)
def test_malformed_files_are_refused_in_one_line(tmp_path, case):
    old, new, says = MALFORMED[case]
    assert SMALL.count(old) >= 1
    with pytest.raises(SettingsError) as error:
        read(tmp_path, SMALL.replace(old, new, 1))
    name, message = f"{tmp_path / 'small.toml'}: ", str(error.value)
    assert message.startswith(name) and says in message and "\n" not in message
