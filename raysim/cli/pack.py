"""Command `raysim pack`: the results of runs in one zip."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer
from rich.console import Console

from raysim.cli.options import path_option
from raysim.display.terminal import print_line
from raysim.display.units import in_fitting_unit
from raysim.errors import SettingsError

console = Console(emoji=False)


def pack(
    folder: Annotated[
        Path,
        typer.Argument(
            parser=path_option("FOLDER"), metavar="FOLDER", help="a run, or a folder of runs"
        ),
    ],
    out: Annotated[
        Path,
        typer.Option(
            "--out", "-o", parser=path_option("--out"), metavar="PATH", help="the archive (.zip)"
        ),
    ] = Path("results.zip"),
) -> None:
    """Write the results of runs into one zip, which compare and report open elsewhere."""
    from raysim.results import packed

    if out.suffix != packed.ENDING or out.is_dir() or not out.parent.is_dir():
        raise SettingsError(f"--out={out}: must be a .zip file in an existing folder")
    runs = packed.pack(folder, out)
    size = in_fitting_unit(out.stat().st_size, "B")
    print_line(console, f"packed: {out}, {len(runs)} run{'s' * (len(runs) != 1)}, {size}")
