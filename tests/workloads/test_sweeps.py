"""Sweeps by hand: how values are split, the cells of axes and files, and what is refused."""

from __future__ import annotations

import tomllib
from dataclasses import replace
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

import raysim
from raysim.results.column_metrics import TARGETS
from raysim.user_input import short_name
from raysim.workloads import sweeps
from raysim.workloads.presets import PRESETS
from raysim.workloads.sweep_values import parse_axes, parse_ranges, split_values
from raysim.workloads.sweeps import default_folder, read_sweep
from raysim.workloads.tables import TABLES


@pytest.mark.parametrize(
    ("text", "values"),
    [
        ("fedavg,fedprox", ["fedavg", "fedprox"]),
        ("0.1, 0.5", ["0.1", "0.5"]),
        ("[a,b],[c]", ["[a,b]", "[c]"]),
        ('{"a": {"b": 1, "c": 2}},{}', ['{"a": {"b": 1, "c": 2}}', "{}"]),
        ('"x,y",z', ['"x,y"', "z"]),
        ("0..3", ["0", "1", "2", "3"]),
        ("7,1..2", ["7", "1", "2"]),
        ("-1..1", ["-1", "0", "1"]),
        ("../data,a..b", ["../data", "a..b"]),
        ("0.1..0.5", ["0.1..0.5"]),
        ("", [""]),
    ],
)
def test_values_are_split_at_commas_outside_of_brackets(text, values):
    assert split_values(text) == values


@given(st.lists(st.text("ab[]{}\"'.-_ 0", min_size=1).map(str.strip), min_size=1))
def test_no_value_is_lost(words):
    """Whatever brackets are left open, the texts together are the given ones."""
    text = ",".join(words)
    whole = ",".join(split_values(text))
    assert whole.replace(" ", "") == text.replace(" ", "") or ".." in text


def sweep_of(config, *overrides, metrics=()):
    return read_sweep(config, *parse_axes(overrides), metrics=metrics)


def test_axes_by_hand():
    overrides = ["method.name=fedavg,fedprox", "local.lr=0.1,0.05", "fraction=0.1,0.3", "rounds=7"]
    found = sweep_of("mnist-noniid", *overrides, "seed=3..5")
    assert found.rows == ("fedavg", "fedprox") and found.seeds == (0, 1, 2) and found.paper is None
    columns = [f"lr={lr} fraction={c}" for lr in (0.1, 0.05) for c in (0.1, 0.3)]
    assert found.columns == (*columns,)
    assert len(found.cells) == 8
    cell = found.cell("fedprox", "lr=0.05 fraction=0.3")
    assert cell.settings == {
        "target_accuracy": None,  # of the preset, which the sweep leaves out
        "rounds": 7,
        "seed": 3,
        "local.lr": 0.05,
        "fraction": 0.3,
        "method.name": "fedprox",
    }
    assert cell.preset == "mnist-noniid" and found.metric == "last_ten(test_accuracy)"
    assert (found.unit, found.unit_of(cell)) == ("%", "%")
    assert {*found.row_keys.values()} == {frozenset({"method.name"})}


FINAL, UNTIL = "final(test_accuracy)", "rounds_to(test_accuracy, {})"


@pytest.mark.parametrize(
    ("words", "metrics", "target"),
    [
        ((), [FINAL], None),
        (("target_accuracy=0.97",), [FINAL], 0.97),
        (("target_accuracy=none",), [UNTIL.format(0.9)], None),
        (("target_accuracy=0.5,0.6",), [FINAL], 0.5),
        ((), [UNTIL.format(0.97), UNTIL.format(0.9)], 0.97),
        ((), [UNTIL.format(0.97), FINAL], None),
        ((), [UNTIL.format(0.98)], None),
        ((), ["rounds_to(test_loss, 0.1)"], None),
        (("evaluation.holdout=0.2",), [UNTIL.format(0.9)], None),
        (("evaluation.holdout=0.2",), ["rounds_to(holdout_accuracy, 0.9)"], 0.97),
        (("evaluation.holdout=0.2",), ["rounds_to(personal_holdout_accuracy, 0.9)"], 0.97),
    ],
)
@pytest.mark.parametrize("preset", ["mnist-noniid", "base.toml"])
def test_runs_stop_at_no_target_of_a_preset(tmp_path, monkeypatch, preset, words, metrics, target):
    """Unless all metrics are of the rounds before it."""
    monkeypatch.chdir(tmp_path)
    (tmp_path / "base.toml").write_text('preset = "mnist-noniid"\nrounds = 3\n')
    found = sweep_of(preset, *words, metrics=metrics)
    assert found.cells[0].resolve().target_accuracy == target
    line = f"Runs do not stop at target_accuracy=0.97 of {preset}; to stop them there, set it."
    is_set = any(word.startswith("target_accuracy=") for word in words)
    assert found.notes == (() if is_set or target else (line,))


def test_runs_stop_at_what_a_file_or_a_row_gives(tmp_path):
    (tmp_path / "base.toml").write_text('preset = "mnist-noniid"\ntarget_accuracy = 0.5\n')
    assert sweep_of(str(tmp_path / "base.toml")).cells[0].resolve().target_accuracy == 0.5
    row = '[[rows]]\nname = "{}"\nsettings = {{ {} }}\n'
    rows = row.format("A", "target_accuracy = 0.6") + row.format("B", "rounds = 2")
    (tmp_path / "my.toml").write_text(f'preset = "mnist-noniid"\nnote = "Mine."\n{rows}')
    found = sweep_of(str(tmp_path / "my.toml"))
    assert [cell.resolve().target_accuracy for cell in found.cells] == [0.6, None]
    first, second = found.notes
    assert first == "Mine." and second.startswith("Runs do not stop at target_accuracy=0.97 of")


def test_runs_are_not_stopped_by_patience_of_a_preset(monkeypatch):
    own = PRESETS["mnist-noniid"].replace("", patience=20, target_accuracy=None)
    monkeypatch.setattr(sweeps, "PRESETS", {"patient": own})
    found = sweep_of("patient", "rounds=7")
    assert found.cells[0].settings == {"patience": None, "rounds": 7}
    assert "patience=20 of patient" in found.notes[0]
    assert sweep_of("patient", "patience=9").cells[0].settings == {"patience": 9}


@pytest.mark.parametrize(
    ("seeds", "first", "distances"),
    [("0,7,42", 0, (0, 7, 42)), ("7,0..1", 7, (0, -7, -6)), ("42", 42, (0,))],
)
def test_seeds_need_not_follow_each_other(tmp_path, seeds, first, distances):
    """The first is the setting of all cells, from which the others are counted."""
    found = sweep_of("mnist-noniid", f"seed={seeds}")
    assert (found.cells[0].settings["seed"], found.seeds) == (first, distances)
    numbers = [first + distance for distance in distances]
    path = tmp_path / "my.toml"
    path.write_text(f'preset = "mnist-noniid"\nseeds = {numbers}\n[axes]\n"rounds" = [1, 2]\n')
    assert sweep_of(str(path)).seeds == read_sweep("mnist-noniid", seeds=numbers).seeds == distances


def test_without_axes_a_sweep_is_one_cell_for_each_metric():
    metrics = ["final(test_loss)", "rounds_to(test_accuracy, 0.9)"]
    found = sweep_of("mnist-fedavg", "rounds=3", metrics=metrics)
    assert found.rows == ("all",) and found.columns == (*metrics,) and [*found.seeds] == [0]
    assert [found.metric_of(cell) for cell in found.cells] == metrics
    assert [found.unit_of(cell) for cell in found.cells] == ["", "rounds"]


def test_a_metric_with_a_target_has_the_unit_of_what_it_counts():
    """Not that of the accuracy to be reached: bytes were shown as percent."""
    metrics = [f"{name}(test_accuracy, 0.9)" for name in TARGETS]
    found = sweep_of("mnist-fedavg", "rounds=3", metrics=metrics)
    units = {found.metric_of(cell).partition("(")[0]: found.unit_of(cell) for cell in found.cells}
    assert units == {
        **{"rounds_to": "rounds", "bytes_to": "B", "bytes_up_to": "B", "seconds_to": "s"},
        **{"virtual_seconds_to": "s", "hours_to": "", "joules_to": "J"},
    }


def test_a_metric_has_the_unit_of_its_own_column():
    """Not that of the column by which its round is chosen."""
    metrics = ["at_best(train_loss, test_accuracy)", "at_best(test_accuracy, train_loss)"]
    found = sweep_of("mnist-fedavg", "rounds=3", metrics=metrics)
    assert [found.unit_of(cell) for cell in found.cells] == ["", "%"]


FILE = """
preset = "mnist-noniid"
title = "Mine"
seeds = "1..2"
settings = { rounds = 20, target_accuracy = "none" }
rows = [
    { name = "FedAvg", settings = { method.name = "fedavg" } },
    { name = "FedProx", settings = { method.name = "fedprox", method.mu = 0.1 } },
]
columns = [
    { name = "few", settings = { fraction = 0.05 } },
    { name = "many", settings = { fraction = 0.3 } },
]
[axes]
"local.epochs" = [1, 5]
"local.batch_size" = "10,20"
"""


def test_a_file_names_rows_and_columns(tmp_path):
    path = tmp_path / "my.toml"
    path.write_text(FILE)
    found = sweep_of(str(path), "rounds=5")
    assert found.title == "Mine" and found.rows == ("FedAvg", "FedProx") and found.seeds == (0, 1)
    assert len(found.columns) == 2 * 2 * 2
    cell = found.cell("FedProx", "many epochs=5 batch_size=20")
    assert cell.settings == {
        "rounds": 5,
        "target_accuracy": None,
        "seed": 1,
        "fraction": 0.3,
        "local.epochs": 5,
        "local.batch_size": 20,
        "method.name": "fedprox",
        "method.mu": 0.1,
    }
    assert cell.resolve().method.mu == 0.1


OWN = """
preset = "base.toml"
metrics = ["final(test_accuracy)", "final(test_loss)"]
rows = [{ name = "A" }, { name = "B", preset = "other.toml" }]
columns = [{ name = "x" }, { name = "y", metric = "rounds_to(test_accuracy, 0.9)" }]
"""


def test_columns_have_metrics_of_their_own_and_rows_presets(tmp_path):
    """The file's preset lies beside it, whatever the working directory."""
    (tmp_path / "base.toml").write_text('preset = "mnist-noniid"\nrounds = 3\n')
    (tmp_path / "other.toml").write_text('preset = "mnist-fedavg"\n')
    (tmp_path / "own.toml").write_text(OWN)
    found = sweep_of(str(tmp_path / "own.toml"))
    loss, rounds = "final(test_loss)", "rounds_to(test_accuracy, 0.9)"
    assert found.columns == ("x final(test_accuracy)", f"x {loss}", "y")
    assert [found.metric_of(found.cell("A", column)) for column in found.columns] == [
        *("final(test_accuracy)", loss, rounds)
    ]
    assert [found.unit_of(found.cell("A", column)) for column in found.columns] == [
        *("%", "", "rounds")
    ]
    assert found.groups == {
        "x final(test_accuracy)": ("x", "final(test_accuracy)"),
        f"x {loss}": ("x", loss),
    }
    assert found.cell("A", "y").preset == str(tmp_path / "base.toml")
    assert found.cell("B", "y").preset == str(tmp_path / "other.toml")


PAPERS = [path.read_text() for path in Path("workloads/papers").glob("*/tables.toml")]
ENTRIES = {
    tomllib.loads(entry)["table"][0]["name"]: entry
    for paper in PAPERS
    for entry in (f"[[table]]\n{text}" for text in paper.split("[[table]]\n")[1:])
}


@pytest.mark.parametrize("name", ENTRIES)
def test_an_entry_of_a_paper_is_a_sweep_with_its_published_values(tmp_path, name):
    path, entry = tmp_path / "my.toml", ENTRIES[name]
    path.write_text(entry)
    table = TABLES[name]
    cells = table.cells
    if "seeds" in tomllib.loads(entry)["table"][0]:  # which count from 0 on
        seed = {"seed": 0}
        cells = tuple(
            replace(c, settings=c.settings | seed, origins={**c.origins, "seed": ""}) for c in cells
        )
    found = sweep_of(str(path))
    assert replace(found, seeds=(*found.seeds,)) == replace(table, paper=None, cells=cells)
    assert [*found.seeds] == [*table.seeds]


def test_the_command_replaces_the_seed_of_a_file_and_python_names_one_of_both(tmp_path):
    path = tmp_path / "my.toml"
    path.write_text(FILE.replace('seeds = "1..2"', "").replace("rounds = ", "seed = 5, rounds = "))
    found = sweep_of(str(path))
    assert found.cells[0].settings["seed"] == 5 and [*found.seeds] == [0]
    found = sweep_of(str(path), "seed=3,7")
    assert found.cells[0].settings["seed"] == 3 and [*found.seeds] == [0, 4]
    with pytest.raises(raysim.SettingsError, match=r"^seed=3: seeds=\[1, 2\] gives the seeds; "):
        read_sweep("mnist-fedavg", {"seed": 3}, seeds=[1, 2])
    message = "^seed: an axis of a sweep cannot set it; `seeds` gives"
    with pytest.raises(raysim.SettingsError, match=message):
        read_sweep("mnist-fedavg", axes={"seed": [0, 1]})


def test_of_several_entries_one_is_to_be_copied(tmp_path):
    path = tmp_path / "my.toml"
    path.write_text(next(text for text in PAPERS if text.count("[[table]]") > 1))
    message = r"my.toml: must have one \[\[table\]\], with its \[\[table.rows\]\]"
    with pytest.raises(raysim.SettingsError, match=message):
        sweep_of(str(path))


@pytest.mark.parametrize(
    ("text", "space"),
    [
        ("local.lr=1e-3..1:log", {"low": 1e-3, "high": 1, "log": True}),
        ("local.lr=.5..2.", {"low": 0.5, "high": 2.0, "log": False}),
        ("local.epochs=1..5", {"low": 1, "high": 5, "log": False}),
        ("method.mu=0,0.1", [0, 0.1]),
        ("method.name=fedavg", ["fedavg"]),
    ],
)
def test_ranges_of_a_search_by_hand(text, space):
    found = parse_ranges([text], 3)
    assert found == {"space": {text.partition("=")[0]: space}, "trials": 3}
    with pytest.raises(raysim.SettingsError, match="has a range already"):
        parse_ranges([text, text], None)


def test_axes_that_end_likewise_are_named_in_full():
    found = sweep_of("mnist-fedavg", "dataset.seed=1,2", "partition.seed=1,2", "local.lr=0.1,0.2")
    assert found.rows == ("dataset.seed=1", "dataset.seed=2")
    assert found.columns[0] == "partition.seed=1 lr=0.1"


def test_none_is_named_as_it_is_typed():
    assert sweep_of("mnist-fedavg", "attack.name=ipm,none").rows == ("ipm", "none")


def test_values_that_are_lists_make_an_axis_of_lists():
    found = sweep_of("mnist-fedavg", "model.widths=[10,20],[30]", 'a.names=[x,y],["z"],[]', "b=[w]")
    assert [cell.settings["model.widths"] for cell in found.cells] == [[10, 20]] * 3 + [[30]] * 3
    assert [cell.settings["a.names"] for cell in found.cells[:3]] == [["x", "y"], ["z"], []]
    assert found.rows == ("widths=[10,20]", "widths=[30]")
    assert found.columns == ("names=[x,y]", "names=[z]", "names=[]")
    assert found.cells[0].settings["b"] == ["w"]


def test_other_files_than_settings_say_what_they_are_for(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "my.toml").write_text(FILE)
    with pytest.raises(raysim.SettingsError, match=r"type: raysim sweep my\.toml$"):
        raysim.load_config("my.toml")
    (tmp_path / "my.yaml").write_text("rounds: 3")
    hint = r"settings are a \.toml or \.json file"
    with pytest.raises(raysim.SettingsError, match=f"my.yaml: no such preset; {hint}$"):
        sweep_of("my.yaml", "local.lr=0.1,0.2").cells[0].resolve()


def test_a_file_of_data_is_the_base_of_all_cells(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("RAYSIM_DATA", str(tmp_path / "data"))
    (tmp_path / "mails.csv").write_text("links,spam\n" + "1,no\n2,yes\n" * 10)
    found = sweep_of("mails.csv", "target=spam", "local.lr=0.1,0.2")
    assert found.name == "mails-sweep"
    resolved = [cell.resolve() for cell in found.cells]
    assert {(cell.local.lr, cell.dataset.target) for cell in resolved} == {
        (0.1, "spam"),
        (0.2, "spam"),
    }


def test_a_file_of_settings_is_the_base_of_all_cells(tmp_path):
    path = tmp_path / "base.toml"
    path.write_text('preset = "mnist-fedavg"\nrounds = 4\n')
    found = sweep_of(str(path), "local.lr=0.1,0.2")
    assert [cell.resolve().rounds for cell in found.cells] == [4, 4]
    assert found.rows == ("lr=0.1", "lr=0.2") and found.title == "Sweep of base"


REFUSED = {
    ("seed=4,0,4",): "seed=4,0,4: has 4 twice",
    ("seed=a",): "seed=a: must be whole numbers from 0 on",
    ("rounds=5..1",): "5..1: a range has its smaller end first",
    ("local.lr=0.1,0.1",): "lr=0.1: two rows have this name",
    ("local.lr",): "'local.lr': overrides are written dotted.key=value",
    ("local.lr=1..9000", "rounds=1..2"): "18000 cells: must be at most 10000",
    ("out=a",): "out: use the option --out for a sweep",
    ("trace=true,false",): "trace: an axis of a sweep cannot set it",
    ("method={},{}", "method.mu=1"): "method: is set by an axis and by the command",
}


@pytest.mark.parametrize("overrides", REFUSED, ids=" ".join)
def test_what_is_no_sweep_is_one_line(overrides):
    with pytest.raises(raysim.SettingsError) as raised:
        sweep_of("mnist-fedavg", *overrides)
    assert str(raised.value).startswith(REFUSED[overrides])


@pytest.mark.parametrize(
    ("change", "message"),
    [
        (("seeds", "seed"), "seed: no such key; did you mean 'seeds'?"),
        (('preset = "mnist-noniid"', ""), "FedAvg, few epochs=1 batch_size=10: has no preset"),
        (('name = "FedProx"', 'name = "FedAvg"'), "FedAvg: two rows have this name"),
        (
            ('name = "many"', 'name = "few"'),
            "few epochs=1 batch_size=10: two columns have this name",
        ),
        (("fraction = 0.3", "method.mu = 1"), "method.mu: is set by a row and by a column"),
        (('local.epochs" =', 'fraction" ='), "fraction: is set by a column and by an axis"),
        (
            ("method.mu = 0.1", "seed = 4"),
            "seed: a row of a sweep cannot set it; `seeds` gives the seeds of all cells",
        ),
        (
            ("rounds = ", "seed = 5, rounds = "),
            "seed=5: seeds=1..2 gives the seeds; leave one of them out",
        ),
        (
            ("fraction = 0.3", "engine.actors = 3"),
            "engine.actors: a column of a sweep cannot set it",
        ),
        (
            ('name = "FedAvg"', 'name = "FedAvg", colour = "x"'),
            "rows.0.colour: no such key; known are name, preset, settings, suspect, metric, unit,"
            " values, deviations",
        ),
        (("[1, 5]", "[]"), "local.epochs: an axis must have a value"),
        (
            ('preset = "mnist-noniid"', 'preset = "mnist-noniid"\nprinted = "a"\nchosen = "a"'),
            "a: is printed and chosen",
        ),
        (
            ('name = "few"', 'name = "few", values = [1]'),
            "column few epochs=1 batch_size=10: values and deviations are a row's",
        ),
        (('seeds = "1..2"', "seeds = 0"), "seeds=0: must be from 1 to 10000"),
    ],
)
def test_a_wrong_file_is_one_line(tmp_path, monkeypatch, change, message):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "my.toml").write_text(FILE.replace(*change))
    with pytest.raises(raysim.SettingsError) as raised:
        sweep_of("my.toml")
    assert str(raised.value) == f"my.toml: {message}"


@pytest.mark.parametrize(
    ("settings", "folder"),
    [
        ({}, "runs/mnist-fedavg-sweep"),
        ({"dataset.path": "data/My Mails.csv", "rounds": 2}, "runs/mnist-fedavg-my-mails-sweep"),
        ({"dataset.path": "ylecun/mnist"}, "runs/mnist-fedavg-mnist-sweep"),
    ],
)
def test_a_sweep_of_own_data_has_a_folder_of_its_own(settings, folder):
    assert default_folder("mnist-fedavg", settings) == Path(folder)


@pytest.mark.parametrize(
    ("start", "name"),
    [
        ("dataset.name=synthetic", "synthetic"),
        ("dataset.name=my_data:Own.Kind", "my-data-own.kind"),
        ("dataset.name=cifar10", "cifar10"),
        ("mnist-fedavg", "mnist-fedavg"),
        ("folder/My_settings.toml", "My_settings"),
    ],
)
def test_runs_without_a_preset_have_the_name_of_their_dataset(start, name):
    assert short_name(start) == name
    assert default_folder(start, {}) == Path(f"runs/{name}-sweep")


def test_a_start_without_a_preset():
    """It has the defaults of settings, as a file without a preset, and is swept as one."""
    given = {"dataset.users": 3, "model.name": "linear", "local.lr": 0.5}
    settings = raysim.load_config("dataset.name=synthetic", given)
    assert (settings.dataset.title, settings.method.title) == ("synthetic", "fedavg")
    assert (settings.partition.title, settings.target_accuracy) == ("iid", None)
    assert (settings.local.lr, settings.clients, settings.rounds) == (0.5, 100, 100)
    natural = raysim.load_config("dataset.name=synthetic", {**given, "partition.name": "natural"})
    assert natural.clients == 3
    fixed = {key: value for key, value in given.items() if key != "local.lr"}
    table = read_sweep("dataset.name=synthetic", fixed, {"local.lr": [0.1, 0.2]})
    assert {cell.resolve().local.lr for cell in table.cells} == {0.1, 0.2}
    assert (table.name, table.title) == ("synthetic-sweep", "Sweep of synthetic")
    with pytest.raises(
        raysim.SettingsError, match=r"^model\.name: must be given; raysim list models$"
    ):
        raysim.load_config("dataset.name=synthetic")


def test_settings_without_a_preset_are_told_where_it_goes():
    with pytest.raises(
        raysim.SettingsError, match=r"^rounds=3: no such preset; name a preset first, "
    ):
        raysim.load_config("rounds=3")
