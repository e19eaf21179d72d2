"""Pages of `raysim list settings`: settings of a run and of its groups, from their fields."""

from __future__ import annotations

from collections.abc import Iterator, Mapping

from pydantic import BaseModel
from rich.console import RenderableType
from rich.table import Table
from rich.text import Text

from raysim.api.components import Component, suggest
from raysim.cli.pages import setting_row
from raysim.config import EngineSettings, EvaluationSettings, LocalSettings, Settings
from raysim.errors import SettingsError, visible

HEADER = ("setting", "default", "range", "description")
NAMES: Mapping[str, type[BaseModel]] = {
    "run": Settings,
    "local": LocalSettings,
    "evaluation": EvaluationSettings,
    "engine": EngineSettings,
}
"""Groups of settings by name; those of a run have no prefix."""


def page(name: str) -> RenderableType:
    """Return the table of all settings, or of one group or setting.

    Raises:
        SettingsError: there is no group or setting of this name.
    """
    rows = {row[0]: row for group in NAMES for row in rows_of(group)}
    if name and name not in {*NAMES, *rows}:
        known = suggest(name, [*NAMES, *rows])
        raise SettingsError(f"list settings {visible(name)}: no such group or setting; {known}")
    title = f"settings of {name}" if name in NAMES else "settings"
    table = Table(*HEADER, title=title, title_justify="left", box=None)
    shown = rows_of(name) if name in NAMES else [rows[name]] if name else rows.values()
    for row in shown:
        table.add_row(*map(Text, row))
    return table


def rows_of(group: str) -> Iterator[tuple[str, ...]]:
    """Yield a row for each setting of a group: setting, default, range, description."""
    if group != "run":
        fields, own = NAMES[group].model_fields, NAMES[group].__annotations__
        for key in sorted(fields, key=lambda key: key not in own):  # inherited ones last
            yield setting_row(f"{group}.{key}", fields[key])
        return
    for key, field in Settings.model_fields.items():
        if field.is_required() or isinstance(field.default, Component):
            _, *rest, about = setting_row(key, field)
            yield f"{key}.name", *rest, f"{about}; raysim list {key}s"
        elif key not in NAMES:
            yield setting_row(key, field)
