"""Commands `raysim tune` and `raysim dashboard`."""

from __future__ import annotations

from collections.abc import Mapping
from functools import partial
from pathlib import Path
from typing import Any, Unpack

from optuna.artifacts import FileSystemArtifactStore
from rich.console import Console

from raysim.display.terminal import print_line
from raysim.errors import RunError, SettingsError
from raysim.results.render import to_rich
from raysim.tuning.artifacts import ARTIFACTS, attach
from raysim.tuning.plots import MOST_AXES
from raysim.tuning.report import best_trials, write_report
from raysim.tuning.search.search import Search
from raysim.tuning.search.storage import (
    error_line,
    folder_of,
    is_journal,
    is_missing_file,
    open_storage,
    read_url,
)
from raysim.tuning.studies.ranges import format_range
from raysim.tuning.studies.samplers import SearchOptions
from raysim.tuning.studies.study import Study
from raysim.tuning.tune import Call, run_study
from raysim.tuning.tuner import StudyListener, StudyResult


def tune(
    name: str,
    study: Study,
    overrides: Mapping[str, Any],
    options: SearchOptions,
    console: Console,
    **call: Unpack[Call],
) -> StudyResult:
    """Run or resume a study and print its results.

    Args:
        name: Name in the database.
        study: The study.
        overrides: Settings of all trials by dotted key; they remove keys from the search space.
        options: Sampler, pruner and objectives.
        console: Console for messages.
        call: The other arguments of `raysim.tune`.

    Raises:
        RaysimError: an option, a setting, the storage or the folder does not allow the study.
    """
    listen = partial(PlainStudyOutput, console)
    with run_study(name, study, overrides, options, listen, **call) as (tuner, result):
        files = write_report(tuner.search, result.best, tuner.folder.path)
        attach(tuner.search.study, files, tuner.artifacts)
    if files and len(tuner.search.options.objectives) > MOST_AXES:
        note = f"no plot of the Pareto front, which is drawn of at most {MOST_AXES} objectives"
        print_line(console, f"note: {note}")
    for path in files:
        print_line(console, f"{'page' if path.suffix == '.html' else 'plot'}: {path}")
    if result.best or not tuner.search.options.constraints:
        console.print(to_rich(best_trials(tuner.search, result.best)))
    else:
        console.print("no completed trial keeps the constraints of the study", highlight=False)
    if result.busy is not None:
        console.print(f"slots were busy for {result.busy:.0%} of the time while trials remained")
    for number, path in result.presets.items():
        print_line(console, f"trial {number}: raysim run {path}")
    return result


class PlainStudyOutput(StudyListener):
    """Plain output of a study: one line per trial."""

    def __init__(self, console: Console, search: Search) -> None:
        super().__init__(partial(print_line, console))
        self._search = search

    def started(self, slots: int, done: int, trials: int) -> None:
        """Print the search space and the number of trials."""
        space = ", ".join(f"{k} {format_range(v)}" for k, v in self._search.resolved.space.items())
        self.line(f"{self._search.study.study_name}: {space}")
        self.line(f"{trials} trials, {done} done; {slots} slots")


def serve(storage: str, host: str, port: int, artifacts: Path | None = None) -> None:
    """Serve the studies of a storage with optuna-dashboard until interrupted.

    Args:
        storage: Database URL, or the @FILE that holds it.
        host: Address to listen on.
        port: Port to listen on.
        artifacts: Folder of the artifacts; None is the folder next to a database file.

    Raises:
        SettingsError: the folder of artifacts does not exist.
        RunError: optuna-dashboard is not installed, or the storage cannot be used.
    """
    if artifacts and not artifacts.is_dir():
        raise SettingsError(f"--artifacts={artifacts}: must be a folder")
    try:
        from optuna_dashboard import run_server
    except ImportError as error:
        raise RunError(
            "the dashboard needs optuna-dashboard: pip install 'raysim-fl[dashboard]'"
        ) from error
    storage = read_url(storage)
    if is_missing_file(storage):
        raise RunError(f"{storage}: no such database; `raysim tune` creates one")
    beside = folder_of(storage)
    folder = artifacts or (beside and beside / ARTIFACTS)
    try:
        served = open_storage(storage) if is_journal(storage) else storage
        artifact_store = folder and FileSystemArtifactStore(folder)
        run_server(served, host, port, artifact_store=artifact_store)
    except Exception as error:  # database drivers and sockets raise their own errors
        failure = f"{storage}: cannot be served at {host}:{port}"
        raise RunError(f"{failure}: {error_line(error)}") from error
