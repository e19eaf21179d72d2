"""The module path of the driver and of actors: the working directory answers named imports only."""

from __future__ import annotations

import json
import subprocess
import sys
from importlib.util import find_spec
from pathlib import Path
from types import ModuleType

import pytest
from ray import cloudpickle

import raysim
from raysim.api.method import METHODS
from raysim.execution.module_path import with_driver_path
from raysim.testing.tasks import SmallNet
from raysim.user_input.user_modules import (
    FINDER,
    NamedModules,
    allow,
    find_named_modules,
    sources,
)
from tests.tasks import make_settings, make_task

HOME = Path(raysim.__file__).parents[1]
HOSTILE = "raise RuntimeError('a file of the working directory hides a package')\n"
WORKER = """
import json, pickle, sys
import ray.cloudpickle

here = sys.argv[1]
sys.path[:0] = [here, "/nowhere/of-the-worker"]
actor = pickle.load(sys.stdin.buffer)({"given": 1})
path = [entry for entry in sys.path if entry == here or entry.startswith("/nowhere")]
last = sys.path[-1] == here
print(json.dumps([actor.describe("asked"), path, last, sys.modules["raysim"].__file__]))
"""


class Plain:
    """An actor class, as `ray.remote` takes it."""

    def __init__(self, given: dict[str, int]) -> None:
        self.given = given

    def describe(self, asked: str) -> list[object]:
        from importlib.util import find_spec

        import platformdirs

        named = [find_spec(name) is not None for name in ("an_own_method", "an_own_stranger")]
        return [self.given, asked, platformdirs.__file__, named]


@pytest.fixture
def hostile(tmp_path, monkeypatch) -> str:
    """A working directory with files named like packages."""
    for name in ("platformdirs", "raysim", "an_own_stranger"):
        (tmp_path / f"{name}.py").write_text(HOSTILE)
    monkeypatch.chdir(tmp_path)
    return str(tmp_path)


def started(here: str, kind: type = Plain) -> list[object]:
    """Start the stand-in in a new process, as Ray does: with the working directory first."""
    packed = cloudpickle.dumps(with_driver_path(kind))
    command = [sys.executable, "-c", WORKER, here]
    done = subprocess.run(command, input=packed, check=True, capture_output=True, cwd="/")
    return json.loads(done.stdout)


@pytest.fixture
def finder(monkeypatch) -> NamedModules:
    """The finder of this process, as it was after the test."""
    monkeypatch.setattr(sys, "path", [*sys.path])
    monkeypatch.setattr(sys, "meta_path", [*sys.meta_path])
    for name, before in vars(FINDER).items():
        monkeypatch.setattr(FINDER, name, type(before)())
    return FINDER


def test_the_working_directory_is_off_the_module_path(finder, monkeypatch, tmp_path):
    (tmp_path / "link").symlink_to(tmp_path)
    monkeypatch.chdir(tmp_path)
    sys.path[:] = ["", str(tmp_path), "/a", str(tmp_path / "link"), "/b"]
    for _ in range(2):
        find_named_modules()
        assert sys.path == ["/a", "/b"] and finder.folders == [str(tmp_path)]
        assert sys.meta_path[-1] is finder and sys.meta_path.count(finder) == 1


def test_named_modules_and_their_imports_alone_are_found_there(finder, monkeypatch, tmp_path):
    monkeypatch.chdir(tmp_path)
    for name, text in {
        "an_own_method": "import an_own_helper, importlib\nimportlib.import_module('an_own_text')",
        "an_own_text": "def f():\n    __import__('an_own_word')\n    from ..above import y",
        "an_own_word": "",
        "an_own_helper": "def f():\n    from an_own_package.deep import x",
        "an_own_package/deep": "import an_own_missing",
        "an_own_stranger": "",
    }.items():
        (tmp_path / f"{name}.py").parent.mkdir(exist_ok=True)
        (tmp_path / f"{name}.py").write_text(text)
    find_named_modules()
    found = (
        "an_own_method",
        "an_own_helper",
        "an_own_text",
        "an_own_word",
        "an_own_package",
        "an_own_package.deep",
    )
    assert find_spec("an_own_method") is None
    allow("an_own_method")
    assert all(find_spec(name) is not None for name in found)
    assert find_spec("an_own_stranger") is None and find_spec("an_own_missing") is None
    sys.modules.pop("an_own_package", None)


def test_a_module_of_python_has_none_beside_it():
    """Else a setting that names one is read with most of Python's library: 14 s."""
    assert {name.partition(".")[0] for name in sources("json")} == {"json"}


def test_an_actor_finds_what_the_driver_finds(hostile, finder, monkeypatch):
    monkeypatch.setenv("PYTHONPATH", str(HOME))
    (Path(hostile) / "an_own_method.py").touch()
    find_named_modules()
    allow("an_own_method")
    (given, asked, file, named), path, _, home = started(hostile)
    assert (given, asked) == ({"given": 1}, "asked")
    assert path == ["/nowhere/of-the-worker"]
    assert not file.startswith(hostile) and named == [True, False]
    assert Path(home).samefile(raysim.__file__)


class Finds:
    """Actor that says which modules it finds."""

    def __init__(self, given: dict[str, int]) -> None:
        """Take what `started` gives."""

    def describe(self, asked: str) -> list[bool]:
        from importlib.util import find_spec

        return [find_spec(name) is not None for name in ("an_own_library", "an_own_package.net")]


def test_an_actor_finds_what_a_script_has_put_on_the_path(tmp_path, monkeypatch):
    """A folder of a script, `src` say, but no packages of the driver's Python."""
    (tmp_path / "src/an_own_package").mkdir(parents=True)
    (tmp_path / "src/an_own_package/net.py").touch()
    (tmp_path / "site-packages").mkdir()
    (tmp_path / "site-packages/an_own_library.py").touch()
    added = [str(tmp_path / "src"), str(tmp_path / "site-packages")]
    monkeypatch.setattr(sys, "path", [*added, *sys.path])
    monkeypatch.setenv("PYTHONPATH", str(HOME))
    assert started(str(tmp_path), Finds)[0] == [False, True]


@pytest.mark.usefixtures("resident_actors")
def test_a_module_that_actors_do_not_find_is_one_line(tmp_path, monkeypatch):
    """One that the driver has made: there is no file of it."""
    module = ModuleType("an_own_ghost")
    monkeypatch.setitem(sys.modules, "an_own_ghost", module)
    module.Net = type("Net", (SmallNet,), {"__module__": "an_own_ghost"})
    settings = make_settings(tmp_path, **{"engine.backend": "ray", "engine.actors": 1})
    says = "actors cannot import a module of the task: ModuleNotFoundError: No module named 'an_own"
    with pytest.raises(raysim.SettingsError, match=says):
        raysim.run(settings, make_task((8, 8), module.Net))


def test_an_actor_has_the_order_of_the_driver(hostile, monkeypatch):
    monkeypatch.setattr(sys, "path", [hostile, *sys.path])
    monkeypatch.setenv("PYTHONPATH", str(HOME))
    with pytest.raises(subprocess.CalledProcessError) as failed:
        started(hostile)
    said = failed.value.stderr.decode()
    assert "hides a package" in said and "platformdirs.py" in said and "raysim.py" not in said


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


OPTIONAL = (
    *("pandas", "tensorflow", "snappy", "torchcomms", "opt_einsum", "monkeytype", "cutlass"),
    *(
        "pynvml",
        "pydot",
        "dill",
        "chardet",
        "brotli",
        "zstandard",
        "uvloop",
        "wcwidth",
        "backports",
    ),
    *("habana_frameworks", "cython", "simplejson", "org", "socks", "backports", "amdsmi"),
)
"""Packages that libraries import if they are installed."""
TYPED = """
import json, runpy, sys
for words in json.loads(sys.argv[1]):
    sys.argv = ["raysim", *words]
    try:
        runpy.run_module("raysim", run_name="__main__")
    except SystemExit as end:
        assert not end.code, words
"""
OWN_METHOD = (
    "import own_helper\nfrom raysim.methods.fedavg import FedAvg\nclass Mine(FedAvg):\n    pass\n"
)


def test_a_module_that_no_source_names_is_named_in_the_error(finder, monkeypatch, tmp_path):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "an_own_asker.py").write_text("name = 'an_own_' + 'part'\n__import__(name)")
    (tmp_path / "an_own_part.py").touch()
    find_named_modules()
    with pytest.raises(raysim.SettingsError, match="the an_own_part of the working directory is"):
        METHODS.get("an_own_asker:Mine")


@pytest.mark.parametrize("engine", ["inline", pytest.param("ray", marks=pytest.mark.full)])
def test_optional_imports_of_libraries_execute_nothing(tmp_path, engine):
    """A run with an own method, and its comparison, beside files named alike."""
    for name in OPTIONAL:
        (tmp_path / f"{name}.py").write_text("open(f'executed-{__name__}', 'w')\n")
    (tmp_path / "own_method.py").write_text(OWN_METHOD)
    (tmp_path / "own_helper.py").touch()
    settings = ("clients=4", "fraction=1.0", "partition.limit=10", "rounds=1", "out=run")
    method = ("method.name=own_method:Mine", "target_accuracy=none")
    where = (f"engine.backend={engine}", *(["engine.actors=1"] if engine == "ray" else []))
    commands = ("run", "mnist-fedavg", *settings, *method, *where), ("compare", "run")
    command = [sys.executable, "-c", TYPED, json.dumps(commands)]
    done = subprocess.run(command, cwd=tmp_path, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    assert "everything is in run" in done.stdout and "2 runs" not in done.stdout
    assert not [*tmp_path.glob("executed-*")]
