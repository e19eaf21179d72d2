"""The parts of a page that a lent device fills, on the device of CPU memory."""

from __future__ import annotations

import json

import pytest
import torch

import raysim
from tests.benchmarks.gpu import __main__ as command
from tests.benchmarks.gpu import faults, report
from tests.benchmarks.gpu.jobs import DEVICE_PARTS, Choice, plan
from tests.benchmarks.gpu.peer import Pfl
from tests.benchmarks.gpu.results import Outcome
from tests.benchmarks.gpu.runs import Ran
from tests.benchmarks.gpu.work import sizes_of
from tests.benchmarks.test_gpu import assert_line, directly, never, restored  # noqa: F401
from tests.cuda.device import CudaDevice

pytestmark = pytest.mark.ci

IN_PROCESS = ("environment", "bits", "profile", "evaluation", "unequal")
"""Parts that run no others: actors on Ray have no such device, and pytest runs no pytest."""


def test_all_parts_write_their_tables(tmp_path, monkeypatch):
    monkeypatch.setenv("RAYSIM_DATA", str(tmp_path / "data"))
    monkeypatch.setattr(command, "run_apart", directly)
    parts = ["--parts", *IN_PROCESS]
    options = ["--tiny", "--no-pfl", "--networks", "2nn", *parts, "--out", str(tmp_path)]
    with CudaDevice(lines=False) as gpu:
        command.main(options)
    page = (tmp_path / report.NAME).read_text()
    figure = r"\d[^|]*"
    for row in (
        rf"\| {figure}\| {figure}\| {figure}\| {figure}\| off \| not installed \|",
        rf"\| 2nn \| 1 \| fp32 \| yes \| yes \| {figure}\|",
        rf"\| 2nn \| 2 \| bf16 \| yes \| yes \| {figure}\|",
        rf"\| no \| {figure}\|",
        rf"\| 2nn \| 1 \| 2 \| {figure}\|",
        r"\| 2nn " + rf"\| {figure}" * 6,
        rf"\| 2nn \| 2 \| yes \| 8 \| {figure}\| {figure}\|",
    ):
        assert_line(row, page)
    assert gpu.counts["launches"] > 1000 and "Not measured" not in page
    monkeypatch.setattr(command, "run_apart", never)
    with CudaDevice():
        command.main(options)
    assert (tmp_path / report.NAME).read_text() == page


def test_they_take_fourteen_minutes_at_most(tmp_path):
    jobs = [*plan(Choice(DEVICE_PARTS, ("2nn",), False, tmp_path), Pfl(None), device=True)]
    assert sum(job.limit for job in jobs) == 14 * 60
    assert {job.part for job in jobs} == {*DEVICE_PARTS}


def test_rows_are_kept_while_a_job_is_under_way(tmp_path, monkeypatch):
    def lost(job, limit, device, log, show):
        show(Outcome(job.name, job.part, "under way", 1.0, device, [{"figure": 7}]))
        raise KeyboardInterrupt

    monkeypatch.setattr(command, "run_apart", lost)
    options = ["--no-pfl", "--parts", "environment", "--out", str(tmp_path)]
    with pytest.raises(KeyboardInterrupt):
        command.main(options)
    (line,) = (tmp_path / "results.jsonl").read_text().splitlines()
    assert json.loads(line)["rows"] == [{"figure": 7}]
    assert_line(r"\| 7 \|", (tmp_path / report.NAME).read_text())
    begun = []

    def again(job, *_):
        begun.append(job.name)
        return Outcome(job.name, job.part, "done", 1.0, "cpu", [{"figure": 8}])

    monkeypatch.setattr(command, "run_apart", again)
    command.main(options)
    assert begun == ["environment"]
    assert_line(r"\| 8 \|", (tmp_path / report.NAME).read_text())


def test_models_are_compared_by_bits_and_by_distance():
    first, other = (Ran([], [], {"a": torch.tensor([3.0, x]), "b": y}) for x, y in VALUES)
    assert first.digest == Ran([1.0], ["note"], {**first.params}).digest != other.digest
    assert other.distance(first) == pytest.approx(1 / 13)  # 1 of (3, 4, 12)


VALUES = (4.0, torch.tensor([12.0])), (5.0, torch.tensor([12.0]))


def test_unequal_clients_have_the_samples_of_equal_ones():
    assert sizes_of(3, 10, unequal=False).tolist() == [10, 10, 10]
    assert sizes_of(5, 40, unequal=True).tolist() == [20, 30, 40, 50, 60]


def test_a_fault_is_a_row(monkeypatch):
    def refused(system, case, rounds, **own):
        if own["engine__gpus_per_actor"] < 0.1:
            raise raysim.SettingsError("engine.gpus_per_actor=0.01: too little")
        return Ran([1.0], ["a note"], {})

    monkeypatch.setattr(faults, "run", refused)
    rows = []
    faults.measure_memory(lambda found: rows.append(list(found)))
    first, _, last = rows[-1]
    assert first["came of it"] == "SettingsError: engine.gpus_per_actor=0.01: too little"
    assert last["came of it"] == "it trained" and last["notes"] == ["a note"]
    assert list(map(len, rows)) == [1, 2, 3]
