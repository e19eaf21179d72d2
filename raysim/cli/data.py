"""Commands `raysim data fetch`, `show` and `list`."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer
from rich.console import Console
from rich.table import Table

import raysim
from raysim.cli.options import Overrides, path_option
from raysim.display.terminal import print_line
from raysim.errors import SettingsError, visible

data = typer.Typer(
    no_args_is_help=True, help="Fetch and list datasets, and show how a preset splits them."
)
console = Console(emoji=False)


@data.command()
def fetch(name: Annotated[str, typer.Argument(help="a dataset, or a pretrained network")]) -> None:
    """Fetch, check and prepare a dataset, or a pack: a pretrained network."""
    from raysim import workloads  # noqa: F401 - registers the datasets
    from raysim.api.components import build_component, suggest
    from raysim.cli.live_view import loading
    from raysim.federation.prepared import prepared
    from raysim.samples.data import DATASETS
    from raysim.workloads.datasets.fetch import data_root
    from raysim.workloads.models.pretrained.packs import PACKS, fetched

    if name in PACKS:
        with loading(console) as listener:
            folder = fetched(name, listener.preparing)
        print_line(console, f"{name}, {PACKS[name].about}: {folder}")
        return
    if name not in {*DATASETS} and ":" not in name:
        hint = suggest(name, [*DATASETS, *PACKS])
        raise SettingsError(f"{visible(name)}: no such dataset or pretrained network; {hint}")
    dataset = build_component(DATASETS.get(name), {}, "dataset.")
    with loading(console) as listener:
        paths = prepared(dataset, data_root(), listener.preparing)
    for split, path in paths.items():
        print_line(console, f"{name} {split}: {path}")


@data.command()
def show(
    config: Annotated[
        str, typer.Argument(help="a preset, a .toml or .json file, or dataset.name=NAME")
    ],
    overrides: Overrides = None,
    out: Annotated[
        Path | None,
        typer.Option(
            parser=path_option("--out"),
            metavar="PATH",
            help="file of a heat map of clients and classes (PNG)",
        ),
    ] = None,
) -> None:
    """Show each client's samples and classes; of a table without a target, its columns."""
    import numpy as np

    from raysim.cli import data_page
    from raysim.cli.live_view import loading
    from raysim.config import parse_override
    from raysim.federation.prepared import (
        class_names,
        network_size,
        notes_of,
        open_prepared,
        prepared,
    )
    from raysim.workloads.datasets.fetch import data_root

    changes = dict(parse_override(text) for text in overrides or ())
    if out:
        data_page.check_drawing(out)
    if found := data_page.without_target(config, changes):
        console.print(found, soft_wrap=True)  # a command, to be copied
        return
    with loading(console) as listener:
        settings = raysim.load_config(config, changes)
        paths = prepared(settings.data, data_root(), listener.preparing)
    train = open_prepared(settings.data, paths["train"])
    indices = settings.partition.client_indices(train, settings.clients, settings.seed)
    labels, classes = np.zeros(len(train), np.int64), 1
    if settings.dataset.scoring.classifies:
        labels, classes = train.y, network_size(settings.dataset, lambda: train)[1]
    names = settings.partition.names_of(train, indices)
    held = data_page.count(indices, labels, classes, names, class_names(settings.dataset, paths))
    heading = data_page.title(settings)
    for line in notes_of(paths):
        print_line(console, line)
    console.print(data_page.page(heading, held))
    if out:
        data_page.draw(heading, held, out)
        print_line(console, f"heat map: {out}")


@data.command(name="list")
def list_data() -> None:
    """List the datasets and packs, and which of them are there."""
    from raysim import workloads  # noqa: F401 - registers the datasets
    from raysim.display.units import in_fitting_unit
    from raysim.samples.data import DATASETS
    from raysim.workloads.datasets.fetch import data_root
    from raysim.workloads.models.pretrained.packs import PACKS, folder_of_pack

    root = data_root()
    table = Table("dataset", "prepared", title=f"data root {root}", title_justify="left", box=None)
    for name in DATASETS:
        prepared = sorted((root / name / "prepared").rglob("*.arrow"))
        size = sum(path.stat().st_size for path in prepared)
        table.add_row(name, in_fitting_unit(size, "B") if prepared else "no")
    console.print(table)
    packs = Table("pretrained network", "fetched", "", box=None)
    for name, pack in PACKS.items():
        files = folder_of_pack(name).glob("*")
        size = sum(path.stat().st_size for path in files)
        packs.add_row(name, in_fitting_unit(size, "B") if size else "no", pack.about)
    console.print(packs)
