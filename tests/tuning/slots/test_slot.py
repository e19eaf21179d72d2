"""A slot's actor, in this process."""

from __future__ import annotations

import json
import subprocess
import sys
import threading
from time import sleep

import pytest
import torch

import raysim
from raysim.config import parse
from raysim.errors import MachineError
from raysim.execution.cluster_health import NodeLostError
from raysim.storage.lock import lock_folder
from raysim.tuning.slots import slot
from raysim.tuning.slots.slot import SlotActor
from tests.tasks import make_settings, model_of
from tests.tuning.common import PRESET

HELD_OUT = {"rounds": 5, "evaluation": {"holdout": 0.2, "every": 2, "clients": False}}


@pytest.fixture
def values(tmp_path):
    run = {"dataset.name": PRESET["dataset"]["name"], "model.name": PRESET["model"]["name"]}
    more = {"partition.name": "iid", "clients": 4, "rounds": 1}
    return make_settings(tmp_path / "run", **run, **more).to_dict()


def test_it_waits_for_a_run_directory_that_a_dying_process_holds(tmp_path, values):
    with lock_folder(tmp_path / "run", "held"):
        reports = []
        waiting = threading.Thread(
            target=lambda: reports.append(start(SlotActor({}), values, pausing=False))
        )
        waiting.start()
        waiting.join(0.5)
        assert waiting.is_alive()
    waiting.join()
    assert reports[0].summary["rounds"] == 1 and reports[0].curve == {}


PROGRAM = """
import json, sys
from raysim.tuning.slots import slot

slot.SlotActor({})
print(slot.parse(json.load(sys.stdin)).method.title)
"""


@pytest.mark.full
def test_a_fresh_process_knows_the_built_in_names():
    chosen = raysim.load_config("fedmax-synthetic")
    done = subprocess.run(
        [sys.executable, "-c", PROGRAM],
        input=json.dumps(chosen.to_dict()),
        check=False,
        capture_output=True,
        text=True,
    )
    assert (done.stdout, done.stderr) == ("fedmax\n", "")


def test_a_run_directory_in_use_is_a_failure_of_the_machine(tmp_path, values, monkeypatch):
    monkeypatch.setattr(slot, "LOCK_SECONDS", 0.0)
    with lock_folder(tmp_path / "run", "held"):
        report = start(SlotActor({}), values, pausing=False)
    assert report.machine_error == f"out={tmp_path}/run: another process is writing to it"
    assert report.error is None and not report.is_evaluation


def test_a_finished_run_is_reported_again_where_its_slot_was_lost_before(values, monkeypatch):
    """The slot's process may die between the run's summary and its report."""
    report = start(SlotActor({}), values, pausing=False)
    monkeypatch.setattr("raysim.rounds", None)
    assert start(SlotActor({}), values, pausing=False) == report
    assert report.summary["rounds"] == 1


def test_a_finished_run_of_other_settings_is_a_failure_of_the_machine(values):
    start(SlotActor({}), values, pausing=False)
    report = start(SlotActor({}), values | {"seed": 5}, pausing=False)
    assert "holds a run with seed=0 (here 5)" in report.machine_error


def test_a_run_whose_node_is_lost_is_no_failure_of_the_machine(values, monkeypatch):
    def lost(*_, **__):
        raise MachineError("how to resume it") from NodeLostError("Ray has ended on this machine")

    monkeypatch.setattr("raysim.rounds", lost)
    with pytest.raises(NodeLostError, match=r"^Ray has ended on this machine$"):
        start(SlotActor({}), values, pausing=False)


def test_a_run_has_the_default_type_of_the_command(tmp_path, values):
    """As a run in the command's process has."""
    torch.set_default_dtype(torch.float64)
    try:
        raysim.run(parse(values | {"out": str(tmp_path / "here")}))
        torch.set_default_dtype(torch.float32)
        start(SlotActor({}, default_dtype=torch.float64), values, pausing=False)
    finally:
        torch.set_default_dtype(torch.float32)
    assert model_of(tmp_path / "run") == model_of(tmp_path / "here")


def test_a_run_without_pauses_goes_to_its_end(values):
    report = start(SlotActor({}), values | HELD_OUT, pausing=False)
    assert report.summary["rounds"] == 5 and [*report.curve] == [2, 4, 5]


def test_a_run_pauses_after_each_evaluation_and_reports_the_seconds(tmp_path, values):
    straight = start(SlotActor({}), values | HELD_OUT, pausing=False)
    slot = SlotActor({})
    values["out"] = str(tmp_path / "paused")
    reports = [start(slot, values | HELD_OUT, pausing=True)]
    assert reports[0].paused_seconds == 0.0
    while reports[-1].is_evaluation:
        sleep(0.05)
        reports.append(go_on(slot))
    evaluations = [(number, straight.curve[number]) for number in (2, 4, 5)]
    assert [[*report.curve.items()] for report in reports[:-1]] == [[each] for each in evaluations]
    assert all(0.05 <= report.paused_seconds < 5.0 for report in reports[1:])
    assert reports[-1].curve == straight.curve
    assert model_of(tmp_path / "paused") == model_of(tmp_path / "run")


def test_a_stopped_run_leaves_its_folder_and_can_be_resumed(tmp_path, values):
    values |= HELD_OUT | {"checkpoint_every": 100}
    start(SlotActor({}), values | {"out": str(tmp_path / "straight")}, pausing=False)
    slot = SlotActor({})
    assert [*start(slot, values, pausing=True).curve] == [2]
    with pytest.raises(raysim.RunError, match="another process is writing"), held(tmp_path):
        pass
    slot.stop()
    with held(tmp_path):
        assert not (tmp_path / "run/summary.json").exists()
    assert raysim.resume(tmp_path / "run").metrics["round"].to_pylist() == [1, 2, 3, 4, 5]
    assert model_of(tmp_path / "run") == model_of(tmp_path / "straight")


def test_a_slot_without_the_gpus_that_ray_gave_it_says_so_once(tmp_path, values, monkeypatch):
    monkeypatch.setattr(torch.cuda, "is_available", lambda: False)
    values["engine"]["gpus_per_actor"] = 0.5
    slot = SlotActor({})
    report, notes = slot.advance((values, False, False))
    assert report.summary["rounds"] == 1
    assert notes == ["GPUs are declared to Ray that torch cannot use: training on the CPU"]
    start(slot, values | {"out": str(tmp_path / "next")}, pausing=False)


def test_a_slot_takes_the_next_run_after_one_that_failed(values):
    slot = SlotActor({})
    failed = start(slot, values | {"local": values["local"] | {"lr": 3e38}}, pausing=True)
    assert failed.error is not None and "not finite" in failed.error
    assert start(slot, values, pausing=True).summary["rounds"] == 1


def held(folder):
    return lock_folder(folder / "run", "another process is writing to it")


def start(actor, values, pausing):
    """Start a run; return its report."""
    report, notes = actor.advance((values, pausing, False))
    assert notes == []
    return report


def go_on(actor):
    return actor.advance(None)[0]
