"""The benchmark of stacked trials runs, and refuses to measure trials that were not stacked."""

from __future__ import annotations

import pytest

from raysim.training.stacked.trainer import StackedTrainer
from tests.benchmarks import trials
from tests.benchmarks.trials import Work, as_one_stack, table

WORK = Work("2nn", clients=2, samples=20, rounds=1)


def test_a_line_for_each_number_of_trials_and_clients(monkeypatch):
    monkeypatch.setattr(trials, "WARM_UP", 1)
    sizes = []
    run = StackedTrainer.run

    def counted(self, jobs, *more, **named):
        sizes.append(len(jobs))
        return run(self, jobs, *more, **named)

    monkeypatch.setattr(StackedTrainer, "run", counted)
    heading, _, *lines = [
        [cell.strip() for cell in row.strip("|").split("|")] for row in table(WORK, [2], [0, 2])
    ]
    assert heading == ["trials", "vectorize", "one by one, s", "as one stack, s", "throughput"]
    assert [row[:2] for row in lines] == [["2", "0"], ["2", "2"]]
    for row in lines:
        apart, stacked, ratio = map(float, row[2:])
        assert ratio == pytest.approx(apart / stacked, rel=0.05)
    # Rounds of one client of each trial; a rehearsal and rounds of the two of a trial, of all four.
    assert {*sizes} == {2, 4} and sizes.count(4) == 2


def test_trials_that_are_not_stacked_are_not_measured(tmp_path, monkeypatch):
    def fail(self, *given, **named):
        raise ValueError("no kernel")

    monkeypatch.setattr(StackedTrainer, "run", fail)
    with pytest.raises(RuntimeError, match="trials are trained one at a time: no kernel"):
        as_one_stack(WORK, WORK.settings(tmp_path, 2, 0))
