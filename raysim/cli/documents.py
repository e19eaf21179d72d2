"""Documents of `raysim list --json`: the content of its pages as plain values."""

from __future__ import annotations

import inspect
from io import StringIO
from typing import Any

from rich.console import Console, RenderableType

from raysim.api.components import Component, fields_of, look_up
from raysim.cli.pages import NAMED, allowed, names_of, page_of, plain, registry_of, tables_of

PAGE_WIDTH = 100


def listed(kind: str, name: str, model: str = "") -> dict[str, Any]:
    """Return the document of `raysim list KIND NAME --of RUN`; all may be empty.

    Raises:
        RaysimError: there is no such entry or folder.
    """
    from raysim.cli.app import KINDS

    if not kind:
        return {kind_name: names_of(kind_name) for kind_name in KINDS[:-2]}
    if kind == "runs":
        from raysim.cli.runs import runs_in

        return {"runs": runs_in(name)}
    if model:
        from raysim.cli.stage_bytes import sizes

        return {kind: sizes(model)}
    if name and kind not in ("settings", "rules"):
        return _entry(kind, name)
    return {kind: _rows(page_of(kind, name))}


def _entry(kind: str, name: str) -> dict[str, Any]:
    """Return the document of one entry; a page that is no list of settings is text."""
    if kind == "presets":
        return _preset(name)
    if kind == "manifests":
        from raysim.cluster.pages import manifest

        return {"name": name, "page": manifest(name)}
    if kind in NAMED:
        return {"name": name, "page": _text(kind, name)}
    registry = registry_of(kind)
    described: type[Component] = registry.get(name)
    settings = [
        {
            "setting": registry.setting(name, key),
            "required": field.is_required(),
            "default": (
                None if field.is_required() else field.get_default(call_default_factory=True)
            ),
            "range": allowed(field),
            "description": field.description or "",
        }
        for key, field in fields_of(described)
    ]
    return {"name": name, "description": inspect.getdoc(described) or "", "settings": settings}


def _rows(page: RenderableType) -> list[dict[str, str]]:
    """Return the rows of a table by the names of its columns, with underscores for spaces."""
    (table,) = tables_of(page)
    names = [plain(column.header).replace(" ", "_") for column in table.columns]
    columns = [[plain(cell) for cell in column.cells] for column in table.columns]
    return [dict(zip(names, row, strict=True)) for row in zip(*columns, strict=True)]


def _preset(name: str) -> dict[str, Any]:
    from raysim.workloads.presets import PRESETS

    preset = look_up("preset", name, PRESETS)
    return {
        "name": name,
        "description": preset.about,
        "source": preset.source,
        "published": dict(preset.published),
        "settings": preset.settings.to_dict(),
    }


def _text(kind: str, name: str) -> str:
    """Return a page as plain text."""
    console = Console(file=StringIO(), width=PAGE_WIDTH, emoji=False)
    with console.capture() as captured:
        console.print(page_of(kind, name))
    return "\n".join(line.rstrip() for line in captured.get().splitlines())
