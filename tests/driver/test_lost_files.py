"""Lost and damaged files of a run: the same bytes and rows in the end, or one line."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pyarrow.parquet as pq
import pytest

import raysim
from raysim.errors import DamagedStateError
from raysim.storage import atomic
from tests.tasks import Notes, StopAfter, long_settings, make_task, model_of

SIZES = (1, 40, 17, 30)
SCAFFOLD = {"method.name": "scaffold", "fraction": 1.0}
ROWS = ("round", "client", "samples", "steps", "train_loss")


def stopped(path: Path) -> Path:
    """Leave a run behind that stopped after four of five rounds."""
    with pytest.raises(KeyboardInterrupt):
        raysim.run(long_settings(path, **SCAFFOLD), make_task(SIZES), StopAfter(4))
    return path


@pytest.fixture(scope="module")
def undisturbed(tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("undisturbed")
    raysim.run(long_settings(path, **SCAFFOLD), make_task(SIZES))
    return path


def rows_of(path: Path) -> list[Any]:
    clients = pq.read_table(path / "clients.parquet", columns=list(ROWS)).to_pylist()
    metrics = pq.read_table(path / "metrics.parquet", columns=["round", "train_loss", "bytes_up"])
    return [sorted(map(str, clients)), metrics.to_pylist()]


def resumed_alike(path: Path, undisturbed: Path) -> list[str]:
    """Resume a run, hold it to the undisturbed one, and return its notes."""
    notes = Notes()
    raysim.resume(path, make_task(SIZES), notes)
    assert model_of(path) == model_of(undisturbed)
    assert rows_of(path) == rows_of(undisturbed)
    return notes.notes


def flip(path: Path) -> None:
    content = bytearray(path.read_bytes())
    content[-2] ^= 1
    path.write_bytes(content)


DAMAGES = {"deleted": Path.unlink, "flipped": flip, "emptied": lambda p: p.write_bytes(b"")}
STATE = "clients/00000/00000002/3_0.safetensors"


@pytest.mark.parametrize("damage", DAMAGES)
def test_a_client_state_falls_back_to_the_older_checkpoint(tmp_path, undisturbed, damage):
    DAMAGES[damage](stopped(tmp_path) / STATE)
    notes = resumed_alike(tmp_path, undisturbed)
    assert len(notes) == 1
    assert "round_000004: checkpoint is damaged (" in notes[0] and STATE in notes[0]


def test_a_client_state_that_no_checkpoint_has_whole_is_one_line(tmp_path):
    stopped(tmp_path)
    for path in tmp_path.glob("clients/00000/00000002/*"):
        flip(path)
    with pytest.raises(raysim.RunError, match="every checkpoint is damaged; restore"):
        raysim.resume(tmp_path, make_task(SIZES))


class Damage(raysim.Listener):
    """Damages a file after a round, while the run goes on."""

    def __init__(self, number: int, path: Path) -> None:
        self._number, self._path = number, path

    def round_done(self, row: Any) -> None:
        if row["round"] == self._number:
            flip(self._path)


def test_a_client_state_that_is_damaged_in_mid_run_is_never_used(tmp_path, undisturbed):
    settings = long_settings(tmp_path, on_client_error="drop", **SCAFFOLD)
    with pytest.raises(DamagedStateError) as caught:
        raysim.run(settings, make_task(SIZES), Damage(4, tmp_path / STATE))
    assert STATE in str(caught.value)
    assert f"call: raysim.resume({str(tmp_path)!r}, task), which goes back" in str(caught.value)
    assert len(resumed_alike(tmp_path, undisturbed)) == 1


@pytest.mark.parametrize("damage", DAMAGES)
@pytest.mark.parametrize("name", ["metrics.parquet", "clients.parquet/part-000000.parquet"])
def test_tables_come_back_from_the_checkpoint(tmp_path, undisturbed, name, damage):
    DAMAGES[damage](stopped(tmp_path) / name)
    assert resumed_alike(tmp_path, undisturbed) == []


@pytest.mark.parametrize("damage", [*DAMAGES, "edited"])
def test_settings_come_back_from_the_checkpoint(tmp_path, undisturbed, damage):
    path = stopped(tmp_path) / "config.json"
    if damage == "edited":
        path.write_text(path.read_text().replace('"lr": 0.1', '"lr": 0.7'))
    elif damage == "flipped":
        path.write_bytes(b"\xff" + path.read_bytes()[1:])
    else:
        DAMAGES[damage](path)
    notes = resumed_alike(tmp_path, undisturbed)
    assert len(notes) == 1 and "taking the settings from the checkpoint" in notes[0]
    assert json.loads(path.read_text())["local"]["lr"] == 0.1


def test_files_are_forced_to_disk_before_the_checkpoint_is_seen(tmp_path, monkeypatch):
    forced: set[str] = set()
    real, replace = atomic._force, Path.replace

    def force(path: Path) -> None:
        forced.add(path.name)
        real(path)

    def renamed(path: Path, target: Path) -> Path:
        if Path(target).name == "round_000001":
            wanted = {"0_0.safetensors", "state.json", "state.safetensors", "clients.safetensors"}
            wanted |= {"metrics.parquet", "open.parquet", "00000002", "00000", "clients"}
            assert wanted <= forced
            assert any(name.startswith(".model.safetensors.") for name in forced)
            assert any(name.startswith(".config.json.") for name in forced)
            forced.add("seen")
        return replace(path, target)

    monkeypatch.setattr(atomic, "_force", force)
    monkeypatch.setattr(Path, "replace", renamed)
    raysim.run(long_settings(tmp_path, rounds=1, **SCAFFOLD), make_task(SIZES))
    assert {"seen", "checkpoints"} <= forced
