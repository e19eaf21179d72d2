"""`raysim table`: every run once, what the folder seals, and what the table says."""

from __future__ import annotations

import json
import re
import shutil
from dataclasses import replace
from pathlib import Path

import pyarrow.parquet as pq
import pytest

import raysim
from raysim.tuning.slots.report import Report, SlotLost
from raysim.tuning.tables.plan import make_plan
from raysim.workloads.tables import TABLES
from tests.tuning.tables.common import DIVERGING, NAME, ROWS, cells, make_table, run_dir, times

FILES = ("table.md", "table.tex", "table.html", "table.parquet")


def rows_of(out: Path) -> dict[tuple[str, str], dict]:
    table = pq.read_table(out / "table.parquet").to_pylist()
    return {(row["row"], row["column"]): row for row in table}


def refused(result: tuple[int, str, str]) -> str:
    """Return the one line on stderr of a command that was refused."""
    code, _, err = result
    assert code == 2 and err.count("\n") == 1, err
    return err


def test_seeds_are_their_number_or_given_one_by_one(table, slots, tmp_path):
    words = ("--only", "short,fedavg")
    assert table(*words, "--seeds", "9,4")[0] == 0
    assert slots.started == [f"fedavg-iid-short/seed-{seed}" for seed in (9, 4)]
    assert table(*words, "seed=8", "--seeds", "2")[0] == 0
    assert slots.started[2:] == ["fedavg-iid-short/seed-8"]
    ((cell,),) = [rows_of(tmp_path / "out").values()]
    assert [each["seed"] for each in cell["values"]] == [8, 9]
    assert refused(table("--seeds", "9,9")) == "raysim: --seeds=9,9: has 9 twice\n"
    assert "seed=1: --seeds=2,3 gives the seeds" in refused(table("seed=1", "--seeds", "2,3"))


def test_a_table_runs_every_cell_once_the_longest_first(table, slots, tmp_path):
    code, said, err = table("--only", "iid")
    assert (code, err) == (0, "")
    ordered = [
        f"{row}-{column}/seed-{seed}"
        for column in ("iid-long", "iid-short")
        for row in ("fedavg", "fedprox")
        for seed in (0, 1)
    ]
    assert slots.started == ordered
    assert "blobs-1: 8 runs, 0 done; 1 slots" in said
    found = rows_of(tmp_path / "out")
    for (row, column), cell in found.items():
        values = []
        for seed in (0, 1):
            run = f"{row}-{column}/seed-{seed}".lower().replace(", ", "-")
            summary = json.loads((run_dir(tmp_path / "out", run) / "summary.json").read_text())
            values.append({"seed": seed, "value": summary["final_accuracy"]})
        assert cell["values"] == values
        assert cell["mean"] == pytest.approx((values[0]["value"] + values[1]["value"]) / 2)
    assert found["FedAvg", "IID, long"]["published"] == 70.0
    mean = 100 * found["FedAvg", "IID, long"]["mean"]
    assert f"{mean:.2f}" in said and "[70]" in said and "A note of the table." in said
    # The run is the one of its settings.
    settings = (
        TABLES[NAME]
        .cell("FedProx", "IID, short")
        .resolve({"seed": 1, "out": "again", "engine.backend": "inline"})
    )
    again = raysim.run(settings)
    assert again.summary["final_accuracy"] == found["FedProx", "IID, short"]["values"][1]["value"]


def test_finished_runs_are_not_run_again(table, slots, tmp_path):
    table("--only", "fedprox,short", "--seeds", "1")
    before, files = times(tmp_path / "out"), cells(tmp_path / "out")
    assert len(before) == 1
    slots.started.clear()
    assert table("--only", "fedprox,short", "--seeds", "1")[0] == 0
    assert slots.started == [] and cells(tmp_path / "out") == files
    # More seeds and more cells add runs; the table has those of the seeds of the command.
    table("--only", "short", "--only", "fedprox", "--seeds", "2")
    assert slots.started == ["fedprox-iid-short/seed-1"]
    slots.started.clear()
    table("--only", "fedprox", "--seeds", "1")
    assert slots.started == ["fedprox-iid-long/seed-0"]
    after = times(tmp_path / "out")
    assert len(after) == 3 and before.items() <= after.items()
    found = rows_of(tmp_path / "out")
    assert [found["FedProx", "IID, short"]["n"], found["FedProx", "IID, long"]["n"]] == [1, 1]


def test_a_shortened_table_says_so_in_every_output(table, tmp_path):
    changed = "local.lr=0.04"
    words = ("--only", "long,fedavg", "--rounds", "3", "--seeds", "1")
    code, said, _ = table(*words, changed, "trace=true")  # a trace changes no result
    lines = (
        "Shortened to 3 of 4 rounds.",
        "Shortened to 1 of 2 seeds.",
        "Settings changed for all runs: local.lr=0.04.",
    )
    assert code == 0
    out = tmp_path / "out"
    notes = rows_of(out)["FedAvg", "IID, long"]["notes"]
    assert set(lines) <= {*notes} and set(lines) <= {*said.splitlines()}
    for name in FILES[:3]:
        text = (out / name).read_text().replace("\\", "")
        assert all(line in text for line in lines), name
    config = json.loads((run_dir(out, "fedavg-iid-long/seed-0") / "config.json").read_text())
    assert config["rounds"] == 3 and config["local"]["lr"] == 0.04


def test_a_table_has_a_page_with_a_panel_for_each_column(table, drawn, tmp_path):
    _, said, _ = table("--rounds", "3", "--seeds", "1")
    assert "report: out/report.html" in said
    text = (tmp_path / "out" / "report.html").read_text()
    won = re.findall(r'<p class="column">(.*?)</p>', text)
    curves = text[text.index('<section id="curves">') :].partition("</section>")[0]
    panels = re.split("<h3>", curves)[1:]
    assert won == [panel.partition("</h3>")[0] for panel in panels] == ["IID, long", "IID, short"]
    for panel in panels:
        assert re.findall("<figcaption>(.*?)<", panel) == [
            "test accuracy against round",
            "test loss against round",
        ]
        assert {*re.findall(r"<g class=\"curve (g\d)\"><title>(\w+)", panel)} == {
            ("g0", "FedAvg"),
            ("g1", "FedProx"),
        }
    assert "Below five seeds nothing is compared, and these rows have 1." in text


def test_rows_of_a_column_are_shortened_in_proportion(table, tmp_path, monkeypatch):
    """As in Divide-and-Conquer's table 2: rows of one column with 18, 36 and 2 rounds."""
    rows = {"once": {"rounds": 18}, "twice": {"rounds": 36}, "passes": {"rounds": 2}}
    columns = {"K=20": {}, "K=10": {"clients": 10}}
    monkeypatch.setitem(TABLES, NAME, make_table(tmp_path, rows, columns))
    code, said, _ = table("--rounds", "6", "--seeds", "1")
    lines = (
        "Shortened to 3 of 18 rounds (once), 6 of 36 rounds (twice), 1 of 2 rounds (passes).",
        "More than in proportion, as one round is the least: passes, K=20; passes, K=10.",
    )
    assert code == 0 and {*lines} <= {*said.splitlines()}
    out = tmp_path / "out"
    assert {*lines} <= {*rows_of(out)["once", "K=20"]["notes"]}
    for name in FILES[:3]:
        text = (out / name).read_text()
        assert all(line in text for line in lines), name
    assert json.loads((run_dir(out, "once-k=10/seed-0") / "config.json").read_text())["rounds"] == 3
    # A part of the table is shortened as the whole.
    table("--rounds", "6", "--seeds", "1", "--only", "once", "--out", "part")
    config = json.loads(
        (run_dir(tmp_path / "part", "once-k=20/seed-0") / "config.json").read_text()
    )
    assert config["rounds"] == 3
    assert "Shortened to 3 of 18 rounds." in (tmp_path / "part/table.md").read_text()


def test_columns_are_shortened_apart_and_named(table):
    """Columns are not compared, so that a short one is not shortened with a long one."""
    _, said, _ = table("--rounds", "3", "--seeds", "1")
    assert "Shortened to 3 of 4 rounds (IID, long), 2 of 2 rounds (IID, short)." in said


def test_runs_that_are_shared_after_shortening_are_shortened_of_their_own_rounds(table, slots):
    _, said, _ = table("--rounds", "2", "--seeds", "1")
    assert len(slots.started) == 2 and "Shortened to 2 of 4 rounds (IID, long), 2 of 2" in said


def test_rounds_by_cell_where_neither_rows_nor_columns_agree(table, tmp_path, monkeypatch):
    made = make_table(tmp_path, {"a": {}, "b": {}})
    cells = [
        replace(cell, settings={"rounds": rounds})
        for cell, rounds in zip(made.cells, (4, 2, 2, 4), strict=True)
    ]
    monkeypatch.setitem(TABLES, NAME, replace(made, cells=tuple(cells)))
    _, said, _ = table("--rounds", "2", "--seeds", "1")
    assert (
        "Shortened to 2 of 4 rounds (a, IID, long; b, IID, short),"
        " 1 of 2 rounds (a, IID, short; b, IID, long)." in said
    )


REFUSED = {
    (
        "local.lr=0.04",
    ): "FedAvg, IID, short: has runs with local.lr=0.05 (here 0.04); choose another --out",
    ("--only", "long", "local.lr=0.04"): "IID, short: has runs with local.lr=0.05",
    ("--only", "nothing"): "--only=nothing: no cell of blobs-1 has all these words",
    ("--only", "fedavg,fedprox"): "--only=fedavg,fedprox: no cell of blobs-1",
    ("method.mu=0.3",): "method.mu: no such setting",
    ("out=x",): "out=x: use the option --out for a table",
    ("rounds=1",): "rounds=1: use the option --rounds for a table",
}


def test_other_settings_are_refused_unless_they_change_no_result(table, slots, tmp_path):
    table("--only", "short,fedavg", "--seeds", "1")
    before = (tmp_path / "out/table.json").read_bytes()
    for words, said in REFUSED.items():
        assert said in refused(table(*words))
        assert said in refused(table(*words, "--dry-run"))
    assert (tmp_path / "out/table.json").read_bytes() == before
    slots.started.clear()
    assert table("--only", "short,fedavg", "--seeds", "1", "engine.cpus_per_actor=0.5")[0] == 0
    assert slots.started == []


def test_a_shortened_table_and_the_full_one_share_a_folder(table, slots, tmp_path):
    words = ("--only", "short,fedavg", "--seeds", "1")
    assert table(*words)[0] == 0
    full = rows_of(tmp_path / "out")
    code, said, _ = table(*words, "--rounds", "1")
    assert code == 0 and "Shortened to 1 of 2 rounds." in said and len(slots.started) == 2
    assert rows_of(tmp_path / "out") != full
    assert table(*words)[0] == 0 and len(slots.started) == 2
    assert rows_of(tmp_path / "out") == full


def test_the_folder_of_another_table_is_refused(table, tmp_path, monkeypatch):
    table("--only", "short,fedavg", "--seeds", "1")
    monkeypatch.setitem(
        TABLES, "blobs-2", TABLES[NAME].__class__(**{**vars(TABLES[NAME]), "name": "blobs-2"})
    )
    for words in ((), ("--dry-run",)):
        line = refused(table(*words, name="blobs-2"))
        assert "out=out: holds table blobs-1; choose another" in line
    (tmp_path / "out/table.json").write_text('{"schema": 1, "table": "blobs-1"}')
    line = "table.json: is damaged ('runs'); restore it, or choose another --out"
    assert line in refused(table())


def test_a_finished_run_of_other_settings_is_not_taken(table, tmp_path):
    table("--only", "short,fedavg", "--seeds", "1")
    path = run_dir(tmp_path / "out", "fedavg-iid-short/seed-0")
    shutil.rmtree(path / "checkpoints")
    settings = json.loads((path / "config.json").read_text())
    (path / "config.json").write_text(json.dumps(settings | {"seed": 5}))
    line = refused(table("--only", "short,fedavg", "--seeds", "1"))
    assert f"{path}: holds a finished run with seed=5 (here 0); restore it, or delete it" in line


def test_a_run_that_diverges_is_counted_and_not_run_again(table, slots, tmp_path, monkeypatch):
    monkeypatch.setitem(TABLES, NAME, make_table(tmp_path, {"Wild": DIVERGING}))
    words = ("--only", "short")
    code, said, _ = table(*words)
    assert code == 0
    record = run_dir(tmp_path / "out", "wild-iid-short/seed-0") / "failed.json"
    assert "Wild, IID, short, seed 0: diverged: client" in said
    assert "0/2, 2 diverged" in said
    cell = rows_of(tmp_path / "out")["Wild", "IID, short"]
    assert (cell["n"], cell["diverged"], cell["failed"], cell["seeds"]) == (0, 2, 0, 2)
    assert any(note.startswith("Wild, IID, short, seed 0: client") for note in cell["notes"])
    slots.started.clear()
    assert table(*words)[0] == 0 and slots.started == []
    record.unlink()
    table(*words)
    assert slots.started == ["wild-iid-short/seed-0"] and record.exists()


def test_a_run_that_kills_its_slots_has_failed(table, slots, tmp_path):
    lost = SlotLost("The actor died.", suspicious=True)
    slots.fault = lambda run: lost if run == "fedavg-iid-short/seed-0" else None
    words = ("--only", "short", "--seeds", "1")
    code, said, err = table(*words)
    assert slots.started == ["fedavg-iid-short/seed-0"] * 3 + ["fedprox-iid-short/seed-0"]
    assert said.count("FedAvg, IID, short, seed 0: its slot was lost; resuming from its") == 2
    assert (code, err) == (
        2,
        "raysim: FedAvg, IID, short, seed 0: lost its slot 3 times: The actor died.; fix this, then"
        " type the same command to resume the table\n",
    )
    record = run_dir(tmp_path / "out", "fedavg-iid-short/seed-0") / "failed.json"
    assert json.loads(record.read_text())["error"] == "lost its slot 3 times: The actor died."
    cell = rows_of(tmp_path / "out")["FedAvg", "IID, short"]
    assert (cell["n"], cell["diverged"], cell["failed"], cell["seeds"]) == (0, 0, 1, 1)
    # The same command runs it again, from its checkpoint.
    slots.fault = lambda run: None
    slots.started.clear()
    assert table(*words)[0] == 0 and slots.started == ["fedavg-iid-short/seed-0"]
    assert not record.exists() and rows_of(tmp_path / "out")["FedAvg", "IID, short"]["n"] == 1


def test_runs_that_failed_before_are_shown_as_they_end_now(table, slots, tmp_path):
    slots.fault = lambda run: Report(error="no luck")
    words = ("--only", "short", "--seeds", "1")
    assert "2 of 2 runs failed, the first FedAvg, IID, short, seed 0: no luck" in refused(
        table(*words)
    )
    slots.fault = lambda run: None
    code, said, _ = table(*words)
    assert code == 0 and "no luck" not in said and "2/2 FedProx, IID, short, seed 0: final" in said
    found = rows_of(tmp_path / "out")
    assert [(row["n"], row["failed"]) for row in found.values()] == [(1, 0), (1, 0)]


def test_a_run_that_cannot_start_stops_the_table_before_any(table, slots, tmp_path, monkeypatch):
    rows = {**ROWS, "Cut": {"method.name": "divide_and_conquer", "method.split": 7}}
    monkeypatch.setitem(TABLES, NAME, make_table(tmp_path, rows))
    for words in ((), ("--dry-run",)):
        line = refused(table("--only", "short", *words))
        assert line.startswith("raysim: Cut, IID, short, seed 0: method.split=7: ")
    assert slots.started == [] and not (tmp_path / "out/table.json").exists()


def test_a_failure_of_the_machine_stops_the_table_which_goes_on_later(table, slots, tmp_path):
    slots.fault = lambda run: (
        Report(machine_error="the disk is full") if run == "fedprox-iid-short/seed-0" else None
    )
    code, _, err = table("--only", "short", "--seeds", "1")
    assert code == 75 and err == (
        "raysim: FedProx, IID, short, seed 0: the disk is full; fix this, then type the same"
        " command to resume the table\n"
    )
    unfinished = (tmp_path / "out/table.md").read_text()
    assert "Unfinished: 1 of 2 runs." in unfinished
    assert not [*tmp_path.rglob("failed.json")]
    slots.fault = lambda run: None
    slots.started.clear()
    assert table("--only", "short", "--seeds", "1")[0] == 0
    assert slots.started == ["fedprox-iid-short/seed-0"]
    assert "Unfinished" not in (tmp_path / "out/table.md").read_text()


def test_a_cell_without_its_data_is_left_out_with_the_file(table, slots, tmp_path, monkeypatch):
    rows = ROWS | {"Chest": {"dataset.name": "chest-xray"}}
    monkeypatch.setitem(TABLES, NAME, make_table(tmp_path, rows))
    code, said, _ = table("--only", "short", "--seeds", "1")
    assert code == 0 and len(slots.started) == 2
    assert "note: Chest, IID, short: left out: " in said and "chest" in said
    missing = rows_of(tmp_path / "out")["Chest", "IID, short"]["missing"]
    assert missing and missing in said
    line = refused(table("--only", "short,chest"))
    assert f"blobs-1: no chosen cell can be run: {missing}" in line


def test_words_of_only_are_whole_words():
    plan = make_plan(TABLES["mifl-6a"], only=("iid,mifl", "E=1"))
    assert [cell.label for cell in plan.cells if cell.chosen] == ["MIFL, 2nn mnist iid E=1 B=50"]
