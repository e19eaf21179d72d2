"""Imports point one way; nothing is pickled, and nothing is loaded that could run code.

The sources are read with `ast`, so an import inside a function counts too, and so does a module
named by a string that is given to `import_module`.
"""

from __future__ import annotations

import ast
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import pytest

ROOT = Path(__file__).parent.parent
UPPER = ("workloads", "tuning", "cluster")

BASE = ("errors", "process", "numbers", "user_input", "api")
LOW = (*BASE, "samples", "display")
ENGINE = (
    *(*LOW, "config", "methods", "selection", "channel", "aggregation", "attack", "optimizers"),
    *("server", "temperature", "analysis", "clock", "storage"),
    *("federation", "training", "execution"),
)
ALLOWED: dict[str, tuple[str, ...]] = {
    "process": (),
    "errors": ("process",),
    "numbers": ("errors",),
    "user_input": ("errors",),
    "api": ("errors", "numbers", "user_input"),
    "samples": BASE,
    "display": ("errors", "samples"),
    "analysis": (*BASE, "methods"),
    "clock": (*BASE, "samples"),
    "selection": BASE,
    "channel": BASE,
    "aggregation": BASE,
    "attack": BASE,
    "optimizers": BASE,
    "server": BASE,
    "temperature": BASE,
    "combinations": (*LOW, "analysis", "config", "server"),
    "config": (
        *(*BASE, "samples", "analysis", "clock", "selection", "channel", "combinations"),
        *("aggregation", "attack", "optimizers", "server", "temperature"),
    ),
    "methods": BASE,
    "storage": (*LOW, "config"),
    "federation": (*LOW, "config"),
    "training": (*LOW, "config", "federation"),
    "execution": (*LOW, "config", "storage", "federation", "training"),
    "driver": (
        *(*LOW, "combinations", "config", "analysis", "clock", "storage"),
        *("federation", "training", "execution"),
    ),
    "results": (*LOW, "config", "methods", "analysis", "storage"),
    "notebook": (*LOW, "storage", "driver"),
    "facade": (*ENGINE, "driver", "notebook", *UPPER),
    "cli": (*ENGINE, "combinations", "facade", "driver", "results", *UPPER),
    "workloads": (*LOW, "config", "methods", "storage", "federation", "results", "facade"),
    "tuning": (
        *LOW,
        "config",
        "methods",
        "storage",
        "federation",
        "execution",
        "results",
        "notebook",
        "facade",
        "workloads",
    ),
    "cluster": (*LOW, "config", "execution", "facade", "workloads"),
}
"""Per area, the other areas that it may import."""

LEAN = ("raysim", "cli")
"""The module `raysim` and the area `cli`: quick to import, though both may import all."""
PICKLERS = {"pickle", "_pickle", "cloudpickle", "dill", "joblib", "shelve"}


@dataclass(frozen=True)
class Import:
    """A module that a source names, where it does, and whether only in a function or for types."""

    module: str
    line: int
    late: bool


def area(module: str) -> str | None:
    """Return the part of the project to which a dotted name belongs; None for other projects."""
    top, *rest = module.split(".")
    if top != "raysim":
        return None
    first = rest[0] if rest else ""
    return {"__main__": "cli"}.get(first, first if first in ALLOWED else "facade")


def imports(tree: ast.Module, module: str, is_package: bool = False) -> Iterator[Import]:
    """Yield everything that a module imports, by statement or by `import_module`."""
    late = {
        id(inner)
        for node in ast.walk(tree)
        if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef | ast.Lambda)
        for part in (node.body if isinstance(node.body, list) else [node.body])
        for inner in ast.walk(part)
    }
    late |= {
        id(inner)
        for node in ast.walk(tree)
        if isinstance(node, ast.If) and ast.unparse(node.test) == "TYPE_CHECKING"
        for part in node.body
        for inner in ast.walk(part)
    }
    for node in ast.walk(tree):
        for name in named_modules(node, module, is_package):
            yield Import(name, node.lineno, id(node) in late)  # type: ignore[attr-defined]


def named_modules(node: ast.AST, module: str, is_package: bool) -> list[str]:
    if isinstance(node, ast.Import):
        return [alias.name for alias in node.names]
    if isinstance(node, ast.ImportFrom):
        package = module.split(".") if is_package else module.split(".")[:-1]
        above = package[: len(package) + 1 - node.level] if node.level else []
        base = [*above, *([node.module] if node.module else [])]
        return [".".join([*base, alias.name]) for alias in node.names]
    if isinstance(node, ast.Call) and node.args:
        function = ast.unparse(node.func).rpartition(".")[2]
        text = leading_text(node.args[0])
        return [text] if text and function in ("import_module", "__import__") else []
    return []


def leading_text(node: ast.AST) -> str:
    """Return a string constant, or the constant with which an f-string begins."""
    first = node.values[0] if isinstance(node, ast.JoinedStr) and node.values else node
    return first.value if isinstance(first, ast.Constant) and isinstance(first.value, str) else ""


def wrong_arrows(source: str, module: str, is_package: bool = False) -> list[str]:
    """Return the imports of a source text that point the wrong way, and those of picklers."""
    here, problems = area(module), []
    for found in imports(ast.parse(source), module, is_package):
        there = area(found.module)
        where = f"{module}:{found.line}: {found.module}"
        if found.module.split(".")[0] in PICKLERS:
            problems.append(f"{where}: pickles")
        elif there in (None, here):
            continue
        elif here is None or there not in ALLOWED[here]:
            problems.append(f"{where}: {here} may not import {there}")
        elif {module, here} & {*LEAN} and there in UPPER and not found.late:
            problems.append(f"{where}: only inside a function")
    return problems


def unsafe_loads(source: str) -> list[int]:
    """Return the lines that load with pickle: `torch.load` unless told not to, `allow_pickle`."""
    lines = []
    for node in ast.walk(ast.parse(source)):
        if isinstance(node, ast.ImportFrom) and node.module == "torch":
            lines += [node.lineno for alias in node.names if alias.name == "load"]
        if not isinstance(node, ast.Call):
            continue
        given = {keyword.arg: keyword.value for keyword in node.keywords}
        if ast.unparse(node.func) == "torch.load" and not is_true(given.get("weights_only")):
            lines.append(node.lineno)
        if is_true(given.get("allow_pickle")):
            lines.append(node.lineno)
    return lines


def is_true(node: ast.AST | None) -> bool:
    return isinstance(node, ast.Constant) and node.value is True


def sources() -> dict[str, tuple[Path, bool]]:
    """Return the project's modules by dotted name, each with whether it is a package."""
    found = {}
    for path in (path for top in ("raysim", *UPPER) for path in sorted((ROOT / top).rglob("*.py"))):
        parts = path.relative_to(ROOT).with_suffix("").parts
        parts = parts if parts[0] == "raysim" else ("raysim", *parts)  # a link there leads here
        package = parts[-1] == "__init__"
        found[".".join(parts[:-1] if package else parts)] = (path, package)
    return found


SOURCES = sources()


def test_imports_point_one_way():
    found = {
        module: wrong_arrows(path.read_text(encoding="utf-8"), module, package)
        for module, (path, package) in SOURCES.items()
    }
    assert not any(found.values()), {module: wrong for module, wrong in found.items() if wrong}


def test_nothing_is_loaded_that_could_run_code():
    found = {
        module: unsafe_loads(path.read_text(encoding="utf-8"))
        for module, (path, _) in SOURCES.items()
    }
    assert not any(found.values()), {module: lines for module, lines in found.items() if lines}


def test_every_source_is_read():
    named = {"raysim", "raysim.cli.app", "raysim.api.rules", "raysim.driver.rounds.run"}
    assert named < set(SOURCES)
    assert {area(module) for module in SOURCES} >= {*ALLOWED}


WRONG = {
    "driver names a method": ("raysim.driver.x", "import raysim.methods.fedavg"),
    "driver, from the facade": ("raysim.driver.x", "from raysim import methods"),
    "driver imports the facade": ("raysim.driver.x", "from raysim import load_config"),
    "driver, by a string": ("raysim.driver.x", "import importlib as i\ni.import_module('raysim')"),
    "driver, in a function": ("raysim.driver.x", "def f():\n    import raysim.cli"),
    "driver, for types": ("raysim.driver.x", "if TYPE_CHECKING:\n    from raysim.methods import a"),
    "driver, relative": ("raysim.driver.x", "from ..methods.fedavg import FedAvg"),
    "driver's package, relative": ("raysim.driver", "from ..methods import fedavg"),
    "method imports engine": ("raysim.methods.x", "from raysim.training.network import Network"),
    "method imports config": ("raysim.methods.x", "from raysim.config import Settings"),
    "api imports config": ("raysim.api.x", "from raysim.config import Settings"),
    "api imports methods": ("raysim.api.x", "def f():\n    from raysim import methods"),
    "api reaches up": ("raysim.api.x", "def f():\n    import_module('raysim.workloads')"),
    "driver reaches up": ("raysim.driver.x", "def f():\n    import raysim.workloads.presets"),
    "execution reaches up": ("raysim.execution.x", "def f():\n    import raysim.driver.rounds.run"),
    "training, from storage": ("raysim.training.x", "from raysim.storage import atomic"),
    "facade, too early": ("raysim", "import raysim.workloads"),
    "command line, too early": ("raysim.cli.app", "from raysim.tuning.spaces import SPACES"),
    "too early, by a string": (
        "raysim.cli.app",
        "X = import_module('raysim.workloads.presets').PRESETS",
    ),
    "too early, without types": (
        "raysim.cli.app",
        "if TYPE_CHECKING:\n    import torch\nelse:\n    import raysim.tuning",
    ),
    "too early, f-string": ("raysim", "X = [import_module(f'raysim.workloads.{x}') for x in y]"),
    "too early, a default": ("raysim.cli.app", "def f(x=import_module('raysim.cluster')): ..."),
    "workloads reach up": ("raysim.workloads.models.x", "def f():\n    import raysim.tuning"),
    "tuning and cluster": ("raysim.tuning.x", "from raysim.cluster import submit"),
    "results import driver": ("raysim.results.x", "from raysim.driver.listeners import listener"),
    "pickle": ("raysim.workloads.x", "from pickle import loads"),
    "cloudpickle": ("raysim.driver.x", "def f():\n    import cloudpickle as c"),
}


@pytest.mark.parametrize("case", WRONG)
def test_the_checker_catches(case):
    module, source = WRONG[case]
    assert len(wrong_arrows(source, module, is_package=module.count(".") < 2)) == 1


RIGHT = {
    "driver": ("raysim.driver.x", "from raysim.api.rules import Rules\nimport raysim.config, ray"),
    "method": ("raysim.methods.x", "from raysim.methods.fedavg import FedAvg\nimport torch"),
    "facade": (
        "raysim",
        "from raysim import methods\ndef f():\n    import_module('raysim.workloads')",
    ),
    "facade, when it is asked for": ("raysim.facade.runs", "import raysim.workloads.presets"),
    "cli": (
        "raysim.cli.app",
        "import raysim\ndef f():\n    return import_module('raysim.tuning').Y",
    ),
    "cli, for types": ("raysim.cli.app", "if TYPE_CHECKING:\n    import raysim.tuning"),
    "workloads": (
        "raysim.workloads.x",
        "from raysim.config import Settings\nfrom raysim import Model",
    ),
    "tuning": ("raysim.tuning.x", "import raysim\nimport raysim.workloads.presets"),
    "strings alone": ("raysim.driver.x", "TEXT = 'workloads'\nprint('workloads.presets')"),
}


@pytest.mark.parametrize("case", RIGHT)
def test_the_checker_lets_pass(case):
    module, source = RIGHT[case]
    assert wrong_arrows(source, module) == []


@pytest.mark.parametrize(
    ("source", "lines"),
    [
        ("torch.load(path)", [1]),
        ("x = 1\ntorch.load(path, weights_only=False)", [2]),
        ("torch.load(path, weights_only=flag)", [1]),
        ("from torch import load", [1]),
        ("np.load(path, allow_pickle=True)", [1]),
        ("torch.load(path, weights_only=True)\njson.load(file)\nnp.load(path)", []),
    ],
)
def test_the_checker_of_loads(source, lines):
    assert unsafe_loads(source) == lines
