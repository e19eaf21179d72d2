"""Command `raysim table`."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer
from rich.console import Console

from raysim.cli.options import Jobs, Only, Overrides, ProfileName, Rounds, StudyFolder, changes
from raysim.cli.output import resumable

if TYPE_CHECKING:
    from raysim.tuning.tables.plan import TableOptions

console = Console()


def table(
    name: Annotated[str, typer.Argument(help="a table; see raysim list tables")],
    overrides: Overrides = None,
    *,
    only: Only = None,
    rounds: Rounds = None,
    seeds: Annotated[
        int | None, typer.Option(min=1, max=10**6, help="seeds of each cell; default: the table's")
    ] = None,
    jobs: Jobs = None,
    out: StudyFolder = None,
    dry_run: Annotated[
        bool, typer.Option("--dry-run", help="print cells, sample-steps and an estimated time")
    ] = False,
    profile: ProfileName = None,
) -> None:
    """Run a published table beside its values; the same command resumes an interrupted one."""
    from raysim.tuning.tables import command

    options = table_options(only, rounds, seeds, changes(overrides, profile))
    folder = out or Path("runs") / name
    if dry_run:
        with resumable(console, lambda: ""):
            command.dry_run(name, options, jobs=jobs, out=folder, console=console)
        return
    with resumable(console, lambda: "interrupted; the same command resumes the table"):
        command.table(name, options, jobs=jobs, out=folder, console=console)


def table_options(
    only: list[str] | None, rounds: int | None, seeds: int | None, overrides: dict[str, Any]
) -> TableOptions:
    """Return the options of a table's plan."""
    from raysim.tuning.tables.plan import TableOptions

    return TableOptions(tuple(only or ()), rounds, seeds, overrides)
