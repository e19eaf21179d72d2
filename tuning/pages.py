"""Pages of the studies in `raysim list`."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

from rich.console import Group, RenderableType
from rich.table import Table
from rich.text import Text

from raysim.tuning.studies import STUDIES, find
from raysim.tuning.studies.ranges import format_range
from raysim.tuning.studies.samplers import SearchOptions
from raysim.user_input import override_text, read_text


def page(name: str) -> RenderableType:
    """Return the page of a study, or without a name the table of all studies.

    Raises:
        SettingsError: no study has this name.
    """
    if name:
        return _study(name)
    table = Table("name", "description", title="studies", title_justify="left", box=None)
    for study_name, study in STUDIES.items():
        table.add_row(study_name, study.table.about)
    return table


def _study(name: str) -> RenderableType:
    study = find(name)
    resolved, options = study.resolve({}), study.options()
    table = Table("setting", "range", "searched with", box=None)
    for key, values in resolved.space.items():
        conditions = resolved.space.conditions.get(key, {})
        when = " ".join(f"{parent}={_either(values)}" for parent, values in conditions.items())
        table.add_row(key, format_range(values), when)
    lines = [
        study.table.about,
        f"objectives {', '.join(options.objectives)}; {study.table.trials} trials{_seeds(options)};"
        " sampler"
        f" {options.sampler} {_written(options.sampler_options)}".rstrip()
        + f"; pruner {options.pruner} {_written(options.pruner_options)}".rstrip(),
        *(f"first trial: {_written(values)}" for values in resolved.first),
    ]
    source = read_text(Path(str(study.source)))
    text = "\n".join(filter(None, lines))
    return Group(Text(name, style="bold"), Text(text), table, Text(f"\n{source}".rstrip()))


def _seeds(options: SearchOptions) -> str:
    return f" of {options.seeds} seeds each, {options.over_seeds}" if options.seeds > 1 else ""


def _written(values: Mapping[str, Any]) -> str:
    return " ".join(override_text(key, value) for key, value in values.items())


def _either(values: tuple[Any, ...]) -> str:
    return "|".join(map(str, values))
