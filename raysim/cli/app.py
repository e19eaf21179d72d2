"""Commands `raysim run`, `resume`, `tune`, `dashboard`, `list`, `data` and `submit`.

Errors of settings, files and machines are one line on stderr and exit code 2. Ctrl-C saves a
checkpoint, prints the command that resumes the run, and exits with 130.
"""

from __future__ import annotations

import sys
from collections.abc import Callable, Mapping
from importlib import import_module
from pathlib import Path
from typing import Annotated, Any

import typer
from rich.console import Console
from rich.table import Table

import raysim
from raysim.cli import data_page, pages
from raysim.cli.jobs import Address, Follow, job
from raysim.cli.live_view import make_listener
from raysim.config import parse_override
from raysim.core.arrow import open_split
from raysim.core.components import suggest
from raysim.core.data import DATASETS, MODELS, PARTITIONS
from raysim.core.errors import RaysimError, SettingsError
from raysim.core.method import METHODS
from raysim.storage.run_directory import RunDir

app = typer.Typer(
    no_args_is_help=True,
    pretty_exceptions_enable=False,
    help="Simulate federated learning: published experiments and your own.",
)
data = typer.Typer(
    no_args_is_help=True, help="Fetch and list datasets; show how a preset partitions them."
)
app.add_typer(data, name="data")
app.add_typer(job, name="job")
console = Console()

Overrides = Annotated[
    list[str] | None, typer.Argument(help="overrides, dotted.key=value", show_default=False)
]
ProfileName = Annotated[
    str | None, typer.Option("--profile", help="resource profile; see raysim list profiles")
]


@app.command()
def run(
    config: Annotated[str, typer.Argument(help="a preset, or a .toml or .json file")],
    overrides: Overrides = None,
    *,
    profile: ProfileName = None,
) -> None:
    """Run a preset or a settings file; resume an unfinished run with the same `out`."""
    settings = raysim.load_config(config, _changes(overrides, profile))
    out = Path(settings.out) if settings.out else RunDir.default(Path(config).stem)
    settings = settings.model_copy(update={"out": str(out)})
    preset = _presets().get(config)
    published = preset.published_for(settings) if preset else {}
    _follow(lambda listener: raysim.run(settings, listener=listener), out, published)


def _changes(overrides: list[str] | None, profile: str | None) -> dict[str, Any]:
    """Return the overrides of a profile, updated by those of the command line."""
    chosen = import_module("raysim.cluster.profiles").find(profile).overrides if profile else {}
    return {**chosen, **dict(parse_override(text) for text in overrides or ())}


@app.command()
def resume(run_dir: Annotated[Path, typer.Argument(help="the run directory")]) -> None:
    """Resume a run that was interrupted or killed."""
    _follow(lambda listener: raysim.resume(run_dir, listener=listener), run_dir, {})


def _follow(
    work: Callable[[raysim.Listener], raysim.Result], out: Path, published: Mapping[str, float]
) -> None:
    try:
        with make_listener(console, published) as listener:
            work(listener)
    except KeyboardInterrupt:
        if (out / "config.json").exists():
            hint = f"interrupted; resume with: raysim resume {out}"
            console.print(hint, highlight=False, soft_wrap=True)
        raise typer.Exit(130) from None


@app.command(name="list")
def list_(
    kind: Annotated[
        str,
        typer.Argument(
            help="presets, methods, datasets, partitions, models, studies, profiles or manifests"
        ),
    ] = "",
    name: Annotated[str, typer.Argument(help="name of one entry, to print its page")] = "",
) -> None:
    """List presets, methods and other named things, or print the page of one."""
    import_module("raysim.workloads")
    registries = {r.kind + "s": r for r in (METHODS, DATASETS, PARTITIONS, MODELS)}
    kinds = ["presets", *registries, "studies", "profiles", "manifests"]
    if kind and kind not in kinds:
        raise SettingsError(f"list {kind}: no such kind; {suggest(kind, kinds)}")
    if kind == "manifests" and name:  # plain text, to be redirected to a file
        typer.echo(import_module("raysim.cluster.pages").manifest(name), nl=False)
        return
    for each in [kind] if kind else kinds:
        if each == "presets":
            page = pages.preset(_presets(), name) if name else pages.presets(_presets())
        elif each == "studies":
            page = import_module("raysim.tuning.pages").page(name)
        elif each == "profiles":
            page = import_module("raysim.cluster.pages").profiles(name)
        elif each == "manifests":
            page = import_module("raysim.cluster.pages").manifests()
        else:
            registry = registries[each]
            page = pages.component(registry, name) if name else pages.components(registry)
        console.print(page)


@app.command()
def tune(
    study: Annotated[str, typer.Argument(help="a study; see raysim list studies")],
    overrides: Overrides = None,
    *,
    trials: Annotated[int, typer.Option(min=1, help="total number of trials")] = 50,
    jobs: Annotated[
        int | None, typer.Option(min=1, help="number of slots; default: as many as fit")
    ] = None,
    storage: Annotated[
        str | None, typer.Option(help="database URL; default: a SQLite file in --out")
    ] = None,
    sampler: Annotated[str, typer.Option(help="tpe, random, grid or gp")] = "tpe",
    pruner: Annotated[
        str | None, typer.Option(help="median, hyperband or none; default: by --objectives")
    ] = None,
    objectives: Annotated[
        str, typer.Option(help="accuracy, bytes, or both: accuracy,bytes")
    ] = "accuracy",
    name: Annotated[str | None, typer.Option(help="name in the database; default: STUDY")] = None,
    out: Annotated[Path | None, typer.Option(help="folder; default: runs/NAME")] = None,
    profile: ProfileName = None,
) -> None:
    """Search settings with Optuna; the same command resumes an interrupted study."""
    try:
        import_module("raysim.tuning.command").tune(
            study,
            _changes(overrides, profile),
            _search_options(sampler, pruner, objectives),
            trials=trials,
            jobs=jobs,
            out=out or Path("runs") / (name or study),
            storage=storage,
            study_name=name,
            console=console,
        )
    except KeyboardInterrupt:
        console.print("interrupted; the same command resumes the study", highlight=False)
        raise typer.Exit(130) from None


def _search_options(sampler: str, pruner: str | None, objectives: str) -> Any:
    names = tuple(objectives.split(","))
    pruner = pruner or ("median" if len(names) == 1 else "none")
    return import_module("raysim.tuning.search").SearchOptions(sampler, pruner, names)


@app.command()
def dashboard(
    storage: Annotated[str, typer.Argument(help="the study's database URL")],
    host: Annotated[str, typer.Option(help="address to listen on")] = "127.0.0.1",
    port: Annotated[int, typer.Option(min=1, max=65535, help="port to listen on")] = 8080,
) -> None:
    """Serve the studies of a database with optuna-dashboard."""
    import_module("raysim.tuning.command").serve(storage, host, port)


def _presets() -> Mapping[str, Any]:
    presets: Mapping[str, Any] = import_module("raysim.workloads.presets").PRESETS
    return presets


@data.command()
def fetch(name: Annotated[str, typer.Argument(help="name of a dataset")]) -> None:
    """Download, check and prepare a dataset."""
    import_module("raysim.workloads")
    dataset = DATASETS.get(name)()
    with make_listener(console, {}) as listener:
        paths = dataset.prepare(
            import_module("raysim.workloads.datasets.fetch").data_root(), listener.preparing
        )
    for split, path in paths.items():
        console.print(f"{name} {split}: {path}", highlight=False, soft_wrap=True)


@data.command()
def show(
    config: Annotated[str, typer.Argument(help="a preset, or a .toml or .json file")],
    overrides: Overrides = None,
    out: Annotated[
        Path | None, typer.Option(help="PNG file for a heat map of clients and classes")
    ] = None,
) -> None:
    """Print how many samples and classes each client holds."""
    settings = raysim.load_config(config, dict(parse_override(text) for text in overrides or ()))
    if out:
        data_page.check_drawing(out)
    with make_listener(console, {}) as listener:
        root = import_module("raysim.workloads.datasets.fetch").data_root()
        prepared = settings.dataset.prepare(root, listener.preparing)
    train = open_split(prepared["train"])
    shares = settings.partition.shares(train, settings.clients, settings.seed)
    held = data_page.count(shares, train.y, settings.dataset.classes)
    heading = data_page.title(settings)
    console.print(data_page.page(heading, held))
    if out:
        data_page.draw(heading, held, out)
        console.print(f"heat map: {out}", highlight=False, soft_wrap=True)


@data.command(name="list")
def list_data() -> None:
    """List the datasets and which of them are prepared."""
    import_module("raysim.workloads")
    root: Path = import_module("raysim.workloads.datasets.fetch").data_root()
    table = Table("dataset", "prepared", title=f"data root {root}", title_justify="left", box=None)
    for name in DATASETS:
        prepared = sorted((root / name / "prepared").rglob("*.arrow"))
        size = sum(path.stat().st_size for path in prepared) / 1e6
        table.add_row(name, f"{size:.0f} MB" if prepared else "no")
    console.print(table)


@app.command()
def submit(
    words: Annotated[
        list[str],
        typer.Argument(metavar="-- COMMAND...", help="run, tune or resume, with its arguments"),
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
    if profile:
        words[1:1] = ["--profile", profile]
    _check_job(*words)
    start = import_module("raysim.cluster.command").submit
    more = {"address": address, "variables": env or (), "requirements": requirements}
    raise typer.Exit(start(words, **more, follow=follow, console=console))


def _check_job(name: str, *rest: str) -> None:
    """Validate a job's command on this machine, before it is uploaded."""
    command = import_module("raysim.cluster.command")
    if name not in {"run", "tune", "resume"}:
        raise SettingsError(f"{name}: cannot be submitted; must be run, tune or resume")
    options = typer.main.get_group(app).commands[name].make_context(name, list(rest)).params
    if name == "resume":
        command.check_folder("RUN_DIR", options["run_dir"])
        return
    changes = _changes(options["overrides"], options["profile"])
    if name == "run":
        settings = raysim.load_config(options["config"], changes)
        command.check_file(options["config"])
        command.check_folder("out", settings.out)
    else:
        import_module("raysim.tuning.command").find(options["study"]).resolve(changes)
        _search_options(options["sampler"], options["pruner"], options["objectives"]).check()
        command.check_folder("--out", options["out"])


def main() -> None:
    """Run the command line; `package.module:Class` may lie in the working directory."""
    sys.path.insert(0, str(Path.cwd()))
    try:
        app()
    except RaysimError as error:
        print(f"raysim: {error}", file=sys.stderr)
        sys.exit(2)
