"""The queue of runs that wait for a reference, and the names of runs by their settings."""

from __future__ import annotations

import pytest

from raysim.config import apply_overrides, parse
from raysim.tuning.runs.folder import RunsFolder
from raysim.tuning.runs.queue import Runs
from raysim.tuning.slots.report import Report
from raysim.workloads.papers.run import Run
from tests.tuning.common import PRESET

REFERENCES = {"b": "a", "c": "a", "d": "c"}


def settings_of(**overrides):
    return parse(apply_overrides(PRESET, overrides))


@pytest.fixture
def queue(tmp_path):
    """Runs a to e, of which b and c are compared with a, and d with c; f has diverged."""
    runs: dict[str, Run] = {}
    for rounds, label in enumerate("aebcdf", 1):
        settings = settings_of(rounds=rounds)
        runs[label] = Run.of(label, settings, runs.get(REFERENCES.get(label, "")))
    folder, lines = RunsFolder(tmp_path / "out", "table", "letters"), []
    folder.record_failure(runs["f"], "its update is not finite")
    listed = [runs[label] for label in "baecdf"]
    found = Runs("letters", listed, folder, lines.append, text_of=lambda run: f"of {run.label}")
    return found, runs, folder, lines


def labels(queue):
    """Take all runs that can start, and return their labels."""
    return [queue.next().label for _ in iter(queue.remain, False)]


def test_a_run_waits_until_its_reference_has_ended(queue):
    queue, runs, _, lines = queue
    assert labels(queue) == ["a", "e"]
    queue.ended(runs["a"], Report(summary={}), 1.0)
    assert labels(queue) == ["b", "c"]
    queue.ended(runs["c"], Report(summary={}), 2.0)
    assert labels(queue) == ["d"]
    assert lines == ["2/6 a, seed 0: of a  1.0 s", "3/6 c, seed 0: of c  2.0 s"]


def test_runs_whose_reference_failed_end_with_it(queue):
    queue, runs, folder, lines = queue
    queue.started(3)
    assert queue.next().label == "a"
    queue.ended(runs["a"], Report(error="no luck"), 1.0)
    of_a = "its reference a, seed 0 failed: no luck"
    of_c = f"its reference c, seed 0 failed: {of_a}"
    assert lines == [
        "letters: 6 runs, 1 done; 3 slots",
        "2/6 a, seed 0: failed: no luck  1.0 s",
        f"3/6 b, seed 0: failed: {of_a}  0.0 s",
        f"4/6 c, seed 0: failed: {of_a}  0.0 s",
        f"5/6 d, seed 0: failed: {of_c}  0.0 s",
    ]
    assert labels(queue) == ["e"]
    # One failure is on the disk; the others follow from it.
    assert [folder.own_failure(runs[label]) for label in "abd"] == ["no luck", None, None]
    assert [folder.failure(runs[label]) for label in "abd"] == ["no luck", of_a, of_c]


def test_a_run_that_diverges_says_so_and_those_that_wait_for_it_have_failed(queue):
    queue, runs, _, lines = queue
    queue.next()
    diverged = "client 3: its update is not finite"
    queue.ended(runs["a"], Report(error=diverged), 1.0)
    assert lines[0] == f"2/6 a, seed 0: diverged: {diverged}  1.0 s"
    assert lines[1] == f"3/6 b, seed 0: failed: its reference a, seed 0 failed: {diverged}  0.0 s"


SAME = (
    {"seed": 5},
    {"out": "elsewhere", "trace": True, "engine.actors": 3, "engine.cpus_per_actor": 0.5},
    {"selection.name": "uniform", "local.momentum": 0.0},  # the defaults
)
OTHER = (
    {"local.lr": 0.1},
    {"local.momentum": 0.5},
    {"on_client_error": "drop"},
    {"engine.vectorize": 4},
    {"analysis": "cka"},
    {"method.name": "fedavg"},
    {"method.mu": 0.5},
    {"selection.name": "poisson"},
    {"aggregation.name": "median"},
)


def test_a_run_is_named_by_what_decides_its_results_and_rows():
    own = Run.of("own", settings_of())
    assert {Run.of("", settings_of(**more)).digest for more in SAME} == {own.digest}
    others = [Run.of("", settings_of(**more)) for more in OTHER]
    others += [Run.of("", own.settings, own), Run.of("", own.settings, others[0])]
    assert len({own.digest, *(run.digest for run in others)}) == len(others) + 1
    assert own.with_seed(5) == Run.of("", settings_of(seed=5)) != own


def test_later_versions_give_the_same_names():
    """Else all runs of a folder would be run again; new settings with their defaults count not."""
    named = {"local.batch_size": 20, "checkpoint_every": 1}
    assert Run.of("", settings_of(**named)).name == "75a28063e2c5/seed-0"
    more = {"method.name": "scaffold", "channel.clip.norm": 2.0, "clock.name": "devices", **named}
    assert Run.of("", settings_of(**more, seed=3)).name == "00a8e1da70b4/seed-3"
