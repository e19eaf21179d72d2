"""Samples of clients by class for heat maps, as recorded or counted again.

Legend: K clients, N samples, C classes.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.parquet as pq
from pyarrow import ipc

from raysim.display.thinning import evenly_chosen
from raysim.results.runs import RunRecord
from raysim.storage.run_directory import RunDirectory

Counts = npt.NDArray[np.int64]
SHOWN_CLIENTS = 1_000
"""Most clients of a heat map; of more, clients at equal distances are shown."""
UNREADABLE = (OSError, ValueError, LookupError, pa.ArrowException)


Labels = npt.NDArray[Any]
"""Class numbers of a run's training samples [N]; empty where targets are not classes."""
ReadLabels = Callable[[RunRecord], Labels | None]
"""Returns the labels of a run's training samples; None if they are not prepared here."""


def client_names(record: RunRecord) -> list[str]:
    """Return the names of a run's clients in `partition.arrow`; empty if they have none."""
    try:
        with pa.memory_map(str(RunDirectory(record.path).partition)) as source:
            names: list[str] = ipc.open_file(source).read_all()["name"].to_pylist()
    except UNREADABLE:
        return []
    return [names[k] for k in evenly_chosen(len(names), SHOWN_CLIENTS)]


def name_of(record: RunRecord, client: int) -> str:
    """Return the name of a client in `partition.arrow`; "" if it has none."""
    try:
        with pa.memory_map(str(RunDirectory(record.path).partition)) as source:
            return str(ipc.open_file(source).read_all()["name"][client].as_py())
    except UNREADABLE:
        return ""


def classes_of(record: RunRecord, labels: Labels | None, client: int) -> Counts | None:
    """Return the samples of a client by class [C]; None if they are not known."""
    path = RunDirectory(record.path).partition
    if labels is None or not len(labels) or not path.is_file():
        return None
    try:
        with pa.memory_map(str(path)) as source:
            held = ipc.open_file(source).read_all()["samples"].combine_chunks()[client]
            return np.bincount(labels[held.values.to_numpy()], minlength=int(labels.max()) + 1)
    except UNREADABLE:
        return None


def class_names(record: RunRecord) -> list[str]:
    """Return the names of a run's classes; empty if they have none."""
    names = record.environment.get("class_names")
    return [str(name) for name in names] if isinstance(names, list) else []


def class_counts(record: RunRecord, labels: Labels | None) -> Counts | None:
    """Return samples by client and class [K, C] of at most SHOWN_CLIENTS; None if unknown."""
    recorded = _recorded(record)
    return _counted(record, labels) if recorded is None else recorded


def _recorded(record: RunRecord) -> Counts | None:
    """Return the counts of the analysis `label_heat_map`."""
    try:
        table = pq.read_table(record.path / "analysis" / "label_heat_map.parquet")
        client, label, samples = (
            table[name].to_numpy().astype(np.int64) for name in ("client", "label", "samples")
        )
    except UNREADABLE:
        return None
    if not len(client) or label.min() < 0 or label.max() > len(client) * SHOWN_CLIENTS:
        return None
    clients, rows = np.unique(client, return_inverse=True)
    counts = np.zeros((len(clients), int(label.max()) + 1), dtype=np.int64)
    np.add.at(counts, (rows, label), samples)
    return counts[evenly_chosen(len(counts), SHOWN_CLIENTS)]


def _counted(record: RunRecord, labels: Labels | None) -> Counts | None:
    """Return the counts of the samples in `partition.arrow`."""
    path = RunDirectory(record.path).partition
    if labels is None or not len(labels) or not path.is_file():
        return None
    try:
        with pa.memory_map(str(path)) as source:
            lists = ipc.open_file(source).read_all()["samples"].combine_chunks()
            held = [lists[k].values.to_numpy() for k in evenly_chosen(len(lists), SHOWN_CLIENTS)]
        classes = int(labels.max()) + 1
        return np.stack([np.bincount(labels[samples], minlength=classes) for samples in held])
    except UNREADABLE:
        return None
