"""Tuning within a sweep: each row has the same budget on held-out samples before it trains."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path

import pyarrow.parquet as pq
import pytest
from optuna.distributions import (
    CategoricalDistribution,
    FloatDistribution,
    IntDistribution,
)

import raysim
from raysim.errors import DataError
from raysim.federation import federation
from raysim.tuning.slots.report import Report
from raysim.tuning.slots.slot import SlotActor
from raysim.tuning.tables import tuned
from raysim.tuning.tables.tuned import Chosen, beyond_edge
from tests.blobs import Blobs
from tests.tasks import EQUAL, make_settings, make_task
from tests.tuning.common import PRESET
from tests.tuning.tables.common import index

METHODS = ("method.name=fedavg,fedprox", "rounds=2")
SEARCH = ("--tune", "local.lr=1e-3..1:log", "--tune", "method.mu=0.001,0.1,1")
FEW = ("--tune-trials", "3")


@pytest.fixture
def sweep(slots, raysim_command, tmp_path):
    """Run `raysim sweep blobs.json ... --out out`; return exit code, stdout and stderr."""
    (tmp_path / "blobs.json").write_text(json.dumps(PRESET))
    slots.key = lambda out: str(out.relative_to(tmp_path / "out"))
    return lambda *words: raysim_command("sweep", "blobs.json", *words, "--out", "out")


def configs(folder: Path) -> list[dict]:
    """Return the settings of the runs under a folder."""
    return [json.loads(path.read_text()) for path in sorted(folder.rglob("config.json"))]


def values_of(out: Path) -> dict[tuple[str, str], list]:
    """Return the values of the cells by row and column."""
    rows = pq.read_table(out / "table.parquet").to_pylist()
    return {(row["row"], row["column"]): row["values"] for row in rows}


def trials_of(out: Path, method: str) -> dict[float, float]:
    """Return the held-out accuracy of a method's trials by learning rate."""
    found = {}
    for path in (out / "tuning").rglob("summary.json"):
        settings = json.loads((path.parent / "config.json").read_text())
        if settings["method"]["name"] == method:
            score = json.loads(path.read_text())["final_holdout_accuracy"]
            found[settings["local"]["lr"]] = score
    return found


def test_each_row_is_searched_with_the_same_budget_and_trained_with_its_best(
    sweep, slots, drawn, tmp_path
):
    code, said, err = sweep(*METHODS, "seed=3..4", *SEARCH, *FEW)
    assert (code, err) == (0, "") and len(slots.started) == 2 * 3 + 2 * 2
    out = tmp_path / "out"
    tried = {method: trials_of(out, method) for method in ("fedavg", "fedprox")}
    rates = [*tried["fedavg"]]
    assert sorted(rates) == sorted(tried["fedprox"]) and len({*rates}) == 3
    assert PRESET["local"]["lr"] in rates  # the settings' own value is tried
    for config in configs(out / "tuning"):
        assert config["evaluation"]["holdout"] == 0.1 and not config["evaluation"]["test"]
        assert (config["seed"], config["rounds"]) == (3, 2)
    for method, scores in tried.items():
        best = max(scores, key=scores.get)
        runs = [c for c in configs(out / "runs") if c["method"]["name"] == method]
        assert [(c["seed"], c["local"]["lr"], c["evaluation"]["holdout"]) for c in runs] == [
            (3, best, 0.0),
            (4, best, 0.0),
        ]
        assert f"{method}: local.lr={float(f'{best:.4g}')}" in said
        assert f"(held-out accuracy {scores[best]:.2%})." in said
    budget = "Tuned by 3 trials of 2 rounds for each row, judged by 10% of each client's training"
    for name in ("table.md", "table.html", "table.tex"):
        assert "Tuned by 3 trials of 2 rounds for each row" in (out / name).read_text()
    notes = pq.read_table(out / "table.parquet")["notes"].to_pylist()[0]
    page = (out / "report.html").read_text()
    assert "Settings chosen on held-out samples" in page and "held-out accuracy by trial" in page
    assert "report: out/report.html" in said
    assert budget in said and any(note.startswith(budget) for note in notes)


class WithoutTest(Blobs):
    """Samples whose test set cannot be read."""

    def prepare(self, root, progress):
        return {**super().prepare(root, progress), "test": root / "nowhere.arrow"}


def test_the_runs_of_a_search_do_not_open_the_test_set(tmp_path):
    """As these have `evaluation.test=false`; with it the test set is read."""
    changes = {"dataset.name": "tests.tuning.tables.test_tuned:WithoutTest", "rounds": 1}
    changes |= {"evaluation.holdout": 0.2, "engine.backend": "inline"}
    (tmp_path / "blobs.json").write_text(json.dumps(PRESET))
    settings = raysim.load_config(tmp_path / "blobs.json", changes)
    without = settings.override({"evaluation.test": False, "out": str(tmp_path / "a")})
    found = raysim.run(without).metrics
    assert {"holdout_accuracy", "holdout_loss"} <= {*found.column_names}
    assert not [name for name in found.column_names if name.startswith("test_")]
    with pytest.raises((DataError, OSError)):
        raysim.run(settings.override({"out": str(tmp_path / "b")}))


def test_a_task_without_evaluation_of_its_tests(tmp_path):
    task = make_task(EQUAL)
    task = replace(task, client_tests=[*task.clients])
    settings = make_settings(tmp_path, rounds=1, fraction=1.0)
    evaluated = settings.override({"out": str(tmp_path / "a")})
    columns = {*raysim.run(evaluated, task=task).metrics.column_names}
    assert {"test_loss", "local_test_accuracy_mean"} <= columns
    without = settings.override({"out": str(tmp_path / "b"), "evaluation.test": False})
    left = {*raysim.run(without, task=task).metrics.column_names}
    assert columns - left == {name for name in columns if name.startswith(("test_", "local_test_"))}


def test_only_what_is_new_is_searched_and_trained(sweep, slots, tmp_path):
    assert sweep(*METHODS, *SEARCH, *FEW)[0] == 0
    slots.started.clear()
    assert sweep(*METHODS, *SEARCH, *FEW)[0] == 0 and slots.started == []
    code, said, _ = sweep("method.name=fedavg,fedprox,scaffold", "rounds=2", *SEARCH, *FEW)
    assert code == 0 and "3 trials left" in said
    assert [run.split("/")[0] for run in slots.started] == ["tuning"] * 3 + ["runs"]
    # More trials are added to those that there are.
    before, digests = trials_of(tmp_path / "out", "fedavg"), index(tmp_path / "out")
    slots.started.clear()
    assert sweep(*METHODS, *SEARCH, "--tune-trials", "6")[0] == 0
    assert sum(run.startswith("tuning") for run in slots.started) == 2 * 3
    after = trials_of(tmp_path / "out", "fedavg")
    assert before.items() < after.items()
    improved = max(after.values()) > max(before.values())
    label = "fedavg, last_ten(test_accuracy)"
    assert (digests[label] != index(tmp_path / "out")[label]) == improved


def test_a_killed_search_goes_on_with_the_same_trials(sweep, slots, tmp_path):
    full = Report(machine_error="the disk is full")
    slots.fault = lambda run: full if len(slots.started) == 2 else None
    code, _, err = sweep(*METHODS, *SEARCH, *FEW)
    assert code == 75 and err.endswith("then type the same command to resume the sweep\n")
    slots.fault = lambda run: None
    assert sweep(*METHODS, *SEARCH, *FEW)[0] == 0
    cells = (tmp_path / "out/table.parquet").read_bytes()
    (tmp_path / "out").rename(tmp_path / "killed")
    assert sweep(*METHODS, *SEARCH, *FEW)[0] == 0
    assert (tmp_path / "out/table.parquet").read_bytes() == cells


FILE = """
preset = "blobs.json"
settings = { rounds = 2 }
rows = [
    { name = "A", settings = { method.name = "fedavg" } },
    { name = "B", settings = { method.name = "fedprox", method.mu = 0.1 } },
]
[axes]
"local.batch_size" = [20, 40]
[tune]
trials = 2
%s
space = { local.lr = { low = 0.01, high = 0.1, log = true } }
"""


@pytest.mark.parametrize(
    ("more", "searched"),
    [
        ("", [20, 20]),
        ('column = "batch_size=40"', [40, 40]),
        ('each = "cell"\nobjective = "loss"', [20, 20, 40, 40]),
    ],
)
def test_a_row_is_searched_on_a_column_and_a_cell_on_its_own(
    slots, raysim_command, tmp_path, more, searched
):
    (tmp_path / "blobs.json").write_text(json.dumps(PRESET))
    (tmp_path / "own.toml").write_text(FILE % more)
    slots.key = lambda out: out.parts[-3]
    code, said, err = raysim_command("sweep", "own.toml", "--out", "out")
    assert (code, err) == (0, "")
    sizes = [c["local"]["batch_size"] for c in configs(tmp_path / "out/tuning") if "own_task" in c]
    assert sorted(sizes) == sorted(2 * searched)
    title = "A, batch_size=40: " if "cell" in more else f"A (on batch_size={searched[0]}): "
    assert f"{title}local.lr=" in said
    chosen = {
        (c["method"]["name"], c["local"]["batch_size"]): c["local"]["lr"]
        for c in configs(tmp_path / "out/runs")
    }
    if "cell" not in more:
        assert all(chosen[name, 20] == chosen[name, 40] for name in ("fedavg", "fedprox"))
    if "loss" in more:
        assert "(held-out loss " in said


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (("--tune", "local.lr"), "--tune=local.lr: is written KEY=LOW..HIGH, or KEY=A,B"),
        (("--tune", "local.lr=1..0.1"), "tune.space.local.lr.low=1: must be below high=0.1"),
        (("--tune", "local.lr=0..1:log"), "tune.space.local.lr.low=0: must be above 0 with log"),
        (("--tune", "local.rate=0..1"), "tune.space.local.rate: no row has it; did you mean"),
        (("--tune", "method.name=fedavg,fedmax"), "tune.space.method.name: is set by rows or"),
        (("--tune", "local.lr=-1..1"), "fedavg: tune.space.local.lr: local.lr=-1"),
        (("--tune", "evaluation.test=true,false"), "tune.space.evaluation.test: cannot be"),
        (("--tune", "seed=0,1"), "tune.space.seed: cannot be searched; all trials have one budget"),
        (("--tune", "rounds=1..4"), "tune.space.rounds: cannot be searched"),
        (("--tune", "engine.vectorize=0,4"), "tune.space.engine.vectorize: cannot be searched"),
    ],
)
def test_a_wrong_search_is_refused_before_anything_starts(sweep, slots, tmp_path, words, message):
    code, _, err = sweep(*METHODS, *words)
    assert code == 2 and err.count("\n") == 1 and err.startswith(f"raysim: {message}"), err
    assert slots.started == [] and not (tmp_path / "out").exists()


def test_a_search_without_success_leaves_its_row_out_and_is_tried_again(sweep, slots, tmp_path):
    first = []

    def fail(run):
        study = run.split("/")[1]
        if run.startswith("tuning") and study not in first:
            first.append(study)
        return Report(error="no luck") if run.startswith("tuning") and study == first[0] else None

    slots.fault = fail
    code, said, err = sweep(*METHODS, *SEARCH, *FEW)
    assert code == 2 and "fedavg: all its trials failed; no luck; fix this, then type" in err
    assert "fedavg: left out: all 3 trials failed; first: no luck" in said
    assert {row for row, _ in values_of(tmp_path / "out")} == {"fedprox"}
    slots.fault = lambda run: None
    slots.started.clear()
    code, said, err = sweep(*METHODS, *SEARCH, *FEW)
    assert (code, err) == (0, "") and len(slots.started) == 3 + 1
    assert {row for row, _ in values_of(tmp_path / "out")} == {"fedavg", "fedprox"}
    slots.fault = lambda run: Report(error="no luck") if run.startswith("tuning") else None
    (tmp_path / "out").rename(tmp_path / "before")
    code, _, err = sweep(*METHODS, *SEARCH, *FEW)
    assert code == 2 and err.startswith("raysim: all trials of all rows failed; fedavg: no luck;")


def test_where_all_trials_tie_it_says_so_and_no_value_is_on_an_edge(sweep, tmp_path, monkeypatch):
    """At rates that are too small to change a prediction; the row's own lies outside."""
    monkeypatch.setattr(tuned, "FEW_HELD_OUT", 401)
    few = ("--tune", "local.lr=1e-12..1e-11:log", "--tune", "method.mu=0,0.1,1")
    code, said, _ = sweep(*METHODS, *few, *FEW)
    assert code == 0 and len({*trials_of(tmp_path / "out", "fedprox").values()}) == 1
    assert said.count("; all trials tie, the first is taken") == 2 and " edge " not in said
    (held_out,) = {
        json.loads(path.read_text())["held_out_samples"]
        for path in (tmp_path / "out/tuning").rglob("summary.json")
    }
    assert said.count(f"; only {held_out} held-out samples; one of them is ") == 2
    page = (tmp_path / "out/report.html").read_text()
    assert page.count("<td>all trials tie, the first is taken") == 2


@pytest.mark.parametrize(
    ("tied", "held_out", "doubts"),
    [
        (1, 200, []),
        (1, None, []),
        (2, 5000, ["2 trials tie, the first is taken"]),
        (3, 40, ["all trials tie, the first is taken", "only 40 held-out samples; one of them "]),
    ],
)
def test_ties_and_few_held_out_samples_are_said(tied, held_out, doubts):
    curve = {0: 0.5, 1: 0.5, 2: 0.4}
    chosen = Chosen("a", {"k": 1}, {}, 0.5, "accuracy", curve, tied=tied, held_out=held_out)
    found = [*chosen.doubts()]
    assert len(found) == len(doubts) and all(map(str.startswith, found, doubts))
    assert [*chosen.lines()] == [f"a: k=1 ({'; '.join(['held-out accuracy 50.00%', *found])})."]
    assert held_out != 40 or found[1].endswith(" is 2.5%")


def test_fewer_trials_than_there_are_choose_among_the_first(sweep, slots, tmp_path):
    assert sweep(*METHODS, *SEARCH, "--tune-trials", "5")[0] == 0
    assert sweep(*METHODS, *SEARCH, "--tune-trials", "2")[0] == 0
    first = [
        (config["local"]["lr"], json.loads((path.parent / "summary.json").read_text()))
        for path in sorted((tmp_path / "out/tuning").rglob("trials/000[01]/config.json"))
        if (config := json.loads(path.read_text()))["method"]["name"] == "fedavg"
    ]
    best, _ = max(first, key=lambda pair: pair[1]["final_holdout_accuracy"])
    digest = index(tmp_path / "out")["fedavg, last_ten(test_accuracy)"]
    config = json.loads((tmp_path / f"out/runs/{digest}/seed-0/config.json").read_text())
    assert len(first) == 2 and config["local"]["lr"] == best


def test_a_part_of_a_tuned_sweep_is_chosen(sweep, slots, tmp_path):
    assert sweep(*METHODS, *SEARCH, *FEW)[0] == 0
    before = values_of(tmp_path / "out")
    slots.started.clear()
    code, _, err = sweep(*METHODS, *SEARCH, *FEW, "--only", "fedavg")
    assert (code, err, slots.started) == (0, "", [])
    assert values_of(tmp_path / "out") == before  # the other row stays


def test_a_search_reads_no_sample_of_the_test_set(sweep, slots, tmp_path, monkeypatch):
    """Whereas the runs after it do."""
    opened, now = {"tuning": set(), "runs": set()}, [None, None]
    open_split, advance = federation.open_split, SlotActor.advance

    def noted(path):
        kind, in_slot = now
        if in_slot:
            opened[kind].add(path.name)
            assert (kind, path.name) != ("tuning", "blobs-test.arrow")
        return open_split(path)

    def in_slot(actor, order):
        now[1] = True
        try:
            return advance(actor, order)
        finally:
            now[1] = False

    def starts(run):
        now[0] = run.split("/")[0]

    monkeypatch.setattr(federation, "open_split", noted)
    monkeypatch.setattr(SlotActor, "advance", in_slot)
    slots.fault = starts
    code, _, err = sweep(*METHODS, *SEARCH, *FEW)
    assert (code, err) == (0, "")
    both = {"blobs-train.arrow", "blobs-test.arrow"}
    assert opened == {"tuning": {"blobs-train.arrow"}, "runs": both}
    trials = [*(tmp_path / "out/tuning").rglob("trials/*/metrics.parquet")]
    assert len(trials) == 6
    for path in trials:
        assert not [n for n in pq.read_table(path).column_names if n.startswith("test_")]


LOG, LINEAR = FloatDistribution(1e-3, 1.0, log=True), FloatDistribution(0.0, 1.0)


@pytest.mark.parametrize(
    ("values", "edges", "inside"),
    [
        (LOG, (1e-3, 1.3e-3, 0.8, 1.0), (1.6e-3, 0.03, 0.6)),
        (LINEAR, (0.0, 0.04, 0.96, 1.0), (0.06, 0.5, 0.94)),
        (IntDistribution(1, 100), (1, 5, 100), (10, 50)),
        (CategoricalDistribution([0.1, 1.0, 0.01]), (0.01, 1.0), (0.1,)),
        (CategoricalDistribution(["a", "b", "c"]), (), ("a", "c")),
        (CategoricalDistribution([1, 2]), (), (1, 2)),
        (CategoricalDistribution([True, False, None]), (), (True, False, None)),
    ],
)
def test_edges_of_ranges_by_hand(values, edges, inside):
    assert [each for each in (*edges, *inside) if beyond_edge(values, each) is not None] == [*edges]


def test_a_target_and_patience_stop_the_runs_and_not_the_trials(sweep, tmp_path):
    """They would judge by the test set, which a trial does not open."""
    stops = ("target_accuracy=0.01", "patience=1", "patience_metric=trained_accuracy_mean")
    stops += ("evaluation.clients=true", "evaluation.trained=true")
    words = ("method.name=fedavg,fedprox", *stops, "local.lr=1e-9")  # where nothing improves
    code, said, err = sweep(*words, "--tune", "local.lr=1e-9,1e-8", "--tune-trials", "1")
    assert (code, err) == (0, "")
    rounds = {
        kind: [
            json.loads(p.read_text())["rounds"]
            for p in (tmp_path / "out" / kind).rglob("summary.json")
        ]
        for kind in ("tuning", "runs")
    }
    assert rounds == {"tuning": [4, 4], "runs": [1, 1]}
    assert "Stopped by target_accuracy=0.01: 2 of 2 runs." in said


@pytest.mark.parametrize(
    ("rates", "side"), [("0.01 | 0.02 | 0.05", "upper"), ("0.05 | 0.1 | 1.0", "lower")]
)
def test_a_best_value_on_an_edge_is_marked_unless_the_setting_ends_there(
    sweep, tmp_path, rates, side
):
    """The only trial, which has the setting's own value of 0.05, is the best."""
    rate = f"local.lr={rates.replace(' | ', ',')}"
    words = ("fraction=1", "--tune", rate, "--tune", "fraction=0.5,0.75,1")
    code, said, err = sweep(*words, "rounds=1", "--tune-trials", "1")
    assert (code, err) == (0, "")
    edge = f"all: local.lr lies on the {side} edge of its range, {rates}; widen it."
    assert edge in said and "fraction lies" not in said
    assert f"{side} edge" in (tmp_path / "out/report.html").read_text()


def test_a_search_on_other_data_begins_anew(slots, raysim_command, tmp_path):
    """And finished runs, which stay, say that their data has changed; the same bytes do not."""
    rows = [f"{value},{value % 2}" for value in range(40)]
    data, flipped = (["x,y", *rows], ["x,y", *(f"{row[:-1]}{1 - int(row[-1])}" for row in rows)])
    (tmp_path / "own.csv").write_text("\n".join(data))
    settings = {
        "dataset": {"name": "files", "path": str(tmp_path / "own.csv")},
        "clients": 2,
        "fraction": 1,
    }
    own = PRESET | settings | {"model": {"name": "2nn"}, "rounds": 1}
    (tmp_path / "own.json").write_text(json.dumps(own))
    slots.key = lambda out: str(out.relative_to(tmp_path / "out"))
    tune = ("--tune", "local.lr=0.01,0.05", "--tune-trials")

    def sweep(trials):
        slots.started.clear()
        words = ("method.name=fedavg,fedprox", *tune, trials, "--out", "out")
        code, said, err = raysim_command("sweep", "own.json", *words)
        assert (code, err) == (0, "")
        return said, [run.partition("/")[0] for run in slots.started]

    assert sweep("1")[1] == ["tuning"] * 2 + ["runs"] * 2
    (tmp_path / "own.csv").write_text("\n".join(data))  # only its time of change differs
    said, started = sweep("1")
    assert started == [] and "has changed" not in said
    (tmp_path / "own.csv").write_text("\n".join(flipped))
    said, started = sweep("1")
    assert started == ["tuning"] * 2
    assert "note: fedprox: the data has changed since out/tuning/" in said
    first = next((tmp_path / "out/runs").glob("*/seed-0")).relative_to(tmp_path)
    assert "The data has changed since 2 of 2 runs, the first fedavg, seed 0;" in said
    assert f"to run it again, delete {first.parent.parent}/" in said
    said, started = sweep("1")
    assert started == [] and "searching again" not in said and "has changed since 2 of 2" in said
