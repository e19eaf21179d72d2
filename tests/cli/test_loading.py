"""Settings whose natural clients are counted: what commands show meanwhile, and their end."""

from __future__ import annotations

import signal
import sys

import pytest

import raysim
from raysim.cli.app import main

DATASET = """
import os
from raysim.workloads.datasets.files.dataset import Files


class Slow(Files):
    def prepare(self, root, progress):
        progress("read slowly", 3, 3)
        os.kill(os.getpid(), {signal})
        return super().prepare(root, progress)
"""
NATURAL = (
    *("dataset.path=t.csv", "dataset.target=y", "dataset.client=site", "partition.name=natural"),
    *("model.name=linear", "engine.backend=inline"),
)
SUBMIT = ("submit", "--address=http://127.0.0.1:9", "--")
LOADING = {
    "run": ("run", "mnist-fedavg"),
    "data show": ("data", "show", "mnist-fedavg"),
    "sweep": ("sweep", "mnist-fedavg", "--dry-run", "method.name=fedavg,fedprox"),
    "tune": ("tune", "mnist-fedavg", "--tune=local.lr=0.1..1"),
    "submit run": (*SUBMIT, "run", "mnist-fedavg"),
    "submit sweep": (*SUBMIT, "sweep", "mnist-fedavg", "method.name=fedavg,fedprox"),
}


@pytest.fixture
def command(tmp_path, monkeypatch, capsys):
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("RAYSIM_DATA", str(tmp_path / "data"))
    monkeypatch.setattr(sys, "path", [*sys.path])
    rows = "".join(f"{i},{i % 2},{'abc'[i % 3]}\n" for i in range(60))
    (tmp_path / "t.csv").write_text(f"x,y,site\n{rows}")

    def command(*words: str) -> tuple[int, str, str]:
        monkeypatch.setattr(sys, "argv", ["raysim", *words])
        with pytest.raises(SystemExit) as ended:
            main()
        return (ended.value.code or 0, *capsys.readouterr())

    return command


@pytest.fixture
def handlers_of_a_new_process():
    """Take Ray's handlers off, which it leaves after a test that started it."""
    before = {each: signal.signal(each, signal.SIG_DFL) for each in (signal.SIGINT, signal.SIGTERM)}
    yield
    for each, handler in before.items():
        signal.signal(each, handler)


@pytest.mark.parametrize("name", LOADING)
@pytest.mark.parametrize("stop", [signal.SIGINT, signal.SIGTERM])
@pytest.mark.usefixtures("handlers_of_a_new_process")
def test_an_interruption_while_clients_are_counted(name, stop, command, tmp_path):
    module = f"slow_{'_'.join(name.split())}_{stop.name}".lower()
    (tmp_path / f"{module}.py").write_text(DATASET.format(signal=int(stop)))
    code, out, err = command(*LOADING[name], f"dataset.name={module}:Slow", *NATURAL)
    assert (code, err) == (128 + stop, "")
    again = ["interrupted; the same command resumes the study"] if name == "tune" else []
    assert out.splitlines() == ["read slowly: 100%", *again]
    assert not (tmp_path / "runs").exists()


def test_the_listener_of_a_caller_is_told(command, tmp_path):
    told = []

    class Told(raysim.Listener):
        def preparing(self, what, done, total):
            told.append(what)

    overrides = dict(word.split("=") for word in ("dataset.name=files", *NATURAL))
    assert raysim.load_config("mnist-fedavg", overrides, Told()).clients == 3
    assert {*told} == {"prepare files", "read files"}
