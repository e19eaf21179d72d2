"""Commands `raysim job list`, `status`, `logs` and `stop`, for jobs on a Ray cluster."""

from __future__ import annotations

from typing import Annotated

import typer
from rich.console import Console

Address = Annotated[
    str | None,
    typer.Option(
        help="URL of the cluster's dashboard; default: RAY_API_SERVER_ADDRESS or RAY_ADDRESS"
    ),
]
JobId = Annotated[str, typer.Argument(metavar="ID", help="id of the job")]
Follow = Annotated[bool, typer.Option(help="follow the log until the job ends")]

job = typer.Typer(no_args_is_help=True, help="List, follow and stop jobs on a Ray cluster.")
console = Console(emoji=False)


@job.command(name="list")
def list_jobs(address: Address = None) -> None:
    """List the jobs of a cluster."""
    from raysim.cluster import command

    command.list_jobs(address=address, console=console)


@job.command()
def status(name: JobId, address: Address = None) -> None:
    """Print the status of a job."""
    from raysim.cluster import command

    command.status(name, address=address, console=console)


@job.command()
def logs(name: JobId, address: Address = None, follow: Follow = True) -> None:
    """Print a job's log; with --follow, exit with the job's exit code."""
    from raysim.cluster import command

    raise typer.Exit(command.logs(name, address=address, follow=follow, console=console))


@job.command()
def stop(name: JobId, address: Address = None) -> None:
    """Stop a job after a checkpoint; submitting the same command again resumes it."""
    from raysim.cluster import command

    command.stop(name, address=address, console=console)
