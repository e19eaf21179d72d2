"""Page and heat map of `raysim data show`: samples and classes of each client.

Legend: K clients in all, n of them counted, C classes.
"""

from __future__ import annotations

import shlex
from collections.abc import Mapping
from dataclasses import dataclass
from importlib.util import find_spec
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
from rich.console import Group, RenderableType
from rich.table import Column, Table
from rich.text import Text

from raysim.config import Settings
from raysim.display.canvas import heat_map, style, written
from raysim.errors import DataError, SettingsError, visible
from raysim.facade.own_data import is_own_data
from raysim.facade.settings import load_config
from raysim.samples.client_indices import ClientIndices, Indices, class_counts, named
from raysim.user_input import override_text

if TYPE_CHECKING:
    from matplotlib.figure import Figure

SHOWN_CLIENTS = 20
SHOWN_LABELS = 10
COUNTED_CLIENTS = 10_000
QUANTILES = {"min": 0.0, "25%": 0.25, "median": 0.5, "75%": 0.75, "max": 1.0}


@dataclass(frozen=True)
class ClientCounts:
    """Number of samples per client and class.

    Attributes:
        sizes: Samples per client [K].
        clients: The counted clients [n]: all, or evenly spaced clients if there are too many.
        counts: Samples per class of `clients` [n, C].
        samples: Number of samples of the training set.
        names: Names of all clients [K]; empty if clients have only numbers.
        words: Names of the classes [C]; empty if classes have only numbers.
    """

    sizes: Indices
    clients: Indices
    counts: Indices
    samples: int
    names: tuple[str, ...] = ()
    words: tuple[str, ...] = ()

    def word(self, label: int) -> str:
        """Return the name of a class, or its number."""
        return visible(self.words[label]) if label < len(self.words) else str(label)


def count(
    client_indices: ClientIndices,
    labels: Indices,
    classes: int,
    names: tuple[str, ...] = (),
    words: tuple[str, ...] = (),
) -> ClientCounts:
    """Count the samples of all clients, and per class of at most COUNTED_CLIENTS clients."""
    total = len(client_indices.sizes)
    clients = np.arange(total)
    if total > COUNTED_CLIENTS:
        clients = np.linspace(0, total - 1, COUNTED_CLIENTS).astype(np.int64)
    counts = class_counts(client_indices, labels, classes, clients)
    return ClientCounts(client_indices.sizes, clients, counts, len(labels), names, words)


def title(settings: Settings) -> str:
    """Return dataset, partition, clients and seed in one line."""
    fields = settings.partition.settings()
    set_ones = {key: value for key, value in fields.items() if value is not None and key != "name"}
    values = ", ".join(f"{key}={value}" for key, value in set_ones.items())
    partition = f"{fields['name']} ({values})" if values else fields["name"]
    dataset = settings.dataset.title
    return f"{dataset}, {partition}, clients={settings.clients}, seed={settings.seed}"


def page(heading: str, held: ClientCounts) -> RenderableType:
    """Return the table of clients, with quantiles if it does not show all clients."""
    parts: list[RenderableType] = [Text(visible(heading), style="bold"), _clients(held)]
    total = len(held.sizes)
    if total > SHOWN_CLIENTS:
        parts.append(_quantiles(held))
    if total > len(held.clients):
        parts.append(Text(f"classes were counted for {len(held.clients)} of the {total} clients"))
    parts.append(
        Text(f"{held.sizes.sum()} samples held; the training set has {held.samples} samples")
    )
    return Group(*parts)


def without_target(start: str, changes: Mapping[str, Any]) -> RenderableType | None:
    """Return the columns of a user's own table if none of them is its target; else None.

    Raises:
        RaysimError: a setting is wrong, or the table is damaged.
    """
    from raysim.workloads.datasets.fetch import data_root
    from raysim.workloads.datasets.files.dataset import Files
    from raysim.workloads.datasets.files.found import found_columns
    from raysim.workloads.datasets.files.samples import target_of

    if not is_own_data(start):
        return None
    dataset = load_config(start, {**changes, "clients": 1}).dataset  # which counts no clients
    if not isinstance(dataset, Files):
        return None
    source = next(iter(dataset.sources(data_root()).values()))
    if not source.names or dataset.is_language or target_of(source, dataset):
        return None  # an archive is not read yet
    columns, rows = found_columns(source)
    table = Table("column", "holds", Column("missing", justify="right"), box=None)
    for column in columns:
        table.add_row(Text(visible(column.name)), Text(column.holds), str(column.kind.missing))
    heading = f"{rows} rows of {len(columns)} columns"
    command = f"raysim run {shlex.quote(dataset.path or '')} target=COLUMN"
    lines = [f"choose what to predict: {command}"]
    if text := next((column.name for column in columns if column.is_text), None):
        lines.append(f"from text, by a pretrained network: {command} {override_text('text', text)}")
    return Group(Text(heading, style="bold"), table, *(Text(visible(line)) for line in lines))


def _clients(held: ClientCounts) -> Table:
    table = Table(box=None)
    for name in ("client", "samples", "classes"):
        table.add_column(name, justify="right")
    table.add_column("label:samples")
    shown = list(zip(held.clients.tolist(), held.counts, strict=True))[:SHOWN_CLIENTS]
    for client, counts in shown:
        _add(table, held, named(client, held.names[client] if held.names else ""), counts)
    name = "all" if len(held.clients) == len(held.sizes) else "counted"
    _add(table, held, name, held.counts.sum(axis=0))
    return table


def _add(table: Table, held: ClientCounts, name: str, counts: Indices) -> None:
    labels = np.flatnonzero(counts)
    most = np.sort(labels[np.argsort(-counts[labels], kind="stable")[:SHOWN_LABELS]])
    words = [f"{held.word(label)}:{counts[label]}" for label in most.tolist()]
    if len(labels) > len(most):
        words.append(f"and {len(labels) - len(most)} more")
    table.add_row(Text(visible(name)), str(counts.sum()), str(len(labels)), Text(" ".join(words)))


def _quantiles(held: ClientCounts) -> Table:
    table = Table("per client", box=None)
    for name in QUANTILES:
        table.add_column(name, justify="right")
    measures = {"samples": held.sizes, "classes": (held.counts > 0).sum(axis=1)}
    for name, values in measures.items():
        cuts = np.quantile(values, list(QUANTILES.values()))
        table.add_row(name, *(f"{value:g}" for value in cuts))
    return table


def check_drawing(path: Path) -> None:
    """Check that a heat map can be drawn to a path.

    Raises:
        SettingsError: the path is no .png file in an existing folder, or matplotlib is missing.
    """
    if path.suffix != ".png" or path.is_dir() or not path.parent.is_dir():
        raise SettingsError(f"--out={path}: must be a .png file in an existing folder")
    if find_spec("matplotlib") is None:
        raise SettingsError(f"--out={path}: needs matplotlib; pip install 'raysim-fl[plots]'")


def drawing(heading: str, held: ClientCounts) -> Figure:
    """Return a heat map of samples, one row per client and one column per class."""
    from matplotlib.figure import Figure

    with style(**{"text.parse_math": False}):
        figure = Figure(figsize=(6, 6), layout="constrained")
        axes = figure.add_subplot()
        names = {"names": held.names, "words": held.words}
        heat_map(axes, held.counts, "samples", clients=len(held.sizes), **names)
        axes.set_title(heading, fontsize="medium", wrap=True)
    return figure


def draw(heading: str, held: ClientCounts, path: Path) -> None:
    """Write the heat map as a PNG.

    Raises:
        DataError: the file cannot be written.
    """
    try:
        path.write_bytes(written(drawing(heading, held), "png"))
    except OSError as error:
        raise DataError(f"--out={path}: cannot be written: {error}") from error
