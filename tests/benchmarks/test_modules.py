"""Every module of the benchmarks can be imported, so that none asks for a file that is not there.

Modules that import a peer's package, in so many words at their top, need that peer's environment:
they are left out, and `python -m tests.benchmarks.compare` shows whether they work.
"""

from __future__ import annotations

import ast
from importlib import import_module
from importlib.util import find_spec
from pathlib import Path

import pytest

pytestmark = pytest.mark.ci

FOLDER = Path(__file__).parent
PEERS = {"flwr", "pfl"}


def imported(path: Path) -> set[str]:
    """Return the packages that a module imports at its top, without their modules."""
    names: list[str] = []
    for statement in ast.parse(path.read_text()).body:
        if isinstance(statement, ast.Import):
            names += [alias.name for alias in statement.names]
        elif isinstance(statement, ast.ImportFrom) and statement.module:
            names.append(statement.module)
    return {name.partition(".")[0] for name in names}


PATHS = sorted(path for path in FOLDER.rglob("*.py") if not path.name.startswith("test_"))


@pytest.mark.parametrize("path", PATHS, ids=lambda path: str(path.relative_to(FOLDER)))
def test_it_can_be_imported(path: Path) -> None:
    missing = {name for name in imported(path) & PEERS if find_spec(name) is None}
    if missing:
        pytest.skip(f"needs {', '.join(sorted(missing))}, which has an environment of its own")
    parts = path.relative_to(FOLDER.parents[1]).with_suffix("").parts
    module = import_module(".".join(parts).removesuffix(".__init__"))
    assert module.__doc__ and Path(str(module.__file__)).samefile(path)


def test_only_the_peers_modules_are_left_out() -> None:
    assert {path.name for path in PATHS if imported(path) & PEERS} == {"flower.py", "private.py"}
