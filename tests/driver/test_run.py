"""Whole runs through the Python interface: files, interruptions, failing clients, plug-ins."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow.parquet as pq
import pytest
import ray
import torch
from safetensors.torch import load_file
from tensorboard.backend.event_processing.event_accumulator import EventAccumulator
from torch import nn

import raysim
from raysim.methods.fedavg import FedAvg
from raysim.results.runs import read_run
from raysim.storage.schema import SCHEMA
from raysim.testing.tasks import SmallNet, samples
from tests.driver.test_same_bits import PREPARED
from tests.tasks import UNEQUAL, Notes, StopAfter, make_settings, make_task, model_of

COLUMNS = {
    *("round", "train_loss", "objective", "test_loss", "test_accuracy", "lr", "seconds"),
    *("evaluation_seconds", "checkpoint_seconds", "bytes_up", "bytes_down", "clients"),
    "test_macro_f1",
}
SUMMARY = {
    "final_loss",
    *("final_accuracy", "best_accuracy", "rounds_to_target", "rounds", "seconds"),
    *("seconds_per_round", "bytes_up", "bytes_down", "final_macro_f1", "best_round"),
    *("stopped_by", "score", "final_score", "best_score"),
}


def test_run_directory(tmp_path):
    given = {"method.name": "scaffold", "rounds": 5, "local.epochs": 2}
    result = raysim.run(make_settings(tmp_path, **given), make_task(UNEQUAL))
    assert result.run_dir == tmp_path
    metrics = pq.read_table(tmp_path / "metrics.parquet")
    assert set(metrics.column_names) == COLUMNS | {"c_norm"}
    assert metrics.equals(result.metrics)
    summary = json.loads((tmp_path / "summary.json").read_text())
    assert set(summary) == SUMMARY and summary == result.summary
    accuracy = metrics["test_accuracy"].to_pylist()
    assert summary["final_accuracy"] == accuracy[-1] and summary["best_accuracy"] == max(accuracy)
    assert accuracy[-1] > 0.6
    saved = load_file(tmp_path / "model.safetensors")
    assert all(torch.equal(saved[name], result.params[name]) for name in result.params)
    clients = pq.read_table(tmp_path / "clients.parquet").to_pylist()
    assert len(clients) == 5 * 4
    assert all(row["samples"] == UNEQUAL[row["client"]] for row in clients)
    assert all(row["steps"] == 2 * -(-row["samples"] // 8) for row in clients)
    events = EventAccumulator(str(tmp_path)).Reload()
    assert [e.step for e in events.Scalars("test/accuracy")] == [1, 2, 3, 4, 5]
    assert (tmp_path / "config.json").exists() and (tmp_path / "environment.json").exists()
    assert not list(tmp_path.rglob("*.pkl"))


def test_evaluation_is_that_of_the_deployed_model(tmp_path):
    task = make_task(UNEQUAL)
    task = raysim.Task(task.model, task.clients, samples(2500, 77))
    result = raysim.run(make_settings(tmp_path), task)
    network = SmallNet()
    network.load_state_dict(result.params)
    x, y = (torch.as_tensor(values) for values in task.test)
    with torch.no_grad():
        logits = network(x)
    last = result.metrics.to_pylist()[-1]
    assert last["test_accuracy"] == pytest.approx(float((logits.argmax(1) == y).float().mean()))
    assert last["test_loss"] == pytest.approx(float(nn.functional.cross_entropy(logits, y)), 1e-5)


def test_bytes_count_the_model_both_ways_and_scaffold_twice_that(tmp_path):
    model = 4 * sum(p.numel() for p in SmallNet().parameters())
    for name, factor in (("fedavg", 1), ("fedprox", 1), ("scaffold", 2)):
        settings = make_settings(tmp_path / name, **{"method.name": name, "rounds": 1})
        row = raysim.run(settings, make_task(UNEQUAL)).metrics.to_pylist()[0]
        assert row["bytes_up"] == row["bytes_down"] == 4 * model * factor


def test_stops_at_the_target(tmp_path):
    settings = make_settings(tmp_path, target_accuracy=0.6, rounds=5, **{"local.epochs": 2})
    result = raysim.run(settings, make_task(UNEQUAL))
    accuracy = result.metrics["test_accuracy"].to_pylist()
    assert accuracy[-1] >= 0.6 and all(value < 0.6 for value in accuracy[:-1])
    assert result.summary["rounds_to_target"] <= len(accuracy) < 5


def test_evaluation_every_second_round_and_the_last(tmp_path):
    settings = make_settings(tmp_path, rounds=5, **{"evaluation.every": 2})
    result = raysim.run(settings, make_task(UNEQUAL))
    evaluated = [value is not None for value in result.metrics["test_accuracy"].to_pylist()]
    assert evaluated == [False, True, False, True, True]


class Poisoned(FedAvg):
    """FedAvg whose client 2 uploads what it must not."""

    kind: str = "nan"

    def rules(self) -> raysim.Rules:
        return raysim.Rules(finish=self._finish)

    def _finish(self, view: raysim.View, trained: raysim.Trained) -> raysim.Upload:
        poisoned = len(trained.data.y) == UNEQUAL[2]
        if poisoned and self.kind == "raises":
            raise ZeroDivisionError("a bug in the method")
        factor = float("nan") if poisoned else 1.0
        bad = {"model": {n: t * factor for n, t in view.params.items()}}
        if self.kind == "scalar":
            return raysim.Upload(sums={"model": view.params}, scalars={"score": factor})
        if self.kind == "state":
            return raysim.Upload(sums={"model": view.params}, state=bad)
        return raysim.Upload(sums=bad)


@pytest.mark.parametrize(
    ("kind", "cause"),
    [
        ("nan", r"not finite \(tensor model/head.bias\)"),
        ("state", r"not finite \(model/hidden.0.weight\)"),
        ("scalar", r"not finite \(score\)"),
        ("raises", "ZeroDivisionError"),
    ],
)
@pytest.mark.parametrize("backend", ["inline", pytest.param("ray", marks=pytest.mark.full)])
def test_failing_client_stops_the_run_or_is_dropped(tmp_path, request, kind, cause, backend):
    if backend == "ray":
        request.getfixturevalue("shared_ray")
    poison = {"method.name": "tests.driver.test_run:Poisoned", "method.kind": kind, "fraction": 1.0}
    poison |= {"engine.backend": backend, "engine.actors": 1, "rounds": 2}
    with pytest.raises(raysim.RaysimError, match=f"client 2: failed twice in round 1.*{cause}"):
        raysim.run(make_settings(tmp_path / "stop", **poison), make_task(UNEQUAL))
    log = (tmp_path / "stop/errors.log").read_text()
    assert log.count("round 1, client 2\nTraceback") == 2 and cause.split(r" \(")[0] in log
    poison["on_client_error"] = "drop"
    notes = Notes()
    result = raysim.run(make_settings(tmp_path / "drop", **poison), make_task(UNEQUAL), notes)
    assert result.metrics["clients"].to_pylist() == [5, 5]
    assert any("client 2 was dropped" in note for note in notes.notes)
    assert result.metrics["clients_dropped"].to_pylist() == [1, 1]
    (note,) = read_run(tmp_path / "drop").notes
    assert "were dropped after errors in 2 of 2 rounds, 2 in all" in note
    others = tuple(size for size in UNEQUAL if size != UNEQUAL[2])
    assert set(pq.read_table(tmp_path / "drop/clients.parquet")["samples"].to_pylist()) == set(
        others
    )


@pytest.mark.parametrize(
    ("fault", "cause"), [(MemoryError(), "MemoryError"), (OSError(28, "No space left"), "No space")]
)
def test_a_fault_of_the_machine_in_a_round_is_not_blamed_on_the_method(
    tmp_path, monkeypatch, fault, cause
):
    def failing(*arguments: Any) -> Any:
        raise fault

    with pytest.raises(KeyboardInterrupt):
        raysim.run(make_settings(tmp_path), make_task(UNEQUAL), StopAfter(2))
    round_of = FedAvg.round
    monkeypatch.setattr(FedAvg, "round", failing)
    with pytest.raises(raysim.RaysimError, match=rf"{cause}.*raysim\.resume\(") as caught:
        raysim.resume(tmp_path, make_task(UNEQUAL))
    assert caught.value.exit_code == 75 and "method" not in str(caught.value)
    monkeypatch.setattr(FedAvg, "round", round_of)
    assert raysim.resume(tmp_path, make_task(UNEQUAL)).summary["rounds"] == 3


def test_dropping_a_client_gives_the_mean_of_the_others(tmp_path):
    poison = {"method.name": "tests.driver.test_run:Poisoned", "fraction": 1.0, "rounds": 1}
    settings = make_settings(tmp_path / "drop", on_client_error="drop", **poison)
    task = make_task(UNEQUAL)
    dropped = raysim.run(settings, task).params
    parts, weights = [], []
    for client in (0, 1, 3, 4, 5):
        alone = raysim.Task(task.model, task.clients, task.test)
        only = make_settings(tmp_path / f"only{client}", rounds=1, **{"method.name": f"{ONLY}"})
        only = only.override({"method.client": client})
        parts.append(raysim.run(only, alone).params)
        weights.append(UNEQUAL[client])
    for name in dropped:
        mean = np.average([p[name].double().numpy() for p in parts], axis=0, weights=weights)
        assert np.abs(dropped[name].numpy() - mean).max() < 1e-6


ONLY = "tests.driver.test_run:Only"


class Only(FedAvg):
    """FedAvg of one client, whoever was sampled."""

    client: int = 0

    def round(self, now: raysim.Round, state: raysim.ServerState) -> Any:
        pass_ = raysim.Pass([self.client], state.groups, self.rules(), now.epochs, now.lr)
        return raysim.ServerState({"model": (yield pass_).means["model"]}), {}


def test_all_clients_dropped_is_an_error(tmp_path):
    settings = make_settings(tmp_path, on_client_error="drop", **{"local.lr": 3e38})
    with pytest.raises(raysim.RaysimError, match=r"no client is left.*not finite"):
        raysim.run(settings, make_task((40, 50, 60)))


def test_an_error_keeps_the_rounds_before_it(tmp_path):
    class Bomb(raysim.Listener):
        def round_done(self, row: Any) -> None:
            if row["round"] == 2:
                raise RuntimeError("listener broke")

    settings = make_settings(tmp_path, checkpoint_every=10)
    with pytest.raises(RuntimeError, match="listener broke"):
        raysim.run(settings, make_task(UNEQUAL), Bomb())
    assert pq.read_table(tmp_path / "metrics.parquet")["round"].to_pylist() == [1, 2]
    result = raysim.resume(tmp_path, make_task(UNEQUAL))
    straight = raysim.run(make_settings(tmp_path / "straight"), make_task(UNEQUAL))
    assert all(torch.equal(result.params[n], straight.params[n]) for n in straight.params)
    assert result.metrics["round"].to_pylist() == [1, 2, 3]


def test_run_again_goes_on_where_an_unfinished_run_stopped(tmp_path):
    class Stop(raysim.Listener):
        def round_done(self, row: Any) -> None:
            if row["round"] == 2:
                raise KeyboardInterrupt

    settings = make_settings(tmp_path)
    with pytest.raises(KeyboardInterrupt):
        raysim.run(settings, make_task(UNEQUAL), Stop())
    with pytest.raises(raysim.RaysimError, match=r"local.lr=0.1 \(here 0.2\)"):
        raysim.run(settings.override({"local.lr": 0.2}), make_task(UNEQUAL))
    elsewhere = settings.override({"engine.threads_per_actor": 1, "engine.actors": 3})
    result = raysim.run(elsewhere, make_task(UNEQUAL))
    assert result.metrics["round"].to_pylist() == [1, 2, 3]
    events = EventAccumulator(str(tmp_path)).Reload()
    assert [e.step for e in events.Scalars("train/loss")] == [1, 2, 3]


def test_a_failed_start_leaves_the_folder_usable(tmp_path):
    bad = make_settings(tmp_path / "run", **{"local.lr": 3e38})
    with pytest.raises(raysim.RaysimError, match="not finite"):
        raysim.run(bad, make_task(UNEQUAL))
    raysim.run(make_settings(tmp_path / "run"), make_task(UNEQUAL))
    assert (tmp_path / "run/summary.json").exists()


def test_own_task_is_asked_for_on_resume(tmp_path):
    with pytest.raises(raysim.RaysimError):
        raysim.run(make_settings(tmp_path, **{"local.lr": 3e38}), make_task(UNEQUAL))
    with pytest.raises(raysim.RaysimError, match="needs its `task`"):
        raysim.resume(tmp_path)


def test_task_weights_as_built_are_the_first_global_model(tmp_path):
    class Constant(SmallNet):
        def __init__(self) -> None:
            super().__init__()
            for parameter in self.parameters():
                nn.init.constant_(parameter, 0.25)

    settings = make_settings(tmp_path, rounds=1, **{"local.lr": 1e-30})
    result = raysim.run(settings, make_task(UNEQUAL, Constant))
    assert all(bool((tensor == 0.25).all()) for tensor in result.params.values())


def test_a_network_without_stages_trains(tmp_path):
    def plain() -> nn.Module:
        return nn.Sequential(nn.Linear(12, 8), nn.ReLU(), nn.Linear(8, 3))

    assert raysim.run(make_settings(tmp_path), make_task(UNEQUAL, plain)).summary["rounds"] == 3


def test_a_method_that_needs_a_stage_refuses_a_network_without(tmp_path):
    class NeedsStages(FedAvg):
        staged = True

    settings = make_settings(tmp_path).model_copy(update={"method": NeedsStages()})
    task = make_task(UNEQUAL, lambda: nn.Sequential(nn.Linear(12, 3)))
    with pytest.raises(
        raysim.RaysimError, match=r"needs a model with the stages.*lacks features, hidden"
    ):
        raysim.run(settings, task)


class Watch(raysim.Listener):
    """Measures object store and driver after some rounds, in bytes."""

    def __init__(self, *rounds: int) -> None:
        self._rounds = rounds
        self.stored: list[float] = []
        self.resident: list[int] = []

    def round_done(self, row: Any) -> None:
        if row["round"] in self._rounds:
            time.sleep(1.5)  # Ray reports the store's use about once a second
            total = ray.cluster_resources()["object_store_memory"]
            self.stored.append(total - ray.available_resources()["object_store_memory"])
            status = Path("/proc/self/status").read_text()  # its own pages, not the store's
            self.resident.append(int(status.split("RssAnon:")[1].split()[0]) * 1024)


@pytest.mark.full
def test_object_store_and_driver_stay_flat_over_100_rounds(tmp_path, shared_ray):
    watch = Watch(10, 100)
    overrides = {"engine.backend": "ray", "engine.actors": 2, "rounds": 100}
    task = make_task((12,) * 10, WideNet)
    raysim.run(make_settings(tmp_path, checkpoint_every=50, **overrides), task, watch)
    model = 4 * sum(p.numel() for p in WideNet().parameters())
    assert model > 6e5
    assert watch.stored[1] - watch.stored[0] < model
    assert watch.resident[1] - watch.resident[0] < 20e6


@pytest.mark.full
def test_driver_does_not_grow_with_the_cohort(tmp_path, shared_ray):
    watch = Watch(3)
    task = make_task((2,) * 1000, WideNet)
    for cohort in (10, 1000):
        overrides = {"engine.backend": "ray", "engine.actors": 2, "rounds": 3}
        overrides |= {"fraction": cohort / 1000, "local.epochs": 1}
        raysim.run(make_settings(tmp_path / str(cohort), **overrides), task, watch)
    model = 4 * sum(p.numel() for p in WideNet().parameters())
    # Of 990 models more; rows and bookkeeping take some 7 kB a client, once.
    assert watch.resident[1] - watch.resident[0] < 20 * model
    assert watch.stored[1] - watch.stored[0] < 10 * model


class WideNet(SmallNet):
    def __init__(self) -> None:
        super().__init__(width=10_000)


def test_two_processes_cannot_write_to_one_directory(tmp_path):
    code = "import filelock, sys, time; lock = filelock.FileLock(sys.argv[1]); lock.acquire();"
    code += " print('held', flush=True); time.sleep(60)"
    (tmp_path / "run").mkdir()
    holder = subprocess.Popen(
        [sys.executable, "-c", code, str(tmp_path / "run/.lock")], stdout=subprocess.PIPE
    )
    assert holder.stdout is not None and holder.stdout.readline() == b"held\n"
    settings = make_settings(tmp_path / "run")
    try:
        (tmp_path / "run/config.json").write_text(
            json.dumps({"schema": SCHEMA, **settings.to_dict(), "own_task": True})
        )
        with pytest.raises(raysim.RaysimError, match="another process is writing to it"):
            raysim.run(settings, make_task(UNEQUAL))
    finally:
        os.kill(holder.pid, signal.SIGKILL)
        holder.wait()
        holder.stdout.close()
    assert raysim.run(settings, make_task(UNEQUAL)).run_dir == Path(tmp_path / "run")


def test_a_run_of_a_name_is_that_of_its_settings(tmp_path):
    """As those of `raysim.sweep`; what is neither is one line."""
    settings = make_settings(tmp_path / "of settings", **PREPARED, rounds=1)
    raysim.run(settings)
    file = tmp_path / "own.json"
    file.write_text(json.dumps({**settings.to_dict(), "out": str(tmp_path / "of a name")}))
    raysim.check(file)
    raysim.run(str(file))
    assert model_of(tmp_path / "of settings") == model_of(tmp_path / "of a name")
    for given, message in (
        ("no-such", "no-such: no such preset"),
        ({"rounds": 2}, "settings: must be of raysim.load_config, or a name; is a dict"),
        (make_task(UNEQUAL), "settings: must be of raysim.load_config, or a name; is a Task"),
    ):
        for call in (raysim.run, raysim.rounds, raysim.check):
            with pytest.raises(raysim.SettingsError, match=message):
                call(given)
