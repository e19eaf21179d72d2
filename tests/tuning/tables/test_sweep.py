"""`raysim sweep`: one table of one's own, to which rows, columns and seeds are added."""

from __future__ import annotations

import json
import re
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

import raysim
from raysim.cli import app
from raysim.tuning.tables.sweep import typed_column
from tests.notebook.cell import pretended
from tests.tuning.common import PRESET


@pytest.fixture
def sweep(slots, raysim_command, tmp_path):
    """Run `raysim sweep blobs.json ... --out out`; return exit code, stdout and stderr."""
    (tmp_path / "blobs.json").write_text(json.dumps(PRESET))
    slots.key = lambda out: str(out.relative_to(tmp_path / "out" / "runs"))
    return lambda *words: raysim_command("sweep", "blobs.json", *words, "--out", "out")


def values(out):
    """The value of each seed, by row and column."""
    return {
        (row["row"], row["column"]): {each["seed"]: each["value"] for each in row["values"]}
        for row in pq.read_table(out / "table.parquet").to_pylist()
    }


def test_a_sweep_runs_each_cell_and_prints_their_table(sweep, slots, tmp_path):
    words = ("method.name=fedavg,fedprox", "local.lr=0.1,0.02", "seed=4..5", "rounds=2")
    code, said, err = sweep(*words)
    assert (code, err) == (0, "") and len(slots.started) == len({*slots.started}) == 8
    assert "Sweep of blobs" in said and "fedprox" in said and "lr=0.02" in said
    found = values(tmp_path / "out")
    assert {(row, f"lr={lr}") for row in ("fedavg", "fedprox") for lr in (0.1, 0.02)} == {*found}
    changes = {
        "engine.backend": "inline",
        "method.name": "fedprox",
        "local.lr": 0.02,
        "seed": 5,
        "rounds": 2,
    }
    alone = raysim.load_config(
        str(tmp_path / "blobs.json"), {**changes, "out": str(tmp_path / "alone")}
    )
    rounds = raysim.run(alone).metrics["test_accuracy"].to_pylist()
    assert found["fedprox", "lr=0.02"][5] == pytest.approx(sum(rounds) / 2)  # of the last ten
    slots.started.clear()
    assert sweep(*words)[0] == 0 and slots.started == []  # the same command resumes it


def test_its_document_is_all_that_it_prints(sweep, slots, tmp_path):
    """Messages are on stderr; the second time no run is left, and the document is the same."""
    words = ("method.name=fedavg,fedprox", "seed=0..1", "rounds=2", "--json")
    code, said, err = sweep(*words)
    document = json.loads(said)
    assert code == 0 and "2/4" in err and len(slots.started) == 4
    assert {document[name] for name in ("title", "folder")} == {"Sweep of blobs", "out"}
    found = {
        (cell["row"], cell["column"]): {each["seed"]: each["value"] for each in cell["values"]}
        for cell in document["cells"]
    }
    assert found == values(tmp_path / "out") and "unit" not in document  # values are as measured
    assert [cell["row"] for cell in document["cells"]] == document["rows"] == ["fedavg", "fedprox"]
    code, again, err = sweep(*words)
    assert (code, again) == (0, said)
    assert "every run is finished; nothing is left to do" in err and len(slots.started) == 4
    code, said, err = sweep(*words, "--dry-run")
    assert (code, said) == (2, "") and err == "raysim: --json: does not go with --dry-run\n"


def test_only_what_is_new_is_run(sweep, slots, tmp_path):
    """A row, a seed, and an axis of which one value is the settings' own."""
    assert sweep("method.name=fedavg,fedprox", "seed=0..1", "rounds=2")[0] == 0
    before = {
        path.parent: path.stat().st_mtime_ns for path in (tmp_path / "out").rglob("summary.*")
    }
    first = values(tmp_path / "out")
    own = raysim.load_config(str(tmp_path / "blobs.json")).fraction
    slots.started.clear()
    words = ("method.name=fedavg,fedprox,fedadam", f"fraction={own},1", "seed=0..2", "rounds=2")
    assert sweep(*words)[0] == 0
    assert len(slots.started) == 3 * 2 * 3 - 2 * 2
    assert all((path / "summary.json").stat().st_mtime_ns == then for path, then in before.items())
    found = values(tmp_path / "out")
    for (row, _), known in first.items():
        assert known.items() <= found[row, f"fraction={own}"].items()
    slots.started.clear()
    assert sweep("method.name=fedavg", "seed=0..1", "rounds=2")[0] == 0  # fewer again
    assert slots.started == []


def test_seeds_need_not_follow_each_other(sweep, slots, tmp_path):
    """One more runs alone; those of an earlier command stay in the folder for the next."""
    assert sweep("local.lr=0.1,0.02", "seed=7,0", "rounds=2")[0] == 0
    assert {path.rpartition("/")[2] for path in slots.started} == {"seed-7", "seed-0"}
    slots.started.clear()
    code, said, _ = sweep("local.lr=0.1,0.02", "seed=7,42", "rounds=2")
    assert code == 0 and "n=3" not in said
    assert {path.rpartition("/")[2] for path in slots.started} == {"seed-42"}
    found = values(tmp_path / "out")
    assert [[*by_seed] for by_seed in found.values()] == [[7, 42], [7, 42]]
    assert sweep("local.lr=0.1,0.02", "seed=0,7,42", "rounds=2")[0] == 0
    assert len(slots.started) == 2
    assert [[*by_seed] for by_seed in values(tmp_path / "out").values()] == [[0, 7, 42]] * 2
    changes = {
        "engine.backend": "inline",
        "local.lr": 0.02,
        "rounds": 2,
        "seed": 42,
        "out": "alone",
    }
    rounds = raysim.run(raysim.load_config("blobs.json", changes)).metrics["test_accuracy"]
    mean = sum(rounds.to_pylist()) / len(rounds)
    assert found["lr=0.02", "last_ten(test_accuracy)"][42] == pytest.approx(mean)


ENTRY = """
[[table]]
name = "blobs-1"
title = "Rounds on blobs"
preset = "blobs.json"
metric = "rounds_to(test_accuracy, 0.5)"
unit = "rounds"
settings = { rounds = 3 }
baseline = "A"
note = "As printed."
columns = [{ name = "slow", settings = { local.lr = 0.02 } }, { name = "fast" }]

[[table.rows]]
name = "A"
values = [40, 20]

[[table.rows]]
name = "B"
settings = { local.momentum = 0.9 }
values = [10, "-"]
"""


def test_published_values_of_a_file_stand_beside_the_measured(
    slots, raysim_command, tmp_path, monkeypatch
):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "blobs.json").write_text(json.dumps(PRESET))
    (tmp_path / "my.toml").write_text(ENTRY)
    slots.key = str
    code, said, err = raysim_command("sweep", "my.toml", "--out", "out")
    assert (code, err, len(slots.started)) == (0, "", 4)
    assert "Rounds on blobs [rounds]" in said and "blobs-1: 4 runs" in said
    assert "[40]" in said and "[10 4.00x]" in said
    assert "As printed." in said and "B, fast: the paper prints '-'." in said
    table = pq.read_table(tmp_path / "out" / "table.parquet").to_pylist()
    assert [row["published"] for row in table] == [40, 20, 10, None]


def test_several_metrics_are_read_from_the_same_runs(sweep, slots, tmp_path):
    metrics = ("--metric", "final(test_accuracy)", "--metric", "final(test_loss)")
    assert sweep("local.lr=0.1,0.02", "rounds=2", *metrics)[0] == 0
    assert len(slots.started) == 2
    found = values(tmp_path / "out")
    assert {column for _, column in found} == {"final(test_accuracy)", "final(test_loss)"}
    assert "<h3>" not in (tmp_path / "out" / "report.html").read_text()  # one panel of both
    for (row, column), by_seed in found.items():
        accuracy = found[row, "final(test_accuracy)"]
        assert (by_seed == accuracy) == (column == "final(test_accuracy)")


def test_all_outputs_show_the_cells_and_seeds_that_were_asked(
    sweep, raysim_command, tmp_path, monkeypatch
):
    """A part that `--only` leaves out is shown with the seeds of the command that it has."""
    monkeypatch.chdir(tmp_path)
    lr = "local.lr=0.1,0.02"
    assert sweep("method.name=fedavg,fedprox,fedadam", lr, "seed=0..2", "rounds=1")[0] == 0
    assert sweep("method.name=fedavg", lr, "seed=7", "rounds=1")[0] == 0
    words = ("method.name=fedavg,fedprox", lr, "seed=1,2,7", "rounds=1", "--json")
    code, said, _ = sweep(*words, "--only", "fedavg")
    expected = {
        (method, f"lr={lr}"): [1, 2] + [7] * (method == "fedavg")
        for method in ("fedavg", "fedprox")
        for lr in (0.1, 0.02)
    }
    in_document = {
        (cell["row"], cell["column"]): [each["seed"] for each in cell["values"]]
        for cell in json.loads(said)["cells"]
    }
    assert code == 0 and in_document == expected
    assert {cell: [*seeds] for cell, seeds in values(tmp_path / "out").items()} == expected
    page = (tmp_path / "out" / "report.html").read_text()
    listed = re.findall(r"<tr><td>[^<]*(runs/\w+/seed-\d+)</td>", page.partition('id="runs"')[2])
    axes = {"method.name": ["fedavg", "fedprox"], "local.lr": [0.1, 0.02]}
    options = {"seeds": [1, 2, 7], "overrides": {"rounds": 1}, "only": "fedavg", "out": "out"}
    runs = raysim.sweep("blobs.json", axes, **options).runs
    assert sorted(runs.select(["method.name", "local.lr", "seed"]).to_pylist(), key=repr) == sorted(
        (
            {"method.name": row, "local.lr": float(column[3:]), "seed": seed}
            for (row, column), seeds in expected.items()
            for seed in seeds
        ),
        key=repr,
    )
    folders = {path.partition("/out/")[2] for path in runs["run_dir"].to_pylist()}
    assert {*listed} == folders and len(listed) == 10
    monkeypatch.setattr(app.console, "width", 200)
    _, said, _ = raysim_command("list", "runs", "out")
    told = {" ".join(line.split()[1:3]) for line in said.splitlines()}
    assert {"fedavg, lr=0.1", "fedprox, lr=0.02"} <= told
    # No seed of the command has begun in the row that it leaves out.
    assert sweep(*words[:2], "seed=7", "rounds=1", "--only", "fedavg")[0] == 0
    assert {row for row, _ in values(tmp_path / "out")} == {"fedavg"}


CSV = "a,b,y\n" + "".join(f"{n},{n % 3},{2 * n + 1}\n" for n in range(40))


def test_a_regression_shows_the_loss_where_no_metric_is_asked(slots, raysim_command, tmp_path):
    """Its rows, columns and progress; a metric that is asked stays, and --metric is named."""
    (tmp_path / "numbers.csv").write_text(CSV)
    (tmp_path / "base.json").write_text(json.dumps(PRESET))
    data = {"name": "files", "path": "numbers.csv", "target": "y", "task": "regression"}
    words = [f"dataset.{key}={value}" for key, value in (data | {"split": 0.2}).items()]
    words += ["model.name=linear", "partition.name=iid", "rounds=1", "local.lr=0.01,0.1"]
    slots.key = str
    code, said, err = raysim_command("sweep", "base.json", *words, "--out", "out")
    assert (code, err) == (0, ""), err
    [metric] = {column for _, column in values(tmp_path / "out")}
    assert metric.endswith("(test_loss)")
    assert f"2/2 lr=0.1, seed 0: {metric} " in said
    asked = ("--metric", "final(test_accuracy)")
    code, _, err = raysim_command("sweep", "base.json", *words, *asked, "--out", "more")
    assert code == 2 and "has no column 'test_accuracy'" in err and "; --metric gives" in err


def test_from_python_it_returns_runs_and_cells(slots, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "blobs.json").write_text(json.dumps(PRESET))
    axes = {"method.name": ["fedavg", "fedprox"], "local.lr": [0.1, 0.02]}
    found = raysim.sweep("blobs.json", axes, seeds=range(3, 5), overrides={"rounds": 2}, out="out")
    runs = found.runs.to_pylist()
    assert len(runs) == len(slots.started) == 8
    assert {(r["method.name"], r["local.lr"], r["seed"]) for r in runs} == {
        (method, lr, seed)
        for method in ("fedavg", "fedprox")
        for lr in (0.1, 0.02)
        for seed in (3, 4)
    }
    by_cell = {(r["row"], r["column"]): r for r in found.cells.to_pylist()}
    for run in runs:
        cell = by_cell[run["method.name"], f"lr={run['local.lr']}"]
        value = run["last_ten(test_accuracy)"]
        assert {"seed": run["seed"], "value": value} in cell["values"]
        rounds = pq.read_table(Path(run["run_dir"]) / "metrics.parquet")["test_accuracy"]
        assert value == pytest.approx(sum(rounds.to_pylist()) / 2)
    assert repr(found) == "Sweep(8 runs in 4 cells: last_ten(test_accuracy))"
    html = found._repr_html_()
    assert html.count("<tr>") == 3 and html.count("(n=2)") == 4 and ">lr=0.02<" in html


def test_in_a_notebook_it_shows_its_last_lines(slots, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    cell = pretended(monkeypatch)
    (tmp_path / "blobs.json").write_text(json.dumps(PRESET))
    raysim.sweep("blobs.json", {"local.lr": [0.1, 0.02]}, overrides={"rounds": 1}, out="out")
    assert cell.displays == 1 and "<progress" not in cell.html
    assert any('<progress value="0.5000"' in bundle["text/html"] for bundle in cell.bundles)
    assert cell.lines[0] == "2 of 2 done" and cell.lines[-1] == "report: out/report.html"


def test_from_python_it_has_rows_and_is_shortened_as_the_command(slots, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "blobs.json").write_text(json.dumps(PRESET))
    axes = {"method.name": ["fedavg", "fedprox"], "local.lr": [0.1, 0.02]}
    options = {"rows": "local.lr", "only": "fedprox", "rounds": 1, "metrics": "final(test_loss)"}
    found = raysim.sweep("blobs.json", axes, out="out", **options)
    cells = {(cell["row"], cell["column"]) for cell in found.cells.to_pylist()}
    assert cells == {("lr=0.1", "fedprox"), ("lr=0.02", "fedprox")}
    runs = found.runs.to_pylist()
    assert [run["method.name"] for run in runs] == ["fedprox"] * 2
    for run in runs:
        summary = json.loads((Path(run["run_dir"]) / "summary.json").read_text())
        assert (summary["rounds"], summary["final_loss"]) == (1, run["final(test_loss)"])
    with pytest.raises(raysim.SettingsError, match=r"--only=x: no cell of blobs-sweep has all"):
        raysim.sweep("blobs.json", axes, only=["x"], out="out")


def test_from_python_a_value_without_a_list_is_of_all_runs(slots, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "blobs.json").write_text(json.dumps(PRESET))
    alone = {"local.lr": 0.02, "rounds": "1", "target_accuracy": None, "engine.backend": "inline"}
    axes = {"method.name": "fedavg,fedprox", "local.batch_size": [20, "full"], **alone}
    runs = raysim.sweep("blobs.json", axes, out="out").runs
    assert runs.column_names[2:4] == ["method.name", "local.batch_size"]
    assert {*runs["local.batch_size"].to_pylist()} == {"20", "full"}
    recorded = [
        json.loads((Path(p) / "config.json").read_text()) for p in runs["run_dir"].to_pylist()
    ]
    assert {config["local"]["lr"] for config in recorded} == {0.02} and len(recorded) == 4
    with pytest.raises(raysim.SettingsError, match=r"local\.lr: is given by axes and by overrides"):
        raysim.sweep("blobs.json", {"local.lr": 0.1}, overrides={"local.lr": 0.2})
    with pytest.raises(raysim.SettingsError, match=r"^analysis=label_heat_map,cka: is a list; "):
        raysim.sweep("blobs.json", {"analysis": "label_heat_map,cka"})


@pytest.mark.parametrize(
    ("values", "column"),
    [
        (["fedavg", None], pa.array(["fedavg", None])),
        ([2, 10], pa.array([2, 10])),
        ([1, 0.5, None], pa.array([1.0, 0.5, None])),
        ([True, False], pa.array([True, False])),
        ([20, "full", None], pa.array(["20", "full", None])),
        ([True, 1], pa.array(["true", "1"])),
        ([[1, 2], ["a"]], pa.array(["[1, 2]", '["a"]'])),
    ],
)
def test_columns_of_axes_have_the_type_of_their_values(values, column):
    assert typed_column(values).equals(column)


def test_more_than_two_axes_are_groups_of_columns_and_any_makes_the_rows(sweep, slots, tmp_path):
    axes = ("method.name=fedavg,fedprox", "local.lr=0.1,0.02", "fraction=0.2,0.5", "rounds=1")
    code, said, _ = sweep(*axes)
    assert code == 0 and len(slots.started) == 8
    lines = [line.split() for line in said.splitlines()]
    top = lines.index(["lr=0.1", "lr=0.02"])
    assert lines[top + 1] == ["fraction=0.2", "fraction=0.5"] * 2
    tex, html = ((tmp_path / f"out/table.{kind}").read_text() for kind in ("tex", "html"))
    assert r"\multicolumn{2}{c}{lr=0.1} & \multicolumn{2}{c}{lr=0.02} \\" in tex
    assert '<th colspan="2" scope="colgroup">lr=0.02</th></tr>' in html
    assert {column for _, column in values(tmp_path / "out")} == {
        f"lr={lr} fraction={share}" for lr in (0.1, 0.02) for share in (0.2, 0.5)
    }
    slots.started.clear()
    code, said, _ = sweep(*axes, "--rows", "fraction")
    assert code == 0 and slots.started == []  # the same runs
    assert {row for row, _ in values(tmp_path / "out")} == {"fraction=0.2", "fraction=0.5"}


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (("method.name=fedavg,nope",), "raysim: row nope: method.name=nope: no such method;"),
        (("local.lr=0.1,-1",), "raysim: row lr=-1: local.lr=-1: must be greater than 0"),
        (("local.lr=0.1,0.2", "local.mom=1"), "raysim: local.mom: no such setting"),
        (
            ("method.name=fedavg,fedprox", "method.mu=0.1", "local.lr=0.1,0.2"),
            "raysim: row fedavg: method.mu: no such setting; known are name (mu is of fedasync, ",
        ),
        (
            ("method.name=fedavg,fedprox", "local.lr=0.1,-1"),
            "raysim: column lr=-1: local.lr=-1: must be greater than 0",
        ),
        (
            ("local.momentum=0,0.9", "local.nesterov=true,false"),
            "raysim: row momentum=0, column nesterov=true: local.nesterov",
        ),
        (
            ("analysis=label_heat_map,cka",),
            "raysim: analysis=label_heat_map,cka: is a list; for one list write "
            "analysis=[label_heat_map,cka], for an axis of lists analysis=[label_heat_map],[cka]",
        ),
        (("local.lr=0.1,0.2", "--only", "x"), "raysim: --only=x: no cell of blobs-sweep has all"),
        (("local.lr=0.1,0.2", "--metric", "y"), "raysim: blobs-sweep: lr=0.1, y: metric='y'"),
        (("local.lr=0.1,0.2", "--rows", "seed"), "raysim: --rows=seed: must be one of local.lr"),
        (
            ("local.lr=0.1,0.2", "evaluation.test=false"),
            "raysim: blobs-sweep: lr=0.1, last_ten",  # (test_accuracy): needs evaluation.test=true
        ),
        (("seed=0,2,0",), "raysim: seed=0,2,0: has 0 twice"),
        (("local.lr=0.1,0.2", "--tune-trials", "3"), "raysim: --tune-trials=3: needs --tune KEY="),
    ],
)
def test_bad_input_is_one_line_before_anything_starts(sweep, slots, tmp_path, words, message):
    code, _, err = sweep(*words)
    assert code == 2 and err.count("\n") == 1 and slots.started == []
    assert err.startswith(message), err
    assert "evaluation.test=false" not in words or "needs evaluation.test=true" in err
    assert ("; --metric gives" in err) == ("evaluation.test=false" in words)
    assert not (tmp_path / "out").exists()


def test_what_a_command_says_of_itself_is_of_a_sweep(sweep, slots, raysim_command):
    def interrupt(run):
        raise KeyboardInterrupt

    slots.fault = interrupt
    _, said, err = sweep("local.lr=0.1,0.02", "rounds=1")
    assert "interrupted; the same command resumes the sweep" in said + err
    _, said, _ = raysim_command("sweep", "--help")
    assert "runs/NAME-sweep" in said and "figure" not in said


def test_a_dry_run_tells_what_is_left(sweep, slots, tmp_path):
    """Of runs that patience may stop, too: the few rounds that are measured are not evaluated."""
    words = ("local.lr=0.1,0.02", "rounds=2", "patience=1", "patience_metric=test_loss")
    assert sweep(*words)[0] == 0
    slots.started.clear()
    code, said, _ = sweep(*words, "seed=0..1", "--dry-run", "--jobs", "1")
    assert code == 0 and "blobs-sweep: 4 runs, 2 done" in said and slots.started == []
    assert "no estimate" not in said and "target_accuracy or by patience" in said


def test_names_of_a_file_cannot_move_or_colour_the_terminal(slots, raysim_command, tmp_path):
    (tmp_path / "blobs.json").write_text(json.dumps(PRESET))
    slots.key = str
    (tmp_path / "named.toml").write_text(
        r"""
preset = "blobs.json"
settings = { rounds = 1 }
rows = [{ name = "\u001b[31mRED\u0007\nnext", settings = { method.name = "fedavg" } }]
"""
    )
    for words in ((), ("--dry-run", "--jobs", "1")):
        code, said, err = raysim_command("sweep", "named.toml", "--out", "out", *words)
        assert code == 0 and "\x1b" not in said + err and "\a" not in said + err
        assert "\\x1b[31mRED\\x07\\nnext" in said + err


def test_rows_that_weigh_clients_in_other_ways_are_named(slots, raysim_command, tmp_path):
    """SCAFFOLD and a chain with it take the plain mean, as FedAvg does if it is asked to."""
    (tmp_path / "blobs.json").write_text(json.dumps(PRESET))
    slots.key = str
    (tmp_path / "weights.toml").write_text(
        """
preset = "blobs.json"
settings = { rounds = 1 }
rows = [
    { name = "by samples", settings = { method.name = "fedavg" } },
    { name = "scaffold", settings = { method.name = "scaffold" } },
    { name = "chained", settings = { method.name = "chain", method.methods.scaffold = {} } },
    { name = "uniform", settings = { method.name = "fedavg", weighting = "uniform" } },
    { name = "fixed", settings = { method.name = "fedavg", aggregation.weighting = "fixed" } },
    { name = "median", settings = { method.name = "fedavg", aggregation.name = "median" } },
    { name = "buffer", settings = { method.name = "fedbuff" } },
]
"""
    )
    assert raysim_command("sweep", "weights.toml", "--out", "out")[0] == 0
    notes = pq.read_table(tmp_path / "out/table.parquet")["notes"].to_pylist()[0]
    expected = (
        "Clients weigh by their samples (by samples), all alike (scaffold; chained; uniform; fixed;"
        " buffer), as in aggregation.name=median (median)."
    )
    assert expected in notes
    words = ("blobs.json", "method.name=fedavg,fedprox", "rounds=1", "--out", "plain")
    assert raysim_command("sweep", *words)[0] == 0
    assert "Clients weigh" not in (tmp_path / "plain/table.md").read_text()
