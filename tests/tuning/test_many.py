"""Many short trials in many slots, whose slots, tuner and node are killed."""

from __future__ import annotations

import re

import psutil
import pytest

from tests.faults.processes import cluster
from tests.tuning.common import make_search, make_tuner, values
from tests.tuning.faults import RANDOM
from tests.tuning.test_faults import check, done, start_tuner, wait_until

TRIALS = 64
SETTINGS = {
    "method.name": "tests.tuning.waiting:Waiting",
    "rounds": 12,
    "fraction": 0.05,
    "evaluation.every": 2,
}


def kill_slots(count: int) -> None:
    """Kill the processes of slots that run something."""
    found = []
    for process in psutil.Process().children(recursive=True):
        if " ".join(process.cmdline()).startswith("ray::SlotActor."):
            found.append(process)
    assert len(found) >= count
    for process in found[:count]:
        process.kill()


@pytest.mark.full
def test_64_trials_in_8_slots_outlive_tuner_slots_and_a_node(tmp_path, local_slots):
    slots = {"engine.cpus_per_actor": 1, "method.seconds": 0.5}
    with cluster(2, cores=4) as nodes:
        first = start_tuner(tmp_path, TRIALS, SETTINGS | slots, nodes.address)
        wait_until(lambda: done(tmp_path) >= 4, first)
        kill_slots(2)
        said = tmp_path / "notes"
        wait_until(lambda: said.read_text().count("its slot was lost") >= 2, first)
        wait_until(lambda: done(tmp_path) >= 12, first)
        first.kill()
        assert first.wait() == -9
        second = start_tuner(tmp_path, TRIALS, SETTINGS | slots, nodes.address)
        wait_until(lambda: "8 slots\n" in said.read_text(), second)
        before = done(tmp_path)
        wait_until(lambda: done(tmp_path) >= before + 16, second)
        nodes.remove_node([*nodes.worker_nodes][-1], allow_graceful=False)
        wait_until(lambda: second.poll() is not None)
        assert second.returncode == 0
    search = make_search(tmp_path, RANDOM, **SETTINGS | slots)
    check(search, tmp_path, TRIALS)
    (tmp_path / "straight").mkdir()
    straight = make_search(tmp_path / "straight", RANDOM, **SETTINGS | {"method.seconds": 0.0})
    make_tuner(straight, tmp_path / "straight").run(TRIALS, 1)
    assert values(search) == values(straight)
    (busy,) = re.findall(r"^busy (\S+)$", said.read_text(), re.MULTILINE)
    print(f"busy: {float(busy):.1%} of the slots' time")
    assert float(busy) >= 0.95
