"""Runs of one table that were made of different things: samples, sources, formulas, references."""

from __future__ import annotations

import json
import shutil
from pathlib import Path

import pytest
from safetensors.torch import load_file, save_file

from raysim.driver.start import identity
from raysim.methods.fedavg import FedAvg
from raysim.tuning.slots.report import Report
from raysim.workloads.tables import TABLES
from tests.tuning.tables.common import NAME, ROWS, make_table, run_dir
from tests.tuning.tables.test_command import rows_of
from tests.tuning.tables.test_shared_runs import analysed  # noqa: F401 - a fixture

ONE = ("--only", "fedavg,long")
LABEL = "FedAvg, IID, long, seed"
DIVERGED = Report(error="client 2: failed twice in round 1: its update is not finite")


def notes_of(out: Path, cell: tuple[str, str] = ("FedAvg", "IID, long")) -> list[str]:
    return list(rows_of(out)[cell]["notes"])


def differing(notes: list[str], name: str) -> list[str]:
    """Return the versions and runs that notes tell of something that differs."""
    (note,) = (n for n in notes if n.startswith(f"{name}: differs among the runs: "))
    return note.partition(" runs: ")[2].split("; ")


def test_runs_on_other_samples_are_told(table, tmp_path, monkeypatch):
    assert table(*ONE, "--seeds", "1")[0] == 0
    monkeypatch.setattr(identity, "_of_split", lambda split: "0123456789abcdef")
    assert table(*ONE, "--seeds", "2")[0] == 0
    for name in ("training samples", "test samples"):
        first, second = differing(notes_of(tmp_path / "out"), f"{name} of tests.blobs:Blobs")
        assert first.endswith(f" in {LABEL} 0")
        assert second == f"0123456789ab in {LABEL} 1"


@pytest.fixture
def own_method(table, tmp_path, monkeypatch):
    """Write a method of the user's own for a row, in a module that no other test has imported."""
    path = tmp_path / f"{tmp_path.name}.py"
    path.write_text("from raysim.methods.fedavg import FedAvg\nclass Mine(FedAvg):\n    'Mine.'\n")
    monkeypatch.syspath_prepend(tmp_path)
    rows = {**ROWS, "FedAvg": {"method.name": f"{path.stem}:Mine"}}
    monkeypatch.setitem(TABLES, NAME, make_table(tmp_path, rows))
    return path


def test_runs_by_another_source_of_ones_own_method_are_told(table, own_method, tmp_path):
    words = (*ONE, "--seeds")
    assert table(*words, "2")[0] == 0
    assert not any("differs among" in note for note in notes_of(tmp_path / "out"))
    with own_method.open("a") as file:
        file.write("# another\n")
    assert table(*words, "3")[0] == 0
    both, one = differing(notes_of(tmp_path / "out"), f"source of {own_method.stem}")
    assert both.endswith(f" in {LABEL} 0 and 1 more") and one.endswith(f" in {LABEL} 2")


def test_a_run_that_diverged_by_another_source_of_its_method_is_run_again(table, slots, own_method):
    slots.fault = lambda run: DIVERGED
    words = (*ONE, "--seeds", "1")
    assert "0/1, 1 diverged" in table(*words)[1]
    slots.fault = lambda run: None
    slots.started.clear()
    assert table(*words)[0] == 0 and slots.started == []
    with own_method.open("a") as file:
        file.write("# mended\n")
    code, said, _ = table(*words)
    assert code == 0 and len(slots.started) == 1 and "1 diverged" not in said


def test_a_run_that_diverged_by_another_formula_is_run_again(table, slots, monkeypatch):
    slots.fault = lambda run: DIVERGED
    table(*ONE, "--seeds", "1")
    slots.fault = lambda run: None
    slots.started.clear()
    monkeypatch.setattr(FedAvg, "revision", 9)
    code, said, _ = table(*ONE, "--seeds", "1")
    assert code == 0 and len(slots.started) == 1 and "1 diverged" not in said


def test_values_compared_with_another_model_of_the_reference_are_told(
    analysed,  # noqa: F811
    tmp_path,
):
    words, out = ("--only", "T=0.5,similarity 1", "--seeds", "1"), tmp_path / "out"
    analysed(*words)
    told = [n for n in notes_of(tmp_path / "out", ("T=0.5", "similarity 1")) if "another" in n]
    assert told == []
    run = run_dir(out, "t=0.5-similarity-1/seed-0")
    model = Path(json.loads((run / "config.json").read_text())["reference"]) / "model.safetensors"
    shutil.rmtree(model.with_name("checkpoints"))  # which would seal the model that it was
    save_file({name: 2 * value for name, value in load_file(model).items()}, model)
    analysed(*words)
    (note,) = (n for n in notes_of(tmp_path / "out", ("T=0.5", "similarity 1")) if "another" in n)
    assert note == (
        f"{run}: was compared with another model than its reference"
        f" has now, {model.parent}; delete it to run it again"
    )
