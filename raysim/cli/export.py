"""Command `raysim export`: the model that one client of a run deploys."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer
from rich.console import Console

from raysim.cli.options import RunDir, path_option
from raysim.cli.output import printing
from raysim.errors import RunError, SettingsError
from raysim.user_input import portable_name
from raysim.user_input.run_folders import is_of_a_run
from raysim.user_input.user_modules import leave_out_working_directory

console = Console(emoji=False)


def export(
    run_dir: RunDir,
    client: Annotated[str, typer.Option(help="number of the client, from 0, or its name")],
    out: Annotated[
        Path | None,
        typer.Option(
            "--out",
            "-o",
            parser=path_option("--out"),
            metavar="PATH",
            help="the file (.safetensors); default: client_CLIENT.safetensors",
        ),
    ] = None,
) -> None:
    """Write the model that a client deploys, as of a run's last checkpoint."""
    out = out or Path(f"client_{portable_name(client)}.safetensors")
    if out.suffix != ".safetensors" or out.is_dir() or not out.parent.is_dir():
        raise SettingsError(f"--out={out}: must be a .safetensors file in an existing folder")
    if is_of_a_run(out):
        raise SettingsError(f"--out={out}: is a run's own file; choose another name or folder")
    leave_out_working_directory(run_dir)  # before packages try optional imports
    import raysim
    from raysim import methods, workloads  # noqa: F401 - registers the components
    from raysim.storage.checkpoints import save_tensors
    from raysim.storage.run_directory import RunDirectory

    listener = printing(console)
    if RunDirectory(run_dir).read_config(listener.note)[1]:
        raise RunError(
            f"{run_dir}: this run has its own task; call raysim.client_model({str(run_dir)!r},"
            f" {int(client) if client.isdecimal() else client!r}, task)"
        )
    save_tensors(out, raysim.client_model(run_dir, client, listener=listener))
    listener.note(f"model of client {client}: {out}")
