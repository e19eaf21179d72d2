"""Sizes of folders, files and functions, and what may not import what."""

from __future__ import annotations

import ast
from collections import Counter
from collections.abc import Iterator
from pathlib import Path

from tests.test_imports import ALLOWED, SOURCES, area

ROOT = Path(__file__).parent.parent
MODULES, LINES, BODY = 12, 300, 40
ONE_FILE_EACH = {
    "raysim/methods",
    "workloads/datasets",
    "workloads/models",
    "workloads/partitions",
    "workloads/presets",
}
"""Folders with one file for each registered component."""
ENGINE = ("storage", "federation", "training", "execution", "driver")
CROWDED = {"raysim/core": 14}
"""Folders over the limit, with their present modules; to be empty."""
TOO_LONG: dict[str, int] = {}
"""Files (`path`) and functions (`path:name`) over the limits, with their lines; to be empty."""


def functions(tree: ast.Module) -> Iterator[tuple[str, int]]:
    """Yield every function's name and the lines of its body, its docstring left out."""
    for node in ast.walk(tree):
        if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef):
            body = node.body[1:] if ast.get_docstring(node) is not None else node.body
            yield node.name, node.end_lineno - body[0].lineno + 1 if body else 0


def too_long(path: str, text: str) -> dict[str, int]:
    """Return a file's and its functions' lines where they are over the limits."""
    lines = len(text.splitlines())
    found = {path: lines} if lines > LINES else {}
    longest = sorted(functions(ast.parse(text)), key=lambda function: function[1])
    return found | {f"{path}:{name}": body for name, body in longest if body > BODY}


def read(module: str) -> tuple[str, str]:
    path, _ = SOURCES[module]
    return str(path.relative_to(ROOT)), path.read_text(encoding="utf-8")


def test_no_folder_has_more_than_twelve_modules():
    paths = [path.relative_to(ROOT) for path, package in SOURCES.values() if not package]
    counts = Counter(str(path.parent) for path in paths)
    assert set(counts) >= ONE_FILE_EACH
    crowded = {f: n for f, n in counts.items() if n > MODULES and f not in ONE_FILE_EACH}
    assert crowded == CROWDED


def test_no_file_has_more_than_300_lines_and_no_function_more_than_40():
    found: dict[str, int] = {}
    for module in SOURCES:
        found |= too_long(*read(module))
    assert found == TOO_LONG


def test_lengths_by_hand():
    body = "    x = 1\n" * 41
    short = f'def short():\n    """One.\n\n    Two.\n    """\n{body[10:]}'
    text = f"{short}\ndef long(\n    a,\n):\n{body}"
    assert too_long("a.py", text) == {"a.py:long": 41}
    assert too_long("b.py", "x = 1\n" * 301) == {"b.py": 301}


def test_the_engine_imports_no_method_and_the_core_no_engine():
    """`test_imports` holds all sources to these arrows."""
    for room in ENGINE:
        assert not {"methods", "facade", "cli", "workloads"} & set(ALLOWED[room]), room
    assert ALLOWED["core"] == () and ALLOWED["methods"] == ("core",)


def test_the_engine_names_no_method():
    """A method's name in the engine is a branch for that method."""
    methods = {path.stem for path in (ROOT / "raysim/methods").iterdir()}
    methods -= {"__init__", "momentum", "chain"}  # the last two are a setting and a function, too
    assert {"scaffold", "fedma"} < methods
    found = {}
    for module in SOURCES:
        if area(module) in ("core", "config", *ENGINE):
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
