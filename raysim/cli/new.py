"""Command `raysim new`: writes a component or a task that runs into a new file, and its test."""

from __future__ import annotations

import keyword
import re
import sys
from importlib.resources import files
from importlib.util import find_spec
from pathlib import Path
from typing import Annotated

import typer

from raysim.api.components import suggest
from raysim.errors import SettingsError, visible

KINDS = {
    "method": "raysim run mnist-fedavg method.name={module}:{class_} rounds=3",
    "loop": "raysim run mnist-fedavg local.train={module}:train rounds=3",
    "dataset": "raysim run mnist-fedavg dataset.name={module}:{class_} partition.name=natural"
    " model.name=linear clients=10 target_accuracy=none rounds=5",
    "task": "python {module}.py",
}
"""Command that runs the written component or task, by kind."""


def new(
    kind: Annotated[
        str, typer.Argument(help="method, loop, dataset or task", autocompletion=lambda: [*KINDS])
    ],
    name: Annotated[str, typer.Argument(help="name of its file without .py, as my_method")],
) -> None:
    """Write a method, loop, dataset or task that runs into the working directory, and its test."""
    if kind not in KINDS:
        raise SettingsError(f"{visible(kind)}: no such kind of file; {suggest(kind, [*KINDS])}")
    if not re.fullmatch("[a-z][a-z0-9_]*", name) or keyword.iskeyword(name):
        raise SettingsError(
            f"{visible(name)}: must be a module's name: small letters, digits and _, as my_method"
        )
    file = Path(f"{name}.py")
    if name in sys.stdlib_module_names or (not file.exists() and find_spec(name)):
        raise SettingsError(f"{name}: a module has this name already; choose another")
    class_ = "".join(word.capitalize() for word in name.split("_"))
    written = {Path(f"{name}.py"): f"{kind}.py", Path(f"test_{name}.py"): f"test_{kind}.py"}
    for path in written:
        if path.exists():
            raise SettingsError(f"{path}: exists already; choose another name, or move it")
    for path, template in written.items():
        text = files("raysim.templates").joinpath(template).read_text(encoding="utf-8")
        text = text.replace(f"raysim/templates/{kind}.py", f"{name}.py")
        text = text.replace(f"raysim.templates.{kind}", name)
        path.write_text(text.replace(f"New{kind.capitalize()}", class_), encoding="utf-8")
    typer.echo(f"wrote {' and '.join(map(str, written))}")
    typer.echo(f"run it:  {KINDS[kind].format(module=name, class_=class_)}")
    more = "" if find_spec("pytest") else "   (needs pytest: pip install 'raysim-fl[testing]')"
    typer.echo(f"test it: python -m pytest test_{name}.py{more}")
