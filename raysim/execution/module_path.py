"""The module path: the working directory stands behind everything else, in workers too.

A user's own method, `method.name=my_method:Class`, is found in the working directory; what else is
there, such as a folder `cluster/` or a file `optuna.py`, must not hide an installed package.
`python -m` and Ray put that folder first: Python in the driver, Ray in each of its workers. No
module is taken from a run directory, which may come from anyone.
"""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Any

from raysim.core.given.run_folders import run_directory_of


def take_working_directory_off() -> None:
    """Take the working directory off the module path."""
    here = Path.cwd().resolve()
    sys.path[:] = [entry for entry in sys.path if Path(entry).resolve() != here]


def put_working_directory_last() -> None:
    """Move the working directory to the end of the module path; off it in a run directory."""
    take_working_directory_off()
    if run_directory_of(Path.cwd()) is None:
        sys.path.append(str(Path.cwd()))


def leave_out_working_directory(folder: Path) -> None:
    """Take the working directory off the module path where it lies in a folder."""
    if Path.cwd().resolve().is_relative_to(folder.resolve()):
        take_working_directory_off()


def with_driver_path(actor: type) -> Any:
    """Return a stand-in for an actor class; it imports the class with the driver's module path.

    Ray sends the stand-in itself, and of the class only the name: no module of the project is
    imported by a worker before its path is in order.
    """
    module, name = actor.__module__, actor.__qualname__
    home = str(Path(__file__).parents[2])
    here = str(Path.cwd())
    path = list(dict.fromkeys(entry or here for entry in sys.path))

    def start(self: Any, *args: Any) -> None:
        import sys
        from importlib import import_module

        own = [entry for entry in sys.path if entry not in {*path, here}]
        sys.path[:] = [*own, *(entry for entry in path if entry in sys.path)]
        sys.path.insert(0, home)
        import_module("raysim.execution")  # that of the driver, where the node has it
        sys.path.remove(home)
        self.actor = getattr(import_module(module), name)(*args)

    def forward(method: str) -> Any:
        def call(self: Any, *args: Any) -> Any:
            return getattr(self.actor, method)(*args)

        return call

    methods = {each: forward(each) for each in dir(actor) if not each.startswith("_")}
    return type(name, (), {"__init__": start, **methods})
