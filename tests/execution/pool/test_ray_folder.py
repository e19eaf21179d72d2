"""The folder of a Ray of our own: what is removed, and what is not."""

from __future__ import annotations

import os
import shutil
import tempfile
from collections.abc import Iterator
from pathlib import Path

import pytest
from filelock import FileLock

from raysim.errors import MachineError, RunError, SettingsError
from raysim.execution.pool.ray_folder import SHORT, own_folder, short_place


@pytest.fixture(autouse=True)
def private() -> Iterator[None]:
    """Make folders that others cannot change, as those of drivers are."""
    before = os.umask(0o077)
    yield
    os.umask(before)


def write_log(folder: Path) -> None:
    """Write what a Ray that has started logs."""
    (folder / "ray/session/logs").mkdir(parents=True)
    (folder / "ray/session/logs/raylet.out").write_text("a line")


def test_folders_of_killed_drivers_are_removed_and_no_others(tmp_path):
    contents = {
        "raysim-ray-killed": ("ray/", "in-use"),
        "raysim-ray-written-again": ("ray/",),
        "raysim-ray-alive": ("ray/", "in-use"),
        "raysim-ray-starting": ("in-use",),
        "raysim-ray-logs": ("ray/", "in-use", "kept"),
        "raysim-ray-of-a-user": ("ray/", "config.json"),
        "raysim-results": ("ray/", "in-use"),
    }
    for folder, names in contents.items():
        for name in names:
            (tmp_path / folder / "ray").parent.mkdir(exist_ok=True)
            path = tmp_path / folder / name
            path.mkdir() if name.endswith("/") else path.touch()
    with FileLock(tmp_path / "raysim-ray-alive/in-use"):
        with own_folder(tmp_path) as first, own_folder(tmp_path) as second:
            assert first.parent == second.parent == tmp_path and first != second
            left = {path.name for path in tmp_path.iterdir()} - {first.name, second.name}
            assert left == {*contents} - {"raysim-ray-killed", "raysim-ray-written-again"}
        assert not first.exists() and not second.exists()


def test_what_cannot_be_removed_yet_is_removed_later(tmp_path, monkeypatch):
    """Ray's processes outlive a killed driver for a moment, and write to its folder."""
    killed = tmp_path / "raysim-ray-killed"
    (killed / "ray/session").mkdir(parents=True)
    (killed / "in-use").touch()
    rmtree = shutil.rmtree

    def busy(path: Path, **options: bool) -> None:
        if path != killed / "ray":
            rmtree(path, **options)

    with monkeypatch.context() as patch:
        patch.setattr(shutil, "rmtree", busy)
        with own_folder(tmp_path):
            assert killed.exists()
    with own_folder(tmp_path):
        assert not killed.exists()
        (killed / "ray").mkdir(parents=True)
    assert not killed.exists()


def test_a_folder_is_kept_for_its_logs_after_a_fault_alone(tmp_path):
    with (
        pytest.raises(MachineError, match="Ray's logs are in") as failed,
        own_folder(tmp_path) as kept,
    ):
        write_log(kept)
        raise MachineError("the cluster is gone")
    assert str(kept) in str(failed.value)
    with pytest.raises(RuntimeError) as broken, own_folder(tmp_path) as other:
        write_log(other)
        raise RuntimeError("a bug")
    assert broken.value.__notes__ == [f"Ray's logs are in {other}"]
    for error in (RunError("of the user"), KeyboardInterrupt()):
        with pytest.raises(type(error)), own_folder(tmp_path) as folder:
            write_log(folder)
            raise error
    for fault in (MachineError("Ray cannot be started"), RuntimeError("a bug")):
        with pytest.raises(type(fault)), own_folder(tmp_path):  # before Ray has logged anything
            raise fault
    assert {*tmp_path.iterdir()} == {kept, other}


def test_links_and_folders_of_others_are_left_alone(tmp_path, monkeypatch):
    """Where others may write, the names say nothing about whose folders they are."""
    precious, place = tmp_path / "precious", tmp_path / "place"
    (precious / "ray").mkdir(parents=True)
    (precious / "ray/file").write_text("data")
    place.mkdir()
    (place / "raysim-ray-link").symlink_to(precious)
    (place / "raysim-ray-inner").mkdir()
    (place / "raysim-ray-inner/ray").symlink_to(precious / "ray")
    (place / "raysim-ray-inner/in-use").touch()
    (place / "raysim-ray-open/ray").mkdir(parents=True)
    (place / "raysim-ray-open").chmod(0o777)
    with own_folder(place):
        pass
    assert {path.name for path in precious.iterdir()} == {"ray"}
    assert (precious / "ray/file").read_text() == "data"
    assert (place / "raysim-ray-open/ray").exists()
    (place / "raysim-ray-killed/ray").mkdir(parents=True)
    with monkeypatch.context() as patch:
        patch.setattr(os, "geteuid", lambda: os.getuid() + 1)
        with own_folder(place):
            assert (place / "raysim-ray-killed/ray").exists()


def test_a_long_path_of_temporary_files_is_replaced(tmp_path, monkeypatch):
    monkeypatch.delenv("RAY_TMPDIR", raising=False)
    short, long = f"{SHORT}/job", f"{SHORT}/job.{'1' * 30}"
    monkeypatch.setattr(tempfile, "tempdir", short)
    assert short_place() == Path(short)
    monkeypatch.setattr(tempfile, "tempdir", long)
    with own_folder(short_place()) as folder:
        assert folder.parent == Path(SHORT) and folder.stat().st_mode & 0o777 == 0o700
        socket = folder / "ray/session_2026-11-25_01-42-51_322447_4194304/sockets/plasma_store"
        assert len(str(socket)) <= 107
    assert not folder.exists()
    monkeypatch.setenv("RAY_TMPDIR", long)
    with pytest.raises(SettingsError, match=f"^RAY_TMPDIR={long}: must be a folder with a path of"):
        short_place()
    with (
        pytest.raises(
            SettingsError, match=r"none: Ray's folder cannot be made there: .*RAY_TMPDIR"
        ),
        own_folder(tmp_path / "none"),
    ):
        pytest.fail("it was made")
