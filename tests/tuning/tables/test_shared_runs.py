"""Runs that cells share: columns that differ in their metric, and analyses with their reference."""

from __future__ import annotations

import json
import re

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

import raysim
from raysim.results.runs import read_run
from raysim.tuning.slots.report import Report
from raysim.tuning.tables.command import folder_of, queue_of
from raysim.tuning.tables.plan import make_plan
from raysim.tuning.tables.results import TableResults
from raysim.tuning.tables.work import RunCost
from raysim.workloads.papers.run import Run
from raysim.workloads.tables import TABLES
from tests.tasks import make_settings
from tests.tuning.tables.common import NAME, index, make_table, run_dir, times
from tests.tuning.tables.test_command import refused, rows_of

COLUMNS = {
    "IID accuracy": {},
    "IID loss": {},
    "IID rounds": {},
    "B=40 loss": {"local.batch_size": 40},
}
METRICS = {
    "IID loss": "final(test_loss)",
    "IID rounds": "rounds_to(test_accuracy, 0.01)",
    "B=40 loss": "final(test_loss)",
}
ONE_ROW = {"FedAvg": {"method.name": "fedavg"}}


def test_cells_of_chains_in_another_order_do_not_share_a_run(tmp_path):
    runs = {
        Run.of("", make_settings(tmp_path, **chain))
        for names in (("fedprox", "momentum"), ("momentum", "fedprox"))
        for chain in ({"method.name": "chain", "method.methods": {name: {} for name in names}},)
    }
    assert len(runs) == 2


@pytest.fixture
def shared(table, tmp_path, monkeypatch):
    """Run a table of three columns that share a run, and one that does not."""
    monkeypatch.setitem(TABLES, NAME, make_table(tmp_path, ONE_ROW, COLUMNS, METRICS))
    return table


def test_columns_that_differ_in_their_metric_are_read_off_one_run(shared, slots, tmp_path):
    code, said, err = shared()
    assert (code, err) == (0, "")
    columns = ("iid-accuracy", "b=40-loss")
    runs = [f"fedavg-{column}/seed-{seed}" for column in columns for seed in (0, 1)]
    assert slots.started == runs and "blobs-1: 4 runs, 0 done" in said
    out = tmp_path / "out"
    assert {*times(out)} == {*runs}
    found = rows_of(out)
    for seed in (0, 1):
        last = read_run(run_dir(out, f"fedavg-iid-loss/seed-{seed}")).metrics.to_pylist()[-1]
        for column, figure in (("accuracy", "test_accuracy"), ("loss", "test_loss")):
            value = found["FedAvg", f"IID {column}"]["values"][seed]
            assert value == {"seed": seed, "value": last[figure]}
    assert [pair["value"] for pair in found["FedAvg", "IID rounds"]["values"]] == [1, 1]
    assert re.search(
        r"FedAvg, IID, seed 0: final\(test_accuracy\) \d+\.\d\d%; final\(test_loss\) [\d.]+;"
        r" rounds_to\(test_accuracy, 0\.01\) 1  ",
        said,
    )
    sealed = index(out)
    assert sealed["FedAvg, IID rounds"] == sealed["FedAvg, IID loss"] != sealed["FedAvg, B=40 loss"]


def test_a_column_that_is_added_later_needs_no_run(shared, slots, tmp_path):
    shared("--only", "loss,iid", "--seeds", "1")
    assert slots.started == ["fedavg-iid-loss/seed-0"] and {*rows_of(tmp_path / "out")} == {
        ("FedAvg", "IID loss")
    }
    shared("--only", "accuracy", "--seeds", "1")
    assert len(slots.started) == 1 and len(rows_of(tmp_path / "out")) == 2
    # A seed more for one of them is one for both.
    shared("--only", "rounds", "--seeds", "2")
    assert slots.started[1:] == ["fedavg-iid-loss/seed-1"]
    assert {row["n"] for row in rows_of(tmp_path / "out").values()} == {2}


def test_a_dry_run_counts_a_run_once(shared, slots):
    code, said, _ = shared("--dry-run", "--jobs", "1")
    assert code == 0 and slots.started == []
    rows = re.findall(r"^ FedAvg, (.*?) +4 +2 of 2 ", said, re.M)
    assert rows == ["IID accuracy; IID loss; IID rounds", "B=40 loss"]
    assert "blobs-1: 4 runs, 0 done; 1 slots" in said and "1.28e+04 sample-steps" in said


def test_a_run_that_fails_is_noted_once(shared, slots, tmp_path):
    slots.fault = lambda run: Report(error="no luck")
    shared("--only", "iid", "--seeds", "1")
    found = rows_of(tmp_path / "out")
    assert len(found) == 3 and {row["failed"] for row in found.values()} == {1}
    notes = found["FedAvg", "IID loss"]["notes"]
    assert [note for note in notes if "no luck" in note] == ["FedAvg, IID, seed 0: no luck"]


def test_cells_of_the_papers_tables_that_share_runs():
    """By hand, from the columns: of 99, 66, 60 and 8 cells, those of controls included."""
    found = {"flexchill-1": 33, "flexchill-2": 33, "flexchill-8": 12, "mifl-4": 8}
    for name, runs in found.items():
        plan = make_plan(TABLES[name])
        assert len({cell.run for cell in plan.cells}) == runs, name


SMALL = {"evaluation.clients": True, "fraction": 0.1, "rounds": 2, "partition.limit": 20}
ANALYSES = {
    "similarity 1": "analysis(cka, layer_1)",
    "similarity 2": "analysis(cka, layer_2)",
    "joining": "analysis(new_client, epochs)",
}
WITH_REFERENCE = {
    "T=0.5": {"local.temperature": 0.5, **SMALL},
    "reference": {"local.temperature": 1.0, **SMALL},
}


@pytest.fixture
def analysed(table, tmp_path, monkeypatch):
    """Run a table whose columns are an accuracy and analyses, with a reference."""
    columns = {column: {} for column in ("accuracy", *ANALYSES)}
    made = make_table(tmp_path, WITH_REFERENCE, columns, ANALYSES, reference_row="reference")
    monkeypatch.setitem(TABLES, NAME, made)
    return table


def test_analyses_are_computed_after_the_reference(analysed, slots, tmp_path):
    code, said, err = analysed("--seeds", "1")
    assert (code, err) == (0, "")
    assert slots.started == ["reference-accuracy/seed-0", "t=0.5-accuracy/seed-0"]
    out = tmp_path / "out"
    folder = run_dir(out, "t=0.5-accuracy/seed-0")
    config = json.loads((folder / "config.json").read_text())
    assert config["analysis"] == ["cka", "new_client"]
    assert config["reference"] == str(run_dir(out, "reference-accuracy/seed-0"))
    pairs = {
        row["layer"]: row["cka"]
        for row in pq.read_table(folder / "analysis/cka.parquet").to_pylist()
        if (row["round"], row["first"], row["second"]) == (2, "after", "reference")
    }
    found = rows_of(out)
    assert found["T=0.5", "similarity 1"]["mean"] == pairs[1] < 1
    assert found["T=0.5", "similarity 2"]["mean"] == pairs[2] != pairs[1]
    assert 0 <= found["T=0.5", "joining"]["mean"] <= 128
    # The reference with itself is no measurement; new clients join it, too.
    itself = found["reference", "similarity 1"]
    assert itself["seeds"] == 0 and itself["missing"].startswith("another model than the reference")
    assert "note: reference, similarity 1: left out: another model than the reference" in said
    assert found["reference", "joining"]["n"] == 1
    # Neither analyses nor the reference are settings in which rows differ; T is in their names.
    assert not any(row["differing"] for row in found.values())


def test_a_dry_run_names_a_reference_of_which_no_cell_is_chosen(analysed):
    code, said, _ = analysed("--dry-run", "--jobs", "1", "--only", "T=0.5")
    assert code == 0
    assert "\n reference, accuracy (the reference of others)  " in said
    assert "\n T=0.5  " in said  # all of its columns are of this run


def test_references_come_first_and_a_run_waits_for_that_of_its_seed(analysed, tmp_path):
    plan = make_plan(TABLES[NAME], seeds=range(2))
    folder = folder_of(plan, tmp_path / "out")
    runs = queue_of(TableResults(plan, folder), RunCost(), print)
    names = {run: runs.name(run) for run in runs.waiting}
    labels = [f"{row}, accuracy, seed {n}" for row in ("reference", "T=0.5") for n in (0, 1)]
    assert [*names.values()] == labels
    references = [(names[run], names.get(run.reference)) for run in runs.waiting]
    assert references == [*zip(labels, [None, None, *labels[:2]], strict=True)]


def test_one_cell_alone_has_its_reference_run_which_is_not_shown(analysed, slots, tmp_path):
    _, said, _ = analysed("--only", "T=0.5,joining", "--seeds", "1")
    assert slots.started == ["unlisted/seed-0", "t=0.5-joining/seed-0"]
    assert {*rows_of(tmp_path / "out")} == {("T=0.5", "joining")}
    assert "reference, accuracy, seed 0: the reference of others" in said
    slots.started.clear()
    assert analysed("--seeds", "1")[0] == 0 and slots.started == []
    assert len(rows_of(tmp_path / "out")) == 8


def test_a_table_that_was_moved_is_still_finished(analysed, slots, tmp_path):
    analysed("--seeds", "1")
    (tmp_path / "out").rename(tmp_path / "elsewhere")
    slots.started.clear()
    code, said, _ = analysed("--seeds", "1", "--out", "elsewhere")
    assert code == 0 and slots.started == [] and "was compared with" not in said


def test_a_run_whose_reference_failed_is_not_started_and_counts_as_failed(
    analysed, slots, tmp_path
):
    slots.fault = lambda run: Report(error="no luck") if run.startswith("unlisted") else None
    words, out = ("--only", "T=0.5,accuracy", "--seeds", "1"), tmp_path / "out"
    reference, run = "unlisted/seed-0", "t=0.5-accuracy/seed-0"
    cause = "its reference reference, accuracy, seed 0 failed: no luck"
    code, said, err = analysed(*words)
    assert code == 2 and slots.started == [reference]
    assert "2 of 2 runs failed, the first reference, accuracy, seed 0: no luck; fix" in err
    assert f"\n2/2 T=0.5, accuracy, seed 0: failed: {cause}  0.0 s\n" in said
    [record] = out.rglob("failed.json")
    cell = rows_of(out)["T=0.5", "accuracy"]
    assert (cell["n"], cell["failed"], cell["seeds"]) == (0, 1, 1)
    note = f"T=0.5, accuracy, seed 0: {cause}"
    assert note in cell["notes"]
    # The same command runs both.
    slots.fault = lambda run: None
    assert analysed(*words)[0] == 0 and slots.started == [reference, reference, run]
    assert not record.exists()
    assert rows_of(out)["T=0.5", "accuracy"]["n"] == 1
    # A finished run counts, whatever becomes of its reference; one that diverged is not run again.
    with_a_record(record.parent)
    assert analysed(*words)[0] == 0 and rows_of(out)["T=0.5", "accuracy"]["n"] == 1
    assert len(slots.started) == 3


def with_a_record(path):
    (path / "summary.json").unlink()
    (cell,) = make_plan(TABLES[NAME], only=("reference,accuracy",)).chosen
    folder_of(TABLES[NAME], path.parents[2]).record_failure(cell.run, "its update is not finite")


def with_a_loss_that_is_no_number(path):
    table = pq.read_table(path / "metrics.parquet")
    rows = table.to_pylist()
    rows[-1]["train_loss"] = float("nan")
    pq.write_table(pa.Table.from_pylist(rows, table.schema), path / "metrics.parquet")


@pytest.mark.parametrize("harm", [with_a_record, with_a_loss_that_is_no_number])
def test_a_run_whose_reference_diverged_is_not_started_and_has_not_diverged(
    analysed, slots, tmp_path, harm
):
    analysed("--only", "reference,accuracy", "--seeds", "1")
    harm(run_dir(tmp_path / "out", "reference-accuracy/seed-0"))
    slots.started.clear()
    code, _, _ = analysed("--only", "accuracy", "--seeds", "1")
    assert code == 0 and slots.started == []
    found = rows_of(tmp_path / "out")
    ended = {row: (cell["n"], cell["diverged"], cell["failed"]) for (row, _), cell in found.items()}
    assert ended == {"reference": (0, 1, 0), "T=0.5": (0, 0, 1)}
    (note,) = [n for n in found["T=0.5", "accuracy"]["notes"] if n.startswith("T=0.5, accuracy, s")]
    assert note.startswith("T=0.5, accuracy, seed 0: its reference reference, accuracy, seed 0")


def test_a_run_that_diverges_to_its_end_ends_those_that_wait_for_it(
    analysed, tmp_path, monkeypatch
):
    plan = make_plan(TABLES[NAME], only=("T=0.5,accuracy",), seeds=range(1))
    folder = folder_of(plan, tmp_path / "out")
    with folder.lock():
        folder.enter(plan.labels, plan.labels)
        runs = queue_of(TableResults(plan, folder), RunCost(), print)
        reference = runs.next()
        settings = runs.settings(reference).override({"engine.backend": "inline"})
        run_of_reference = raysim.run(settings)
        with_a_loss_that_is_no_number(run_of_reference.run_dir)
        runs.ended(reference, Report(summary=run_of_reference.summary), 1.0)
    assert [*runs.failed.values()] == [
        "its loss is not finite",
        "its reference reference, accuracy, seed 0 failed: its loss is not finite",
    ]
    assert not runs.remain() and not runs.waiting


REFUSED = {
    ("evaluation.clients=false",): "T=0.5, joining: analysis(new_client, epochs): needs evaluation",
    ("fraction=1",): "analysis(new_client, epochs): fraction=1: must leave clients out that can",
    ("reference=x",): "reference=x: follows from the row reference; leave it out",
}


@pytest.mark.parametrize("words", REFUSED)
def test_runs_without_the_figures_of_an_analysis_are_refused(
    analysed, slots, tmp_path, monkeypatch, words
):
    key = words[0].partition("=")[0]
    bare = {
        row: {k: v for k, v in more.items() if k != key} for row, more in WITH_REFERENCE.items()
    }
    made = make_table(tmp_path, bare, {"joining": {}}, ANALYSES, reference_row="reference")
    monkeypatch.setitem(TABLES, NAME, made)
    assert REFUSED[words] in refused(analysed(*words))
    assert slots.started == [] and not (tmp_path / "out").exists()


WRONG = {
    "analysis(cka, layer_3)": "model.name=tests.blobs:Linear has 2 layers",
    "final(client_accuracy_mean)": "needs evaluation.clients=true",
    "final(holdout_accuracy)": "needs evaluation.holdout above 0",
    "final(test_mae)": "a run on tests.blobs:Blobs has no column 'test_mae'; did you mean",
    "best(kl)": "a run on tests.blobs:Blobs has no column 'kl'; known are test_loss",
    "analysis(cka, layer_2)": "there is no reference with such settings",
}


@pytest.mark.parametrize("metric", WRONG)
def test_a_metric_that_no_run_will_have_is_refused_before_any_starts(
    table, slots, tmp_path, monkeypatch, metric
):
    made = make_table(tmp_path, metrics={"IID, short": metric})
    monkeypatch.setitem(TABLES, NAME, made)
    says = f"blobs-1: FedAvg, IID, short: {metric}: {WRONG[metric]}"
    assert says in refused(table("--only", "short"))
    assert slots.started == [] and not (tmp_path / "out").exists()
    assert table("--only", "long", "--seeds", "1")[0] == 0


def test_runs_that_stop_before_a_metric_are_refused(table, slots, tmp_path, monkeypatch):
    made = make_table(tmp_path, metrics={"IID, short": "rounds_to(test_accuracy, 0.9)"})
    monkeypatch.setitem(TABLES, NAME, made)
    assert refused(table("--only", "short", "target_accuracy=0.8")) == (
        "raysim: blobs-1: FedAvg, IID, short: target_accuracy=0.8: runs stop there, before"
        " rounds_to(test_accuracy, 0.9); must be at least 0.9, or none\n"
    )
    assert slots.started == [] and not (tmp_path / "out").exists()
    assert table("--only", "short", "--seeds", "1", "target_accuracy=0.9")[0] == 0


def test_a_metric_that_is_none_is_refused(table, slots, tmp_path, monkeypatch):
    made = make_table(tmp_path, metrics={"IID, short": "final(test_accuracy"})
    monkeypatch.setitem(TABLES, NAME, made)
    assert refused(table()).startswith(
        "raysim: blobs-1: FedAvg, IID, short: metric='final(test_accuracy': must be name(column)"
    )
    assert slots.started == []


def test_every_column_that_is_let_through_is_one_of_a_run(table, tmp_path, monkeypatch):
    columns = {"IID, long": {"evaluation.clients": True, "evaluation.holdout": 0.1}}
    metrics = [
        *(f"final({of}_{score})" for of in ("test", "holdout") for score in ("loss", "accuracy")),
        *("final(client_accuracy_d5)", "final(train_loss)", "final(bytes)", "final(bytes_up)"),
        *("final(bytes_down)", "final(total_seconds)", "best(test_macro_f1)"),
    ]
    made = make_table(
        tmp_path,
        ONE_ROW,
        {metric: columns["IID, long"] for metric in metrics},
        {metric: metric for metric in metrics},
    )
    monkeypatch.setitem(TABLES, NAME, made)
    assert table("--seeds", "1")[0] == 0
    assert {row["n"] for row in rows_of(tmp_path / "out").values()} == {1}
