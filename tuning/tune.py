"""Studies from Python, `raysim.tune`."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import closing, contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import optuna
import pyarrow as pa
from optuna.trial import FrozenTrial

import raysim
from raysim.core.errors import SettingsError
from raysim.core.given import user_path
from raysim.storage.lock import make_folder
from raysim.tuning.search.results import exceeded
from raysim.tuning.search.search import Search
from raysim.tuning.search.storage import default_storage, read_url
from raysim.tuning.studies import find, read_study, read_table
from raysim.tuning.studies.ranges import of_one_type
from raysim.tuning.studies.samplers import SearchOptions
from raysim.tuning.studies.study import Study
from raysim.tuning.tuner import StudyListener, Tuner, study_errors

MOST = 10**6
"""Most trials, and slots, of a study."""


Callback = Callable[[optuna.Study, FrozenTrial], None]


@dataclass(frozen=True)
class StudyTrials:
    """Result of `raysim.tune`.

    Attributes:
        trials: A row per trial: `trial`, `state`, the objectives, `test_accuracy`, `run_dir`, and a
            column per searched setting, null where the trial did not search it; where the study
            has constraints, `feasible`, null where the trial was not completed.
        best: Settings of the best trial, or of each trial of the Pareto front; none where no trial
            keeps the constraints.
    """

    trials: pa.Table
    best: tuple[raysim.Settings, ...]


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
        overrides: Values of all trials by dotted key; they are not searched.
        trials: Total number of trials; None takes that of the study.
        jobs: Number of slots; None takes as many as fit.
        timeout: Seconds after which no trial begins; those that have begun are run to their end.
        retry_failed: Try each failed trial again that has not been, as a new trial beside `trials`.
        out: Folder of the study; None is `runs/NAME`.
        storage: Database URL, or the @FILE that holds it; None creates a file in `out`.
        name: Name in the database; None takes that of the study or its file, else "study".
        callbacks: Called as those of `optuna.Study.optimize`, with the study and the trial that has
            ended; after `study.stop()` no trial begins.

    Raises:
        RaysimError: something is wrong that you can mend; its message says what.
    """
    for option, value in (("trials", trials), ("jobs", jobs)):
        if value is not None and (type(value) is not int or not 1 <= value <= MOST):
            raise SettingsError(f"{option}={value}: must be an integer from 1 to {MOST}")
    if timeout is not None and not timeout > 0:
        raise SettingsError(f"timeout={timeout}: must be above 0")
    name = name or ("study" if isinstance(source, raysim.Settings) else Path(source).stem)
    folder = Path(out) if out else Path("runs") / name
    searched = study_of(source, study)
    options = searched.options()
    with open_search(
        searched, overrides or {}, options, out=folder, storage=storage, name=name
    ) as search:
        tuner = Tuner(search, folder, _Callbacks(search, callbacks))
        result = tuner.run(trials or searched.table.trials, jobs, timeout, retry_failed)
        settings = search.resolved.settings
        best = tuple(settings.override(trial.params) for trial in result.best)
        with study_errors(search):
            return StudyTrials(_table(search, tuner), best)


class _Callbacks(StudyListener):
    """Callbacks of a user, called with each trial that has ended."""

    def __init__(self, search: Search, callbacks: Sequence[Callback]) -> None:
        self._search, self._callbacks = search, callbacks

    def trial_done(self, trial: FrozenTrial, seconds: float) -> None:
        for callback in self._callbacks:
            callback(self._search.study, trial)


@contextmanager
def open_search(
    study: Study,
    overrides: Mapping[str, Any],
    options: SearchOptions,
    *,
    out: Path,
    storage: str | None,
    name: str,
) -> Iterator[Search]:
    """Open the search of a study in a database, or in a file of its folder.

    Raises:
        RaysimError: a setting, the storage or the folder does not allow the study.
    """
    resolved = study.resolve(overrides)
    if storage is None:
        make_folder(out)
        storage = default_storage(out)
    with closing(Search(name, read_url(storage), options, resolved)) as search:
        yield search


def study_of(source: str | Path | raysim.Settings, table: Mapping[str, Any] | None) -> Study:
    """Return the study of `tune`'s arguments.

    Raises:
        SettingsError: there is none, or it is wrong.
    """
    if isinstance(source, raysim.Settings):
        return Study(read_table(table or {}), source)
    if table is None:
        return find(str(source))
    if Path(source).suffix in (".toml", ".json"):
        return read_study(user_path(source), table)
    return Study(read_table(table), str(source))


def _table(search: Search, tuner: Tuner) -> pa.Table:
    rows = []
    for trial in search.study.get_trials(deepcopy=False):
        values = trial.values or [None] * len(search.options.objectives)
        summary = trial.user_attrs.get("summary", {})
        rows.append(
            {
                "trial": trial.number,
                "state": trial.state.name.lower(),
                **dict(zip(search.options.objectives, values, strict=True)),
                "test_accuracy": summary.get("final_accuracy"),
                **_feasible(trial, search),
                "run_dir": str(tuner.folder.trial(trial.number)),
                **{key: trial.params.get(key) for key in search.resolved.space},
            }
        )
    names = rows[0] if rows else {}
    return pa.table({name: of_one_type([row[name] for row in rows]) for name in names})


def _feasible(trial: FrozenTrial, search: Search) -> dict[str, bool | None]:
    if not search.options.constraints:
        return {}
    return {"feasible": not exceeded(trial) if trial.values else None}
