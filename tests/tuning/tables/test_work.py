"""Work of a table's runs, and the dry run."""

from __future__ import annotations

import re

import numpy as np
import pytest

import raysim
from raysim.errors import MachineError
from raysim.tuning.tables import work
from raysim.tuning.tables.work import DataSize, Pace, RunCost, measure, time_in_slots
from raysim.workloads.tables import TABLES
from tests.tuning.tables.common import COLUMNS, DIVERGING, NAME, ROWS, make_table, times


@pytest.fixture(autouse=True)
def alone(monkeypatch):
    """Have no other process take a core from the rounds, whose seconds are told."""
    monkeypatch.setattr(work, "waited_seconds", lambda: 0.0)


def settings_of(column):
    """Return the settings of FedProx's cell in the table that the fixture registers."""
    return TABLES["blobs-1"].cell("FedProx", column).resolve({"local.batch_size": 20})


@pytest.mark.parametrize(
    ("overrides", "expected"),
    [
        ({}, 4 * 4 * 1 * 200),  # rounds x cohort x epochs x samples of a client
        ({"local.epochs": 3}, 4 * 4 * 3 * 200),
        ({"local.steps": 7}, 4 * 4 * 7 * 20),  # of the batch size
        ({"local.steps": 7, "local.batch_size": "full"}, 4 * 4 * 7 * 200),
        ({"local.steps": 7, "local.batch_size": 500}, 4 * 4 * 7 * 200),  # all that a client has
        ({"local.batch_size": 30, "local.drop_last": True}, 4 * 4 * 180),  # 6 whole batches
        ({"local.batch_size": 300, "local.drop_last": True}, 4 * 4 * 200),  # the one that there is
        ({"fraction": 1.0, "rounds": 2}, 2 * 20 * 200),
        ({"evaluation.holdout": 0.25}, 4 * 4 * 150),
        ({"partition.name": "resample", "partition.samples": 7}, 4 * 4 * 7),
        ({"method.name": "fedbuff", "method.concurrency": 9, "method.buffer": 3}, 4 * 3 * 200),
        ({"method.name": "fedbuff"}, 4 * 2 * 200),  # half of the cohort
        ({"method.name": "fedat", "method.concurrency": 11, "method.tiers": 2}, 4 * 5 * 200),
    ],
)
def test_sample_steps_by_hand(table, overrides, expected):
    settings = settings_of("IID, long").override(overrides)
    assert RunCost().sample_steps(settings) == expected


def test_seconds_by_hand(table, monkeypatch):
    """A millisecond a sample-step; 2500 test samples are a third as many, at a quarter of one."""
    measured = []

    def measure(settings, size):
        measured.append((settings.method.title, size.client, size.test))
        return Pace(1e-3, 0.25e-3)

    monkeypatch.setattr(work, "measure", measure)
    load, settings = RunCost(), settings_of("IID, long")
    assert load.seconds(settings) == pytest.approx(3.2 + 4 * 2500 / 3 * 0.25e-3)
    third = settings.override({"evaluation.every": 3})  # rounds 3 and 4
    assert load.seconds(third) == pytest.approx(3.2 + 2 * 2500 / 3 * 0.25e-3)
    assert measured == [("fedprox", 200, 2500)]  # once for both
    load.seconds(settings.override({"local.batch_size": 40}))
    assert len(measured) == 2


OWN = {"evaluation.local_test": 0.25, "evaluation.holdout": 0.2}
"""20 clients of 200 samples: 50 tested, 30 held out and 120 trained on."""


@pytest.mark.parametrize(
    ("overrides", "scored", "trained"),
    [
        ({}, 2500, 0),
        ({"evaluation.test": False}, 0, 0),
        ({"evaluation.train_set": True}, 2500 + 20 * 200, 0),
        (OWN, 2500 + 20 * 80, 0),
        ({**OWN, "evaluation.test": False}, 20 * 30, 0),
        ({**OWN, "method.name": "ditto", "evaluation.train_set": True}, 2500 + 2 * 20 * 200, 0),
        ({**OWN, "evaluation.finetune_epochs": 3}, 2500 + 2 * 20 * 80, 2 * 3 * 20 * 120),
        ({**OWN, "evaluation.finetune_steps": 4}, 2500 + 2 * 20 * 80, 2 * 20 * 80),
        ({**OWN, "evaluation.when": "after", "local.steps": 4}, 2500 + 2 * 20 * 80, 2 * 20 * 80),
        ({"dataset.name": "tests.blobs:Pooled"}, 0, 0),
    ],
)
def test_work_of_an_evaluation_by_hand(table, monkeypatch, overrides, scored, trained):
    """Samples that are scored, by each model, and those that clients train on before."""
    monkeypatch.setattr(work, "measure", lambda settings, size: Pace(0.0, 3.0))
    settings = settings_of("IID, long").override({**overrides, "evaluation.every": 4})
    assert RunCost().seconds(settings) == pytest.approx(scored + 3 * trained)


def test_a_table_on_clients_own_tests_has_an_estimate(table, tmp_path, monkeypatch):
    """Without a test set, and with fine-tuning."""
    rows = {"FedBABU": {"method.name": "fedbabu", "evaluation.finetune_epochs": 2}}
    metrics = {"short": "final(personal_local_test_accuracy)"}
    given = {"dataset.name": "tests.blobs:Pooled", "evaluation.local_test": 0.25, "rounds": 2}
    made = make_table(tmp_path, rows, {"short": given}, metrics)
    monkeypatch.setitem(TABLES, NAME, made)
    code, said, _ = table("--dry-run", "--jobs", "1", "--seeds", "1")
    assert code == 0 and "no estimate" not in said
    # A cohort of 4 clients with 150 training samples.
    assert "1.2e+03 sample-steps; estimate: " in said


def test_the_measured_samples_are_those_that_are_left(table, monkeypatch):
    """Of 150 samples 38 are tested, of 20 in a first round 5; others take a millisecond each."""
    left = {150: 112, 20: 15}

    def run(settings, listener):
        evaluation = 0.5 if settings.evaluation.every == 1 else 0.0
        seconds = 1e-3 * settings.cohort_size * left[settings.partition.limit]
        listener.round_done({"seconds": seconds, "evaluation_seconds": evaluation})

    monkeypatch.setattr(raysim, "run", run)
    settings = settings_of("IID, long").override({"evaluation.local_test": 0.25})
    found = measure(settings, DataSize(np.full(20, 150), 2500, 20 * 50))
    assert found.step == pytest.approx(1e-3)
    assert found.evaluation == pytest.approx(0.5 / ((2500 + 20 * 38) / 3))


def test_time_in_which_others_had_the_core_is_left_out(table, monkeypatch):
    waited = 0.0

    def run(settings, listener):
        nonlocal waited
        for _ in range(2):
            waited += 1e6  # more than the time that the round takes
            listener.round_done({"seconds": 50.0, "evaluation_seconds": 0.0})

    monkeypatch.setattr(raysim, "run", run)
    monkeypatch.setattr(work, "waited_seconds", lambda: waited)
    found = measure(settings_of("IID, long"), DataSize(np.full(20, 200), 2500))
    assert found.step == pytest.approx(50.0 / 100 / (4 * 200))  # a hundredth is always its own


@pytest.mark.parametrize(
    ("overrides", "second", "clients", "samples"),
    [
        ({}, 1e-4, 4, 200),  # the round of the run itself
        ({"fraction": 1.0}, 1e-4, 20, 200),
        ({"local.batch_size": "full"}, 1e-4, 4, 200),
        ({"fraction": 1.0}, 1e-3, 8, 188),  # 1500 sample-steps in 1.5 seconds
        ({"fraction": 1.0}, 1e-2, 2, 75),  # 150 of them
        ({"fraction": 1.0, "local.epochs": 2}, 1e-2, 2, 38),
        ({}, 1.0, 2, 20),  # a batch each, whatever it takes
        ({"method.name": "fedbuff", "fraction": 1.0}, 1e-2, 20, 20),  # ten updates a round
    ],
)
def test_measured_rounds_are_those_of_the_run_or_shorter(
    table, monkeypatch, overrides, second, clients, samples
):
    """`second`: seconds of a sample-step on an imagined machine, twice that in a first round."""
    runs = []

    def run(settings, listener):
        runs.append(settings)
        updates = 10 if settings.method.title == "fedbuff" else settings.cohort_size
        steps = updates * settings.partition.samples * settings.local.epochs
        evaluation = 2500 * second / 5 if settings.evaluation.every == 1 else 0.0
        for slower in (2, 1, 1):
            seconds = slower * steps * second
            listener.round_done({"seconds": seconds, "evaluation_seconds": evaluation})

    monkeypatch.setattr(raysim, "run", run)
    settings = settings_of("IID, long").override(overrides)
    found = measure(settings, DataSize(np.full(20, 200), 2500))
    assert (runs[1].cohort_size, runs[1].partition.samples) == (clients, samples)
    assert (runs[0].cohort_size, runs[0].local.epochs) == (20 if clients == samples == 20 else 2, 1)
    assert {run.clients for run in runs} == {20}
    assert found.step == pytest.approx(second)
    evaluated = 2500 * second / 3 <= 1.5
    assert found.evaluation == pytest.approx(second * 3 / 5 if evaluated else second)


def test_measured_runs_have_neither_tracker_nor_trace_nor_clock(table, monkeypatch):
    runs = []

    def run(settings, listener):
        runs.append((settings.tracker, settings.trace, settings.clock.title))
        listener.round_done({"seconds": 1.0, "evaluation_seconds": 1.0})

    monkeypatch.setattr(raysim, "run", run)
    given = {"tracker": "mlflow", "trace": True, "clock.name": "devices"}
    measure(settings_of("IID, long").override(given), DataSize(np.full(20, 200), 2500))
    assert runs == [(None, False, "none")] * 2


@pytest.mark.parametrize(
    "words",
    [
        ("method.name=fedbuff", "method.concurrency=20", "method.buffer=8"),
        ("method.name=fedat", "method.concurrency=20", "method.tiers=4"),
        ("clock.name=devices", "clock.policy=over_selection", "clock.extra=16"),
        ("clock.name=devices", "clock.policy=deadline", "clock.deadline=1e-9"),
    ],
)
def test_a_table_that_can_run_has_an_estimate(table, words, tmp_path, monkeypatch):
    """Its measured rounds have its clients, of which settings may ask nearly all."""
    monkeypatch.setitem(TABLES, NAME, make_table(tmp_path, {"FedAvg": {}}))
    code, said, _ = table("--dry-run", "--jobs", "1", "--only", "fedavg,short", *words)
    assert code == 0 and "no estimate" not in said
    assert re.search(r"\d sample-steps; estimate: [\d.]+ s on 1 slots", said)


def test_a_run_whose_measured_rounds_fail_has_no_estimate(table, tmp_path, monkeypatch):
    monkeypatch.setitem(TABLES, NAME, make_table(tmp_path, {**ROWS, "Wild": DIVERGING}))
    code, said, _ = table("--dry-run", "--jobs", "1", "--only", "short")
    assert code == 0
    assert re.search(r"^ Wild, IID, short .* -$", said.replace(" \n", "\n"), re.M)
    line = next(line for line in said.splitlines() if "no estimate" in line)
    assert line.startswith("Wild, IID, short: no estimate: client ") and " is not finite " in line
    assert line.endswith("a smaller local.lr; the one below leaves it out")
    assert "9.6e+03 sample-steps; estimate: " in said  # of all three rows


def test_a_failure_of_the_machine_ends_a_dry_run(table, monkeypatch):
    def full(settings, listener):
        raise MachineError("the disk is full")

    monkeypatch.setattr(raysim, "run", full)
    code, _, err = table("--dry-run", "--jobs", "1", "--only", "short")
    assert (code, err) == (75, "raysim: the disk is full\n")


def test_time_in_slots_by_hand():
    assert time_in_slots([5, 4, 3, 3], 2) == 8  # 5 + 3 and 4 + 3
    assert time_in_slots([5, 4], 3) == 5
    assert time_in_slots([], 2) == 0


def test_a_dry_run_prints_the_work_and_runs_nothing(table, slots, tmp_path):
    code, said, err = table("--dry-run", "--jobs", "2", "--rounds", "3")
    assert (code, err, slots.started) == (0, "", [])
    assert not (tmp_path / "out").exists()
    rows = re.findall(
        r"^ (Fed\w+), IID, (\w+) +([\d of]+?)  +(\d of \d) +([\d.e+]+) +\S+ s", said, re.M
    )
    assert rows == [
        ("FedAvg", "long", "3 of 4", "2 of 2", "2.4e+03"),
        ("FedAvg", "short", "2", "2 of 2", "1.6e+03"),
        ("FedProx", "long", "3 of 4", "2 of 2", "2.4e+03"),
        ("FedProx", "short", "2", "2 of 2", "1.6e+03"),
    ]
    assert len(rows) == 2 * len(COLUMNS)
    assert "blobs-1: 8 runs, 0 done; 2 slots" in said
    assert "1.6e+04 sample-steps; estimate: " in said and "on 2 slots, from a few rounds" in said
    assert "batch size and method, and taken for all local epochs and cohorts\n" in said


def test_a_dry_run_leaves_out_finished_runs(table, tmp_path):
    words = ("--only", "fedavg,short", "--rounds", "1")
    table(*words, "--seeds", "1")
    before = times(tmp_path / "out")
    code, said, _ = table(*words, "--dry-run", "--jobs", "1")
    assert code == 0 and "1 of 2" in said and "2 runs, 1 done; 1 slots" in said
    assert "800 sample-steps; estimate" in said and times(tmp_path / "out") == before


def test_an_estimate_leaves_out_analyses_and_says_so(table, tmp_path, monkeypatch):
    measured = []

    def run(settings, listener):
        measured.append(settings.analysis)
        listener.round_done({"seconds": 1.0, "evaluation_seconds": 1.0})

    monkeypatch.setattr(raysim, "run", run)
    rows = {"FedAvg": {"evaluation.clients": True, "fraction": 0.1, "analysis": ("cka",)}}
    metrics = {"IID, long": "analysis(new_client, epochs)"}
    monkeypatch.setitem(TABLES, NAME, make_table(tmp_path, rows, metrics=metrics))
    words = ("--dry-run", "--jobs", "1", "--seeds", "1")
    code, said, _ = table(*words)
    assert code == 0 and {*measured} == {()}
    line = "\nthe estimate leaves out the analyses of the runs: cka"
    assert f"{line}, new_client\n" in said
    _, said, _ = table(*words, "--only", "short")
    assert f"{line}\n" in said
    _, said, _ = table(*words, "--only", "short", "analysis=[]")
    assert "sample-steps; estimate: " in said and "analyses" not in said
