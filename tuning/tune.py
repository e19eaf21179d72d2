"""Studies from Python: `raysim.tune`."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import ExitStack, closing, contextmanager
from dataclasses import dataclass
from itertools import accumulate
from pathlib import Path
from typing import Any, TypedDict, Unpack

import optuna
import pyarrow as pa
from optuna.study import StudyDirection
from optuna.trial import FrozenTrial, TrialState

import raysim
from raysim.display.notebook import styled
from raysim.errors import SettingsError, visible
from raysim.notebook.lines import LinesView, shown_lines
from raysim.results.render import Entry, Grid, html_table
from raysim.storage.lock import make_folder, removed_if_refused
from raysim.storage.schema import check_claim
from raysim.tuning.search.failures import study_errors
from raysim.tuning.search.results import exceeded, reported
from raysim.tuning.search.search import Search
from raysim.tuning.search.storage import default_storage, read_url
from raysim.tuning.studies import find, read_study, read_table
from raysim.tuning.studies.ranges import of_one_type
from raysim.tuning.studies.samplers import OBJECTIVES, SearchOptions
from raysim.tuning.studies.study import Study
from raysim.tuning.tuner import StudyListener, StudyResult, Tuner
from raysim.user_input import check_inside, short_name, user_path

SHOWN = 20
"""Most rows of a notebook's table of trials."""
MOST = 10**6
"""Most trials and most slots of a study."""
Callback = Callable[[optuna.Study, FrozenTrial], None]


class Call(TypedDict):
    """Arguments of `tune` that are also options of the command line."""

    trials: int | None
    jobs: int | None
    timeout: float | None
    retry_failed: bool
    out: str | Path | None
    storage: str | None


@dataclass(frozen=True)
class StudyTrials:
    """Result of `raysim.tune`.

    Attributes:
        trials: A row per trial: `trial`, `state`, the objectives, the main score on samples that
            did not choose, by its name (`test_accuracy`), `run_dir`, and a column per searched
            setting, null if the trial did not search it; in a study with constraints also
            `feasible`, null if the trial was not completed. The `accuracy` of a pruned trial is
            from the last evaluation of its first run.
        best: Settings of the best trial, or of each trial of the Pareto front; empty if no trial
            keeps the constraints.
    """

    trials: pa.Table
    best: tuple[raysim.Settings, ...]
    _numbers: tuple[int, ...] = ()  # of the best trials

    def __repr__(self) -> str:
        best = ", ".join(f"trial {number}" for number in self._numbers) or "none"
        return f"StudyTrials({self._counts()}; best: {best})"

    def _repr_html_(self) -> str:
        """Return a table of the trials, the best first, for notebooks."""
        names = [name for name in self.trials.column_names if name != "run_dir"]
        rows = sorted(self.trials.to_pylist(), key=lambda row: row["trial"] not in self._numbers)
        entries = (
            tuple(_entry(row[name], bold=row["trial"] in self._numbers) for name in names)
            for row in rows[:SHOWN]
        )
        notes = ["Bold: the best."] if self._numbers else []
        if len(rows) > SHOWN:
            notes.append(f"{len(rows) - SHOWN} more are in `trials`.")
        return styled(html_table(Grid(self._counts(), tuple(names), tuple(entries), tuple(notes))))

    def _counts(self) -> str:
        """Return the number of trials, in all and by state."""
        counts = Counter(self.trials["state"].to_pylist() if self.trials.num_rows else ())
        states = ", ".join(f"{number} {state}" for state, number in counts.items())
        return f"{self.trials.num_rows} trials{states and f': {states}'}"


def tune(
    source: str | Path | raysim.Settings,
    study: Mapping[str, Any] | None = None,
    *,
    overrides: Mapping[str, Any] | None = None,
    trials: int | None = None,
    jobs: int | None = None,
    timeout: float | None = None,
    retry_failed: bool = False,
    out: str | Path | None = None,
    storage: str | None = None,
    name: str | None = None,
    callbacks: Sequence[Callback] = (),
) -> StudyTrials:
    """Run a study, or resume it in the same folder.

    Args:
        source: Without `study`, a built-in study or a study file; with it, settings from
            `load_config`, a preset, or a settings file. The `target_accuracy` of a preset or of
            settings is dropped: trials run to their last round unless `overrides` has one.
        study: The table `[study]`, for example
            {"space": {"local.lr": {"low": 0.01, "high": 0.5, "log": True}}, "trials": 20}.
        overrides: Values of all trials by dotted key, which are not searched.
        trials: Total number of trials; None takes the study's number.
        jobs: Number of slots; None takes as many as fit.
        timeout: Seconds after which no trial begins; running trials are completed.
        retry_failed: Repeat each failed trial once, as a new trial in addition to `trials`.
        out: Folder of the study; None is `runs/NAME`.
        storage: Database URL, or the @FILE that holds it; None creates a file in `out`.
        name: Name in the database; None takes the name of the study or its file, else "study".
        callbacks: Called like callbacks of `optuna.Study.optimize`, with the study and the ended
            trial; after `study.stop()` no trial begins.

    Raises:
        RaysimError: an error that the user can correct, named by the message.
    """
    call: Call = {
        "trials": trials,
        "jobs": jobs,
        "timeout": timeout,
        "retry_failed": retry_failed,
        "out": out,
        "storage": storage,
    }
    _check_call(call, name, callbacks)
    searched = study_of(source, study)
    with (
        shown_lines("study") as view,
        run_study(
            name or ("study" if isinstance(source, raysim.Settings) else short_name(source)),
            searched,
            overrides or {},
            searched.options(),
            lambda search: _Callbacks(search, callbacks, view),
            **call,
        ) as (tuner, result),
    ):
        settings = tuner.search.resolved.settings
        best = tuple(settings.override(trial.params) for trial in result.best)
        return StudyTrials(_table(tuner), best, tuple(trial.number for trial in result.best))


def _check_call(call: Call, name: Any, callbacks: Any) -> None:
    """Check the arguments of a call, as the command line checks its options.

    Raises:
        SettingsError: an argument has a wrong type or value.
    """
    for option in ("trials", "jobs"):
        value = call[option]
        if value is not None and (type(value) is not int or not 1 <= value <= MOST):
            raise SettingsError(f"{option}={value}: must be an integer from 1 to {MOST}")
    timeout: Any = call["timeout"]
    if timeout is not None and (type(timeout) not in (int, float) or not timeout > 0):
        raise SettingsError(f"timeout={visible(str(timeout))}: must be a number above 0")
    if not isinstance(again := call["retry_failed"], bool):
        raise SettingsError(f"retry_failed={visible(str(again))}: must be True or False")
    for option, text, kinds in (
        ("out", call["out"], (str, Path)),
        ("storage", call["storage"], (str,)),
        ("name", name, (str,)),
    ):
        if text is not None and not isinstance(text, kinds):
            raise SettingsError(f"{option}={visible(str(text))}: must be text")
    if not isinstance(callbacks, Sequence) or not all(map(callable, callbacks)):
        raise SettingsError(f"callbacks={visible(str(callbacks))}: must be a list of functions")


class _Callbacks(StudyListener):
    """View of a study, and callbacks of a user, called with each ended trial."""

    def __init__(self, search: Search, callbacks: Sequence[Callback], view: LinesView) -> None:
        super().__init__(view.line)
        self._search, self._callbacks, self._view = search, callbacks, view
        self._trials = 0

    def started(self, slots: int, done: int, trials: int) -> None:
        self._trials = trials
        self.line(f"{self._search.study.study_name}: {trials} trials, {slots} slots")
        self._show()

    def trial_done(self, trial: FrozenTrial, seconds: float) -> None:
        super().trial_done(trial, seconds)
        self._show()
        for callback in self._callbacks:
            callback(self._search.study, trial)

    def _show(self) -> None:
        """Show how many trials have ended, and the best value of the first objective so far."""
        trials = self._search.study.get_trials(deepcopy=False)
        objective, *_ = self._search.options.objectives
        values = [t.values[0] for t in trials if t.state is TrialState.COMPLETE]
        least = self._search.study.directions[0] is StudyDirection.MINIMIZE
        best = accumulate(values, min if least else max)
        self._view.progress(sum(t.state.is_finished() for t in trials), self._trials)
        column = OBJECTIVES[objective].named(f"best {objective} so far")
        self._view.curve([*enumerate(best, 1)], column, "completed trial")


@contextmanager
def run_study(
    name: str,
    study: Study,
    overrides: Mapping[str, Any],
    options: SearchOptions,
    listen: Callable[[Search], StudyListener],
    **call: Unpack[Call],
) -> Iterator[tuple[Tuner, StudyResult]]:
    """Run or resume a study; yield its tuner and its result while its database is open.

    Args:
        name: Name in the database, and of the default folder.
        study: The study.
        overrides: Settings of all trials by dotted key, which are not searched.
        options: Sampler, pruner and objectives.
        listen: Returns the listener of a search.
        call: The other arguments of `raysim.tune`.

    Raises:
        RaysimError: an option, a setting, the storage or the folder does not allow the study.
    """
    if call["out"] is None:
        check_inside(name, "name", "runs", "out")
    resolved, storage = study.resolve(overrides), call["storage"]
    folder = Path(call["out"] or Path("runs") / name)
    check_claim(folder, "study")
    with ExitStack() as ends:
        if storage is None:
            ends.enter_context(removed_if_refused(folder))
            make_folder(folder)
            storage = default_storage(folder)
        search = ends.enter_context(closing(Search(name, read_url(storage), options, resolved)))
        tuner = Tuner(search, folder, listen(search))
        trials = call["trials"] or study.table.trials
        result = tuner.run(trials, call["jobs"], call["timeout"], call["retry_failed"])
        with study_errors(search):
            yield tuner, result


def study_of(source: str | Path | raysim.Settings, table: Mapping[str, Any] | None) -> Study:
    """Return the study of `tune`'s arguments.

    Raises:
        SettingsError: there is no study, or it is wrong.
    """
    if isinstance(source, raysim.Settings):
        return Study(read_table(table or {}), source)
    if table is None:
        return find(str(source))
    if Path(source).suffix in (".toml", ".json"):
        return read_study(user_path(source), table)
    return Study(read_table(table), str(source))


def _table(tuner: Tuner) -> pa.Table:
    search, rows = tuner.search, []
    trials = search.study.get_trials(deepcopy=False)
    summaries = [trial.user_attrs.get("summary", {}) for trial in trials]
    score, scores = reported(summaries, search.resolved.settings)
    for trial, figure in zip(trials, scores, strict=True):
        values = trial.values or [None] * len(search.options.objectives)
        rows.append(
            {
                "trial": trial.number,
                "state": trial.state.name.lower(),
                **dict(zip(search.options.objectives, values, strict=True)),
                score.name: figure,
                **_feasible(trial, search),
                "run_dir": str(tuner.folder.trial(trial.number)),
                **{key: trial.params.get(key) for key in search.resolved.space},
            }
        )
    names = rows[0] if rows else {}
    return pa.table({name: of_one_type([row[name] for row in rows]) for name in names})


def _entry(value: Any, *, bold: bool) -> Entry:
    """Return the text of a value of a trial."""
    if isinstance(value, float):
        return Entry(f"{value:.4g}", bold)
    return Entry("" if value is None else str(value), bold)


def _feasible(trial: FrozenTrial, search: Search) -> dict[str, bool | None]:
    if not search.options.constraints:
        return {}
    done = trial.state is TrialState.COMPLETE
    return {"feasible": not exceeded(trial) if done else None}
