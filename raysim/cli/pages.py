"""Pages of `raysim list`: tables of components and presets, and one of them in full."""

from __future__ import annotations

import inspect
from collections.abc import Iterator, Mapping, Sequence
from importlib import import_module
from types import UnionType
from typing import Annotated, Any, Literal, Union, get_args, get_origin

from pydantic.fields import FieldInfo
from rich.cells import cell_len
from rich.console import Group, RenderableType
from rich.json import JSON
from rich.padding import Padding
from rich.table import Column, Table
from rich.text import Text

from raysim.api.components import Component, Registry, fields_of, look_up, registries
from raysim.user_input import as_typed, override_text

FORMULA = 4 * " "
"""Indentation of formulas; their lines are not joined."""
NAMED: Mapping[str, tuple[str, str]] = {
    "presets": ("raysim.workloads.presets", "PRESETS"),
    "tables": ("raysim.workloads.tables", "TABLES"),
    "figures": ("raysim.workloads.figures", "FIGURES"),
    "studies": ("raysim.tuning.studies", "STUDIES"),
    "profiles": ("raysim.cluster.profiles", "PROFILES"),
    "rules": ("raysim.cli.rules", "NAMES"),
    "settings": ("raysim.cli.settings", "NAMES"),
}
"""Modules of kinds that are no components, and their names or mappings by name."""
PAGES = {
    "tables": "raysim.workloads.papers.table_pages",
    "figures": "raysim.workloads.papers.figure_pages",
    "studies": "raysim.tuning.pages",
    "rules": "raysim.cli.rules",
    "settings": "raysim.cli.settings",
}
"""Modules by kind, if the module's `page(name)` makes the kind's pages; the name may be empty."""
FEW = 3
"""Names of a kind that a list of kinds shows."""
PADDING = 2
"""Characters between two columns."""
BOUNDS = {"ge": ">=", "gt": ">", "le": "<=", "lt": "<"}


def page_of(kind: str, name: str) -> RenderableType:
    """Return the table of a kind, or the page of one of its members."""
    if kind == "presets":
        from raysim.workloads.presets import PRESETS

        return preset(PRESETS, name) if name else presets(PRESETS)
    if kind in PAGES:
        page: RenderableType = import_module(PAGES[kind]).page(name)
        return page
    if kind in ("profiles", "manifests"):
        from raysim.cluster.pages import manifests, profiles

        return profiles(name) if kind == "profiles" else manifests()
    registry = registry_of(kind)
    return component(registry, name) if name else components(registry)


def kinds_page(kinds: Sequence[str]) -> RenderableType:
    """Return the table of all kinds, with how many of each there are, which fits a screen."""
    table = _empty("raysim list KIND [NAME]", "kind", "", "some of them")
    for kind in kinds:
        names = names_of(kind)
        shown = ", ".join(names[:FEW]) + (", ..." if len(names) > FEW else "")
        table.add_row(kind, str(len(names)), shown)
    table.add_row("rules", "", "allowed combinations: raysim list rules [COMPONENT]")
    table.add_row("runs", "", "runs in a folder: raysim list runs [FOLDER]")
    return table


def uncut(page: RenderableType, width: int) -> RenderableType:
    """Return a page with tables that fold long cells at a width instead of cutting them.

    Names, in the first column, stay whole if the words of the other columns leave room for them, or
    if they fit in a third of the width.
    """
    for table in tables_of(page):
        for column in table.columns:
            column.overflow = "fold"
        names, *others = table.columns
        room = width - sum(_longest(column, words=True) + PADDING for column in others) - PADDING
        names.width = min(_longest(names), max(room, width // 3))
    return page


def _longest(column: Column, *, words: bool = False) -> int:
    """Return the width of the longest cell of a column, or of its longest word."""
    texts = [plain(cell) for cell in (column.header, *column.cells)]
    return max(
        cell_len(part) for text in texts for part in (text.split() if words else [text]) or [""]
    )


def tables_of(page: Any) -> Iterator[Table]:
    """Yield the tables of a page, in order."""
    if isinstance(page, Table):
        yield page
    for part in getattr(page, "renderables", [getattr(page, "renderable", None)]):
        if part is not None:
            yield from tables_of(part)


def plain(cell: RenderableType) -> str:
    """Return the text of a table's cell."""
    return (cell if isinstance(cell, Text) else Text.from_markup(str(cell))).plain


def names_of(kind: str) -> list[str]:
    """Return the names of a kind, in the order of its page."""
    if kind == "manifests":
        from raysim.cluster.pages import manifest_names

        return manifest_names()
    if kind in NAMED:
        module, mapping = NAMED[kind]
        return [*getattr(import_module(module), mapping)]
    return [*registry_of(kind)]


def registry_of(kind: str) -> Registry[Any]:
    """Return the filled registry of a kind of components."""
    from raysim import config, methods, workloads  # noqa: F401 - register kinds and components

    return next(registry for registry in registries() if f"{registry.kind}s" == kind)


def components(registry: Registry[Any]) -> RenderableType:
    """Return the table of all components of a kind."""
    table = _empty(f"{registry.kind}s", "name", "description")
    for name in registry:
        table.add_row(name, (inspect.getdoc(registry.get(name)) or "").split("\n")[0])
    return table


def presets(known: Mapping[str, Any]) -> RenderableType:
    """Return the table of all presets, with their published tables and figures."""
    table = _empty("presets", "name", "description", "published in")
    for name, preset in known.items():
        table.add_row(name, preset.about, preset.source)
    return table


def component(registry: Registry[Any], name: str) -> RenderableType:
    """Return the page of one component: description, cost, settings and source.

    Raises:
        SettingsError: no component has this name.
    """
    described: type[Component] = registry.get(name)
    settings = Table("setting", "default", "range", "description", box=None)
    for key, field in fields_of(described):
        settings.add_row(*map(Text, setting_row(registry.setting(name, key), field)))
    parts: list[RenderableType] = [Text(name, style="bold"), Text(_reflowed(described))]
    if described.model_fields:
        parts.append(settings)
    parts.append(Text(_reflowed(inspect.getmodule(described))))
    return Group(*(Padding(part, (0, 0, 1, 0)) for part in parts))


def setting_row(setting: str, field: FieldInfo) -> tuple[str, str, str, str]:
    """Return a setting, its default as it is typed, its range, and its description."""
    default = None if field.is_required() else field.get_default(call_default_factory=True)
    typed = default.title if isinstance(default, Component) else as_typed(default)
    typed = "must be given" if field.is_required() else typed
    return setting, typed, allowed(field), field.description or ""


def _reflowed(documented: object) -> str:
    """Return a docstring with one line per paragraph or list item; formulas are left unchanged."""
    lines: list[str] = []
    for line in (inspect.getdoc(documented) or "").splitlines():
        goes_on = line.strip() and not line.startswith((FORMULA, "- "))
        if goes_on and lines and lines[-1] and not lines[-1].startswith(FORMULA):
            lines[-1] += f" {line.strip()}"
        else:
            lines.append(line)
    return "\n".join(lines)


def preset(known: Mapping[str, Any], name: str) -> RenderableType:
    """Return the page of one preset: its paper, the origin of its settings, and all settings.

    Raises:
        SettingsError: no preset has this name.
    """
    described = look_up("preset", name, known)
    lines = [described.about, described.source]
    if described.paper:
        lines.append(described.paper.citation)
    if described.published:
        values = ", ".join(f"{key} {value:g}" for key, value in described.published.items())
        lines.append(f"published: {values}")
    if described.note:
        lines.append(described.note)
    parts: list[RenderableType] = [
        Text(name, style="bold"),
        Text("\n".join(lines)),
        _origins(described),
        JSON.from_data(described.settings.to_dict()),
    ]
    return Group(*(Padding(part, (0, 0, 1, 0)) for part in parts))


def _origins(preset: Any) -> Table:
    """Return the table of the printed, inferred and chosen settings."""
    table = Table("origin", "settings", box=None)
    for origin, values in preset.by_origin().items():
        if values:
            written = "  ".join(override_text(key, value) for key, value in values.items())
            table.add_row(origin, Text(written))
    if preset.paper and preset.paper.inferred_from:
        table.caption = f"inferred from {preset.paper.inferred_from}"
        table.caption_justify = "left"
    return table


def allowed(field: FieldInfo) -> str:
    """Return the allowed range of a setting."""
    return _range(field.annotation, field.metadata)


def _range(kind: Any, limits: Sequence[Any]) -> str:
    """Return the range of a type with these limits; "" without limits."""
    if get_origin(kind) is Literal:
        return " | ".join(str(choice) for choice in get_args(kind))
    if get_origin(kind) is Annotated:
        inner, *constraints = get_args(kind)
        return _range(inner, [bound for limit in constraints for bound in _metadata(limit)])
    if get_origin(kind) in (Union, UnionType):
        named = ["none" if one is type(None) else _range(one, limits) for one in get_args(kind)]
        return " | ".join(filter(None, named))
    if get_origin(kind) is tuple:
        inner = "names" if get_args(kind)[0] is str else _range(get_args(kind)[0], [])
        return inner and f"list of {inner}"
    if get_origin(kind) is Mapping or kind is bool:
        return "true | false" if kind is bool else "{name: settings}"
    return ", ".join(
        f"{sign} {getattr(limit, name):g}"
        for limit in limits
        for name, sign in BOUNDS.items()
        if getattr(limit, name, None) is not None
    )


def _metadata(limit: Any) -> Sequence[Any]:
    return limit.metadata if isinstance(limit, FieldInfo) else [limit]


def _empty(title: str, *columns: str) -> Table:
    return Table(*columns, title=title, title_justify="left", box=None)
