"""A slot's actor, in this process."""

from __future__ import annotations

import threading

import pytest

from raysim.core.errors import MachineError
from raysim.execution.cluster_health import NodeLostError
from raysim.storage.lock import lock_folder
from raysim.tuning.slots import slot
from raysim.tuning.slots.slot import SlotActor
from tests.tasks import make_settings
from tests.tuning.common import PRESET


@pytest.fixture
def values(tmp_path):
    run = {"dataset.name": PRESET["dataset"]["name"], "model.name": PRESET["model"]["name"]}
    more = {"partition.name": "iid", "clients": 4, "rounds": 1}
    return make_settings(tmp_path / "run", **run, **more).to_dict()


def test_it_waits_for_a_run_directory_that_a_dying_process_holds(tmp_path, values):
    with lock_folder(tmp_path / "run", "held"):
        reports = []
        waiting = threading.Thread(
            target=lambda: reports.append(SlotActor({}).start(values, pausing=False))
        )
        waiting.start()
        waiting.join(0.5)
        assert waiting.is_alive()
    waiting.join()
    assert reports[0].summary["rounds"] == 1 and reports[0].curve == {}


def test_a_run_directory_in_use_is_a_failure_of_the_machine(tmp_path, values, monkeypatch):
    monkeypatch.setattr(slot, "LOCK_SECONDS", 0.0)
    with lock_folder(tmp_path / "run", "held"):
        report = SlotActor({}).start(values, pausing=False)
    assert report.machine_error == f"out={tmp_path}/run: another process is writing to it"
    assert report.error is None and not report.is_evaluation


def test_a_finished_run_is_reported_again_where_its_slot_was_lost_before(values, monkeypatch):
    """The slot's process may die between the run's summary and its report."""
    report = SlotActor({}).start(values, pausing=False)
    monkeypatch.setattr("raysim.run", None)
    assert SlotActor({}).start(values, pausing=False) == report
    assert report.summary["rounds"] == 1


def test_a_finished_run_of_other_settings_is_a_failure_of_the_machine(values):
    SlotActor({}).start(values, pausing=False)
    report = SlotActor({}).start(values | {"seed": 5}, pausing=False)
    assert "holds a run with seed=0 (here 5)" in report.machine_error


def test_a_run_whose_node_is_lost_is_no_failure_of_the_machine(values, monkeypatch):
    def lost(*_, **__):
        raise MachineError("how to resume it") from NodeLostError("Ray has ended on this machine")

    monkeypatch.setattr("raysim.run", lost)
    with pytest.raises(NodeLostError, match=r"^Ray has ended on this machine$"):
        SlotActor({}).start(values, pausing=False)
