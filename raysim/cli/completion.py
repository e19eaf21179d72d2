"""Completion in the shell: presets, names, settings and their values.

`raysim --install-completion` installs it. Words come from `completion.json` in this folder, since
a completion must not import torch, as the registries do. `python -m raysim.cli.completion` writes
the file again, and a test compares it with the registries.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Iterable, Iterator
from contextlib import suppress
from functools import cache
from itertools import product
from pathlib import Path
from typing import Any

import typer

from raysim.user_input import DATASET, may_change, may_grow

FILE = Path(__file__).with_name("completion.json")
OF_STAGES = ("channel", "downlink")
"""Settings that map names of stages to these."""

LISTS = ("analysis", "evaluation.metrics")
"""Settings that are lists of names."""


@cache
def known_words() -> dict[str, Any]:
    """Return the words: names by kind, components by preset, and values by setting."""
    words: dict[str, Any] = json.loads(FILE.read_text(encoding="utf-8"))
    return words


def names_of_kind(kind: str) -> Callable[[str], list[str]]:
    """Return the completion of an argument that is a name of a kind."""

    def complete(incomplete: str) -> list[str]:
        return [name for name in known_words()["names"][kind] if name.startswith(incomplete)]

    return complete


def complete_kind(incomplete: str) -> list[str]:
    """Complete the kind of `raysim list`."""
    return [kind for kind in [*known_words()["names"], "runs"] if kind.startswith(incomplete)]


def complete_entry(context: typer.Context, incomplete: str) -> list[str]:
    """Complete the name of `raysim list KIND`."""
    names = known_words()["names"].get(context.params.get("kind"), [])
    return [name for name in names if name.startswith(incomplete)]


def complete_override(context: typer.Context, incomplete: str) -> list[str]:
    """Complete a setting, or after its `=` the value.

    bash splits words at `=`: there the value alone is completed.
    """
    before = _before(context)
    if not incomplete and before and before[-1] in _settings(before, context):  # after its "="
        return _values(before[-1], "", before, context)
    if before == ["="]:  # after the setting of an option
        return []
    if before[-1:] == ["="]:
        return _values(before[-2], incomplete, before, context)
    key, equals, value = incomplete.partition("=")
    if equals:
        return [f"{key}={choice}" for choice in _values(key, value, before, context)]
    settings = _settings(before, context)
    keys = [key for key in settings if key.startswith(incomplete)]
    if len(keys) == 1:  # with its values, or else the shell would put a space after the "="
        return [f"{keys[0]}=", *(f"{keys[0]}={value}" for value in settings[keys[0]])]
    return [f"{key}=" for key in keys]


def complete_range(context: typer.Context, incomplete: str) -> list[str]:
    """Complete the setting of a range to search, `KEY=`."""
    keys = _settings(_before(context), context)
    return [f"{key}=" for key in keys if key.startswith(incomplete)]


def _before(context: typer.Context) -> list[str]:
    """Return the words before: settings, and without a preset the dataset that comes first."""
    start = _start(context)
    return [*([start] if _is_dataset(start) else []), *(context.params.get("overrides") or ())]


def _start(context: typer.Context) -> str:
    return str(context.params.get("config") or context.params.get("study") or "")


def _is_dataset(start: str) -> bool:
    return start.startswith(DATASET.rstrip("="))  # bash gives the "=" as a separate word


def _values(key: str, begun: str, before: list[str], context: typer.Context) -> list[str]:
    """Return the values that begin so; of a sweep or list, after the last comma, each once."""
    several = context.info_name == "sweep" or key in LISTS
    *others, last = begun.split(",") if several else [begun]
    values = _settings(before, context).get(key, [])
    matching = [value for value in values if value.startswith(last) and value not in others]
    return [",".join([*others, value]) for value in matching]


def _settings(before: Iterable[str], context: typer.Context) -> dict[str, list[str]]:
    """Return values by setting: of a run, and of the named components.

    A resumed run has only settings that may change; growing settings start at their recorded value.
    """
    words = known_words()
    if context.info_name == "resume":
        changed = {
            k: values for k, values in words["settings"].items() if may_change(k) and k != "out"
        }
        run = context.params.get("run_dir")
        recorded: dict[str, Any] = {}
        with suppress(OSError, ValueError):  # the folder is not a run
            recorded = json.loads(Path(run or "", "config.json").read_text(encoding="utf-8"))
        keys = filter(may_grow, known_words()["settings"])
        return changed | {key: [str(recorded[key])] if key in recorded else [] for key in keys}
    start = _start(context)
    named = dict(words["presets"].get(DATASET if _is_dataset(start) else start, {}))
    named |= dict(_named("".join(f"{word} " for word in before).replace(" = ", "=").split()))
    settings = dict(words["settings"])
    for key, names in named.items():
        for name in names.split(","):
            settings |= words["fields"].get(f"{key}={name}", {})
    return settings


def _named(overrides: Iterable[str]) -> Iterator[tuple[str, str]]:
    """Yield setting and value of the overrides that name a component, or several of a sweep."""
    for key, _, name in (word.partition("=") for word in overrides):
        if key.endswith(".name"):
            yield key, name


def collect() -> dict[str, Any]:
    """Collect the words from the registries and the settings."""
    from raysim.analysis import ANALYSES
    from raysim.api.class_metrics import METRICS
    from raysim.api.components import registries
    from raysim.cli.app import KINDS
    from raysim.cli.pages import names_of, registry_of
    from raysim.config import Settings
    from raysim.facade.settings import PLAIN
    from raysim.user_input.group import SettingsGroup
    from raysim.workloads.presets import PRESETS

    settings, fields = dict[str, list[str]](), dict[str, dict[str, list[str]]]()
    kinds = {r.kind: r for r in registries() if r.kind not in LISTS}
    for key, field in Settings.model_fields.items():
        if registry := kinds.get(key):
            settings[f"{key}.name"] = [*registry]
            for name in registry:
                fields[f"{key}.name={name}"] = _fields(registry.get(name), f"{key}.")
        if isinstance(field.default, SettingsGroup):
            settings |= _fields(type(field.default), f"{key}.")
        elif key not in (*kinds, *OF_STAGES):
            settings[key] = _choices(field)
    stages = registry_of("stages")
    for group, name in product(OF_STAGES, stages):
        settings |= _fields(stages.get(name), f"{group}.{name}.")
    settings["local.optimizer"] = names_of("optimizers")
    settings |= {"analysis": [*ANALYSES], "evaluation.metrics": [*METRICS]}
    presets = {name: _components(preset.settings) for name, preset in PRESETS.items()}
    return {
        "names": {kind: names_of(kind) for kind in KINDS if kind != "runs"},
        "presets": {DATASET: PLAIN, **presets},
        "settings": settings,
        "fields": {name: values for name, values in fields.items() if values},
    }


def _components(settings: Any) -> dict[str, str]:
    values = settings.to_dict()
    named = {key: value for key, value in values.items() if isinstance(value, dict)}
    return {f"{key}.name": value["name"] for key, value in named.items() if "name" in value}


def _fields(kind: Any, prefix: str) -> dict[str, list[str]]:
    from raysim.api.components import fields_of

    return {key: _choices(field) for key, field in fields_of(kind, prefix)}


def _choices(field: Any) -> list[str]:
    """Return the choices of a setting; of one without choices its default, if it has one."""
    from raysim.cli.pages import allowed

    words = allowed(field).split(" | ")
    choices = [word for word in words if word.replace("-", "").replace("_", "").isalnum()]
    default = None if field.is_required() else field.get_default(call_default_factory=True)
    if isinstance(default, str | int | float) and not isinstance(default, bool):
        choices.append(str(default))
    return list(dict.fromkeys(choices))


def written(words: dict[str, Any]) -> str:
    """Return words as JSON with a line per name, preset, setting and component."""
    sections = []
    for section, entries in words.items():
        lines = (f"  {json.dumps(name)}: {json.dumps(entry)}" for name, entry in entries.items())
        sections.append(f" {json.dumps(section)}: {{\n" + ",\n".join(lines) + "\n }")
    return "{\n" + ",\n".join(sections) + "\n}\n"


def main() -> None:
    """Write the file."""
    FILE.write_text(written(collect()), encoding="utf-8")


if __name__ == "__main__":
    main()
