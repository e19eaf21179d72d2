"""Arguments and options that several commands take, and the parser of paths."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Annotated

import typer

Overrides = Annotated[
    list[str] | None, typer.Argument(help="settings as dotted.key=value", show_default=False)
]


def path_option(name: str) -> Callable[[str], Path]:
    """Return the parser of an option or argument that is a path."""

    def path(text: str) -> Path:
        from raysim.core.given import user_path

        return user_path(text, name)

    return path


RunDir = Annotated[
    Path, typer.Argument(parser=path_option("RUN_DIR"), metavar="RUN_DIR", help="the run directory")
]
StudyFolder = Annotated[
    Path | None,
    typer.Option(parser=path_option("--out"), metavar="PATH", help="folder; default: runs/NAME"),
]
ProfileName = Annotated[
    str | None, typer.Option("--profile", help="resource profile; see raysim list profiles")
]
Force = Annotated[bool, typer.Option("--force", help="go on with other data, versions or machines")]
