"""Command `raysim figure`."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer
from rich.console import Console

from raysim.cli.completion import names_of_kind
from raysim.cli.options import Jobs, Overrides, ProfileName, Rounds, changes, path_option
from raysim.cli.output import resumable
from raysim.display.terminal import print_line

console = Console(emoji=False)


def figure(
    name: Annotated[
        str,
        typer.Argument(
            help="a figure; see raysim list figures", autocompletion=names_of_kind("figures")
        ),
    ],
    overrides: Overrides = None,
    *,
    only: Annotated[
        list[str] | None,
        typer.Option(help="words that the name of a run must contain: A,B or repeated"),
    ] = None,
    rounds: Rounds = None,
    jobs: Jobs = None,
    out: Annotated[
        Path | None,
        typer.Option(
            parser=path_option("--out"),
            metavar="PATH",
            help="folder of the runs and drawings; default: runs/figure-NAME",
        ),
    ] = None,
    profile: ProfileName = None,
) -> None:
    """Run and draw a paper's figure; the same command resumes interrupted runs."""
    from raysim.tuning.figures import command

    with resumable(console, lambda: "interrupted; the same command resumes the figure"):
        command.figure(
            name,
            changes(overrides, profile),
            only=only or (),
            rounds=rounds,
            jobs=jobs,
            out=out or Path("runs") / f"figure-{name}",
            line=_print,
        )


def _print(text: str) -> None:
    print_line(console, text)
