"""Schema versions of run directories and folders of runs; settings of earlier versions.

`config.json` and the files in GRIDS have the key `schema`. Files without it are of version 0, which
had other names for one setting and for the modules of workloads, studies and launchers. Settings
written by users have no key either, so the old names are read from them, too.
"""

from __future__ import annotations

from collections.abc import Mapping
from contextlib import suppress
from importlib.util import find_spec
from pathlib import Path
from typing import Any

from raysim.config import RENAMED
from raysim.core.data import PARTITIONS, may_have_own_tests
from raysim.core.errors import RunError
from raysim.core.user_input import parse_json

SCHEMA = 1
GRIDS = {"table": "table.json", "figure": "figure.json", "study": "study.json"}
"""Files in the folders of a table's, a figure's or a study's runs; the first two hold its name."""
MOVED = ("workloads", "tuning", "cluster")
"""Packages beside `raysim` in version 0, and inside it since version 1."""
COMPONENTS = ("dataset", "partition", "model", "method")


def check_schema(path: Path, values: Mapping[str, Any]) -> None:
    """Check that this version can read a file.

    Raises:
        RunError: a newer version wrote the file, or its schema is no version.
    """
    schema = values.get("schema", 0)
    if type(schema) is not int or schema < 0:
        raise RunError(f"{path}: schema={schema!r} is no version; restore the file")
    if schema > SCHEMA:
        raise RunError(
            f"{path}: schema={schema} was written by a newer raysim, this one reads up to {SCHEMA};"
            " use the newer one"
        )


def named_in(folder: Path, kind: str) -> str:
    """Return the name of the folder's table or figure; "" without one."""
    with suppress(OSError, ValueError, LookupError, TypeError):
        return str(parse_json((folder / GRIDS[kind]).read_text(encoding="utf-8"))[kind])
    return ""


def check_claim(folder: Path, kind: str, name: str = "") -> None:
    """Check that a folder may hold the runs of a table, a figure or a study.

    Args:
        folder: The folder.
        kind: One of GRIDS.
        name: The name of the table or the figure; a study has its own id.

    Raises:
        RunError: the folder holds the runs of another table, figure or study.
    """
    for other, file in GRIDS.items():
        holder = named_in(folder, other)
        if (folder / file).exists() and (other != kind or (holder and holder != name)):
            held = f"{other} {holder}" if holder else f"a {other}"
            raise RunError(f"out={folder}: holds {held}; choose another --out")


def table_of(run: Path) -> str:
    """Return the table of the folder around a run; "" if the nearest owner is no table.

    The folder of a figure or a study may lie in a table's.
    """
    for folder in run.resolve().parents:
        if any((folder / file).exists() for file in GRIDS.values()):
            return named_in(folder, "table")
    return ""


def current_settings(path: Path, values: Mapping[str, Any]) -> dict[str, Any]:
    """Return the settings of a file under the names of the present version.

    Raises:
        RunError: a newer version wrote the file.
    """
    check_schema(path, values)
    settings = {key: value for key, value in values.items() if key != "schema"}
    return completed(settings) if "schema" in values else renamed(settings)


def completed(settings: Mapping[str, Any]) -> dict[str, Any]:
    """Return recorded settings with `evaluation.test_samples` of runs from before there was one.

    These were tested on all samples. Where no client can have own ones, that is the default, too.
    """
    recorded = settings.get("evaluation")
    if not isinstance(recorded, Mapping) or not _may_have_own_tests(settings.get("partition")):
        return dict(settings)
    return {**settings, "evaluation": {"test_samples": "all", **recorded}}


def _may_have_own_tests(partition: Any) -> bool:
    """Return whether clients may have own test samples; True of a user's class, not imported."""
    name = str(partition.get("name")) if isinstance(partition, Mapping) else ""
    return name not in PARTITIONS or may_have_own_tests(PARTITIONS.get(name))


def renamed(settings: Mapping[str, Any]) -> dict[str, Any]:
    """Return settings of version 0 under the names of the present version."""
    result = dict(settings)
    for old, new in RENAMED.items():
        if old in result and new not in result:
            result[new] = result.pop(old)
    for kind in COMPONENTS:
        component = result.get(kind)
        if isinstance(component, Mapping) and isinstance(component.get("name"), str):
            result[kind] = {**component, "name": _moved(component["name"])}
    return result


def _moved(name: str) -> str:
    """Return the present path of a component; a user's own `workloads` folder keeps its name."""
    module = name.partition(":")[0]
    package, dot, _ = module.partition(".")
    if package not in MOVED or not dot:
        return name
    try:
        inside = find_spec(f"raysim.{module}") is not None
    except ModuleNotFoundError:
        inside = False
    return f"raysim.{name}" if inside else name
