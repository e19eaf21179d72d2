"""Imports of commands and runs: some modules take seconds to import, and few commands need them."""

from __future__ import annotations

import ast
import os
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest

import raysim

HEAVY = ("torch", "ray", "torchvision", "pyarrow", "scipy", "optuna")
COMMAND = """
import sys
from raysim.cli.app import main

sys.argv = ["raysim", *sys.argv[1:]]
try:
    main()
finally:
    print(*sys.modules, file=sys.stderr)
"""

RUN = """
import sys
import torch
import raysim

x, y = torch.randn(60, 4), torch.randint(0, 2, (60,))
task = raysim.Task(model=lambda: torch.nn.Linear(4, 2), clients=[(x, y)] * 2, test=(x, y))
settings = {
    "rounds": 2, "fraction": 1.0, "target_accuracy": None, "local.epochs": 1,
    "local.batch_size": 1, "engine.backend": "inline", "out": sys.argv[1],
}
raysim.run(raysim.load_config("mnist-fedavg", settings), task=task)
unwanted = ("torch._dynamo", "sympy", "torchvision", "IPython")
print(*(name for name in unwanted if name in sys.modules))
"""


def test_a_run_imports_neither_a_compiler_nor_a_notebook(tmp_path):
    command = [sys.executable, "-c", RUN, str(tmp_path / "run")]
    done = subprocess.run(command, check=True, capture_output=True, text=True)
    assert done.stdout.split() == []


def imported(program: str, *arguments: str) -> set[str]:
    """Return the modules that a program has imported, which it prints to stderr."""
    command = [sys.executable, "-c", program, *arguments]
    done = subprocess.run(command, check=True, capture_output=True, text=True)
    return set(done.stderr.split())


OPEN = """
import sys
from pathlib import Path
from raysim.samples.arrow import open_split

assert len(open_split(Path(sys.argv[1])).y)
print(*sys.modules, file=sys.stderr)
"""


def test_workers_read_prepared_data_without_pandas(tmp_path):
    """They need it for nothing else; it takes a fifth of a second and 50 MB of each."""
    numbers = np.arange(6, dtype=np.float32)
    raysim.write_split(tmp_path / "a.arrow", raysim.Split(numbers.reshape(3, 2), np.arange(3)))
    found = imported(OPEN, str(tmp_path / "a.arrow"))
    assert "pyarrow" in found and "pandas" not in found


def test_the_interface_imports_nothing_heavy():
    found = imported("import sys, raysim; print(*sys.modules, file=sys.stderr)")
    assert "raysim" in found
    assert found & {*HEAVY, "pydantic", "numpy"} == set()


@pytest.mark.parametrize(
    ("words", "more"),
    [
        (("--help",), ("numpy",)),
        (("run", "--help"), ("numpy",)),
        (("list", "presets"), ()),
        (("list", "tables"), ()),
    ],
)
def test_help_and_the_lists_of_presets_and_tables_import_nothing_heavy(words, more):
    found = imported(COMMAND, *words)
    assert "raysim.cli.app" in found
    assert found & {*HEAVY, *more} == set()


@pytest.mark.ci
@pytest.mark.parametrize(
    ("words", "seconds"),
    [(("--help",), 1.0), (("list", "presets"), 2.0), (("list", "tables"), 2.0)],
)
def test_help_and_the_lists_of_presets_and_tables_are_quick(words, seconds):
    """In seconds of processor time, about four times what they take; torch alone takes more."""
    took = []
    for _ in range(2):
        before = os.times()
        subprocess.run([sys.executable, "-m", "raysim", *words], check=True, capture_output=True)
        after = os.times()
        took.append(sum(after[2:4]) - sum(before[2:4]))
    assert min(took) < seconds


def test_type_checkers_see_the_names_of_the_interface():
    """They take a name that a stub imports as part of it if it is imported as itself."""
    stub = ast.parse(Path(raysim.__file__).with_suffix(".pyi").read_text(encoding="utf-8"))
    lines = [node for node in stub.body if isinstance(node, ast.ImportFrom)]
    names = [alias for line in lines for alias in line.names]
    assert [alias.asname for alias in names] == [alias.name for alias in names]


def test_all_names_of_the_interface_can_be_had():
    for name in raysim.__all__:
        assert getattr(raysim, name, None) is not None, name
        assert name in dir(raysim)
    with pytest.raises(AttributeError, match="'raysim' has no attribute 'Nonsense'"):
        raysim.Nonsense  # noqa: B018 - asking for it is the test
