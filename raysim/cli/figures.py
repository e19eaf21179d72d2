"""The command line: `raysim figure`, and the pages of `raysim list figures`."""

from __future__ import annotations

from collections.abc import Mapping
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer
from rich.console import Console, Group, RenderableType
from rich.table import Table
from rich.text import Text

import raysim
from raysim.cli.options import Overrides, changes, path_option
from raysim.cli.output import resumable
from raysim.core.errors import RunError, SettingsError

if TYPE_CHECKING:
    from raysim.config import Settings
    from raysim.workloads.figures.figure import Figure

FORMATS = ("svg", "png")
SET_HERE = ("analysis", "out", "reference")
"""Settings that follow from the figure."""
console = Console()


def figure(
    name: Annotated[str, typer.Argument(help="a figure; see raysim list figures")],
    overrides: Overrides = None,
    *,
    rounds: Annotated[
        int | None,
        typer.Option(min=1, max=10**6, help="rounds of the longest run; others in proportion"),
    ] = None,
    out: Annotated[
        Path | None,
        typer.Option(
            parser=path_option("--out"),
            metavar="PATH",
            help="folder of the runs and drawings; default: runs/figure-NAME",
        ),
    ] = None,
) -> None:
    """Run and draw a paper's figure; the same command resumes interrupted runs."""
    from raysim.cli.live_view import make_listener
    from raysim.storage.run_directory import RunDirectory
    from raysim.workloads import figures
    from raysim.workloads.figures.drawing import check_packages

    found = figures.find(name)
    check_packages()
    folder = out or Path("runs") / f"figure-{name}"
    chosen = changes(overrides, None)
    for key in set(SET_HERE) & chosen.keys():
        raise SettingsError(f"{key}={chosen[key]}: follows from the figure; leave it out")
    settings, published = _settings(found, chosen, rounds, folder)
    for each in settings.values():  # all, before the first is run
        _check(RunDirectory(Path(each.out or "")), each)
    with resumable(console, lambda: "interrupted; the same command goes on"):
        for label, each in settings.items():
            if RunDirectory(Path(each.out or "")).holds_finished(each):
                continue
            _print(f"{label}: {each.out}")
            with make_listener(console, {}) as listener:
                raysim.run(each, listener=listener)
        _draw(name, found, settings, published)


def _settings(
    figure: Figure, chosen: Mapping[str, Any], rounds: int | None, folder: Path
) -> tuple[dict[str, Settings], dict[str, int]]:
    """Return the settings of each run by label, and the rounds that the figure gives it."""
    from raysim.workloads.shortened import shortened

    folders = {run.label: str(folder / run.folder) for run in figure.runs}
    settings, published = {}, {}
    for run in figure.runs:
        preset, own = run.preset or figure.preset, figure.overrides(run)
        published[run.label] = raysim.load_config(preset, own).rounds
        placed = {"out": folders[run.label], "reference": folders.get(run.reference)}
        settings[run.label] = raysim.load_config(preset, {**own, **chosen, **placed})
    if rounds is not None:
        fewer = shortened({label: each.rounds for label, each in settings.items()}, rounds)
        settings = {k: each.override({"rounds": fewer[k]}) for k, each in settings.items()}
    return settings, published


def _check(directory: Any, settings: Settings) -> None:
    """Check that a run can be started or resumed, or is finished."""
    if not directory.holds_finished(settings):
        directory.check(settings, own_task=False)


def _draw(
    name: str,
    figure: Figure,
    settings: Mapping[str, Settings],
    published: Mapping[str, int],
) -> None:
    from raysim.storage.atomic import replace_file
    from raysim.workloads.figures.drawing import draw, rendered

    drawn = [run.label for run in figure.runs if run.drawn]
    tables = {label: _columns(Path(settings[label].out or ""), figure.table) for label in drawn}
    longest = max(drawn, key=lambda label: published[label])
    fewer = settings[longest].rounds < published[longest]
    note = f"shortened: {settings[longest].rounds} of {published[longest]} rounds" if fewer else ""
    canvas = draw(figure, tables, note)
    folder = Path(settings[longest].out or "").parent
    for suffix in FORMATS:
        path, content = folder / f"{name}.{suffix}", rendered(canvas, suffix)
        replace_file(path, partial(Path.write_bytes, data=content))
        _print(f"figure: {path}")
    for line in filter(None, (note, figure.note)):
        _print(line)


def _columns(run: Path, table: str) -> dict[str, Any]:
    """Return the columns of a run's table as arrays.

    Raises:
        RunError: it has no rows.
    """
    import pyarrow.parquet as pq

    path = run / ("metrics.parquet" if table == "metrics" else f"analysis/{table}.parquet")
    if not path.exists():
        raise RunError(f"{path}: the run has no rows of this analysis; try more rounds or clients")
    found = pq.read_table(path)
    return {n: found[n].to_numpy(zero_copy_only=False) for n in found.column_names}


def _print(text: str) -> None:
    console.print(text, highlight=False, markup=False, soft_wrap=True)


def page(name: str) -> RenderableType:
    """Return the page of a figure, or without a name the table of all figures.

    Raises:
        SettingsError: there is no such figure.
    """
    from raysim.workloads import figures

    if not name:
        table = Table(
            *("name", "description", "counterpart of"),
            title="figures",
            title_justify="left",
            box=None,
        )
        for each, known in figures.FIGURES.items():
            table.add_row(each, known.title, known.source)
        return table
    found = figures.find(name)
    runs = Table("run", "preset", "settings", box=None)
    for run in found.runs:
        written = " ".join(f"{key}={_written(v)}" for key, v in found.overrides(run).items())
        runs.add_row(run.label, run.preset or found.preset, Text(written))
    lines = [found.title, found.source, found.paper.citation, found.note]
    return Group(Text(name, style="bold"), Text("\n".join(filter(None, lines))), runs)


def _written(value: Any) -> str:
    """Return a value in the syntax of an override."""
    return f"[{','.join(value)}]" if isinstance(value, tuple) else str(value)
