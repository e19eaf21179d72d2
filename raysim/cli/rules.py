"""Pages of `raysim list rules`: allowed combinations of all kinds of parts, or of one component."""

from __future__ import annotations

from collections.abc import Iterator

from rich.console import RenderableType
from rich.table import Table
from rich.text import Text

from raysim.api.components import build_component, called, suggest
from raysim.cli.pages import registry_of
from raysim.combinations import RULES, WAYS
from raysim.config import Settings
from raysim.errors import SettingsError, visible

HEADER = ("this", "does not go", "why")
COMPONENTS = ("method", "selection", "aggregation", "attack", "server", "clock", "temperature")
NAMES = sorted({name for kind in (*COMPONENTS, "stage") for name in registry_of(f"{kind}s")})
"""Names of the components that rules name."""


def page(name: str) -> RenderableType:
    """Return the table of all rules, or of the rules on the components of a name.

    Raises:
        SettingsError: there is no component of this name.
    """
    if name and name not in NAMES:
        raise SettingsError(
            f"list rules {visible(name)}: no such component; {suggest(name, NAMES)}"
        )
    title = f"rules of {name}, as it is by default" if name else "rules"
    table = Table(*HEADER, title=title, title_justify="left", box=None)
    for row in dict.fromkeys(rows_of(name)):
        table.add_row(*map(Text, row))
    return table


def rows_of(name: str = "") -> Iterator[tuple[str, ...]]:
    """Yield the rows of a page: names of kinds, and in place of one the setting of a component."""
    for rule in RULES:
        kinds = rule.one, rule.other
        if not name:
            yield rule.one.name, f"{rule.how} {rule.other.name}", rule.reason()
        for run, setting in _runs_with(name):
            known = [[*kind.find(run)] if kind.at == "settings" else [] for kind in kinds]
            words = [p.words for parts in known for p in parts if p.setting == setting]
            if words:
                named = [
                    setting if any(p.setting == setting for p in parts) else kind.name
                    for kind, parts in zip(kinds, known, strict=True)
                ]
                if named[0] == named[1]:
                    named[1] = rule.other.name
                yield named[0], f"{rule.how} {named[1]}", rule.reason(*[*filter(None, words)][:1])


def _runs_with(name: str) -> Iterator[tuple[Settings, str]]:
    """Yield runs with the components of a name, and the setting that names it."""
    from raysim.workloads.presets import PRESETS

    plain = PRESETS["mnist-fedavg"].settings
    for kind in (kind for kind in COMPONENTS if name in [*registry_of(f"{kind}s")]):
        built = build_component(registry_of(f"{kind}s").get(name), {}, "")
        yield plain.model_copy(update={kind: built}), called(built)
    for way in WAYS if name in [*registry_of("stages")] else ():
        stage = build_component(registry_of("stages").get(name), {}, "")
        yield plain.model_copy(update={way: {name: stage}}), f"{way}.{name}"
