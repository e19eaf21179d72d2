"""Studies: built-in ones, one file each, and reading of a user's own.

A study file is a settings file (`preset` and settings) with a table `[study]`; `StudyTable` lists
its keys. There is a built-in study for each setting that the papers sweep, and two of the schedule.
Ranges of method settings are from the papers' figures and tables; the values of the paper, or of
its preset, are the first trial.
"""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

from pydantic import ValidationError

from raysim.api.components import explain, suggest
from raysim.errors import SettingsError, visible
from raysim.storage.schema import settings_of_file
from raysim.tuning.studies.study import Study, StudyTable
from raysim.user_input import check_plain, read_file, user_path
from raysim.workloads.presets import PRESETS, changes_of


def read_study(path: Path, table: Mapping[str, Any] | None = None) -> Study:
    """Return the study of a file.

    Args:
        path: A settings file.
        table: Its table `[study]`; None reads it from the file.

    Raises:
        SettingsError: the file cannot be read, or its table `[study]` is missing or wrong.
        RunError: the file is the `config.json` of another version.
    """
    values = settings_of_file(path, read_file(path))
    check_plain(values)
    file_table = values.pop("study", None)
    table = file_table if table is None else table
    if not isinstance(table, Mapping):
        raise SettingsError(f"{path}: has no table [study]; `raysim list studies NAME` shows one")
    return Study(read_table(table), str(path), changes_of(values))


def read_table(table: Mapping[str, Any]) -> StudyTable:
    """Validate a table `[study]`.

    Raises:
        SettingsError: a key is unknown or missing, or has a value of another type.
    """
    check_plain(table)
    try:
        return StudyTable.model_validate(table)
    except ValidationError as error:
        raise SettingsError(explain(error, StudyTable, "study.")) from error


STUDIES: Mapping[str, Study] = {
    path.stem: read_study(path) for path in sorted(Path(__file__).parent.glob("*.toml"))
}


def find(name: str) -> Study:
    """Return a built-in study, or the study of a file.

    Raises:
        SettingsError: there is no such study, or the file is wrong.
    """
    if name in STUDIES:
        return STUDIES[name]
    if Path(name).suffix in (".toml", ".json"):
        return read_study(user_path(name))
    if name in PRESETS:
        raise SettingsError(
            f"{name}: is a preset; say what to search, as in raysim tune {name} --tune"
            " local.lr=0.01..1:log"
        )
    raise SettingsError(
        f"{visible(name)}: no such study; {suggest(name, sorted(STUDIES))} (or a .toml or .json"
        " file)"
    )
