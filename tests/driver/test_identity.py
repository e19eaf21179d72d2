"""The same bits whatever the executor, the number of actors, and what was killed on the way."""

from __future__ import annotations

import json
import os
import shutil
import signal
from pathlib import Path
from typing import Any

import pyarrow.parquet as pq
import pytest
import ray

import raysim
from tests.faults.processes import Run
from tests.tasks import EQUAL, UNEQUAL, Notes, RawNet, long_settings, make_task, model_of

METHODS = {
    "fedavg": {"method.name": "fedavg"},
    "fedprox": {"method.name": "fedprox", "method.mu": 0.3},
    "scaffold": {"method.name": "scaffold"},
    "fedma": {"method.name": "fedma"},
    "mifl": {"method.name": "mifl"},
    "fedbuff": {"method.name": "fedbuff", "method.buffer": 3, "method.concurrency": 5},
}
cases = pytest.mark.parametrize(
    "sizes",
    [pytest.param(EQUAL, id="equal", marks=pytest.mark.full), pytest.param(UNEQUAL, id="unequal")],
)


def methods(*quick: str) -> Any:
    """Test all methods, most with -m full; SCAFFOLD keeps all that FedAvg does, FedBuff a queue."""
    marks = {name: [] if name in quick else pytest.mark.full for name in METHODS}
    return pytest.mark.parametrize("method", [pytest.param(n, marks=marks[n]) for n in METHODS])


@pytest.fixture(scope="session")
def undisturbed(tmp_path_factory: pytest.TempPathFactory) -> Any:
    """The model bytes of the inline run of a case, computed once."""
    found: dict[Any, bytes] = {}

    def run(method: str, sizes: tuple[int, ...]) -> bytes:
        if (method, sizes) not in found:
            folder = tmp_path_factory.mktemp("inline")
            raysim.run(long_settings(folder, **METHODS[method]), make_task(sizes))
            found[method, sizes] = model_of(folder)
        return found[method, sizes]

    return run


class KillActor(raysim.Listener):
    """Ends one actor with SIGKILL when the first chunk from a round on has arrived."""

    def __init__(self, folder: Path, number: int) -> None:
        self._folder = folder
        self._left = number
        self.killed = 0

    def round_done(self, row: Any) -> None:
        self._left -= 1

    def progress(self, done: int, total: int) -> None:
        if self._left <= 0 and done < total and not self.killed:
            actors = json.loads((self._folder / "environment.json").read_text())["actors"]
            self.killed = actors[-1]["pid"]
            os.kill(self.killed, signal.SIGKILL)


@cases
@methods("fedavg", "scaffold", "fedbuff")
@pytest.mark.parametrize("actors", [1, 2, pytest.param(3, marks=pytest.mark.full)])
def test_actors(tmp_path, resident_actors, undisturbed, method, sizes, actors):
    engine = {"engine.backend": "ray", "engine.actors": actors}
    result = raysim.run(long_settings(tmp_path, **METHODS[method], **engine), make_task(sizes))
    assert model_of(tmp_path) == undisturbed(method, sizes)
    assert len(json.loads((tmp_path / "environment.json").read_text())["actors"]) == actors
    assert result.summary["rounds"] == 5


@cases
@methods("scaffold", "fedbuff")
def test_actor_killed_in_mid_round(tmp_path, shared_ray, undisturbed, method, sizes):
    engine = {"engine.backend": "ray", "engine.actors": 2}
    listener = KillActor(tmp_path, 2)
    raysim.run(long_settings(tmp_path, **METHODS[method], **engine), make_task(sizes), listener)
    assert listener.killed
    assert model_of(tmp_path) == undisturbed(method, sizes)
    clients = pq.read_table(tmp_path / "clients.parquet").to_pylist()
    keys = [(row["round"], row["pass"], row["client"]) for row in clients]
    assert len(set(keys)) == len(keys)
    first = [key for key in keys if key[1] == 0]
    assert len(first) == 5 * METHODS[method].get("method.buffer", 4)


class CopyFolder(raysim.Listener):
    """Copies the folder of a run after each round: what a kill would leave there."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder

    def round_done(self, row: Any) -> None:
        shutil.copytree(self._folder / "run", self._folder / str(row["round"]))


@pytest.fixture(scope="module")
def killed(tmp_path_factory: pytest.TempPathFactory) -> Any:
    """A copy of what a run leaves that is killed as soon as a round is committed."""
    kept: dict[Any, Path] = {}

    def run(number: int, folder: Path, method: str, sizes: tuple[int, ...], every: int) -> None:
        key = (method, sizes, every)
        if key not in kept:
            kept[key] = tmp_path_factory.mktemp("killed")
            overrides = {**METHODS[method], "checkpoint_every": every}
            settings = long_settings(kept[key] / "run", **overrides)
            raysim.run(settings, make_task(sizes), CopyFolder(kept[key]))
        shutil.copytree(kept[key] / str(number), folder, dirs_exist_ok=True)

    return run


@pytest.mark.parametrize(
    "method",
    [pytest.param(name, marks=pytest.mark.full) for name in ("fedavg", "fedbuff")] + ["scaffold"],
)
def test_tensors_in_raw_units_have_the_same_bits_on_actors_and_resumed(
    tmp_path, shared_ray, method
):
    task = make_task(UNEQUAL, RawNet)
    result = raysim.run(long_settings(tmp_path / "inline", **METHODS[method]), task)
    largest = max(float(tensor.abs().max()) for tensor in result.params.values())
    assert largest > 1e13
    engine = {"engine.backend": "ray", "engine.actors": 2}
    listener = KillActor(tmp_path / "actors", 2)
    raysim.run(long_settings(tmp_path / "actors", **METHODS[method], **engine), task, listener)
    assert listener.killed
    with raysim.rounds(long_settings(tmp_path / "left", **METHODS[method]), task) as rounds:
        next(rounds)
    raysim.resume(tmp_path / "left", task)
    models = {model_of(tmp_path / run) for run in ("inline", "actors", "left")}
    assert len(models) == 1


@cases
@methods("scaffold", "fedbuff")
@pytest.mark.parametrize("every", [pytest.param(1, marks=pytest.mark.full), 2])
def test_driver_killed_and_resumed(tmp_path, killed, undisturbed, method, sizes, every):
    killed(3, tmp_path, method, sizes, every)
    listener = RoundsSeen()
    raysim.resume(tmp_path, make_task(sizes), listener)
    assert listener.rounds == ([4, 5] if every == 1 else [3, 4, 5])
    assert model_of(tmp_path) == undisturbed(method, sizes)
    rows = pq.read_table(tmp_path / "metrics.parquet")["round"].to_pylist()
    assert rows == [1, 2, 3, 4, 5]


class RoundsSeen(raysim.Listener):
    def __init__(self) -> None:
        self.rounds: list[int] = []

    def round_done(self, row: Any) -> None:
        self.rounds.append(row["round"])


@pytest.mark.full
def test_driver_of_actors_killed_and_resumed_on_actors(tmp_path, shared_ray, undisturbed):
    engine = {"engine.backend": "ray", "engine.actors": 2}
    address = ray.get_runtime_context().gcs_address
    moments, settings = ["3.end"], METHODS["scaffold"] | engine
    with Run(tmp_path, UNEQUAL, moments, address=address, **settings) as run:
        run.until("3.end")
    raysim.resume(tmp_path, make_task(UNEQUAL))
    assert model_of(tmp_path) == undisturbed("scaffold", UNEQUAL)


def test_killed_before_the_first_checkpoint_starts_again(tmp_path, killed, undisturbed):
    killed(1, tmp_path, "scaffold", UNEQUAL, 2)
    raysim.resume(tmp_path, make_task(UNEQUAL))
    assert model_of(tmp_path) == undisturbed("scaffold", UNEQUAL)
    rows = pq.read_table(tmp_path / "metrics.parquet")["round"].to_pylist()
    assert rows == [1, 2, 3, 4, 5]


@pytest.mark.full
def test_damaged_checkpoint_is_reported_and_the_one_before_used(tmp_path, killed, undisturbed):
    killed(4, tmp_path, "scaffold", UNEQUAL, 1)
    newest = tmp_path / "checkpoints/round_000004/state.safetensors"
    newest.write_bytes(newest.read_bytes()[:-8])
    listener = Notes()
    raysim.resume(tmp_path, make_task(UNEQUAL), listener)
    assert "round_000004" in listener.notes[0] and "damaged" in listener.notes[0]
    assert model_of(tmp_path) == undisturbed("scaffold", UNEQUAL)


@pytest.mark.full
def test_eight_actors_on_two_declared_gpus(tmp_path, shared_ray, undisturbed):
    engine = {"engine.backend": "ray", "engine.gpus_per_actor": 0.25}
    sizes = tuple(range(20, 32))
    settings = long_settings(tmp_path, rounds=1, **engine)
    listener = Notes()
    raysim.run(settings, make_task(sizes), listener)
    environment = json.loads((tmp_path / "environment.json").read_text())
    gpus = [actor["gpus"] for actor in environment["actors"]]
    assert sorted(gpus) == [["0"]] * 4 + [["1"]] * 4
    assert environment["cpus_per_actor"] == 0.25
    assert any("declared" in note for note in listener.notes)
