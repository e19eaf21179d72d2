"""Settings by name, from files and from values by key, with the natural clients of their data."""

from __future__ import annotations

from collections.abc import Collection, Mapping
from pathlib import Path
from typing import Any

from raysim import methods, workloads  # noqa: F401 - registers the components
from raysim.api.components import call, suggest
from raysim.config import Settings, apply_overrides, parse, parse_override
from raysim.driver.listeners.listener import Listener, listener_of_command
from raysim.errors import SettingsError, visible
from raysim.facade.own_data import OF_SETTINGS, PATH, is_own_data, preset_of, with_groups
from raysim.federation.prepared import open_prepared, prepared
from raysim.notebook.runs import shown
from raysim.process.exits import interruptible
from raysim.samples.data import Partition, Progress, counts_clients
from raysim.storage.plugins import check_places
from raysim.storage.schema import settings_of_file
from raysim.user_input import (
    DATASET,
    check_plain,
    dotted,
    read_file,
    user_path,
)
from raysim.workloads.datasets.fetch import data_root
from raysim.workloads.presets import PRESETS, on_preset
from raysim.workloads.sweeps import FILE_KEYS


def with_clients(
    raw: Mapping[str, Any], keys: Collection[str], root: Path, progress: Progress
) -> Settings:
    """Return validated settings; if they have no number of clients, with all natural clients.

    Args:
        raw: Nested plain values.
        keys: Dotted keys that a user gave, in addition to a preset.
        root: The data root; the dataset is prepared to count its clients.
        progress: Called during the preparation.

    Raises:
        RaysimError: a setting is wrong, or the data has no natural clients.
    """
    of_preset = not {"dataset.name", PATH, "partition.name"} & {*keys}
    if raw.get("clients") is not None and ("clients" in keys or of_preset):
        return parse(raw)
    settings = parse({**raw, "clients": 1})
    if not counts_clients(type(settings.partition)):
        return parse(raw)
    paths = prepared(settings.data, root, progress)
    train = open_prepared(settings.data, paths["train"])
    clients = call(settings.partition, Partition.natural_clients, train)
    return parse(raw if clients is None else {**raw, "clients": clients})


PLAIN = {"method.name": "fedavg", "partition.name": "iid"}
"""Settings that a start without a preset need not give."""


def load_config(
    source: str | Path,
    overrides: Mapping[str, Any] | None = None,
    listener: Listener | None = None,
) -> Settings:
    """Return validated settings.

    Args:
        source: Name of a preset, or path of a TOML or JSON file with the same keys; its key
            `preset` names a preset that gives the others. The table `[study]` of a study is left
            out. `dataset.name=NAME`, without a preset, is FedAvg on the partition `iid` with
            default settings; `model.name` must be given. A file or folder of data is the preset
            `own-data` with its path, or `own-images`; with a column of text `own-text`, with
            prompts `own-prompts`.
        overrides: Values by dotted key, for example {"local.lr": 0.05}. With `own-data`, settings
            of the dataset need no group: {"target": "spam"}.
        listener: Told how the data is prepared, if its natural clients must be counted; the default
            is that of `run`.

    Raises:
        SettingsError: the preset is unknown, a key is unknown, or a value is out of range.
        RunError: a newer version wrote the file, or a named class lies in a run directory.
    """
    changes, start = dict(overrides or {}), str(source)
    if is_own_data(start):
        changes = with_groups(changes)
        start, path = preset_of(start, changes)
        changes = {**path, **changes}
    raw, changed = _read(start)
    raw = apply_overrides(raw, changes)
    check_plain(raw)
    check_places(raw)
    with interruptible(), shown(listener or listener_of_command()) as told:
        return with_clients(raw, {*changed, *changes}, data_root(), told.preparing)


def _read(name: str) -> tuple[dict[str, Any], set[str]]:
    """Return the settings of a preset, a file or none, and the dotted keys that a user gave.

    Raises:
        SettingsError: there is no such preset, or the file holds something else.
    """
    if name in PRESETS:
        return PRESETS[name].settings.to_dict(), set()
    if name.startswith(DATASET):
        changes = dict([parse_override(name)])
        return apply_overrides({}, {**PLAIN, **changes}), {*changes}
    if Path(name).suffix not in (".toml", ".json"):
        raise SettingsError(f"{visible(name)}: no such preset; {_instead_of(name)}")
    path = user_path(name)
    raw = settings_of_file(path, read_file(path))
    if {*FILE_KEYS} & raw.keys():
        raise SettingsError(f"{name}: is a file of a sweep; type: raysim sweep {name}")
    keys = {*dotted(raw)}
    raw = on_preset(raw)
    raw.pop("study", None)  # for `tune`
    if raw.pop("own_task", False):  # the config.json of such a run
        raise SettingsError(f"{name}: this run had its own task, which no file holds")
    return raw, keys


def _instead_of(name: str) -> str:
    """Return the remedy for a name that is no preset."""
    hint = f"{suggest(name, sorted(PRESETS))} (or a .toml or .json file)"
    if "=" in name:
        hint = "name a preset first, such as mnist-fedavg, or begin with dataset.name=NAME"
    elif Path(name).suffix.lower() in OF_SETTINGS:
        hint = "settings are a .toml or .json file"
    return hint


def loaded_settings(settings: Settings | str | Path) -> Settings:
    """Return settings as they are, or the settings of a preset or file.

    Raises:
        SettingsError: they are something else, or cannot be loaded.
    """
    if isinstance(settings, str | Path):
        return load_config(settings)
    loaded: Any = settings
    if not isinstance(loaded, Settings):
        kind = type(loaded).__name__
        raise SettingsError(f"settings: must be of raysim.load_config, or a name; is a {kind}")
    return settings
