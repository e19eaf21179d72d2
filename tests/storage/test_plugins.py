"""Seals of plugins: a resumed run imports the source with which it was started, or none."""

from __future__ import annotations

import importlib
import json
import os
import shutil
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest

import raysim
from raysim.storage.plugins import modules_of, source_digest
from tests.tasks import make_settings, make_task

METHOD = """
from pathlib import Path

from helpers import RATE
from raysim.methods.fedavg import FedAvg

with Path(__file__).with_name("executed").open("a") as file:
    file.write("x")


class Mine(FedAvg):
    rate: float = RATE
"""
HELPERS = "from numpy import pi\n\nRATE = 1.0\n"
ODD = ("étude", "evil", "ev-il", "evil ", "1evil")
"""Names of files that `import_module` takes."""
RESUME = "import sys; from raysim.cli.app import main; sys.argv = ['raysim', *sys.argv[1:]]; main()"


class Interrupting(raysim.Listener):
    def round_done(self, row: object) -> None:
        raise KeyboardInterrupt


@pytest.fixture
def start(tmp_path, monkeypatch) -> Callable[..., Path]:
    """Start a run with a plugin of the working directory, and interrupt it."""
    monkeypatch.setattr(sys, "path", [*sys.path, str(tmp_path)])
    monkeypatch.chdir(tmp_path)
    (tmp_path / "mine.py").write_text(METHOD)
    (tmp_path / "helpers.py").write_text(HELPERS)

    def begin(out: Path = tmp_path / "run") -> Path:
        forget()
        settings = make_settings(out, **{"method.name": "mine:Mine"})
        with pytest.raises(KeyboardInterrupt):
            raysim.run(settings, make_task((9, 9)), Interrupting())
        (tmp_path / "executed").unlink()
        forget()
        return out

    yield begin
    forget()


def forget() -> None:
    """Have the next import read the sources."""
    for name in ("mine", "helpers", *ODD):
        sys.modules.pop(name, None)
    importlib.invalidate_caches()


def resume(out: Path, **options: bool) -> raysim.Result:
    return raysim.resume(out, make_task((9, 9)), **options)


def refusal(out: Path, **options: bool) -> str:
    """Return why a run is not resumed, without its plugin having been executed."""
    with pytest.raises(raysim.RunError) as caught:
        resume(out, **options)
    assert not Path("executed").exists() and len(str(caught.value).splitlines()) == 1
    return str(caught.value)


def test_an_unchanged_plugin_is_resumed_wherever_it_lies(start, tmp_path, monkeypatch):
    out = start()
    elsewhere = tmp_path / "elsewhere"
    elsewhere.mkdir()
    for name in ("mine.py", "helpers.py"):
        (tmp_path / name).rename(elsewhere / name)
    (elsewhere / "other.py").write_text("not imported by the plugin")
    monkeypatch.setattr(sys, "path", [*sys.path, str(elsewhere)])
    assert resume(out).summary["rounds"] == 3
    assert len(json.loads((out / "plugins.json").read_text())["mine"]) == 1


@pytest.mark.parametrize("name", ["plugins", "run_directory"])
def test_a_start_that_was_killed_before_it_wrote_all_can_be_repeated(
    start, tmp_path, monkeypatch, name
):
    def killed(*_: object) -> None:
        raise KeyboardInterrupt

    with monkeypatch.context() as patch:
        patch.setattr(f"raysim.storage.{name}.write_json", killed)
        settings = make_settings(tmp_path / "run", **{"method.name": "mine:Mine"})
        with pytest.raises(KeyboardInterrupt):
            raysim.run(settings, make_task((9, 9)))
    assert resume(start()).summary["rounds"] == 3


@pytest.mark.parametrize("name", ["mine.py", "helpers.py"])
def test_a_changed_source_is_refused_and_taken_by_force(start, tmp_path, name):
    out = start()
    with (tmp_path / name).open("a") as file:
        file.write("\n")
    assert refusal(out) == (
        "mine: its source has changed since the start of the run; to continue with the present one,"
        f" {tmp_path / 'mine.py'}, call: raysim.resume({str(out)!r}, task, force=True)"
    )
    settings = raysim.load_config("mnist-fedavg", {"out": str(out)})
    with pytest.raises(raysim.RunError, match=r"^mine: its source has changed since"):
        raysim.run(settings)  # reads the settings there
    assert not (tmp_path / "executed").exists()
    assert resume(out, force=True).summary["rounds"] == 3
    assert len(json.loads((out / "plugins.json").read_text())["mine"]) == 2  # both are on record


def test_a_finished_run_of_another_source_is_not_advised_to_go_on(start, tmp_path):
    """Forced, it would say that nothing is left to do."""
    out = start()
    resume(out)
    forget()
    (tmp_path / "executed").unlink()
    with (tmp_path / "mine.py").open("a") as file:
        file.write("\n")
    assert refusal(out) == (
        f"mine: its source has changed since the start of {out}, a finished run; for a run with the"
        f" present one, {tmp_path / 'mine.py'}, choose another `out`"
    )


@pytest.mark.parametrize("name", ["mine.py", "helpers.py"])
def test_a_source_that_is_edited_between_two_runs_is_imported_anew(
    start, tmp_path, monkeypatch, name
):
    """As in a notebook; within a second and of the same length, so that bytecode looks current."""
    monkeypatch.setattr(sys, "dont_write_bytecode", False)
    (tmp_path / "mine.py").write_text("RATE = 1.0\n" + METHOD.replace("from helpers", "# "))
    if name == "helpers.py":
        (tmp_path / "mine.py").write_text(METHOD)
    own = {"method.name": "mine:Mine"}
    first = make_settings(tmp_path / "first", **own)
    path = tmp_path / name
    changed = path.stat().st_mtime
    path.write_text(path.read_text().replace("1.0", "2.0"))
    os.utime(path, (changed, changed))
    with pytest.raises(raysim.RunError, match="since the settings were loaded") as caught:
        raysim.run(first, make_task((9, 9)))
    assert len(str(caught.value).splitlines()) == 1
    second = make_settings(tmp_path / "second", **own)
    assert (first.method.rate, second.method.rate) == (1.0, 2.0)
    raysim.run(second, make_task((9, 9)))
    assert json.loads((tmp_path / "second/config.json").read_text())["method"]["rate"] == 2.0


@pytest.mark.parametrize("seal", [None, "", "[]", '{"mine": "a"}', '{"mine": []}', '{"mine": 1}'])
def test_a_missing_or_damaged_seal_is_refused(start, seal):
    out = start()
    (out / "plugins.json").unlink()
    if seal is not None:
        (out / "plugins.json").write_text(seal)
    assert f"raysim.resume({str(out)!r}, task, force=True)" in refusal(out)
    assert resume(out, force=True).summary["rounds"] == 3


def test_a_module_that_the_run_did_not_use_is_not_advised(start, tmp_path):
    """Settings of someone else's run directory name it, without a checkpoint that has others."""
    out = start()
    shutil.rmtree(out / "checkpoints")
    text = (out / "config.json").read_text().replace("mine:Mine", "other:Mine")
    (out / "config.json").write_text(text)
    (tmp_path / "other.py").write_text(METHOD)
    message = refusal(out)
    assert "does not say that the run was started with this module" in message
    assert "to continue" not in message and f"Read {tmp_path / 'other.py'}" in message


@pytest.mark.parametrize("force", [False, True])
def test_code_in_a_run_directory_is_not_executed(start, tmp_path, monkeypatch, force):
    """Its seal is as false as its code, and the working directory is the run's."""
    out = start()
    for name in ("mine.py", "helpers.py"):
        (tmp_path / name).rename(out / name)
    monkeypatch.chdir(out)
    monkeypatch.setattr(sys, "path", [*sys.path[:-1], str(out)])
    assert "mine: there is no such module" in refusal(Path(), force=force)
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(sys, "path", [*sys.path, str(out)])
    assert f".py lies in the run directory {out}, and code there is not" in refusal(
        out, force=force
    )


def test_another_plugin_in_the_settings_file_is_not_executed(start, tmp_path):
    """The checkpoint has the settings that count."""
    out = start()
    (tmp_path / "other.py").write_text(METHOD.replace("executed", "other_executed"))
    text = (out / "config.json").read_text().replace("mine:Mine", "other:Mine")
    (out / "config.json").write_text(text)
    assert resume(out).summary["rounds"] == 3
    assert not (tmp_path / "other_executed").exists()


def test_a_package_s_name_leads_into_no_run_directory(start, tmp_path):
    out = start()
    shutil.rmtree(out / "checkpoints")  # they have a copy of the settings
    for name in ("mine.py", "helpers.py"):
        (tmp_path / name).rename(out / name)
    text = (out / "config.json").read_text().replace("mine:Mine", "run.mine:Mine")
    (out / "config.json").write_text(text)
    assert f"mine.py lies in the run directory {out}" in refusal(out, force=True)
    other = tmp_path / "other"
    shutil.copytree(out, other)
    (out / "mine.py").unlink()
    assert "run.mine: has no Python source" in refusal(other, force=True)
    (other / "config.json").write_text(text.replace("run.mine", "other.mine"))
    assert "lies in the run directory" in refusal(other, force=True)


def test_a_run_directory_that_holds_the_plugin_is_refused_at_the_start(start, tmp_path):
    settings = make_settings(tmp_path, **{"method.name": "mine:Mine"})
    with pytest.raises(raysim.RunError, match=f"lies in the run directory {tmp_path}"):
        raysim.run(settings, make_task((9, 9)))
    assert not (tmp_path / "config.json").exists()


@pytest.mark.parametrize("name", ["mine", "run.mine"])
def test_settings_that_name_code_in_a_run_directory_execute_none(
    start, tmp_path, monkeypatch, name
):
    out = start()
    for file in ("mine.py", "helpers.py"):
        (tmp_path / file).rename(out / file)
    forget()
    monkeypatch.setattr(sys, "path", [*sys.path, str(out)])
    settings = tmp_path / "settings.json"
    settings.write_text(json.dumps({"method": {"name": f"{name}:Mine"}}))
    with pytest.raises(raysim.RunError, match=f"^{name}: .* lies in the run directory {out}"):
        raysim.load_config(settings)
    assert not (out / "executed").exists()


@pytest.mark.full
def test_the_command_line_executes_nothing_beside_a_run(start, tmp_path):
    """As typed in the run directory, with modules named like ones that are not installed."""
    out = start()
    (tmp_path / "mine.py").rename(out / "mine.py")
    (out / "helpers.py").write_text(HELPERS)
    command = [sys.executable, "-c", RESUME, "resume", ".", "--force"]
    done = subprocess.run(command, cwd=out, capture_output=True, text=True, check=False)
    assert not (out / "executed").exists()
    assert done.returncode == 2 and len(done.stderr.splitlines()) == 1


@pytest.mark.parametrize(
    ("group", "target"),
    [
        *[
            ("local", f"{module}:{name}")
            for module in ("étude", "evil")
            for name in ("été", "train")
        ],
        *[("local", t) for t in ("ev-il:train", "evil:a.train", "evil:train ", "evil: train")],
        *[
            ("method", t)
            for t in ("étude:Été", "ev-il:Mine", "evil:Mine:x", "evil :Mine", "1evil:M")
        ],
    ],
)
def test_no_name_in_settings_leads_past_the_seal(group, target, start, tmp_path):
    """Those of a run directory from someone else; modules of any name are importable."""
    out = start()
    shutil.rmtree(out / "checkpoints")
    settings = json.loads((out / "config.json").read_text())
    settings["method"] = {"name": "fedavg"}
    settings[group]["train" if group == "local" else "name"] = target
    (out / "config.json").write_text(json.dumps(settings))
    for name in ODD:
        (tmp_path / f"{name}.py").write_text("open('executed', 'w')\ntrain = été = print")
    with pytest.raises(raysim.RaysimError) as caught:
        resume(out)
    assert len(str(caught.value).splitlines()) == 1
    assert not (tmp_path / "executed").exists()


def test_modules_of_settings():
    settings = {
        "method": {"name": "chain", "methods": {"a.b:C": {}, "fedprox": {}}},
        "model": {"name": "raysim.workloads.models.cnn:Cnn"},
        "dataset": {"name": "d:D", "path": "x:y"},
        "partition": {"name": "__main__:P"},
        "local": {"optimizer": "g:H"},
        "out": "e:F",
    }
    assert modules_of(settings) == {"a.b", "d", "g"}


def test_a_digest_is_of_what_a_plugin_imports_in_its_package(tmp_path, monkeypatch):
    folder = tmp_path / "site-packages" / "mypackage"
    folder.mkdir(parents=True)
    for name, text in {
        "__init__": "raise RuntimeError('executed')",
        "method": "from . import rates\nfrom .deep.er import x\nimport neighbour, mypackage.used",
        "rates": "",
        "used": "",
        "unused": "",
        "../neighbour": "",
        "deep/er": "not python(",
    }.items():
        (folder / f"{name}.py").parent.mkdir(exist_ok=True)
        (folder / f"{name}.py").write_text(text)
    monkeypatch.setattr(sys, "path", [*sys.path, str(folder.parent)])
    importlib.invalidate_caches()
    before = source_digest("mypackage.method", tmp_path / "run")
    for name, counts in {
        "__init__": True,
        "method": True,
        "rates": True,
        "used": True,
        "deep/er": True,
        "unused": False,
        "../neighbour": False,
    }.items():
        path = folder / f"{name}.py"
        text = path.read_text()
        path.write_text(f"{text}\n")
        assert (source_digest("mypackage.method", tmp_path / "run") != before) == counts, name
        path.write_text(text)
    assert source_digest("mypackage.method", tmp_path / "run") == before
