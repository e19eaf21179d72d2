"""Arguments and options that several commands take, and the parser of paths."""

from __future__ import annotations

import shlex
import sys
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path
from typing import Annotated, Any

import typer

from raysim.cli.completion import complete_override, names_of_kind
from raysim.errors import RaysimError, SettingsError, visible

Overrides = Annotated[
    list[str] | None,
    typer.Argument(
        help="settings as dotted.key=value",
        show_default=False,
        autocompletion=complete_override,
    ),
]


def path_option(name: str) -> Callable[[str], Path]:
    """Return the parser of an option or argument that is a path."""

    def path(text: str) -> Path:
        from raysim.user_input import user_path

        return user_path(text, name)

    return path


def _study_name(text: str) -> str:
    """Return the name of a study, checked as the name of its folder."""
    from raysim.user_input import user_path

    user_path(text, "--name")
    return text


def changes(overrides: list[str] | None, profile: str | None) -> dict[str, Any]:
    """Return the overrides of a profile, updated by the overrides of the command line."""
    from raysim.cluster.profiles import find
    from raysim.config import parse_override

    chosen = {} if profile is None else find(profile).overrides
    return {**chosen, **dict(parse_override(text) for text in overrides or ())}


def several_values(error: RaysimError, overrides: list[str] | None) -> str:
    """Return a hint where an error is of a setting that was given several values."""
    from raysim.workloads.sweep_values import split_values

    for key, _, values in (text.partition("=") for text in overrides or ()):
        with suppress(SettingsError):  # of a range; the error is another
            if str(error).startswith(f"{key}=") and len(split_values(values)) > 1:
                return f"; runs of several values: raysim sweep CONFIG {visible(f'{key}={values}')}"
    return ""


WITH_SETTINGS = ("run", "resume", "sweep", "table", "figure", "tune", "submit")
"""Commands that take settings."""
UsageError: Any = typer.BadParameter.__base__
"""Error of a command line, the only name that typer has for it."""


def usage_error(error: Any) -> RaysimError:
    """Return a UsageError in one line with the given arguments, where typer would print a box."""
    from raysim.user_input.limits import SEVERAL_SEEDS

    typed = visible(shlex.join(sys.argv[1:]))
    option, hint = getattr(error, "option_name", None) or "", ""
    if option == "--seeds":
        hint = f"; {SEVERAL_SEEDS}"
    elif option.startswith("--") and sys.argv[1:2] and sys.argv[1] in WITH_SETTINGS:
        hint = f"; a setting is written {visible(option[2:].replace('-', '_'))}=VALUE"
    said = error.format_message().replace("Value error, ", "", 1).rstrip(".")
    return RaysimError(f"{said}{hint}. Given: {typed}")


Artifacts = Annotated[
    Path | None,
    typer.Option(
        parser=path_option("--artifacts"),
        metavar="PATH",
        help="folder of models and plots; default: next to a database that is a file",
    ),
]
RunDir = Annotated[
    Path, typer.Argument(parser=path_option("RUN_DIR"), metavar="RUN_DIR", help="the run directory")
]
Jobs = Annotated[
    int | None, typer.Option(min=1, max=10**6, help="number of slots; default: as many as fit")
]
Only = Annotated[
    list[str] | None,
    typer.Option(help="words that row and column of a cell must contain: A,B or repeated"),
]
Rounds = Annotated[
    int | None,
    typer.Option(
        min=1,
        max=10**9,
        help="rounds of the longest run (in a table, of each column), the others in proportion; at"
        " most the full number of rounds",
    ),
]
StudyName = Annotated[
    str | None,
    typer.Option(parser=_study_name, metavar="TEXT", help="name in the database; default: STUDY"),
]
StudyFolder = Annotated[
    Path | None,
    typer.Option(parser=path_option("--out"), metavar="PATH", help="folder; default: runs/NAME"),
]
ProfileName = Annotated[
    str | None,
    typer.Option(
        "--profile",
        help="resource profile; see raysim list profiles",
        autocompletion=names_of_kind("profiles"),
    ),
]
Json = Annotated[
    bool, typer.Option("--json", help="print one JSON document, and messages on stderr")
]
Force = Annotated[bool, typer.Option("--force", help="go on with other data, versions or machines")]
