"""Completion in the shell: what TAB offers, as bash and zsh ask for it."""

from __future__ import annotations

import os
import subprocess
import sys

import pytest

from raysim.cli.completion import FILE, collect, written
from tests.cli.test_app import raysim_command
from tests.test_lean_start import HEAVY

__all__ = ["raysim_command"]

PROGRAM = """
import sys
from raysim.cli.app import main
sys.argv = ["raysim"]
try:
    main()
finally:
    print(*sys.modules, file=sys.stderr)
"""


def asked(**variables):
    """Return what the program prints to a shell that asks it for completions, and its modules."""
    environment = {**os.environ, **variables}
    command = [sys.executable, "-c", PROGRAM]
    done = subprocess.run(command, env=environment, capture_output=True, text=True, check=False)
    return done.stdout.split(), {*done.stderr.split()}


@pytest.fixture
def offered(raysim_command, monkeypatch):
    """Return what bash is offered behind the last word, which it splits at `=`."""
    monkeypatch.setattr(sys.modules["__main__"], "__package__", None)  # no module of pytest

    def ask(*words):
        for name, value in of_bash(*words).items():
            monkeypatch.setenv(name, value)
        return raysim_command()[1].split()

    return ask


def of_bash(*words):
    """Return the variables with which bash asks for what is behind the last word."""
    split = " ".join(words).replace("=", " = ").split(" ")
    last = "" if not split[-1] else split[-1]
    return {
        "_RAYSIM_COMPLETE": "complete_bash",
        "COMP_WORDS": "\n".join(["raysim", *(word for word in split if word)]),
        "COMP_CWORD": str(len([word for word in split if word]) + (not last)),
    }


CASES = {
    ("run", "mnist-n"): ["mnist-noniid"],
    ("run", "mnist-fedavg", "local.lr_m"): ["local.lr_metric=", "local.lr_min="],
    ("run", "mnist-fedavg", "local.mom"): ["local.momentum=", "local.momentum=0.0"],
    ("run", "mnist-fedavg", "method.name=fedno"): ["fednova"],
    ("run", "mnist-fedavg", "weighting="): ["examples", "uniform", "tokens"],
    ("run", "mnist-fedavg", "method.name=fedprox", "method."): [
        *("method.name=", "method.mu=", "method.reduction="),
    ],
    ("run", "mnist-fedavg", "method.m"): [],
    ("run", "dataset.name=files", "dataset.lea"): ["dataset.leave_out="],
    ("run", "dataset.name=files", "dataset.dates_first=m"): ["month"],
    ("run", "dataset.name=syn"): ["synthetic"],
    ("sweep", "dataset.name=synthetic", "rounds=3", "dataset.us"): [
        "dataset.users=",
        "dataset.users=100",
    ],
    ("run", "mnist-fedavg", "local.optimizer=adam"): ["adam", "adamw"],
    ("run", "mnist-fedavg", "method.name=fedavg,fedno"): [],
    ("run", "mnist-fedavg", "evaluation.metrics=f1,"): ["f1,auc", "f1,precision", "f1,recall"],
    ("run", "mnist-fedavg", "evaluation.metrics=f1,auc,pr"): ["f1,auc,precision"],
    ("run", "mnist-fedavg", "analysis=cka,temp"): ["cka,temperature"],
    ("sweep", "mnist-noniid", "engine.backend="): ["ray", "inline"],
    ("sweep", "mnist-noniid", "method.name=fedavg,fedno"): ["fedavg,fednova"],
    ("sweep", "mnist-noniid", "engine.backend=ray,"): ["ray,inline"],
    ("sweep", "mnist-noniid", "method.name=fedavg,fedprox", "method.mu"): [
        *("method.mu=", "method.mu=0.01"),
    ],
    ("sweep", "mnist-noniid", "--tune", "local.te"): ["local.temperature="],
    ("sweep", "mnist-noniid", "--tune", "local.lr="): [],
    ("tune", "mnist-noniid", "--tune", "local.te"): ["local.temperature="],
    ("resume", "RUN", "ro"): ["rounds=", "rounds=6"],
    ("resume", "RUN", "rounds="): ["6"],
    ("resume", "RUN", "local."): [],
    ("resume", "RUN", "ou"): [],
    ("resume", "elsewhere", "ro"): ["rounds="],
    ("list", "clo"): ["clocks"],
    ("list", "clocks", ""): ["none", "devices"],
    ("table", "fedmmd-"): ["fedmmd-fig4"],
}


@pytest.mark.parametrize("words", CASES)
def test_what_bash_is_offered(offered, tmp_path, words):
    (tmp_path / "RUN").mkdir()
    (tmp_path / "RUN" / "config.json").write_text('{"rounds": 6}')
    assert sorted(offered(*words)) == sorted(CASES[words])


def test_zsh_completes_whole_words_and_nothing_imports_torch():
    line = "raysim run mnist-fedavg method.name=fedno"
    found, modules = asked(_RAYSIM_COMPLETE="complete_zsh", _TYPER_COMPLETE_ARGS=line)
    assert '(("method.name=fednova"))' in " ".join(found)
    assert "raysim.cli.completion" in modules
    assert modules & {*HEAVY, "numpy"} == set()


def test_the_words_are_those_of_the_registries():
    """Else type: python -m raysim.cli.completion."""
    assert FILE.read_text(encoding="utf-8") == written(collect())
