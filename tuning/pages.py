"""Pages of the studies in `raysim list`."""

from __future__ import annotations

from rich.console import Group, RenderableType
from rich.table import Table
from rich.text import Text

from raysim.tuning.command import find
from raysim.tuning.studies import STUDIES
from raysim.tuning.study import format_range


def page(name: str) -> RenderableType:
    """Return the page of a study, or without a name the table of all studies.

    Raises:
        SettingsError: there is no such study.
    """
    if name:
        return _study(name)
    table = Table("name", "description", title="studies", title_justify="left", box=None)
    for each, study in STUDIES.items():
        table.add_row(each, study.about)
    return table


def _study(name: str) -> RenderableType:
    study = find(name)
    fixed = " ".join(f"{key}={value}" for key, value in study.settings.items())
    table = Table("setting", "range", box=None)
    for key, values in study.space.items():
        table.add_row(key, format_range(values))
    head = Text(name, style="bold")
    return Group(head, Text(f"{study.about}\npreset {study.preset} {fixed}".rstrip()), table)
