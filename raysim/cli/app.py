"""Commands of raysim: `run`, `resume`, `sweep`, `tune`, `dashboard`, `list`, `submit`, and more.

Errors of settings, files and machines are one line on stderr, without a traceback. Ctrl-C, SIGTERM
and SIGHUP save a checkpoint and print the command that resumes the run; `process.exits` has the
exit codes.
"""

from __future__ import annotations

import sys
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Annotated, Any

import typer
from rich.console import Console

import raysim
from raysim.cli.completion import complete_entry, complete_kind, complete_range, names_of_kind
from raysim.cli.data import data
from raysim.cli.export import export
from raysim.cli.figures import figure
from raysim.cli.jobs import Address, Follow, job
from raysim.cli.new import new
from raysim.cli.options import (
    Artifacts,
    Force,
    Jobs,
    Json,
    Overrides,
    ProfileName,
    RunDir,
    StudyFolder,
    StudyName,
    UsageError,
    changes,
    several_values,
    usage_error,
)
from raysim.cli.output import resumable, say, to_json
from raysim.cli.pack import pack
from raysim.cli.predictions import predict
from raysim.cli.replay import replay
from raysim.cli.results import compare, report
from raysim.cli.tables import sweep, table
from raysim.display.terminal import print_line
from raysim.errors import RaysimError, SettingsError
from raysim.process.exits import interruptible
from raysim.user_input import short_name
from raysim.user_input.user_modules import find_named_modules, leave_out_working_directory

app = typer.Typer(
    no_args_is_help=True,
    pretty_exceptions_enable=False,
    help="Simulate federated learning: published experiments and your own.",
)
app.add_typer(data, name="data")
app.add_typer(job, name="job")
for function in (compare, report, pack, table, sweep, figure, predict, replay, export, new):
    app.command()(function)
console = Console(emoji=False)

KINDS = (
    *("presets", "methods", "datasets", "partitions", "models"),
    *("optimizers", "selections", "stages", "aggregations", "attacks"),
    *("servers", "clocks", "temperatures"),
    *("tables", "figures", "studies", "profiles", "manifests", "settings", "rules", "runs"),
)


def _print_version(wanted: bool) -> None:
    if wanted:
        typer.echo(f"raysim {raysim.__version__}")
        raise typer.Exit


@app.callback()
def _options(
    *,
    version: Annotated[
        bool,
        typer.Option("--version", callback=_print_version, is_eager=True, help="print the version"),
    ] = False,
) -> None:
    pass


@app.command()
def run(
    config: Annotated[
        str,
        typer.Argument(
            help="a preset, a .toml or .json file, or dataset.name=NAME",
            autocompletion=names_of_kind("presets"),
        ),
    ],
    overrides: Overrides = None,
    *,
    dry_run: Annotated[
        bool,
        typer.Option(
            "--dry-run", help="print time, memory, disk and bytes, without a run directory"
        ),
    ] = False,
    explain: Annotated[
        bool, typer.Option("--explain", help="print the algorithm in words and formulas")
    ] = False,
    profile: ProfileName = None,
) -> None:
    """Run a preset or a settings file; resume an unfinished run with the same `out`."""
    import raysim.driver.start.start  # the import takes seconds, with nothing to save yet
    from raysim.cli.dry_run import dry_run_lines
    from raysim.cli.explain import explained
    from raysim.cli.live_view import loading
    from raysim.storage.run_directory import RunDirectory
    from raysim.workloads.presets import PRESETS

    try:
        with loading(console):
            settings = raysim.load_config(config, changes(overrides, profile))
    except SettingsError as error:
        raise SettingsError(f"{error}{several_values(error, overrides)}") from error
    if explain or dry_run:
        with interruptible():
            for lines in [explained] * explain + [dry_run_lines] * dry_run:
                for line in lines(settings):
                    print_line(console, line)
        return
    preset = PRESETS.get(config)
    published = preset.published_for(settings) if preset else {}
    with interruptible(), RunDirectory.reserved(settings.out, short_name(config)) as out:
        settings = settings.model_copy(update={"out": str(out)})
        _follow(lambda listener: raysim.run(settings, listener=listener), out, published)


@app.command()
def resume(run_dir: RunDir, overrides: Overrides = None, *, force: Force = False) -> None:
    """Resume a run that was interrupted or killed."""
    leave_out_working_directory(run_dir)  # before packages try optional imports
    import raysim.driver.start.start  # the import takes seconds, with nothing to save yet

    options: dict[str, Any] = {"overrides": changes(overrides, None), "force": force}
    _follow(lambda listener: raysim.resume(run_dir, None, listener, **options), run_dir, {})


def _follow(
    command: Callable[[raysim.Listener], raysim.Result], out: Path, published: Mapping[str, float]
) -> None:
    from raysim.cli.live_view import make_listener

    hint = f"interrupted; resume with: raysim resume {out}"
    with (
        resumable(console, lambda: hint if (out / "config.json").exists() else ""),
        make_listener(console, published) as listener,
    ):
        command(listener)


@app.command(name="list")
def list_(
    kind: Annotated[
        str,
        typer.Argument(
            help=f"{', '.join(KINDS[:-1])} or {KINDS[-1]}",
            autocompletion=complete_kind,
        ),
    ] = "",
    name: Annotated[
        str,
        typer.Argument(
            help="an entry, to print its page; for settings a group or a setting, for rules a"
            " component, for runs a folder",
            autocompletion=complete_entry,
        ),
    ] = "",
    *,
    of: Annotated[
        str,
        typer.Option(
            help="with stages: bytes that a client sends of the model of this preset or file",
            autocompletion=names_of_kind("presets"),
        ),
    ] = "",
    json: Json = False,
) -> None:
    """List presets, methods, runs and other named things, or print the page of one."""
    if kind and kind not in KINDS:
        from raysim.api.components import suggest

        raise SettingsError(f"list {kind}: no such kind; {suggest(kind, list(KINDS))}")
    if of and (kind != "stages" or name):
        raise SettingsError(f"list --of {of}: goes with stages alone: raysim list stages --of {of}")
    if json:
        from raysim.cli.documents import listed

        typer.echo(to_json(listed(kind, name, of)))
        return
    if kind == "manifests" and name:  # plain text, to be redirected to a file
        from raysim.cluster.pages import manifest

        typer.echo(manifest(name), nl=False)
        return
    from raysim.cli.pages import kinds_page, page_of, uncut
    from raysim.cli.runs import runs_page

    if kind == "runs":
        page = runs_page(name)
    elif of:
        from raysim.cli.stage_bytes import page as stage_bytes

        page = stage_bytes(of)
    else:
        page = page_of(kind, name) if kind else kinds_page(KINDS[:-2])
    console.print(uncut(page, console.width))


@app.command()
def tune(
    study: Annotated[
        str,
        typer.Argument(
            help="a study, see raysim list studies; a .toml or .json file; with --tune a preset",
            autocompletion=names_of_kind("studies"),
        ),
    ],
    overrides: Overrides = None,
    *,
    ranges: Annotated[
        list[str] | None,
        typer.Option(
            "--tune",
            help="a setting to search in the runs of a preset or a settings file, as"
            " local.lr=1e-3..1:log or method.mu=0,1",
            show_default=False,
            autocompletion=complete_range,
        ),
    ] = None,
    trials: Annotated[
        int | None,
        typer.Option(min=1, max=10**6, help="total number of trials; default: the study's"),
    ] = None,
    jobs: Jobs = None,
    timeout: Annotated[
        int | None,
        typer.Option(min=1, help="seconds after which no trial begins; default: no limit"),
    ] = None,
    retry_failed: Annotated[
        bool, typer.Option("--retry-failed", help="try failed trials again, as new trials")
    ] = False,
    storage: Annotated[
        str | None,
        typer.Option(
            envvar="RAYSIM_STORAGE",
            help="database URL, or @FILE that holds it; default: a file in --out",
        ),
    ] = None,
    sampler: Annotated[
        str | None,
        typer.Option(help="tpe, random, grid, gp, cma-es, qmc or nsga2; default: the study's"),
    ] = None,
    pruner: Annotated[
        str | None,
        typer.Option(
            help="median, percentile, successive-halving, hyperband or none; default: the study's"
        ),
    ] = None,
    objectives: Annotated[
        str | None,
        typer.Option(
            help="some of accuracy, bytes, virtual_seconds, virtual_joules; default: the study's"
        ),
    ] = None,
    seeds: Annotated[
        int | None, typer.Option(min=1, max=1000, help="runs of a trial; default: the study's")
    ] = None,
    name: StudyName = None,
    out: StudyFolder = None,
    profile: ProfileName = None,
) -> None:
    """Search settings with Optuna; the same command resumes an interrupted study."""
    from raysim.tuning import command
    from raysim.tuning.tune import study_of
    from raysim.workloads.sweep_values import parse_ranges

    with resumable(console, lambda: "interrupted; the same command resumes the study"):
        definition = study_of(study, parse_ranges(ranges, None) if ranges else None)
        command.tune(
            name or short_name(study) + ("-tuned" if ranges else ""),
            definition,
            changes(overrides, profile),
            definition.options(sampler, pruner, objectives, seeds),
            console,
            trials=trials,
            jobs=jobs,
            timeout=timeout,
            retry_failed=retry_failed,
            out=out,
            storage=storage,
        )


@app.command()
def dashboard(
    storage: Annotated[
        str,
        typer.Argument(envvar="RAYSIM_STORAGE", help="the study's database URL, or @FILE"),
    ],
    host: Annotated[str, typer.Option(help="address to listen on")] = "127.0.0.1",
    port: Annotated[int, typer.Option(min=1, max=65535, help="port to listen on")] = 8080,
    artifacts: Artifacts = None,
) -> None:
    """Serve the studies of a database with optuna-dashboard."""
    from raysim.tuning.command import serve

    serve(storage, host, port, artifacts)


@app.command()
def submit(
    words: Annotated[
        list[str],
        typer.Argument(
            metavar="-- COMMAND...",
            help="run, tune, table, sweep, figure or resume, with its arguments",
        ),
    ],
    *,
    address: Address = None,
    profile: ProfileName = None,
    env: Annotated[
        list[str] | None, typer.Option(help="environment variable of the job, NAME=VALUE")
    ] = None,
    requirements: Annotated[
        Path | None,
        typer.Option(exists=True, dir_okay=False, help="requirements file of missing packages"),
    ] = None,
    follow: Follow = True,
) -> None:
    """Run a raysim command as a job on a Ray cluster; uploads the working directory."""
    from raysim.cluster import command

    if profile:
        words[1:1] = ["--profile", profile]
    _check_job(*words)
    raise typer.Exit(
        command.submit(
            words,
            address=address,
            variables=env or (),
            requirements=requirements,
            follow=follow,
            console=console,
        )
    )


def _check_job(name: str, *rest: str) -> None:
    """Validate a job's command on this machine, before it is uploaded."""
    from raysim.cli import submitted
    from raysim.cli.live_view import loading

    if name not in submitted.CHECKS:
        *names, last = submitted.CHECKS
        raise SettingsError(f"{name}: cannot be submitted; must be {', '.join(names)} or {last}")
    options = typer.main.get_group(app).commands[name].make_context(name, list(rest)).params
    with loading(console):
        submitted.CHECKS[name](options)


def main() -> None:
    """Run the command line; `package.module:Class` may lie in the working directory."""
    find_named_modules()
    line: RaysimError
    try:
        sys.exit(app(standalone_mode=False))
    except UsageError as error:  # typer would print a box of many lines
        line = usage_error(error)
    except RaysimError as error:
        line = error
    say(str(line))
    sys.exit(line.exit_code)
