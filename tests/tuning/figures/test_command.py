"""`raysim figure`: every run once, in slots; what it says of options and failures."""

from __future__ import annotations

import json
import shutil
from pathlib import Path

import pyarrow.parquet as pq
from safetensors.torch import load_file, save_file

from raysim.config import parse_override
from raysim.storage.lock import lock_folder
from raysim.tuning.figures.plan import make_plan
from raysim.tuning.runs.folder import RunsFolder
from raysim.tuning.runs.queue import Runs
from raysim.tuning.slots.report import Report
from tests.tuning.figures.conftest import SMALL
from tests.tuning.tables.common import run_dir

SHORT = ("--rounds", "2")


def drawn(out: Path) -> bytes:
    return (out / "dnc-5.svg").read_bytes()


def test_every_run_is_run_once_and_the_drawing_names_the_options(figure, slots, tmp_path):
    code, said, err = figure(*SHORT, "trace=true", "local.weight_decay=1e-3")
    assert (code, err) == (0, "")
    assert slots.started == ["pre-pass/seed-0", "fedavg/seed-0"]  # the reference first
    out = tmp_path / "out"
    for name in ("weight_divergence", "norm_divergence"):  # a panel each, of one run
        path = run_dir(out, "fedavg/seed-0") / f"analysis/{name}.parquet"
        assert pq.read_table(path)["round"].to_pylist() == [1, 1, 2, 2]
    for panel in (b"<!-- FedAvg -->", b"<!-- FedAvg, norm divergence -->"):
        assert panel in drawn(out)
    assert pq.read_table(run_dir(out, "pre-pass/seed-0") / "metrics.parquet")[
        "round"
    ].to_pylist() == [1]
    assert "dnc-5: 2 runs, 0 done; 1 slots\n1/2 pre-pass, seed 0: " in said
    assert "\nShortened to 2 of 8 rounds.\n" in said
    changed = "\nSettings changed for all runs: dataset.name=synthetic, dataset.users=4, "
    assert changed in said and "fraction=0.5, local.weight_decay=0.001.\n" in said
    for part in (b"Shortened to 2 of 8 rounds.", b"Settings changed for all", b"decay=0.001."):
        assert part in drawn(out)
    assert b"trace=" not in drawn(out)  # it changes no result


def test_finished_runs_are_not_run_again_and_other_settings_are_refused(figure, slots, tmp_path):
    figure(*SHORT)
    content = drawn(tmp_path / "out")
    (tmp_path / "out/dnc-5.svg").unlink()
    slots.started.clear()
    assert figure(*SHORT, "engine.cpus_per_actor=0.5")[0] == 0
    assert slots.started == [] and drawn(tmp_path / "out") == content
    code, _, err = figure(*SHORT, "local.lr=0.5")
    assert (
        code == 2
        and "pre-pass: has runs with local.lr=0.001 (here 0.5); choose another --out" in err
    )
    # The same folder, said otherwise.
    assert figure(*SHORT, "local.lr=0.5", out=tmp_path / "out")[0] == 2
    assert figure(*SHORT, out=tmp_path / "out")[0] == 0 and slots.started == []


def test_what_a_reader_must_know_of_runs_stands_below_their_drawing(figure, tmp_path):
    figure(*SHORT)
    run, reference = (run_dir(tmp_path / "out", f"{n}/seed-0") for n in ("fedavg", "pre-pass"))
    summary = json.loads((run / "summary.json").read_text())
    (run / "summary.json").write_text(json.dumps(summary | {"forced": ["after round 1: why"]}))
    model = reference / "model.safetensors"
    shutil.rmtree(reference / "checkpoints")  # which would seal the model that it was
    save_file({name: 2 * value for name, value in load_file(model).items()}, model)
    _, said, _ = figure(*SHORT)
    forced = f"{run}: forced to go on after round 1: why"
    assert forced in said and b"forced" in drawn(tmp_path / "out")  # where the line is wrapped
    assert f"{run}: was compared with another model than its reference has now" in said


def test_a_figure_is_shortened_and_not_extended(figure, slots):
    code, _, err = figure("--rounds", "9")
    assert (code, slots.started) == (2, [])
    assert err == (
        "raysim: --rounds=9: must be at most 8, the rounds of the longest run of dnc-5; it shortens"
        " and does not extend\n"
    )


def test_a_figure_that_was_stopped_goes_on(figure, slots, tmp_path):
    slots.fault = lambda run: (
        Report(machine_error="the disk is full") if run == "fedavg/seed-0" else None
    )
    code, _, err = figure(*SHORT)
    assert code == 75 and err == (
        "raysim: FedAvg, seed 0: the disk is full; fix this, then type the same command to resume"
        " the figure\n"
    )
    slots.fault = lambda run: None
    slots.started.clear()
    assert figure(*SHORT)[0] == 0
    assert slots.started == ["fedavg/seed-0"]
    assert figure(*SHORT, out="straight")[0] == 0
    assert drawn(tmp_path / "straight") == drawn(tmp_path / "out")


def test_a_run_that_fails_is_left_out_and_said(heat_maps, slots, tmp_path):
    slots.fault = lambda run: (
        Report(error="its update is not finite") if run == "iid/seed-0" else None
    )
    code, said, _ = heat_maps()
    assert code == 0 and "1/2 IID, seed 0: diverged: its update is not finite  " in said
    assert "Failed and left out: IID.\n" in said
    assert b"Failed and left out: IID." in (tmp_path / "out/mifl-3.svg").read_bytes()
    slots.started.clear()
    assert heat_maps()[0] == 0 and slots.started == []  # it would diverge again
    slots.fault = lambda run: Report(error="a bug") if run == "iid/seed-0" else None
    code, _, err = heat_maps(out="other")
    assert code == 2 and err == (
        "raysim: IID, seed 0: a bug; fix this, then type the same command to resume the figure\n"
    )
    assert b"Failed and left out: IID." in (tmp_path / "other/mifl-3.svg").read_bytes()


def test_a_run_that_cannot_start_stops_the_figure_before_any(figure, slots, tmp_path):
    code, _, err = figure(*SHORT, "target_accuracy=0.9", "model.name=char-lstm")
    assert code == 2 and err.startswith(
        "raysim: pre-pass, seed 0: the model does not take samples of "
    )
    assert slots.started == [] and not (tmp_path / "out/figure.json").exists()


def without_rows(table: Path) -> None:
    shutil.rmtree(table)


def with_empty_rows(table: Path) -> None:
    [part] = table.iterdir()
    pq.write_table(pq.read_table(part).slice(0, 0), part)


def with_other_columns(table: Path) -> None:
    [part] = table.iterdir()
    pq.write_table(pq.read_table(part).drop_columns("samples"), part)


def damaged(table: Path) -> None:
    [part] = table.iterdir()
    part.write_bytes(b"garbage")


UNDRAWN = {
    without_rows: "the run has no rows of this analysis; try more rounds or clients",
    with_empty_rows: "the run has no rows of this analysis; try more rounds or clients",
    with_other_columns: "the run has no column samples",
    damaged: "is damaged",
}


def test_a_run_that_cannot_be_drawn_is_left_out_as_a_failed_one(heat_maps, slots, tmp_path):
    assert heat_maps()[0] == 0
    out, heat_map = tmp_path / "out", "analysis/label_heat_map.parquet"
    table, other = (run_dir(out, f"{name}/seed-0") / heat_map for name in ("non-iid", "iid"))
    out.rename(tmp_path / "whole")
    slots.started.clear()
    for harm, said_of_it in UNDRAWN.items():
        shutil.copytree(tmp_path / "whole", out)
        harm(table)
        code, said, err = heat_maps()
        assert (code, err, slots.started) == (0, "", []), harm
        assert f"note: non-IID: {table}: {said_of_it}" in said
        assert "Failed and left out: non-IID.\n" in said
        assert b"Failed and left out: non-IID." in (tmp_path / "out/mifl-3.svg").read_bytes()
        harm(other)
        code, _, err = heat_maps()
        assert code == 2 and err.startswith("raysim: mifl-3: all runs failed; IID: ")
        shutil.rmtree(out)


def test_runs_without_their_reference_have_failed(figure, slots, tmp_path):
    slots.fault = lambda run: Report(error="a bug")
    code, said, err = figure(*SHORT)
    assert code == 2 and slots.started == ["pre-pass/seed-0"]
    assert (
        "2/2 FedAvg, seed 0: failed: its reference pre-pass, seed 0 failed: a bug  0.0 s\n" in said
    )
    assert err == (
        "raysim: dnc-5: all runs failed; FedAvg: its reference pre-pass, seed 0 failed: a bug;"
        " fix this, then type the same command to resume the figure\n"
    )
    assert not [*(tmp_path / "out").glob("dnc-5.*")]
    slots.fault = lambda run: None
    slots.started.clear()
    assert figure(*SHORT)[0] == 0 and slots.started == ["pre-pass/seed-0", "fedavg/seed-0"]


def test_runs_are_compared_with_the_reference_of_the_figure(tmp_path):
    overrides = dict(map(parse_override, SMALL))
    plan = make_plan("flexchill-5", overrides | {"partition.alpha": 1.0}, 1)
    folder = RunsFolder(tmp_path, "figure", plan.name)
    runs = Runs(plan.name, [*plan.runs.values()], folder, lambda text: None)
    reference = runs.next()
    assert (runs.done, reference.label, runs.remain()) == (0, "reference", False)
    runs.ended(reference, Report(), 1.0)
    own = [run.label for run in runs.waiting if not run.label.startswith("control")]
    assert own == ["T=4", "T=1", "T=0.25", "T=0.05"] and len(runs.waiting) == 7
    assert runs.remain()


def test_chosen_runs_are_run_and_drawn_with_their_references(figure, heat_maps, slots, tmp_path):
    assert figure(*SHORT, "--only", "fedavg")[0] == 0
    assert slots.started == ["pre-pass/seed-0", "fedavg/seed-0"]
    slots.started.clear()
    assert heat_maps("--only", "iid", out="chosen")[0] == 0
    assert slots.started == ["iid/seed-0"]  # a whole word, which is not in non-iid
    drawing = tmp_path / "chosen/mifl-3.svg"
    assert drawing.read_bytes().count(b"<!-- non-IID -->") == 0
    assert heat_maps(out="chosen")[0] == 0
    assert slots.started == ["iid/seed-0", "non-iid/seed-0"]
    assert drawing.read_bytes().count(b"<!-- non-IID -->") == 1


def test_the_choice_of_runs_changes_no_settings(tmp_path):
    every = make_plan("mifl-6a", {}, 100)
    some = make_plan("mifl-6a", {}, 100, ["C=0.1", "fa"])
    assert [*some.runs] == ["FA, 2nn iid E=1 B=inf C=0.1"]
    assert some.runs.items() <= every.runs.items()
    assert some.notes == ["Shortened to 66 of 2000 rounds."]


def test_runs_without_their_data_are_left_out_and_said(heat_maps, slots, tmp_path, monkeypatch):
    lacking = ["", "letters missing"]
    monkeypatch.setattr("raysim.workloads.papers.run.missing_files", lambda *_: lacking.pop(0))
    code, said, err = heat_maps()
    assert (code, err, slots.started) == (0, "", ["iid/seed-0"])
    assert "note: non-IID cannot be run: letters missing\n" in said
    assert "mifl-3: 1 runs, 0 done" in said and "\nLeft out, without their data: non-IID.\n" in said
    drawn = (tmp_path / "out/mifl-3.svg").read_bytes()
    assert b"Left out, without their data: non-IID." in drawn and b"<!-- non-IID -->" not in drawn


def test_data_that_cannot_be_fetched_is_that_of_some_panels(tmp_path, monkeypatch):
    monkeypatch.setenv("RAYSIM_DATA", str(tmp_path))
    plan = make_plan("fedmax-5", {}, None)
    assert {run.split()[1] for run in plan.runs} == {"cifar10"}
    assert {run.split()[1] for run in plan.missing} == {"femnist", "cifar100"}
    assert (len(plan.runs), len(plan.missing)) == (6, 12)


def test_a_folder_has_one_command_at_a_time(figure, tmp_path):
    with lock_folder(tmp_path / "out", "held"):
        code, _, err = figure(*SHORT)
    assert code == 2 and "out=out: another raysim figure is using this folder" in err


def test_the_folder_of_another_figure_is_refused(figure, slots, tmp_path):
    (tmp_path / "out").mkdir()
    (tmp_path / "out/figure.json").write_text('{"schema": 1, "figure": "dnc-7"}')
    code, _, err = figure(*SHORT)
    assert (code, slots.started) == (2, [])
    assert err == "raysim: out=out: holds figure dnc-7; choose another --out\n"
    (tmp_path / "t1").mkdir()
    (tmp_path / "t1/table.json").write_text('{"schema": 1, "table": "dnc-2"}')
    code, _, err = figure(*SHORT, out="t1")
    assert (code, slots.started) == (2, [])
    assert err == "raysim: out=t1: holds table dnc-2; choose another --out\n"
    (tmp_path / "out/figure.json").write_text("garbage")
    code, _, err = figure(*SHORT)
    assert (code, slots.started) == (2, []) and "figure.json: is damaged (" in err


def test_data_that_is_not_there_is_named_before_anything_starts(raysim_command, slots, tmp_path):
    words = ("figure", "dnc-5", "--out", "out", "dataset.name=chest-xray", "model.name=resnet18")
    code, _, err = raysim_command(*words)
    assert code == 2 and slots.started == [] and not (tmp_path / "out/figure.json").exists()
    assert err.startswith("raysim: dnc-5: pre-pass cannot be run: ") and "chest-xray" in err
