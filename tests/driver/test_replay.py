"""`raysim replay`: a client of a round, trained again to the same bits, outside the run."""

from __future__ import annotations

import shutil
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any, ClassVar

import pyarrow.parquet as pq
import pytest
import torch
from safetensors.torch import load_file

import raysim
from tests.driver import used
from tests.tasks import UNEQUAL, Notes, StopAfter, in_turn, make_settings, make_task

METHODS: dict[str, dict[str, Any]] = {
    "fedavg": {},
    "clients by their losses": {"selection.name": "power_of_choice", "fraction": 0.4},
    "scaffold": {"method.name": "scaffold"},
    "two passes": {"method.name": "fsvrg"},
    "own models": {"method.name": "ditto"},
    "stage with state": {"channel.topk.fraction": 0.1, "channel.error_feedback": {}},
    "optimizer with state": {"local.optimizer": "adam", "local.keep": True},
    "a loop with state": {"local.train": "tests.driver.test_own_loop:counting"},
    "downlink with state": {"downlink.topk.fraction": 0.2, "downlink.error_feedback": {}},
    "analyses": {"analysis": ["client_updates"]},
    "plateau": {"local.schedule": "plateau", "local.lr_patience": 0, "local.lr": 2.0},
    "virtual time": {"clock.name": "devices"},
    "stack": {"engine.vectorize": 3},
    "masks": {"channel.masks": {}},
    "kept updates": {"aggregation.name": "trimmed_mean", "attack.name": "sign_flip"},
}


def kept(run: Path, number: int) -> dict[int, dict[str, torch.Tensor]]:
    """Return the networks of a run's last round, by client."""
    folder = run / f"client_models/round_{number:06d}"
    return {int(path.stem): load_file(path) for path in folder.glob("*.safetensors")}


@pytest.mark.parametrize(("name", "every"), in_turn(METHODS, [1, 10]))
def test_it_trains_to_the_bits_of_the_round(tmp_path, name, every):
    task, run = make_task(UNEQUAL), tmp_path / "run"
    more = {"rounds": 4, "checkpoint_every": every, "keep_clients": True, **METHODS[name]}
    raysim.run(make_settings(run, **more), task)
    before = used.files(run)
    models = kept(run, 4)
    assert len(models) > 1
    rows = pq.read_table(run / "clients.parquet").to_pylist()
    for client, model in [*models.items()][:2]:
        notes = Notes()
        found = raysim.replay(run, 4, client, task, notes)
        assert all(torch.equal(found.model[name], model[name]) for name in model)
        stored = [row for row in rows if (row["round"], row["client"]) == (4, client)]
        assert len(found.rows) == len(stored)
        assert not any(found.differs)
        for row, same in zip(found.rows, found.agrees, strict=True):
            assert {"samples", "steps", "train_loss", "objective"} <= {*same}
            assert (row["update_norm"] > 0) == (row["steps"] > 0)
        again = [note for note in notes.notes if "run again" in note]
        assert again == ([] if every == 1 else ["rounds 1 to 3 run again, from the start"])
    assert used.files(run) == before


def test_rounds_after_a_checkpoint_run_again(tmp_path):
    task, run = make_task(UNEQUAL), tmp_path / "run"
    raysim.run(make_settings(run, rounds=5, checkpoint_every=3, fraction=1.0), task)
    shutil.rmtree(run / "checkpoints/round_000005")
    rows = pq.read_table(run / "clients.parquet").to_pylist()
    notes = Notes()
    found = raysim.replay(run, 5, 2, task, notes)
    assert "round 4 runs again, from the checkpoint of round 3" in notes.notes
    (loss,) = (row["train_loss"] for row in rows if (row["round"], row["client"]) == (5, 2))
    assert found.rows[0]["train_loss"] == loss


class Halting(torch.nn.Module):
    """Network that calls `breakpoint()` when it trains."""

    def __init__(self) -> None:
        super().__init__()
        self.layer = torch.nn.Linear(12, 3)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        if self.training:
            breakpoint()
        return self.layer(x.flatten(1))


def test_breakpoints_stop_in_the_client_alone(tmp_path, monkeypatch):
    stops: list[int] = []
    monkeypatch.setattr(sys, "breakpointhook", lambda: stops.append(1))
    task, run = make_task((16, 24, 8), Halting), tmp_path / "run"
    raysim.run(make_settings(run, rounds=3, fraction=1.0, checkpoint_every=3), task)
    stops.clear()
    raysim.replay(run, 3, 1, task)
    assert len(stops) == 3  # batches of 8 of its 24 samples, in one round of three clients


class Breaks(torch.nn.Module):
    """Network that fails on the client with 7 samples."""

    broken: ClassVar[bool] = False

    def __init__(self) -> None:
        super().__init__()
        self.layer = torch.nn.Linear(12, 3)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        if self.training and Breaks.broken and len(x) == 7:
            raise ZeroDivisionError("no such thing")
        return self.layer(x.flatten(1))


def test_a_client_that_fails_is_replayed_with_its_traceback(tmp_path, monkeypatch):
    """Before any checkpoint, too, which is where most fail."""
    task, run = make_task((8, 7), Breaks), tmp_path / "run"
    listener = _BreakIn(1)
    with pytest.raises(raysim.RunError, match="failed twice in round 1"):
        raysim.run(make_settings(run, fraction=1.0), task, listener)
    notes = Notes()
    with pytest.raises(raysim.RunError, match=r"^client 1: failed in round 1: ZeroDivisionError"):
        raysim.replay(run, 1, 1, task, notes)
    assert any("forward" in note for note in notes.notes)
    assert raysim.replay(run, 1, 0, task).rows[0]["steps"] == 1
    monkeypatch.setattr(Breaks, "broken", False)


class _BreakIn(raysim.Listener):
    """Breaks the network once the run has started: its rehearsal has passed."""

    def __init__(self, number: int) -> None:
        self._number = number

    def started(self, run: raysim.Started) -> None:
        Breaks.broken = True


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Path]:
    """Return a folder with a run of settings, and its data."""
    folder = tmp_path_factory.mktemp("used")
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("RAYSIM_DATA", str(folder / "data"))
        used.trained(folder, fraction=0.7, seed=3)
        yield folder


@pytest.fixture
def command(folder, monkeypatch, capsys):
    return used.command_in(folder, monkeypatch, capsys)


def took_part(folder: Path, number: int) -> list[str]:
    rows = pq.read_table(folder / "run/clients.parquet").to_pylist()
    return [row["name"] for row in rows if row["round"] == number]


def test_the_command_prints_the_row_and_writes_the_update(folder, command, tmp_path):
    name, out = took_part(folder, 3)[0], tmp_path / "update.safetensors"
    code, said, _ = command("replay", "run", "--round", "3", "--client", name, "-o", str(out))
    first, second, third = said.splitlines()[-3:]
    assert code == 0 and " in round 3: " in first and "norm of the update" in first
    assert second.startswith("the same as in clients.parquet: samples, steps, train_loss, obj")
    assert third == f"changes of its network: {out}"
    norm = sum(float(t.square().sum()) for t in load_file(out).values()) ** 0.5
    assert float(first.rpartition(" ")[2]) == pytest.approx(norm, rel=1e-5)


def _flip(path: Path) -> None:
    content = bytearray(path.read_bytes())
    content[len(content) // 2] ^= 1
    path.write_bytes(content)


def _damaged_rows(run: Path) -> None:
    for path in (run / "clients.parquet").iterdir():
        path.write_bytes(b"PAR1" + bytes(100) + b"PAR1")


REFUSED: dict[str, tuple[Any, tuple[str, ...]]] = {
    "--round=9: must be from 1 to 4": (None, ("--round", "9", "--client", "0")),
    "--round=0: must be from 1 to 4": (None, ("--round", "0", "--client", "0")),
    "--client=7: must be from 0 to 2": (None, ("--round", "2", "--client", "7")),
    "--out=x.txt: must be a .safetensors file": (
        None,
        ("--round", "2", "--client", "0", "-o", "x.txt"),
    ),
    "holds no run: there is no config.json": (
        lambda run: [shutil.rmtree(run / "checkpoints"), (run / "config.json").unlink()],
        ("--round", "2", "--client", "0"),
    ),
    "clients.parquet: is damaged": (_damaged_rows, ("--round", "2", "--client", "0")),
}


@pytest.mark.parametrize("message", REFUSED)
def test_what_cannot_be_replayed_is_one_line(folder, tmp_path, monkeypatch, capsys, message):
    shutil.copytree(folder / "run", tmp_path / "run")
    damage, words = REFUSED[message]
    if damage:
        damage(tmp_path / "run")
    before = used.files(tmp_path)
    command = used.command_in(tmp_path, monkeypatch, capsys)
    code, _, said = command("replay", "run", *words)
    assert code == 2 and message in said and said.count("\n") == 1, said
    assert used.files(tmp_path) == before


def test_other_data_than_the_runs_is_replayed_by_force_alone(tmp_path, monkeypatch, capsys):
    monkeypatch.setenv("RAYSIM_DATA", str(tmp_path / "data"))
    used.trained(tmp_path, rounds=1)
    used.write(tmp_path / "train.csv", used.rows(120, seed=9))
    command = used.command_in(tmp_path, monkeypatch, capsys)
    words = ("replay", "run", "--round", "1", "--client", "s1")
    code, _, said = command(*words)
    assert code == 2 and said.count("\n") == 1
    assert "run: is of other data or code: training samples was" in said and "--force" in said
    code, out, _ = command(*words, "--force")
    assert code == 0 and "other than in clients.parquet: " in out
    (tmp_path / "train.csv").unlink()
    code, _, said = command(*words, "--force")
    assert code == 2 and "train.csv: not there" in said and said.count("\n") == 1


LOOP = """
import torch.nn.functional as F

def train(client):
    optimizer = client.optimizer()
    for x, y in client.batches():
        optimizer.zero_grad()
        F.cross_entropy(client.model(x), y).backward()
        optimizer.step()
"""


def test_a_changed_loop_is_replayed_by_force(tmp_path, monkeypatch, capsys):
    """As one with a `breakpoint()` is, which stops in it."""
    monkeypatch.setenv("RAYSIM_DATA", str(tmp_path / "data"))
    monkeypatch.syspath_prepend(tmp_path)
    (tmp_path / "replayed_loop.py").write_text(LOOP)
    used.trained(tmp_path, rounds=2, **{"local.train": "replayed_loop:train"})
    stopping = LOOP.replace("    optimizer = ", "    breakpoint()\n    optimizer = ")
    (tmp_path / "replayed_loop.py").write_text(stopping)
    monkeypatch.delitem(sys.modules, "replayed_loop")
    stops: list[int] = []
    monkeypatch.setattr(sys, "breakpointhook", lambda: stops.append(1))
    command = used.command_in(tmp_path, monkeypatch, capsys)
    words = ("replay", "run", "--round", "2", "--client", "s1")
    code, _, said = command(*words)
    assert code == 2 and "source has changed" in said and said.endswith("type --force\n")
    code, out, said = command(*words, "--force")
    assert code == 0 and "the same as in clients.parquet: " in out, said
    assert stops == [1]


def test_a_client_that_did_not_train_is_refused_with_those_that_did(folder, command):
    others = {"s0", "s1", "s2"} - {*took_part(folder, 3)}
    code, _, said = command("replay", "run", "--round", "3", "--client", others.pop())
    assert code == 2 and "did not train in round 3; these did: " in said


def test_a_damaged_checkpoint_is_passed_over(folder, tmp_path):
    shutil.copytree(folder / "run", tmp_path / "run")
    _flip(tmp_path / "run/checkpoints/round_000003/state.safetensors")
    before, notes = used.files(tmp_path), Notes()
    found = raysim.replay(tmp_path / "run", 4, took_part(folder, 4)[0], listener=notes)
    assert not any(found.differs) and "train_loss" in found.agrees[0]
    assert any("checkpoint is damaged" in note for note in notes.notes)
    assert used.files(tmp_path) == before


def test_the_next_round_of_an_interrupted_run_can_be_replayed(tmp_path):
    task, run = make_task(UNEQUAL), tmp_path / "run"
    with pytest.raises(KeyboardInterrupt):
        raysim.run(make_settings(run, fraction=1.0), task, StopAfter(1))
    found = raysim.replay(run, 2, 3, task)
    assert found.agrees == [[]] and found.rows[0]["steps"] == 3
    result = raysim.resume(run, task)
    rows = pq.read_table(result.run_dir / "clients.parquet").to_pylist()
    (loss,) = (row["train_loss"] for row in rows if (row["round"], row["client"]) == (2, 3))
    assert found.rows[0]["train_loss"] == loss


def test_losses_are_on_the_samples_that_an_attack_has_changed(tmp_path):
    """With one step of all samples, the loss before it is that of the recorded training."""
    task, run = make_task((16, 24, 8, 12)), tmp_path / "run"
    more = {"attack.name": "label_flip", "attack.fraction": 0.5, "local.batch_size": 24}
    raysim.run(make_settings(run, fraction=1.0, rounds=2, **{"local.epochs": 1, **more}), task)
    rows = pq.read_table(run / "clients.parquet").to_pylist()
    for client in range(4):
        (found,) = raysim.replay(run, 2, client, task).rows
        (loss,) = (r["train_loss"] for r in rows if (r["round"], r["client"]) == (2, client))
        assert found["loss_before"] == pytest.approx(loss, rel=1e-6)


def test_a_round_without_a_stored_row_is_replayed_and_told(tmp_path, monkeypatch, capsys):
    """That of a run which has stopped before its first checkpoint, too."""
    monkeypatch.setenv("RAYSIM_DATA", str(tmp_path / "data"))
    used.write(tmp_path / "train.csv", used.rows(120))
    used.write(tmp_path / "test.csv", used.rows(40, seed=1))
    with pytest.raises(KeyboardInterrupt):
        raysim.run(used.settings(tmp_path, checkpoint_every=10), listener=StopAfter(1))
    shutil.rmtree(tmp_path / "run/checkpoints")  # as a kill leaves it
    command = used.command_in(tmp_path, monkeypatch, capsys)
    code, out, said = command("replay", "run", "--round", "2", "--client", "s1")
    assert code == 0 and said == ""
    assert out.endswith("\nclients.parquet has no stored row to compare with\n")
    assert "run: has no checkpoint, so data and code are not compared with the run's\n" in out


def test_rounds_that_overlap_are_refused(tmp_path):
    task, run = make_task((16, 24, 8)), tmp_path / "run"
    more = {"method.name": "fedbuff", "clock.name": "devices"}
    raysim.run(make_settings(run, fraction=1.0, **more), task)
    with pytest.raises(raysim.SettingsError, match=r"method.name=fedbuff: its rounds overlap"):
        raysim.replay(run, 2, 1, task)
