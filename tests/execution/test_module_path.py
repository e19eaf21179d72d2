"""The module path of the driver and of actors: packages first, the working directory last."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import pytest
from ray import cloudpickle

import raysim
from raysim.execution.module_path import put_working_directory_last, with_driver_path

HOME = Path(raysim.__file__).parents[1]
HOSTILE = "raise RuntimeError('a file of the working directory hides a package')\n"
WORKER = """
import json, pickle, sys
import ray.cloudpickle

here, packed = sys.argv[1:]
sys.path[:0] = [here, "/nowhere/of-the-worker"]
actor = pickle.loads(bytes.fromhex(packed))({"given": 1})
path = [entry for entry in sys.path if entry == here or entry.startswith("/nowhere")]
last = sys.path[-1] == here
print(json.dumps([actor.describe("asked"), path, last, sys.modules["raysim"].__file__]))
"""


class Plain:
    """An actor class, as `ray.remote` takes it."""

    def __init__(self, given: dict[str, int]) -> None:
        self.given = given

    def describe(self, asked: str) -> list[object]:
        import platformdirs

        return [self.given, asked, platformdirs.__file__]


@pytest.fixture
def hostile(tmp_path, monkeypatch) -> str:
    """A working directory with files named like packages."""
    for name in ("platformdirs", "raysim"):
        (tmp_path / f"{name}.py").write_text(HOSTILE)
    monkeypatch.chdir(tmp_path)
    return str(tmp_path)


def started(here: str) -> list[object]:
    """Start the stand-in in a new process, as Ray does: with the working directory first."""
    packed = cloudpickle.dumps(with_driver_path(Plain)).hex()
    command = [sys.executable, "-c", WORKER, here, packed]
    done = subprocess.run(command, check=True, capture_output=True, text=True, cwd="/")
    return json.loads(done.stdout)


def test_the_working_directory_moves_behind_all_else(monkeypatch, tmp_path):
    (tmp_path / "link").symlink_to(tmp_path)
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(sys, "path", ["", str(tmp_path), "/a", str(tmp_path / "link"), "/b"])
    put_working_directory_last()
    assert sys.path == ["/a", "/b", str(tmp_path)]
    put_working_directory_last()
    assert sys.path == ["/a", "/b", str(tmp_path)]


def test_an_actor_finds_packages_before_the_working_directory(hostile, monkeypatch):
    monkeypatch.setattr(sys, "path", [*sys.path])
    monkeypatch.setenv("PYTHONPATH", str(HOME))
    put_working_directory_last()
    (given, asked, file), path, last, home = started(hostile)
    assert (given, asked) == ({"given": 1}, "asked")
    assert path == ["/nowhere/of-the-worker", hostile] and last
    assert not file.startswith(hostile)
    assert Path(home).samefile(raysim.__file__)


def test_an_actor_has_the_order_of_the_driver(hostile, monkeypatch):
    monkeypatch.setattr(sys, "path", [hostile, *sys.path])
    monkeypatch.setenv("PYTHONPATH", str(HOME))
    with pytest.raises(subprocess.CalledProcessError) as failed:
        started(hostile)
    assert "hides a package" in failed.value.stderr
    assert "platformdirs.py" in failed.value.stderr and "raysim.py" not in failed.value.stderr


@pytest.mark.parametrize(
    ("words", "settings"),
    [
        (("resume", "."), '{"own_task": false, "method": {"name": "chardet:X"}}'),
        pytest.param(("run", "config.json"), "", marks=pytest.mark.full),
    ],
)
def test_a_command_in_a_run_directory_executes_nothing_there(tmp_path, words, settings):
    """Packages try to import some that are not installed."""
    if not settings and words[0] == "run":
        (tmp_path / "checkpoints" / "round_000001").mkdir(parents=True)
        (tmp_path / "checkpoints" / "round_000001" / "state.json").write_text("{}")
    (tmp_path / "config.json").write_text(settings)
    marker = "open({!r}, 'w')\n".format(str(tmp_path / "executed"))
    for name in ("wcwidth", "uvloop", "chardet", "zstandard"):
        (tmp_path / f"{name}.py").write_text(marker)
    command = [sys.executable, "-m", "raysim", *words]
    done = subprocess.run(command, cwd=tmp_path, capture_output=True, text=True, check=False)
    assert done.returncode == 2 and len(done.stderr.splitlines()) == 1
    assert not (tmp_path / "executed").exists()
