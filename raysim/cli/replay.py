"""Command `raysim replay`: a client of a round, trained again in this process."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer
from rich.console import Console

from raysim.cli.destinations import check_file
from raysim.cli.options import Force, RunDir, path_option
from raysim.cli.output import printing
from raysim.errors import RunError
from raysim.user_input.user_modules import leave_out_working_directory

if TYPE_CHECKING:
    from raysim import Replay

console = Console(emoji=False)


def replay(
    run_dir: RunDir,
    *,
    round_number: Annotated[int, typer.Option("--round", help="the round, counted from 1")],
    client: Annotated[str, typer.Option(help="number of the client, from 0, or its name")],
    out: Annotated[
        Path | None,
        typer.Option(
            "--out",
            "-o",
            parser=path_option("--out"),
            metavar="PATH",
            help="file (.safetensors) for the changes of the client's network",
        ),
    ] = None,
    force: Force = False,
) -> None:
    """Train a client again as in a round, where `breakpoint()` stops; the run is only read."""
    if out is not None:
        check_file(out, ".safetensors")
    leave_out_working_directory(run_dir)  # before packages try optional imports
    import raysim
    from raysim import methods, workloads  # noqa: F401 - registers the components
    from raysim.storage.checkpoints import save_tensors
    from raysim.storage.run_directory import RunDirectory

    listener = printing(console)
    if RunDirectory(run_dir).read_config(listener.note)[1]:
        given = int(client) if client.isdecimal() else client
        raise RunError(
            f"{run_dir}: this run has its own task; call"
            f" raysim.replay({str(run_dir)!r}, {round_number}, {given!r}, task)"
        )
    replayed = raysim.replay(run_dir, round_number, client, listener=listener, force=force)
    for line in _lines(replayed):
        listener.note(line)
    if out is not None:
        save_tensors(out, replayed.update)
        listener.note(f"changes of its network: {out}")


def _lines(replayed: Replay) -> list[str]:
    """Return a replay in lines."""
    lines = []
    several = len(replayed.rows) > 1
    for row, agrees, differs in zip(replayed.rows, replayed.agrees, replayed.differs, strict=True):
        where = f"client {replayed.client} in round {replayed.round_number}"
        where += f", pass {row['pass']:.0f}" if several else ""
        lines.append(
            f"{where}: {row['samples']:.0f} samples, {row['steps']:.0f} steps, loss"
            f" {row['loss_before']:.6g} before and {row['loss_after']:.6g} after, norm of the"
            f" update {row['update_norm']:.6g}"
        )
        if agrees:
            lines.append(f"the same as in clients.parquet: {', '.join(agrees)}")
        if differs:
            others = (f"{name} {row[name]!r}, there {value!r}" for name, value in differs.items())
            lines.append(f"other than in clients.parquet: {'; '.join(others)}")
        if not (agrees or differs):
            lines.append("clients.parquet has no stored row to compare with")
    return lines
