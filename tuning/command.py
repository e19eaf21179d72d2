"""What `raysim tune` and `raysim dashboard` do."""

from __future__ import annotations

from collections.abc import Mapping
from contextlib import closing
from pathlib import Path
from typing import Any

from rich.console import Console
from rich.table import Table

from raysim.core.components import look_up
from raysim.core.errors import RunError
from raysim.storage.lock import make_folder
from raysim.tuning.plots import draw
from raysim.tuning.search import Search, SearchOptions, bytes_sent
from raysim.tuning.storage import missing_file, reason, shown
from raysim.tuning.studies import STUDIES
from raysim.tuning.study import Study, text_of
from raysim.tuning.tuner import Outcome, Tuner, Watcher


def find(name: str) -> Study:
    """Return a study.

    Raises:
        SettingsError: there is no such study.
    """
    return look_up("study", name, STUDIES)


def tune(
    name: str,
    overrides: Mapping[str, Any],
    asked: SearchOptions,
    *,
    trials: int,
    jobs: int | None,
    out: Path,
    storage: str | None,
    called: str | None,
    console: Console,
) -> Outcome:
    """Search, and say what was found.

    Args:
        name: The study.
        overrides: Settings of all trials by dotted key; one that the study tries is fixed by it.
        asked: How to search.
        trials: Trials in all.
        jobs: Trials at a time; None takes as many as fit.
        out: Folder of the trials' runs and of the results.
        storage: The database, as a URL; None is a SQLite file in `out`.
        called: What it is called in the database; None is its own name.
        console: Where to say it.

    Raises:
        RaysimError: something is wrong that the user can mend.
    """
    asked.check()
    resolved = find(name).resolve(overrides)
    if storage is None:
        make_folder(out)
        storage = f"sqlite:///{(out / 'study.db').absolute()}"
    with closing(Search(called or name, storage, asked, resolved)) as search:
        outcome = Tuner(search, out, Lines(console, search)).run(trials, jobs)
        for path in draw(search.study, asked.objectives, out):
            console.print(f"plot: {path}", highlight=False, soft_wrap=True)
    console.print(results(search, outcome))
    if outcome.busy is not None:
        console.print(f"slots were busy for {outcome.busy:.0%} of the time while trials remained")
    for number, path in outcome.presets.items():
        console.print(
            f"trial {number}: raysim run {path}", highlight=False, soft_wrap=True, markup=False
        )
    return outcome


class Lines(Watcher):
    """A line a trial."""

    def __init__(self, console: Console, search: Search) -> None:
        self._console, self._search = console, search

    def _say(self, text: str) -> None:
        self._console.print(text, highlight=False, markup=False, soft_wrap=True)

    def started(self, slots: int, done: int, trials: int) -> None:
        """Say what is about to run."""
        tried = ", ".join(f"{k} {text_of(v)}" for k, v in self._search.resolved.space.items())
        self._say(f"{self._search.study.study_name}: {tried}")
        self._say(f"{trials} trials, {done} of them done; {slots} at a time")

    def trial_done(self, trial: Any, seconds: float) -> None:
        """Say what a trial came to."""
        reason = trial.user_attrs.get("failed")
        values = ", ".join(f"{value:.6g}" for value in trial.values or ())
        came = reason or values or f"after round {trial.last_step}"
        said = " ".join(
            f"{key}={value:.4g}" if isinstance(value, float) else f"{key}={value}"
            for key, value in trial.params.items()
        )
        self._say(
            f"trial {trial.number} {trial.state.name.lower()}: {came}  {said}  {seconds:.1f} s"
        )

    def note(self, text: str) -> None:
        """Say what a user should know."""
        self._say(f"note: {text}")


def results(search: Search, outcome: Outcome) -> Table:
    """Return the best trials; nothing was chosen by their figures of the test set."""
    single = len(search.asked.objectives) == 1
    table = Table(title="best trial" if single else "Pareto front", title_justify="left", box=None)
    names = ["trial", *search.resolved.space, "held-out accuracy", "test accuracy", "MB"]
    for column in names:
        table.add_column(column)
    for trial in outcome.best:
        summary = trial.user_attrs["summary"]
        table.add_row(
            str(trial.number),
            *(
                f"{value:.6g}" if isinstance(value, float) else str(value)
                for value in trial.params.values()
            ),
            f"{summary['final_holdout_accuracy']:.2%}",
            f"{summary['final_accuracy']:.2%}",
            f"{bytes_sent(summary) / 1e6:.1f}",
        )
    return table


def serve(storage: str, host: str, port: int) -> None:
    """Show a storage's studies in optuna-dashboard until interrupted.

    Raises:
        RunError: optuna-dashboard is not installed, or the storage cannot be used.
    """
    try:
        from optuna_dashboard import run_server
    except ImportError as error:
        raise RunError(
            "the dashboard needs optuna-dashboard: pip install 'raysim[dashboard]'"
        ) from error
    if missing_file(storage):
        raise RunError(f"{storage}: no such database; `raysim tune` makes one")
    try:
        run_server(storage, host=host, port=port)
    except Exception as error:  # whatever the database's driver, or the port, raises
        where = f"{shown(storage)}: cannot be shown at {host}:{port}"
        raise RunError(f"{where}: {reason(error)}") from error
