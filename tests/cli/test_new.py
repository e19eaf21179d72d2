"""`raysim new`: what it writes runs and is tested, under any name."""

from __future__ import annotations

import importlib
import inspect
import shlex
import sys

import pytest
from typer.testing import CliRunner

import raysim
from raysim.cli import new as module
from raysim.cli.app import app
from raysim.cli.new import KINDS
from raysim.cli.options import changes
from raysim.errors import SettingsError


@pytest.fixture
def folder(tmp_path, monkeypatch):
    """Return an empty working directory, whose modules are forgotten afterwards."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.syspath_prepend(str(tmp_path))
    before = {*sys.modules}
    yield tmp_path
    for name in {*sys.modules} - before:
        if "my_own" in name:
            del sys.modules[name]


def new(*arguments):
    return CliRunner().invoke(app, ["new", *arguments], catch_exceptions=False)


@pytest.mark.parametrize("kind", KINDS)
def test_what_is_written_passes_its_own_tests(folder, kind):
    said = new(kind, "my_own").output
    assert {path.name for path in folder.iterdir()} == {"my_own.py", "test_my_own.py"}
    written = "".join(path.read_text() for path in folder.iterdir())
    assert "raysim.templates" not in written and "New" not in written
    assert "MyOwn" in written
    tests = importlib.import_module("test_my_own")
    functions = inspect.getmembers(tests, inspect.isfunction)
    own = [each for name, each in functions if name.startswith("test_")]
    assert own
    for number, test in enumerate(own):
        path = folder / str(number)
        test(*([path] if inspect.signature(test).parameters else []))
    if kind == "method":
        assert tests.TestMyOwn.method == "my_own:MyOwn"
    assert "test it: python -m pytest test_my_own.py" in said


def test_where_pytest_is_missing_it_is_said_how_to_install_it(folder, monkeypatch):
    monkeypatch.setattr(module, "find_spec", lambda name: None)
    said = new("method", "my_own").output
    assert "test_my_own.py   (needs pytest: pip install 'raysim-fl[testing]')" in said


@pytest.mark.parametrize("kind", ["method", "dataset"])
def test_the_command_that_is_printed_is_a_run(folder, kind):
    command = new(kind, "my_own").output.splitlines()[1].removeprefix("run it:")
    words = shlex.split(command)
    assert words[:3] == ["raysim", "run", "mnist-fedavg"]
    raysim.load_config("mnist-fedavg", changes(words[3:], None))


@pytest.mark.parametrize(
    ("arguments", "error"),
    [
        (("methd", "my_own"), "did you mean 'method'?"),
        (("method", "My-own"), "My-own: must be a module's name"),
        (("method", "class"), "class: must be a module's name"),
        (("task", "random"), "random: a module has this name already"),
        (("task", "torch"), "torch: a module has this name already"),
    ],
)
def test_bad_names_write_nothing(folder, arguments, error):
    with pytest.raises(SettingsError, match=error):
        new(*arguments)
    assert not [*folder.iterdir()]


@pytest.mark.parametrize("name", ["my_own.py", "test_my_own.py"])
def test_a_file_is_not_written_over(folder, name):
    (folder / name).write_text("mine")
    with pytest.raises(SettingsError, match=f"^{name}: exists already"):
        new("method", "my_own")
    assert [path.read_text() for path in folder.iterdir()] == ["mine"]
