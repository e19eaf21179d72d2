"""Schema version of run directories and folders of runs.

`config.json`, `failed.json` and the files in GRIDS have it as `schema`. Files of another version
are refused, and so are files without keys that this one writes. Settings of users have none.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from contextlib import suppress
from pathlib import Path
from typing import Any

from raysim.config import Settings
from raysim.errors import RunError
from raysim.user_input import parse_json
from raysim.user_input.group import SettingsGroup

SCHEMA = 1
GRIDS = {"table": "table.json", "figure": "figure.json", "study": "study.json"}
"""Files in the folders of a table's, a figure's or a study's runs; the first two hold its name."""
OTHER = "it is damaged, or another version of raysim wrote it; restore it, or use that version"


def check_schema(path: Path, values: Mapping[str, Any]) -> None:
    """Check that this version, or one with the same schema, wrote a file.

    Raises:
        RunError: another version wrote it.
    """
    schema = values.get("schema")
    if type(schema) is not int or schema != SCHEMA:
        raise RunError(f"{path}: schema={schema!r} is not {SCHEMA}: {OTHER}")


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


def settings_of_file(path: Path, values: Mapping[str, Any]) -> dict[str, Any]:
    """Return the settings in a file that a user names: a user's own, or the `config.json` of a run.

    Raises:
        RunError: another version wrote the `config.json`.
    """
    if "schema" in values:
        check_schema(path, values)
    return {key: value for key, value in values.items() if key != "schema"}


def recorded_settings(path: Path, values: Mapping[str, Any]) -> tuple[dict[str, Any], bool]:
    """Return the settings of a run, and whether the run has its own task.

    Args:
        path: Its `config.json`.
        values: The content of that file, or a checkpoint's copy of it.

    Raises:
        KeyError: the values are no run's.
        RunError: another version wrote the file.
    """
    own_task = bool(values["own_task"])
    check_schema(path, values)
    if lacking := next(_lacking(values), None):
        raise RunError(f"{path}: lacks {lacking}: {OTHER}")
    return {k: v for k, v in values.items() if k not in ("schema", "own_task")}, own_task


def _lacking(values: Mapping[str, Any]) -> Iterator[str]:
    """Yield the settings of a run that a file lacks, without components' settings."""
    for name, field in Settings.model_fields.items():
        kind = field.annotation
        if name not in values:
            yield name
        elif isinstance(kind, type) and issubclass(kind, SettingsGroup):
            group = values[name] if isinstance(values[name], Mapping) else {}
            yield from (f"{name}.{key}" for key in kind.model_fields if key not in group)
