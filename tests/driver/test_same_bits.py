"""Going on under other conditions: refused in one line, or forced and recorded."""

from __future__ import annotations

import json
import sys
from pathlib import Path
from time import perf_counter
from typing import Any

import numpy as np
import pytest
import torch

import raysim
from raysim.cli.app import main
from raysim.driver.start import identity
from raysim.samples.arrow import open_split, write_split
from raysim.samples.client_indices import DrawnIndices
from raysim.samples.data import Split
from raysim.storage import environment
from raysim.testing.tasks import SmallNet
from raysim.workloads.partitions.iid import Iid
from tests.tasks import UNEQUAL, Notes, StopAfter, make_settings, make_task

SIZES = (40, 17, 30)
PREPARED = {
    "dataset.name": "synthetic",
    "dataset.users": 4,
    "dataset.samples": 30,
    "dataset.test_samples": 20,
    "partition.name": "iid",
    "model.name": "synthetic-mlp",
    "clients": 4,
}


def refusal(path: Path, task: raysim.Task | None, **options: Any) -> str:
    before = {file: file.read_bytes() for file in (path / "checkpoints").rglob("*.*")}
    with pytest.raises(raysim.RunError) as caught:
        raysim.resume(path, task, **options)
    assert before == {file: file.read_bytes() for file in (path / "checkpoints").rglob("*.*")}
    return str(caught.value)


def stopped(path: Path, task: raysim.Task | None, **overrides: Any) -> Path:
    with pytest.raises(KeyboardInterrupt):
        raysim.run(make_settings(path, **overrides), task, StopAfter(2))
    return path


def altered(task: raysim.Task, part: str) -> raysim.Task:
    """Return a task in which one number is another one."""
    arrays = task.test if part.startswith("test") else task.clients[1]
    values = arrays[1 if part.endswith("labels") else 0]
    values[3] = values[3] + 1 if part.endswith("samples") else (values[3] + 1) % 3
    return task


@pytest.mark.parametrize(
    ("part", "name"),
    [
        ("samples", "training samples"),
        ("labels", "training samples"),
        ("test samples", "test samples"),
        ("test labels", "test samples"),
    ],
)
def test_a_task_with_other_data_is_refused(tmp_path, part, name):
    stopped(tmp_path, make_task(SIZES))
    text = refusal(tmp_path, altered(make_task(SIZES), part))
    assert f"going on after round 2 would not give the same bits: {name} was" in text
    call = f"raysim.resume('{tmp_path}', task, force=True)"  # no command line has the task
    assert text.endswith(f"restore that, or to accept it, call: {call}")


def test_a_task_with_other_clients_is_refused(tmp_path):
    stopped(tmp_path, make_task(SIZES))
    assert "clients=3 (here 2)" in refusal(tmp_path, make_task(SIZES[:2]))
    assert "client indices was" in refusal(tmp_path, make_task((17, 40, 30)))


def test_another_network_is_refused(tmp_path):
    stopped(tmp_path, make_task(SIZES))
    wider = make_task(SIZES, lambda: SmallNet(width=9))
    assert "network was" in refusal(tmp_path, wider)


MACHINES = {
    "torch": ("torch.__version__", "9.9", "torch was 2."),
    "processor": ("_processor", lambda: "Another CPU", "processor was "),
    "capability": (
        "torch.backends.cpu.get_cpu_capability",
        lambda: "NO AVX",
        "cpu_capability was ",
    ),
}


@pytest.mark.parametrize("case", MACHINES)
def test_another_machine_is_refused(tmp_path, monkeypatch, case):
    stopped(tmp_path, make_task(SIZES))
    name, value, expected = MACHINES[case]
    monkeypatch.setattr(f"raysim.storage.environment.{name}", value)
    text = refusal(tmp_path, make_task(SIZES))
    assert expected in text and len(text.splitlines()) == 1


def test_another_machine_of_the_driver_is_refused(tmp_path, monkeypatch):
    """FedMA matches neurons there, with SciPy."""
    stopped(tmp_path, make_task(SIZES))
    others = environment.environment(torch.device("cpu")) | {"scipy": "9.9"}
    monkeypatch.setattr("raysim.driver.start.identity.environment", lambda device: others)
    assert "(here 9.9)" in refusal(tmp_path, make_task(SIZES))


def test_a_forced_run_goes_on_and_records_it(tmp_path, monkeypatch):
    stopped(tmp_path, make_task(SIZES))
    monkeypatch.setattr(environment, "_processor", lambda: "Another CPU")
    notes = Notes()
    result = raysim.resume(tmp_path, make_task(SIZES), notes, force=True)
    (forced,) = result.summary["forced"]
    assert forced.startswith("after round 2: processor was ")
    assert forced.endswith("(here Another CPU)")
    assert notes.notes == [f"forced to go on {forced}"]
    assert json.loads((tmp_path / "environment.json").read_text())["forced"] == [forced]
    assert json.loads((tmp_path / "summary.json").read_text())["forced"] == [forced]


def test_what_was_accepted_once_is_not_asked_for_again(tmp_path, monkeypatch):
    stopped(tmp_path, make_task(SIZES))
    monkeypatch.setattr(environment, "_processor", lambda: "Another CPU")
    with pytest.raises(KeyboardInterrupt):
        raysim.resume(tmp_path, make_task(SIZES), StopAfter(3), force=True)
    monkeypatch.undo()
    assert len(raysim.resume(tmp_path, make_task(SIZES)).summary["forced"]) == 1


def command(monkeypatch: pytest.MonkeyPatch, *words: str) -> Any:
    monkeypatch.setattr(sys, "argv", ["raysim", *words])
    with pytest.raises(SystemExit) as caught:
        main()
    return caught.value.code or 0


def test_other_bytes_of_prepared_data_are_refused_by_the_command(tmp_path, monkeypatch, capsys):
    monkeypatch.setenv("RAYSIM_DATA", str(tmp_path / "data"))
    run, data = tmp_path / "run", tmp_path / "data/synthetic/prepared"
    stopped(run, None, **PREPARED)
    (train,) = data.rglob("train.arrow")
    split = open_split(train)
    write_split(train, Split(split.x + 1, split.y, split.columns))
    capsys.readouterr()
    assert command(monkeypatch, "resume", str(run)) == 2
    error = capsys.readouterr().err
    assert "training samples was" in error and error.count("\n") == 1
    assert command(monkeypatch, "resume", str(run), "--force") == 0
    summary = json.loads((run / "summary.json").read_text())
    assert "training samples was" in summary["forced"][0]


def test_another_partition_rule_is_refused(tmp_path, monkeypatch):
    monkeypatch.setenv("RAYSIM_DATA", str(tmp_path / "data"))
    run = stopped(tmp_path / "run", None, **PREPARED)
    rule = Iid.split

    def other(self: Iid, train: Split, clients: int, seed: int) -> Any:
        return rule(self, train, clients, seed + 1)

    monkeypatch.setattr(Iid, "split", other)
    assert "client indices was" in refusal(run, None)


STAGE = {"channel": {"gaussian": {"clip": 0.3, "noise": 0}}}


@pytest.mark.parametrize(
    ("changed", "options", "named"),
    [
        ("methods.fedavg.FedAvg", {}, "revision of the method's formula was 1 (here 2)"),
        ("clock.none.NoClock", {}, "revision of the clock was 1 (here 2)"),
        ("selection.uniform.Uniform", {}, "revision of the selection was 1 (here 2)"),
        ("aggregation.mean.Mean", {}, "revision of the aggregation was 1 (here 2)"),
        (
            "channel.gaussian.Gaussian",
            STAGE,
            "revisions of the channel's stages was {'gaussian': 1} (here {'gaussian': 2})",
        ),
    ],
)
def test_another_revision_of_a_formula_is_refused(tmp_path, monkeypatch, changed, options, named):
    stopped(tmp_path, make_task(SIZES), **options)
    monkeypatch.setattr(f"raysim.{changed}.revision", 2)
    assert named in refusal(tmp_path, make_task(SIZES))
    raysim.resume(tmp_path, make_task(SIZES), force=True)


def test_the_hint_at_a_failing_client_is_true(tmp_path):
    """The error of a client says that on_client_error=drop continues without it."""
    poison = {"method.name": "tests.driver.test_run:Poisoned", "fraction": 1.0, "rounds": 2}
    task = make_task(UNEQUAL)
    with pytest.raises(raysim.RunError) as caught:
        raysim.run(make_settings(tmp_path, **poison), task)
    advice = f"raysim.resume({str(tmp_path)!r}, task, overrides={{'on_client_error': 'drop'}})"
    assert f"call: {advice}" in str(caught.value)
    result = raysim.resume(tmp_path, task, overrides={"on_client_error": "drop"})
    assert result.metrics["clients"].to_pylist() == [5, 5]


def test_other_settings_are_refused_on_resume(tmp_path):
    stopped(tmp_path, make_task(SIZES))
    text = refusal(tmp_path, make_task(SIZES), overrides={"local.lr": 0.7})
    assert "local.lr=0.1 (here 0.7)" in text
    other = {"engine.threads_per_actor": 2}
    text = refusal(tmp_path, make_task(SIZES), overrides=other)
    assert "engine.threads_per_actor=1 (here 2)" in text


def test_a_million_drawn_clients_are_digested_in_less_than_a_second():
    indices = DrawnIndices(10**6, 600, lambda client: np.arange(client, client + 600))
    start = perf_counter()
    found = identity._of_indices(indices)
    assert perf_counter() - start < 1
    other = DrawnIndices(10**6, 600, lambda client: np.arange(client + 1, client + 601))
    assert found != identity._of_indices(other)
