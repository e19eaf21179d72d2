"""Commands `raysim table` and `raysim sweep`."""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping, Sequence
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer
from rich.console import Console

from raysim.cli.completion import complete_override, complete_range, names_of_kind
from raysim.cli.options import (
    Jobs,
    Json,
    Only,
    Overrides,
    ProfileName,
    Rounds,
    StudyFolder,
    changes,
    path_option,
)
from raysim.cli.output import resumable, to_json
from raysim.display.terminal import print_line
from raysim.errors import SettingsError

if TYPE_CHECKING:
    from raysim.tuning.tables.plan import Planner
    from raysim.workloads.tables import PaperTable

console = Console(emoji=False)
DryRun = Annotated[
    bool, typer.Option("--dry-run", help="print cells, sample-steps and an estimated time")
]
Tune = Annotated[
    list[str] | None,
    typer.Option(
        help="a setting to search first, in each row of a sweep and each run of a table, as"
        " local.lr=1e-3..1:log or method.mu=0,1",
        show_default=False,
        autocompletion=complete_range,
    ),
]
TuneTrials = Annotated[
    int | None, typer.Option(min=1, max=10**6, help="trials of each search; default: 12")
]


def table(
    name: Annotated[
        str,
        typer.Argument(
            help="a table; see raysim list tables", autocompletion=names_of_kind("tables")
        ),
    ],
    overrides: Overrides = None,
    *,
    only: Only = None,
    rounds: Rounds = None,
    seeds: Annotated[
        str | None,
        typer.Option(help="number of seeds of each cell, or seeds as 0,7; default: the table's"),
    ] = None,
    tune: Tune = None,
    tune_trials: TuneTrials = None,
    jobs: Jobs = None,
    out: StudyFolder = None,
    dry_run: DryRun = False,
    json: Json = False,
    profile: ProfileName = None,
) -> None:
    """Run a published table next to its values; the same command resumes an interrupted one."""
    planner = planner_of(only, rounds, seeds, changes(overrides, profile))
    folder = out or Path("runs") / (f"{name}-tuned" if tune else name)
    make_table = partial(given_table, name, tune or (), tune_trials)
    _run_or_tell("table", make_table, planner, jobs, folder, dry_run=dry_run, json=json)


def given_table(name: str, ranges: Sequence[str], trials: int | None) -> PaperTable:
    """Return a paper's table, tuned by ranges if there are any."""
    from raysim.workloads.sweep_values import parse_ranges
    from raysim.workloads.tables import find, tuned_by

    _check_trials(ranges, trials)
    table = find(name)
    return tuned_by(table, parse_ranges(ranges, trials)) if ranges else table


def _check_trials(ranges: Collection[str], trials: int | None) -> None:
    """Check that trials have a range.

    Raises:
        SettingsError: they have none.
    """
    if trials and not ranges:
        raise SettingsError(f"--tune-trials={trials}: needs --tune KEY=LOW..HIGH, or KEY=A,B")


def sweep(
    config: Annotated[
        str,
        typer.Argument(
            help="a preset, a .toml or .json file of settings, or one of a sweep",
            autocompletion=names_of_kind("presets"),
        ),
    ],
    overrides: Annotated[
        list[str] | None,
        typer.Argument(
            help="settings as dotted.key=value; of several values, key=A,B or key=0..4, the first"
            " setting makes the rows, others the columns, and seed=0..4 the seeds",
            show_default=False,
            autocompletion=complete_override,
        ),
    ] = None,
    *,
    metric: Annotated[
        list[str] | None,
        typer.Option(
            help="metric of the cells, as last_ten(test_loss), repeated for several; default:"
            " last_ten of the main score, which scores what clients deploy"
        ),
    ] = None,
    rows: Annotated[
        str | None,
        typer.Option(help="the setting that makes the rows; default: the first of several values"),
    ] = None,
    tune: Tune = None,
    tune_trials: TuneTrials = None,
    only: Only = None,
    rounds: Rounds = None,
    jobs: Jobs = None,
    out: Annotated[
        Path | None,
        typer.Option(
            parser=path_option("--out"), metavar="PATH", help="folder; default: runs/NAME-sweep"
        ),
    ] = None,
    dry_run: DryRun = False,
    json: Json = False,
    profile: ProfileName = None,
) -> None:
    """Compare settings over seeds in a table; the same command resumes it, and adds to it."""
    from raysim.workloads.sweep_values import parse_axes
    from raysim.workloads.sweeps import default_folder

    planner = planner_of(only, rounds, None, changes(None, profile))
    asked = {"metric": metric, "rows": rows, "tune": tune, "tune_trials": tune_trials}
    make_table = partial(given_sweep, config, overrides, asked)
    folder = out or default_folder(config, parse_axes(overrides or ())[0])
    _run_or_tell("sweep", make_table, planner, jobs, folder, dry_run=dry_run, json=json)


def given_sweep(config: str, overrides: list[str] | None, options: Mapping[str, Any]) -> PaperTable:
    """Return the table of a sweep, given by the arguments and options of the command."""
    from raysim.workloads.sweep_values import parse_axes, parse_ranges
    from raysim.workloads.sweeps import check_axes, read_sweep

    settings, axes, seeds = parse_axes(overrides or ())
    table = read_sweep(
        config,
        settings,
        axes,
        seeds,
        metrics=options["metric"] or (),
        tune=parse_ranges(options["tune"] or (), options["tune_trials"]),
        by=options["rows"] or "",
    )
    check_axes(table, axes)
    _check_trials(table.tune.get("space", ()), options["tune_trials"])
    return table


def _run_or_tell(
    kind: str,
    table: Callable[[], PaperTable],
    planner: Planner,
    jobs: int | None,
    folder: Path,
    *,
    dry_run: bool,
    json: bool,
) -> None:
    """Run a table or a sweep, as `kind` says, or print its cost alone.

    Args:
        kind: The word for it in messages, which go to stderr if the document is JSON.
        table: Makes the table.
        planner: Plans it.
        jobs: Number of slots; None takes as many as fit.
        folder: Its folder.
        dry_run: Whether its cost alone is printed.
        json: Whether it is printed as one document.

    Raises:
        SettingsError: both are asked for.
    """
    from raysim.results.render import grid_of, to_document, to_rich
    from raysim.tuning.tables import command

    def show(paper_table: PaperTable) -> None:
        if json:
            typer.echo(to_json({**to_document(paper_table), "folder": str(folder)}))
        else:
            command.print_table(console, to_rich(grid_of(paper_table)))

    if json and dry_run:
        raise SettingsError("--json: does not go with --dry-run")
    messages = Console(stderr=True, emoji=False) if json else console
    hint = "" if dry_run else f"interrupted; the same command resumes the {kind}"
    with resumable(messages, lambda: hint):
        if dry_run:
            command.dry_run(table(), planner, jobs=jobs, out=folder, console=console)
            return
        line = partial(print_line, messages)
        command.run_table(table(), planner, jobs=jobs, out=folder, line=line, show=show)


def planner_of(
    only: list[str] | None, rounds: int | None, seeds: str | None, overrides: dict[str, Any]
) -> Planner:
    """Return a table's planner by the options; `seeds` is a number of seeds, or several seeds.

    Raises:
        SettingsError: the seeds are wrong.
    """
    from raysim.tuning.tables.plan import make_plan
    from raysim.workloads.sweep_values import counted, seeds_of

    distances = None
    if seeds is not None:
        number = int(seeds) if seeds.isdecimal() else None
        listed = seeds_of(seeds if number is None else number, "--seeds")
        if number is None and "seed" in overrides:
            raise SettingsError(f"seed={overrides['seed']}: --seeds={seeds} gives the seeds")
        first, distances = counted(listed)
        overrides = overrides if number is not None else {**overrides, "seed": first}
    return partial(make_plan, only=only or (), rounds=rounds, seeds=distances, overrides=overrides)
