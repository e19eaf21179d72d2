"""Pages of `raysim list rules`: what goes with what, of all kinds of parts or of one component.

`python -m raysim.cli.rules` writes the table of `docs/combinations.md` anew; a test compares it.
"""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

from rich.console import RenderableType
from rich.table import Table
from rich.text import Text

from raysim.cli.pages import registry_of
from raysim.combinations import RULES, WAYS, Kind, Part
from raysim.config import Settings
from raysim.core.components import build_component, called, suggest
from raysim.core.errors import SettingsError, visible

PAGE = Path(__file__).parents[2] / "docs/combinations.md"
HEADER = ("this", "does not go", "why")
COMPONENTS = (
    *("methods", "selections", "stages", "aggregations", "attacks", "servers", "clocks"),
    "temperatures",
)
NAMES = sorted({name for kind in COMPONENTS for name in registry_of(kind)})
"""Names of the components of which rules tell."""


def page(name: str) -> RenderableType:
    """Return the table of all rules, or of those of the components of a name.

    Raises:
        SettingsError: there is no component of this name.
    """
    if name and name not in NAMES:
        raise SettingsError(
            f"list rules {visible(name)}: no such component; {suggest(name, NAMES)}"
        )
    title = f"rules of {name}, as it is by default" if name else "rules"
    table = Table(*HEADER, title=title, title_justify="left", box=None)
    for row in dict.fromkeys(_rows(name)):
        table.add_row(*map(Text, row))
    return table


def _rows(name: str) -> Iterator[tuple[str, ...]]:
    """Yield the rows of a page: names of kinds, and in place of one the setting of a component."""
    for rule in RULES:
        if not name:
            yield rule.one.name, f"{rule.how} {rule.other.name}", rule.reason()
        for run, setting in _runs_with(name) if name else ():
            one, other = (_found(kind, run, setting) for kind in (rule.one, rule.other))
            if one or other:
                words = [part.words for part in (one, other) if part and part.words]
                yield (
                    one.setting if one else rule.one.name,
                    f"{rule.how} {other.setting if other else rule.other.name}",
                    rule.reason(*words[:1]),
                )


def _found(kind: Kind, run: Settings, setting: str) -> Part | None:
    """Return the part of a run that has a setting, if it is of a kind."""
    return next((part for part in kind.found(run) if part.setting == setting), None)


def _runs_with(name: str) -> Iterator[tuple[Settings, str]]:
    """Yield runs with the components of a name, and the setting that names it."""
    from raysim.workloads.presets import PRESETS

    plain = PRESETS["mnist-fedavg"].settings
    for kind in COMPONENTS:
        registry = registry_of(kind)
        if name in [*registry]:
            built = build_component(registry.get(name), {}, "")
            for way in WAYS if kind == "stages" else ():
                yield plain.model_copy(update={way: {name: built}}), f"{way}.{name}"
            if kind != "stages":
                yield plain.model_copy(update={registry.kind: built}), called(built)


def markdown() -> str:
    """Return the table of all rules in Markdown."""
    rows = [HEADER, ["---"] * len(HEADER), *_rows("")]
    return "".join(f"| {' | '.join(row)} |\n" for row in rows)


def main() -> None:
    """Write the page anew, up to its table."""
    text = PAGE.read_text(encoding="utf-8").partition("\n| this |")[0]
    PAGE.write_text(f"{text}\n{markdown()}", encoding="utf-8")


if __name__ == "__main__":
    main()
