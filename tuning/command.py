"""Commands `raysim tune` and `raysim dashboard`."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from rich.console import Console
from rich.table import Table

from raysim.core.errors import RunError
from raysim.tuning.plots import draw
from raysim.tuning.search.search import Search, bytes_sent, exceeded
from raysim.tuning.search.storage import error_line, is_missing_file, read_url
from raysim.tuning.studies.ranges import format_range
from raysim.tuning.studies.samplers import SearchOptions
from raysim.tuning.studies.study import Study
from raysim.tuning.tune import open_search
from raysim.tuning.tuner import StudyListener, StudyResult, Tuner, study_errors


def tune(
    name: str,
    study: Study,
    overrides: Mapping[str, Any],
    options: SearchOptions,
    *,
    trials: int | None,
    jobs: int | None,
    timeout: float | None,
    out: Path | None,
    storage: str | None,
    study_name: str | None,
    console: Console,
) -> StudyResult:
    """Run or resume a study and print its results.

    Args:
        name: Name of the study, or its file.
        study: The study.
        overrides: Settings of all trials by dotted key; they remove keys from the search space.
        options: Sampler, pruner and objectives.
        trials: Total number of trials; None takes that of the study.
        jobs: Number of slots; None takes as many as fit.
        timeout: Seconds after which no trial begins.
        out: Folder of the trials' run directories and of the results; None is `runs/NAME`.
        storage: Database URL, or the @FILE that holds it; None creates a SQLite file in `out`.
        study_name: Name in the database; None takes that of the study or its file.
        console: Console for messages.

    Raises:
        RaysimError: an option, a setting, the storage or the folder does not allow the study.
    """
    study_name = study_name or Path(name).stem
    out = out or Path("runs") / study_name
    with open_search(
        study, overrides, options, out=out, storage=storage, name=study_name
    ) as search:
        tuner = Tuner(search, out, PlainStudyOutput(console, search))
        result = tuner.run(trials or study.table.trials, jobs, timeout)
        with study_errors(search):
            plots = draw(search.study, options.objectives, out)
    _print_result(console, search, result, plots)
    return result


def _print_result(
    console: Console, search: Search, result: StudyResult, plots: Sequence[Path]
) -> None:
    for path in plots:
        console.print(f"plot: {path}", highlight=False, soft_wrap=True)
    if result.best or not search.options.constraints:
        console.print(best_trials(search, result))
    else:
        console.print("no completed trial keeps the constraints of the study", highlight=False)
    if result.busy is not None:
        console.print(f"slots were busy for {result.busy:.0%} of the time while trials remained")
    for number, path in result.presets.items():
        console.print(
            f"trial {number}: raysim run {path}", highlight=False, soft_wrap=True, markup=False
        )


class PlainStudyOutput(StudyListener):
    """Plain output of a study: one line per trial."""

    def __init__(self, console: Console, search: Search) -> None:
        self._console, self._search = console, search

    def _print(self, text: str) -> None:
        self._console.print(text, highlight=False, markup=False, soft_wrap=True)

    def started(self, slots: int, done: int, trials: int) -> None:
        """Print the search space and the number of trials."""
        space = ", ".join(f"{k} {format_range(v)}" for k, v in self._search.resolved.space.items())
        self._print(f"{self._search.study.study_name}: {space}")
        self._print(f"{trials} trials, {done} done; {slots} slots")

    def trial_done(self, trial: Any, seconds: float) -> None:
        """Print a trial's state, values, parameters and duration."""
        error = trial.user_attrs.get("failed")
        values = ", ".join(f"{value:.6g}" for value in trial.values or ())
        outcome = error or values or f"after round {trial.last_step}"
        outcome += "".join(f", too many {name}" for name in exceeded(trial))
        parameters = " ".join(
            f"{key}={value:.4g}" if isinstance(value, float) else f"{key}={value}"
            for key, value in trial.params.items()
        )
        state = trial.state.name.lower()
        self._print(f"trial {trial.number} {state}: {outcome}  {parameters}  {seconds:.1f} s")

    def note(self, text: str) -> None:
        """Print a note."""
        self._print(f"note: {text}")


def best_trials(search: Search, result: StudyResult) -> Table:
    """Return the table of the best trials; test accuracies had no influence on the selection."""
    options = search.options
    title = "best trial" if len(options.objectives) == 1 else "Pareto front"
    if options.seeds > 1:
        title += f", mean of {options.seeds} seeds"
    if options.over_seeds == "lower":
        title += ", held-out accuracy one standard error below it"
    table = Table(title=title, title_justify="left", box=None)
    names = ["trial", *search.resolved.space, "held-out accuracy", "test accuracy", "MB"]
    for column in names:
        table.add_column(column)
    for trial in result.best:
        summary = trial.user_attrs["summary"]
        table.add_row(
            str(trial.number),
            *(
                f"{value:.6g}" if isinstance(value, float) else str(value)
                for value in (trial.params.get(key, "") for key in search.resolved.space)
            ),
            f"{summary['final_holdout_accuracy']:.2%}",
            f"{summary['final_accuracy']:.2%}",
            f"{bytes_sent(summary) / 1e6:.1f}",
        )
    return table


def serve(storage: str, host: str, port: int) -> None:
    """Serve the studies of a storage with optuna-dashboard until interrupted.

    Raises:
        RunError: optuna-dashboard is not installed, or the storage cannot be used.
    """
    try:
        from optuna_dashboard import run_server
    except ImportError as error:
        raise RunError(
            "the dashboard needs optuna-dashboard: pip install 'raysim[dashboard]'"
        ) from error
    storage = read_url(storage)
    if is_missing_file(storage):
        raise RunError(f"{storage}: no such database; `raysim tune` creates one")
    try:
        run_server(storage, host=host, port=port)
    except Exception as error:  # database drivers and sockets raise errors of their own
        failure = f"{storage}: cannot be served at {host}:{port}"
        raise RunError(f"{failure}: {error_line(error)}") from error
