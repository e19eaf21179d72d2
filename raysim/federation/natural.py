"""Number of natural clients, where settings do not give one."""

from __future__ import annotations

from collections.abc import Collection, Mapping
from pathlib import Path
from typing import Any

from raysim.api.components import call
from raysim.config import Settings, parse
from raysim.federation.prepared import open_prepared, prepared
from raysim.samples.data import Partition, Progress, counts_clients


def with_clients(
    raw: Mapping[str, Any], keys: Collection[str], root: Path, progress: Progress
) -> Settings:
    """Return validated settings, with all natural clients where no number of clients is given.

    Args:
        raw: Nested plain values.
        keys: Dotted keys that a user gave, in addition to a preset.
        root: The data root; the dataset is prepared to count its clients.
        progress: Called while it is being prepared.

    Raises:
        RaysimError: a setting is wrong, or the data has no natural clients.
    """
    of_preset = not {"dataset.name", "partition.name"} & {*keys}
    if raw.get("clients") is not None and ("clients" in keys or of_preset):
        return parse(raw)
    settings = parse({**raw, "clients": 1})
    if not counts_clients(type(settings.partition)):
        return parse(raw)
    paths = prepared(settings.data, root, progress)
    train = open_prepared(settings.data, paths["train"])
    clients = call(settings.partition, Partition.natural_clients, train)
    return parse(raw if clients is None else {**raw, "clients": clients})
