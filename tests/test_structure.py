"""Lengths of functions, depth of calls, and what may not import what."""

from __future__ import annotations

import ast
import re
import traceback
from collections.abc import Iterator
from importlib import import_module
from pathlib import Path
from typing import Any

import raysim
from raysim.training.update import Update
from tests.tasks import make_settings, make_task
from tests.test_imports import ALLOWED, LOW, SOURCES, area, imports

ROOT = Path(__file__).parent.parent
BODY, FRAMES = 40, 15
ENGINE = ("storage", "federation", "training", "execution", "driver")


def functions(tree: ast.Module) -> Iterator[tuple[str, int]]:
    """Yield every function's name and the lines of its body, its docstring left out."""
    for node in ast.walk(tree):
        if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef):
            body = node.body[1:] if ast.get_docstring(node) is not None else node.body
            yield node.name, node.end_lineno - body[0].lineno + 1 if body else 0


def too_long(path: str, text: str) -> dict[str, int]:
    """Return the lines of a file's functions, by `path:name`, that are longer than the limit."""
    longest = sorted(functions(ast.parse(text)), key=lambda function: function[1])
    return {f"{path}:{name}": body for name, body in longest if body > BODY}


def read(module: str) -> tuple[str, str]:
    path, _ = SOURCES[module]
    return str(path.relative_to(ROOT)), path.read_text(encoding="utf-8")


def test_no_function_has_more_than_40_lines():
    found: dict[str, int] = {}
    for module in SOURCES:
        found |= too_long(*read(module))
    assert found == {}


def test_lengths_by_hand():
    body = "    x = 1\n" * 41
    short = f'def short():\n    """One.\n\n    Two.\n    """\n{body[10:]}'
    text = f"{short}\ndef long(\n    a,\n):\n{body}"
    assert too_long("a.py", text) == {"a.py:long": 41}


def test_a_methods_round_is_called_in_one_place_and_no_run_is_a_greenlet():
    """Others take the passes of the round from there, without a method that is copied or faked."""
    called = []
    for module in SOURCES:
        path, text = read(module)
        assert "greenlet" not in text and "copy(deep=True)" not in text, path
        for node in ast.walk(ast.parse(text)):
            if not isinstance(node, ast.Call):
                continue
            function = node.func
            if isinstance(function, ast.Attribute) and function.attr == "round":
                called += [path] * ast.unparse(function).endswith("method.round")
            if isinstance(function, ast.Name) and function.id == "isinstance":
                assert not ast.unparse(node.args[0]).endswith("clock"), f"{path}: {node.lineno}"
    assert called == ["raysim/driver/rounds/method_rounds.py"]


def test_the_engine_imports_no_method_and_the_api_no_engine():
    """`test_imports` holds all sources to these arrows."""
    for room in ENGINE:
        assert not {"methods", "facade", "cli", "workloads"} & set(ALLOWED[room]), room
    assert not {*ENGINE} & {*ALLOWED["api"], *ALLOWED["methods"]}


def test_schedules_know_neither_ray_nor_tensors():
    """The benchmarks simulate them for any number of workers."""
    room = "raysim.execution.scheduling"
    found = {
        each.module
        for module in SOURCES
        if module.startswith(room)
        for each in imports(ast.parse(read(module)[1]), module)
    }
    own = {module for module in found if module.startswith("raysim.")}
    assert len(own) > 5 and all(module.startswith(room) for module in own)
    assert not {"ray", "torch"} & {module.partition(".")[0] for module in found}


def test_the_engine_names_no_method():
    """A method's name in the engine is a branch for that method."""
    methods = {path.stem for path in (ROOT / "raysim/methods").iterdir()}
    methods -= {"__init__", "momentum", "chain", "local", "term"}  # words of the engine, too
    assert {"scaffold", "fedma"} < methods
    found = {}
    for module in SOURCES:
        if area(module) in (*LOW, "config", *ENGINE):
            found[module] = words(ast.parse(read(module)[1])) & methods
    assert not {module: names for module, names in found.items() if names}


def words(tree: ast.Module) -> set[str]:
    """Return the strings and names of a source."""
    found = set()
    for node in ast.walk(tree):
        if isinstance(node, ast.Constant) and isinstance(node.value, str):
            found.add(node.value)
        elif isinstance(node, ast.Name):
            found.add(node.id)
        elif isinstance(node, ast.Attribute):
            found.add(node.attr)
    return found


def test_a_step_is_at_most_fifteen_frames_below_run(tmp_path, monkeypatch):
    """From `raysim.run` to `Update.move` of an inline run, both included."""
    stacks: list[list[str]] = []
    move = Update.move

    def moving(update: Update, *tensors: Any) -> None:
        frames = traceback.extract_stack()[:-1]
        stacks.append([f"{f.filename}:{f.name}" for f in frames if is_ours(f.filename)])
        move(update, *tensors)

    monkeypatch.setattr(Update, "move", moving)
    raysim.run(make_settings(tmp_path, rounds=1), make_task((8, 8)))
    first = [*stacks[0], f"{Update.__module__}:move"]
    assert first[0].endswith("raysim/facade/runs.py:run")
    assert len(first) <= FRAMES, "\n".join(first)


def is_ours(file: str) -> bool:
    return (ROOT / "raysim").resolve() in Path(file).resolve().parents


def test_the_walk_of_one_update_names_what_exists():
    """Names of three parts and more; those of files end in `.py` or `.md`."""
    page = (ROOT / "ARCHITECTURE.md").read_text(encoding="utf-8")
    names = re.findall(r"`(\w+(?:\.\w+){2,})`", page)
    assert len(names) > 20
    files = re.findall(r"`((?:\w+/)+\w+\.py)`", page)
    assert len(files) > 8
    assert all((ROOT / file).exists() or (ROOT / "raysim" / file).exists() for file in files)
    missing = [name for name in names if not exists(f"raysim.{name}")]
    assert not missing


def exists(name: str) -> bool:
    """Return whether a dotted name leads to a module, or to something in one."""
    parts = name.split(".")
    modules = [".".join(parts[:end]) for end in range(len(parts), 0, -1)]
    module = next(module for module in modules if module in SOURCES)
    found: Any = import_module(module)
    for part in parts[module.count(".") + 1 :]:
        found = getattr(found, part, None)
    return found is not None
