"""The command line: `raysim job list`, `status`, `logs` and `stop`, for jobs on a Ray cluster."""

from __future__ import annotations

from typing import Annotated

import typer
from rich.console import Console

Address = Annotated[
    str | None,
    typer.Option(help="URL of the cluster's dashboard; RAY_API_SERVER_ADDRESS or RAY_ADDRESS"),
]
JobId = Annotated[str, typer.Argument(metavar="ID", help="the job")]
Follow = Annotated[bool, typer.Option(help="whether to follow the log until the job ends")]

job = typer.Typer(no_args_is_help=True, help="Follow, ask after and stop jobs on a Ray cluster.")
console = Console()


@job.command(name="list")
def list_jobs(address: Address = None) -> None:
    """List the jobs of a cluster."""
    from raysim.cluster import command

    command.list_jobs(address=address, console=console)


@job.command()
def status(name: JobId, address: Address = None) -> None:
    """Say what has become of a job."""
    from raysim.cluster import command

    command.status(name, address=address, console=console)


@job.command()
def logs(name: JobId, address: Address = None, follow: Follow = True) -> None:
    """Print a job's log; exits with the job's exit code where it is followed to its end."""
    from raysim.cluster import command

    raise typer.Exit(command.logs(name, address=address, follow=follow, console=console))


@job.command()
def stop(name: JobId, address: Address = None) -> None:
    """Stop a job after a checkpoint; submit the same command to go on."""
    from raysim.cluster import command

    command.stop(name, address=address, console=console)
