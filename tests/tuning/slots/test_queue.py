"""Queues of runs that wait for a reference."""

from __future__ import annotations

from raysim.tuning.slots.queue import ReferencedRuns
from raysim.tuning.slots.report import Report

REFERENCES = {"b": "a", "c": "a", "d": "c"}


class Letters(ReferencedRuns[str]):
    """Runs a to e; b and c are compared with a, d with c."""

    def __init__(self):
        self.lines, self.recorded = [], []
        super().__init__("letters", ["b", "a", "c", "d", "e"], 6, self.lines.append)

    def reference(self, run):
        return REFERENCES.get(run)

    def settings(self, run):
        raise NotImplementedError

    def name(self, run):
        return run.upper()

    def record(self, run, error):
        self.recorded.append((run, error))

    def text_of(self, run):
        return f"values of {run}"


def test_a_run_waits_until_its_reference_has_ended():
    runs = Letters()
    assert [runs.next(), runs.next()] == ["a", "e"] and not runs.remain()
    runs.ended("a", Report(summary={}), 1.0)
    assert [runs.next(), runs.next()] == ["b", "c"] and not runs.remain()
    runs.ended("c", Report(summary={}), 2.0)
    assert runs.next() == "d" and not runs.remain()
    assert runs.recorded == [("a", None), ("c", None)]
    assert runs.lines == ["2/6 A: values of a  1.0 s", "3/6 C: values of c  2.0 s"]


def test_runs_whose_reference_failed_end_with_it():
    runs = Letters()
    runs.started(3)
    assert runs.next() == "a"
    runs.ended("a", Report(error="no luck"), 1.0)
    of_a = "its reference A failed: no luck"
    of_c = f"its reference C failed: {of_a}"
    assert runs.recorded == [("a", "no luck"), ("b", of_a), ("c", of_a), ("d", of_c)]
    assert runs.lines == [
        "letters: 6 runs, 1 done; 3 slots",
        "2/6 A: failed: no luck  1.0 s",
        f"3/6 B: failed: {of_a}  0.0 s",
        f"4/6 C: failed: {of_a}  0.0 s",
        f"5/6 D: failed: {of_c}  0.0 s",
    ]
    assert runs.waiting == ["e"] and runs.next() == "e" and not runs.remain()


def test_a_run_that_diverges_says_so_and_those_that_wait_for_it_have_failed():
    runs = Letters()
    runs.next()
    diverged = "client 3: its update is not finite"
    runs.ended("a", Report(error=diverged), 1.0)
    assert runs.lines[0] == f"2/6 A: diverged: {diverged}  1.0 s"
    assert runs.lines[1] == f"3/6 B: failed: its reference A failed: {diverged}  0.0 s"
