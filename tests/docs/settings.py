"""Pages of settings, `docs/settings/`: `python -m tests.docs.settings` writes them anew."""

from __future__ import annotations

import inspect
from collections.abc import Iterable, Iterator
from pathlib import Path

from raysim.api.components import Component, Registry, fields_of
from raysim.cli.app import KINDS
from raysim.cli.pages import registry_of, setting_row
from raysim.cli.settings import HEADER, NAMES, rows_of

FOLDER = Path(__file__).parents[2] / "docs/settings"
NOTE = "<!-- `python -m tests.docs.settings` writes this page from the code -->\n"


def pages() -> Iterator[tuple[str, str]]:
    """Yield the name of each page's file, and its text."""
    for group in NAMES:
        title = "Settings of a run" if group == "run" else f"Settings `{group}.*`"
        about = inspect.getdoc(NAMES[group]) or ""
        yield f"{group}.md", f"# {title}\n\n{NOTE}\n{about}\n\n{table(rows_of(group))}"
    for kind in KINDS[1 : KINDS.index("tables")]:
        parts = "".join(section(registry_of(kind), name) for name in registry_of(kind))
        yield f"{kind}.md", f"# Settings of {kind}\n\n{NOTE}{parts}"


def section(registry: Registry[Component], name: str) -> str:
    """Return the section of one component."""
    described = registry.get(name)
    first = (inspect.getdoc(described) or "").partition("\n")[0]
    rows = [setting_row(registry.setting(name, k), f) for k, f in fields_of(described)]
    return f"\n## {name}\n\n{first}\n" + (f"\n{table(rows)}" if rows else "")


def table(rows: Iterable[tuple[str, ...]]) -> str:
    """Return rows of settings as a table in Markdown."""
    lines = ["| " + " | ".join(HEADER) + " |", "|---" * len(HEADER) + "|"]
    for setting, default, allowed, about in rows:
        cells = [f"`{setting}`", f"`{default}`", f"`{allowed}`" if allowed else "", about]
        lines.append("| " + " | ".join(cell.replace("|", r"\|") for cell in cells) + " |")
    return "\n".join(lines) + "\n"


def main() -> None:
    """Write the pages anew."""
    for name, text in pages():
        (FOLDER / name).write_text(text, encoding="utf-8")


if __name__ == "__main__":
    main()
