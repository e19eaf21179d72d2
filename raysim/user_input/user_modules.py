"""User's own modules: their sources, and the working directory as the last place to import from.

A module named in settings, `method.name=my_method:Class`, is imported from the working directory,
and so are the modules that its sources import. No others are: libraries try to import packages that
are not installed (pyarrow tries pandas), and a file of that name must not be executed. No module
is imported from a run directory, which may come from someone else.
"""

from __future__ import annotations

import ast
import re
import sys
from collections.abc import Iterable, Iterator, Sequence
from contextlib import suppress
from functools import lru_cache
from importlib import import_module, invalidate_caches
from importlib.abc import MetaPathFinder
from importlib.machinery import ModuleSpec, PathFinder
from importlib.util import cache_from_source, find_spec, resolve_name
from pathlib import Path
from sysconfig import get_path
from types import ModuleType

from raysim.user_input.run_folders import run_directory_of

TARGET = re.compile(r"([^\W\d]\w*(?:\.\w+)*):([^\W\d]\w*)")
"""`package.module:name`: what settings may import, and what is sealed in a run directory."""
INSTALLED = {"site-packages", "dist-packages"}
STANDARD = Path(get_path("stdlib"))
"""Folder of Python's own modules: modules next to a named one are no part of a run."""
OWN = {"raysim", "__main__"}
"""Top-level modules that are imported before settings are read."""


class NamedModules(MetaPathFinder):
    """Finder of named modules in some folders, after all other finders.

    Attributes:
        folders: The folders; empty to find nothing.
        names: Top-level modules that may come from them.
    """

    def __init__(self) -> None:
        self.folders: list[str] = []
        self.names: set[str] = set()

    def serve(self, folders: Iterable[str], names: Iterable[str] = ()) -> None:
        """Set the folders and names to serve."""
        self.folders, self.names = list(folders), {*self.names, *names}
        sys.meta_path[:] = [*(finder for finder in sys.meta_path if finder is not self), self]

    def find_spec(
        self, fullname: str, path: Sequence[str] | None = None, target: ModuleType | None = None
    ) -> ModuleSpec | None:
        """Return the spec of a named top-level module; submodules are found by their package."""
        if path is not None or fullname not in self.names:
            return None
        return PathFinder.find_spec(fullname, self.folders)


FINDER = NamedModules()
"""Finder of this process."""


def take_working_directory_off() -> None:
    """Remove the working directory from the module path, where Python and Ray put it first."""
    here = Path.cwd().resolve()
    sys.path[:] = [entry for entry in sys.path if Path(entry).resolve() != here]
    FINDER.folders = []


def find_named_modules() -> None:
    """Serve named modules of the working directory, unless it lies in a run directory."""
    take_working_directory_off()
    if run_directory_of(Path.cwd()) is None:
        FINDER.serve([str(Path.cwd())])


def leave_out_working_directory(folder: Path) -> None:
    """Serve no modules of the working directory if it lies in a folder."""
    if Path.cwd().resolve().is_relative_to(folder.resolve()):
        take_working_directory_off()


def allow(module: str) -> None:
    """Let `FINDER` find a module named in settings, and the modules that it imports."""
    top = module.partition(".")[0]
    if FINDER.folders and top not in OWN:
        imported = (name for path in sources(module).items() for name in _imports(*path))
        FINDER.names |= {top, *(name.partition(".")[0] for name in imported)}


_IMPORTED: dict[str, dict[Path, bytes]] = {}
"""Sources of the modules that settings have named, as they were at their last import."""


def import_named(module: str) -> ModuleType:
    """Import a module named in settings, again if its sources have changed since the last time.

    A file may be edited between two runs of a notebook. The run directory seals the source that is
    on the disk, and actors import it; the driver must not go on with another one.
    """
    if module.partition(".")[0] not in OWN:
        files = sources(module)
        contents = {path: path.read_bytes() for path in files.values()}
        if _IMPORTED.get(module, contents) != contents:
            for name, path in files.items():
                sys.modules.pop(name, None)
                Path(cache_from_source(path)).unlink(missing_ok=True)  # its clock counts seconds
            invalidate_caches()
        _IMPORTED[module] = contents
    return import_module(module)


def is_outdated(module: str) -> bool:
    """Return whether a source of a module has changed since settings that name it were loaded."""
    contents = {path: path.read_bytes() for path in sources(module).values()}
    return _IMPORTED.get(module, contents) != contents


def spec_of(module: str) -> ModuleSpec | None:
    """Return the spec of a module's outermost package, without executing code."""
    top = module.partition(".")[0]
    try:
        return find_spec(top) or PathFinder.find_spec(top, FINDER.folders)
    except (ImportError, ValueError):
        return None


def sources(module: str) -> dict[str, Path]:
    """Return the source files of a module and of modules next to it that it imports, by module.

    Beside it are the modules of its packages and, unless it is installed or part of Python, those
    of its folder.
    """
    top = _Top(module)
    files: dict[str, Path] = {}
    waiting, seen = [module], set[str]()
    while waiting:
        names = [name for name in _with_packages(waiting.pop()) if name not in seen]
        seen.update(names)
        for name in names:
            if path := top.file(name):
                files[name] = path
                waiting += _imports(name, path)
    return files


class _Top:
    """Location of a module's outermost package, or of a module without package."""

    def __init__(self, module: str) -> None:
        name = module.partition(".")[0]
        spec = spec_of(module)
        places = (spec.submodule_search_locations or [spec.origin or ""]) if spec else []
        starts = [Path(place).with_suffix("") for place in places]
        user_folders = [p.parent for p in starts if not INSTALLED.intersection(p.parts)]
        self._folders = [folder for folder in user_folders if folder != STANDARD]
        self._starts = {name: starts, **{package: [] for package in OWN - {name}}}

    def file(self, module: str) -> Path | None:
        """Return the source of a module; None if it is not in this package or folder."""
        first, *others = module.split(".")
        if first not in self._starts:  # settings ask often, and few of a source's imports are here
            beside = [folder / first for folder in self._folders]
            self._starts[first] = [p for p in beside if p.is_dir() or p.with_suffix(".py").exists()]
        for start in self._starts[first]:
            path = start.joinpath(*others)
            for file in (path / "__init__.py", path.with_name(f"{path.name}.py")):
                if file.is_file():
                    return file
        return None


def _with_packages(module: str) -> Iterator[str]:
    """Yield the names of a module's packages, the outermost first, then its own."""
    parts = module.split(".")
    for end in range(1, len(parts) + 1):
        yield ".".join(parts[:end])


def _imports(module: str, path: Path) -> list[str]:
    """Return the modules that a source may import; empty if it cannot be read."""
    package = module if path.name == "__init__.py" else module.rpartition(".")[0]
    return _imports_of(path.read_bytes(), package)


@lru_cache(maxsize=100)
def _imports_of(source: bytes, package: str) -> list[str]:
    """Return the modules that a source in a package may import; cached, as runs ask repeatedly."""
    modules = []
    try:
        nodes = [*ast.walk(ast.parse(source))]
    except (SyntaxError, ValueError):
        return []
    for node in nodes:
        if isinstance(node, ast.Import):
            modules += [alias.name for alias in node.names]
        elif isinstance(node, ast.ImportFrom) and (package or not node.level):
            with suppress(ImportError):  # relative import above the outermost package
                base = resolve_name("." * node.level + (node.module or ""), package or None)
                modules += [f"{base}.{alias.name}" for alias in node.names]
        elif isinstance(node, ast.Call):
            modules += _imported_by_call(node)
    return modules


def _imported_by_call(node: ast.Call) -> list[str]:
    """Return the module that `import_module("name")` or `__import__("name")` imports."""
    match node:
        case ast.Call(
            func=ast.Attribute(attr="import_module") | ast.Name(id="import_module" | "__import__"),
            args=[ast.Constant(value=str(name)), *_],
        ):
            return [] if name.startswith(".") else [name]
    return []


def unnamed(module: str) -> str:
    """Return an advice if the working directory has a module that no source names, else ""."""
    if module in FINDER.names or not PathFinder.find_spec(module, FINDER.folders):
        return ""
    return (
        f"; the {module} of the working directory is found only if a source that settings name"
        " imports it by its name"
    )
