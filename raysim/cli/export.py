"""Command `raysim export`: a run's model, or a client's, for other programs."""

from __future__ import annotations

from enum import StrEnum
from pathlib import Path
from typing import Annotated

import typer
from rich.console import Console

from raysim.cli.destinations import check_file, check_folder
from raysim.cli.options import RunDir, path_option
from raysim.cli.output import printing
from raysim.errors import RunError
from raysim.user_input import portable_name
from raysim.user_input.user_modules import leave_out_working_directory

console = Console(emoji=False)


class Format(StrEnum):
    """Format of an export."""

    SAFETENSORS = "safetensors"
    TORCH = "torch"
    ONNX = "onnx"
    HUGGINGFACE = "huggingface"
    PEFT = "peft"


def export(
    run_dir: RunDir,
    *,
    to: Annotated[
        Format,
        typer.Option(
            help="a file of weights; or a folder with a model card and a program (torch), a graph"
            " (onnx), a pretrained network (huggingface) or its adapters (peft)"
        ),
    ] = Format.SAFETENSORS,
    client: Annotated[
        str | None,
        typer.Option(help="client whose own model it is, by number or name; default: global"),
    ] = None,
    out: Annotated[
        Path | None,
        typer.Option(
            "--out",
            "-o",
            parser=path_option("--out"),
            metavar="PATH",
            help="the file (.safetensors) or new folder; default: named by model and format",
        ),
    ] = None,
) -> None:
    """Write the model of a finished run, or a client's."""
    named = "model" if client is None else f"client_{portable_name(client)}"
    about = "model" if client is None else f"model of client {client}"
    listener = printing(console)
    if to == Format.SAFETENSORS:
        out = out or Path(f"{named}.safetensors")
        check_file(out, ".safetensors")
        leave_out_working_directory(run_dir)  # before packages try optional imports
        _save_tensors(run_dir, client, out)
    else:
        out = out or Path(f"{named}_{to}")
        check_folder(out)
        leave_out_working_directory(run_dir)
        from raysim.facade.exports import check_format
        from raysim.facade.exports import export as export_folder
        from raysim.facade.predictions import TrainedModel

        check_format(to)
        whose = "The global model" if client is None else f"The model of client {client}"
        export_folder(TrainedModel.of(run_dir, client, listener), to, out, whose)
    listener.note(f"{about}: {out}")


def _save_tensors(run_dir: Path, client: str | None, out: Path) -> None:
    """Write tensors of a model, for `load_state_dict`.

    Raises:
        RunError: the run is unfinished or has no model, or needs its task for a client's.
    """
    import raysim
    from raysim import methods, workloads  # noqa: F401 - registers the components
    from raysim.config import parse
    from raysim.storage.checkpoints import Checkpoints, model_metadata, save_tensors
    from raysim.storage.run_directory import RunDirectory
    from raysim.storage.sealed.models import read_model

    listener = printing(console)
    directory = RunDirectory(run_dir)
    raw, own_task = directory.read_config(listener.note)
    directory.check_finished(parse(raw), own_task)
    sealed = model_metadata(Checkpoints(directory.checkpoints).identity())
    if client is None:
        save_tensors(out, read_model(run_dir, listener.note), sealed)
        return
    if own_task:
        raise RunError(
            f"{run_dir}: this run has its own task; call raysim.client_model({str(run_dir)!r},"
            f" {int(client) if client.isdecimal() else client!r}, task)"
        )
    save_tensors(out, raysim.client_model(run_dir, client, listener=listener), sealed)
