"""Docstrings begin with a verb, or with the name of a thing."""

from __future__ import annotations

import ast
from pathlib import Path

ROOT = Path(__file__).parents[1]
SOURCES = ("raysim", "workloads", "tuning", "cluster")
QUESTIONS = {"What", "Who", "Where", "How", "Whether", "That", "Those", "Nothing", "Nobody"}


def openings(path: Path) -> list[tuple[int, str]]:
    """Return line and first word of each docstring of a file."""
    nodes = [
        node
        for node in ast.walk(ast.parse(path.read_text(encoding="utf-8")))
        if isinstance(node, ast.Module | ast.ClassDef | ast.FunctionDef | ast.AsyncFunctionDef)
    ]
    texts = [(getattr(node, "lineno", 1), ast.get_docstring(node)) for node in nodes]
    return [(line, text.split()[0].rstrip(",:;.")) for line, text in texts if text]


def test_docstrings_name_things_or_begin_with_a_verb():
    found, read = [], 0
    for folder in SOURCES:
        for path in sorted((ROOT / folder).rglob("*.py")):
            name = path.relative_to(ROOT).as_posix()
            words = openings(path)
            read += len(words)
            found += [f"{name}:{line}: {word}" for line, word in words if word in QUESTIONS]
    assert read > 500
    assert found == []
