"""Module path of actors: the driver's path, also for the user's own modules."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Any

from raysim.user_input.user_modules import FINDER, INSTALLED


def _is_installed(folder: Path) -> bool:
    """Return whether a folder has Python's own modules or installed packages."""
    prefixes = (sys.prefix, sys.base_prefix, sys.exec_prefix)
    return bool(INSTALLED & {*folder.parts}) or any(map(folder.is_relative_to, prefixes))


def with_driver_path(actor: type) -> Any:
    """Return a stand-in for an actor class, which imports the class with the driver's module path.

    Ray sends the stand-in by value, and only the name of the class: a worker imports no module of
    the project before its path is set. Folders that the driver's script has put on its path are on
    the actors', too. Ray puts the working directory on that path, even if the
    driver serves only named modules from it; then the worker does the same.
    """
    module, name = actor.__module__, actor.__qualname__
    home = str(Path(__file__).parents[2])
    here = str(Path.cwd())
    path = list(dict.fromkeys(entry or here for entry in sys.path))
    added = [entry for entry in path if entry != here and not _is_installed(Path(entry))]
    places, names = {*FINDER.folders, here}, sorted(FINDER.names) if FINDER.folders else None

    def start(self: Any, *args: Any) -> None:
        import sys
        from importlib import import_module
        from pathlib import Path

        real = {Path(place).resolve() for place in places} | {Path.cwd().resolve()}
        working = [str(p) for p in sys.path if p not in path and Path(p).resolve() in real]
        added_here = [entry for entry in sys.path if entry not in {*path, *working}]
        sys.path[:] = [*added_here, *(entry for entry in path if entry in {*sys.path, *added})]
        sys.path.insert(0, home)
        import_module("raysim.execution")  # the driver's, if this node has it
        sys.path.remove(home)
        if names is not None:
            import_module("raysim.user_input.user_modules").FINDER.serve(working, names)
        self.actor = getattr(import_module(module), name)(*args)

    def forward(method: str) -> Any:
        def call(self: Any, *args: Any) -> Any:
            return getattr(self.actor, method)(*args)

        return call

    methods = {method: forward(method) for method in dir(actor) if not method.startswith("_")}
    return type(name, (), {"__init__": start, **methods})
