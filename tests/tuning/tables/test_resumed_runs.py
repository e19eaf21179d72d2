"""Runs of a table that go on: formulas, what is said of them, and those mended by hand."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

import raysim
from raysim.aggregation.mean import Mean
from raysim.methods.fedavg import FedAvg
from raysim.selection.uniform import Uniform
from raysim.tuning.slots.report import Report
from raysim.tuning.tables.command import folder_of
from raysim.tuning.tables.plan import make_plan
from raysim.workloads.tables import TABLES
from tests.tuning.tables.common import NAME, run_dir

WORDS = ("--only", "long,fedavg", "--seeds", "1")
RUN = "fedavg-iid-long/seed-0"
OTHER = "revision of the method's formula"
COMPONENTS = [
    (FedAvg, OTHER),
    (Mean, "revision of the aggregation"),
    (Uniform, "revision of the selection"),
]


def own_settings(out: Path) -> raysim.Settings:
    """Return the settings of RUN."""
    plan = make_plan(TABLES[NAME], only=("long,fedavg",), seeds=range(1))
    (cell,) = plan.chosen
    settings = folder_of(TABLES[NAME], out).settings(cell.run)
    return settings.override({"engine.backend": "inline"})


def begin(out: Path) -> None:
    """Run two of the four rounds of RUN."""
    with raysim.rounds(own_settings(out)) as rounds:
        next(rounds), next(rounds)


def test_a_run_does_not_go_on_by_another_formula(table, tmp_path, monkeypatch):
    begin(tmp_path / "out")
    monkeypatch.setattr(FedAvg, "revision", 9)
    code, said, err = table(*WORDS)
    assert code == 2 and f"would not give the same bits: {OTHER} was 1 (here 9)" in err
    assert "0/1, 1 failed" in said
    # What the line advises ends in a finished run, of which the table says how it came about.
    path = run_dir(tmp_path / "out", RUN)
    raysim.resume(path, force=True)
    code, said, err = table(*WORDS)
    assert (code, err) == (0, "") and "1 failed" not in said
    notes = (tmp_path / "out/table.md").read_text().replace("\\", "")
    assert f"{path}: forced to go on after round 2: {OTHER} was 1 (here 9)" in notes


@pytest.mark.parametrize(("component", "name"), COMPONENTS)
def test_a_finished_run_by_another_formula_is_not_taken(
    table, slots, tmp_path, monkeypatch, component, name
):
    table(*WORDS)
    slots.started.clear()
    monkeypatch.setattr(component, "revision", 9)
    code, _, err = table(*WORDS)
    path = run_dir(tmp_path / "out", RUN)
    assert code == 2 and slots.started == []
    assert f"{path}: holds a finished run with {name} 1 (here 9); restore it, or delete" in err


def test_a_failed_run_that_was_resumed_by_hand_is_finished(table, slots, tmp_path):
    begin(tmp_path / "out")
    slots.fault = lambda run: Report(error="no luck")
    assert table(*WORDS)[0] == 2
    raysim.resume(run_dir(tmp_path / "out", RUN))
    slots.fault = lambda run: None
    slots.started.clear()
    code, said, _ = table(*WORDS)
    assert code == 0 and slots.started == [] and "failed" not in said


def test_notes_of_a_run_are_printed_with_its_name(table, monkeypatch):
    rounds = raysim.rounds

    def noting(*args: Any, listener: raysim.Listener, **kwargs: Any) -> Any:
        listener.note("two cores only")
        listener.note("two cores only")
        return rounds(*args, listener=listener, **kwargs)

    monkeypatch.setattr("raysim.rounds", noting)
    _, said, _ = table(*WORDS)
    assert said.count("note: FedAvg, IID, long, seed 0: two cores only") == 1
