"""Search over settings with Optuna's samplers, pruners and storage."""

from __future__ import annotations

import math
import warnings
from collections.abc import Callable, Collection, Mapping, Sequence
from functools import cached_property
from pathlib import Path
from typing import Any
from uuid import uuid4

import optuna
from optuna.exceptions import ExperimentalWarning
from optuna.pruners import BasePruner
from optuna.samplers import BaseSampler, RandomSampler
from optuna.storages import BaseStorage
from optuna.study import StudyDirection
from optuna.trial import FrozenTrial, Trial, TrialState

from raysim.errors import RunError, SettingsError, visible, without_passwords
from raysim.tuning.search.decisions import Decisions, copied
from raysim.tuning.search.mirror import Mirror
from raysim.tuning.search.record import difference_in, record_of
from raysim.tuning.search.results import combined, quantity
from raysim.tuning.search.storage import (
    close_storage,
    error_line,
    folder_of,
    is_missing_file,
    is_server,
    open_storage,
    refusal,
)
from raysim.tuning.studies.ranges import contains, format_range
from raysim.tuning.studies.samplers import OBJECTIVES, SearchOptions
from raysim.tuning.studies.space import Space
from raysim.tuning.studies.study import ResolvedStudy, check_together


class SearchedStudy(optuna.Study):
    """Optuna study; a tuner runs its trials, instead of `optimize`.

    Attributes:
        stopped: Whether `stop` was called; if so, no trial begins.
    """

    stopped: bool = False

    def __init__(self, name: str, storage: BaseStorage, pruner: BasePruner, space: Space) -> None:
        super().__init__(name, storage, pruner=pruner)
        self._space = space

    def enqueue_trial(
        self,
        params: dict[str, Any],
        user_attrs: dict[str, Any] | None = None,
        skip_if_exists: bool = False,
    ) -> None:
        """Enqueue a trial; callbacks call this.

        Raises:
            SettingsError: a setting is not searched, or its value is outside its range.
        """
        for key, value in params.items():
            if key not in self._space:
                raise SettingsError(f"enqueue_trial: {visible(key)}: is not searched")
            if not contains(self._space[key], value):
                allowed = format_range(self._space[key])
                raise SettingsError(
                    f"enqueue_trial: {key}={visible(str(value))}: must be {allowed}"
                )
        super().enqueue_trial(params, user_attrs, skip_if_exists)

    def stop(self) -> None:
        """Begin no further trial; callbacks call this."""
        self.stopped = True


RETRY_OF = "retry_of"
"""Attribute of a trial that repeats a failed one: the number of the failed trial."""


TUNER = "tuner"
"""Attribute of a trial: the id of the tuner that runs it."""


class Search:
    """Optuna study that lets only one tuner change a trial.

    Attributes:
        tuner: Id of the tuner of this process.
    """

    def __init__(
        self, name: str, storage: str, options: SearchOptions, resolved: ResolvedStudy
    ) -> None:
        """Create a study in a storage, or load it.

        An existing study is not changed; see `claim`.

        Raises:
            RunError: the storage cannot be used.
            SettingsError: Optuna rejects an option of the pruner, or the options do not suit the
                settings and the space; see `check_together`.
        """
        check_together(options, resolved)
        self.options, self.resolved, self._url = options, resolved, storage
        self.tuner = uuid4().hex
        pruner = options.build_pruner(resolved.settings)
        optuna.logging.set_verbosity(optuna.logging.WARNING)
        try:
            self._storage = open_storage(storage)
            kinds = {True: StudyDirection.MAXIMIZE, False: StudyDirection.MINIMIZE}
            directions = [
                kinds[OBJECTIVES[objective].larger is True] for objective in options.objectives
            ]
            created = optuna.create_study(
                study_name=name, storage=self._storage, directions=directions, load_if_exists=True
            )
            self._study_id = created._study_id
            self._mirror = Mirror(created._storage, created._study_id)
            self.study = SearchedStudy(name, self._mirror, pruner, resolved.space)
            self.decisions = Decisions(self.study)
        except Exception as error:  # database drivers raise their own errors
            raise RunError(f"{self.storage}: cannot be used: {refusal(storage, error)}") from error

    @property
    def storage(self) -> str:
        """Name of the storage in messages."""
        return f"storage={without_passwords(self._url)}"

    @property
    def folder(self) -> Path | None:
        """Folder of the storage, if it is a file."""
        return folder_of(self._url)

    @property
    def is_shared(self) -> bool:
        """True if several tuners may run the study at once."""
        return is_server(self._url)

    def refresh(self) -> None:
        """Read the changes of other tuners."""
        self._mirror.refresh()

    def storage_failure(self, error: Exception) -> str:
        """Return the cause of an error of the storage in one line."""
        cause = "the file is gone" if is_missing_file(self._url) else error_line(error)
        return f"{self.storage}: {cause}"

    def is_deleted(self) -> bool:
        """Return whether the study is no longer in its storage."""
        try:
            self._storage.get_study_name_from_id(self._study_id)
        except KeyError:
            return True
        return False

    def close(self) -> None:
        """Close the connections to the storage."""
        close_storage(self._storage)

    def claim(self) -> None:
        """Record the settings and options of the trials, or compare them with the record.

        The caller has locked the study's folder.

        Raises:
            RunError: the trials of the study have other settings or options.
        """
        recorded, empty = self.study.user_attrs, not self.study.get_trials(deepcopy=False)
        expected = record_of(self.resolved, self.options)
        # An empty study may be changed, except its objectives.
        fixed = [key for key in expected if not empty or (key == "objectives" and key in recorded)]
        for key in fixed:
            if difference := difference_in(key, recorded.get(key), expected[key]):
                raise RunError(
                    f"study {self.study.study_name} in {without_passwords(self._url)} differs in"
                    f" {key} ({difference}); choose another --name (and --out, if it is given)"
                )
        for key in expected.keys() - {*fixed}:
            self.study.set_user_attr(key, expected[key])
        titles = [OBJECTIVES[name].name for name in self.options.objectives]
        if self.study.metric_names != titles:
            with warnings.catch_warnings():
                warnings.simplefilter("ignore", ExperimentalWarning)
                self.study.set_metric_names(titles)

    def ask(self) -> Trial:
        """Return a new trial with its parameters.

        The draws depend on the seed and the trials before it, so that an interrupted study
        continues with the same trials. Trials that repeat others are not counted.
        """
        trials = self.study.get_trials(deepcopy=False)
        # Repeated failed trials, and the trial of a tuner killed after enqueue_trial.
        waiting = [trial.number for trial in trials if trial.state is TrialState.WAITING]
        if not waiting and (planned := self._planned(trials)):
            self.study.enqueue_trial(planned)
        self.study.sampler = self._sampler(trials[: min(waiting, default=len(trials))])
        trial = self.study.ask()
        trial.set_user_attr(TUNER, self.tuner)
        self.resolved.space.draw(trial)
        return trial

    def _planned(self, earlier: Sequence[FrozenTrial]) -> dict[str, Any]:
        """Return the given values of the next trial: of a first trial, or a grid point."""
        if (begun := _begun(earlier)) < len(first := self._first):
            return dict(first[begun])
        if self.options.sampler != "grid":
            return {}
        done = [trial.params for trial in earlier]
        return next((point for point in self._points if point not in done), {})

    def take_back(self, left: Sequence[Mapping[str, Any] | None]) -> None:
        """Enqueue the parameters of trials with runs in the folder, in the trials' order.

        The tuner asks for them next, and only reads finished runs. A trial without a run failed.
        """
        for params in left:
            if params is None:
                lost = {"failed": "its run is gone, and so is the storage"}
                state = TrialState.FAIL
                self.study.add_trial(optuna.trial.create_trial(state=state, user_attrs=lost))
            else:
                self.study.enqueue_trial(dict(params))

    def retry_failed(self, worth: Callable[[str], bool] = lambda error: True) -> None:
        """Enqueue the parameters of each failed trial once more, as a new trial that names it.

        Args:
            worth: Whether an error is worth another try.
        """
        trials = self.study.get_trials(deepcopy=False)
        tried = {trial.user_attrs.get(RETRY_OF) for trial in trials}
        for trial in trials:
            error = str(trial.user_attrs.get("failed", ""))
            if trial.state is TrialState.FAIL and trial.number not in tried and worth(error):
                self.study.enqueue_trial(trial.params, user_attrs={RETRY_OF: trial.number})

    @property
    def retries(self) -> int:
        """Number of trials that repeat a failed one."""
        trials = self.study.get_trials(deepcopy=False)
        return sum(RETRY_OF in trial.user_attrs for trial in trials)

    def take_over(self, at_work: Collection[str] = ()) -> list[Trial]:
        """Take over the running trials of ended tuners, and return them."""
        self.study.sampler = RandomSampler()
        running = self.study.get_trials(deepcopy=False, states=(TrialState.RUNNING,))
        left = [trial for trial in running if trial.user_attrs.get(TUNER) not in at_work]
        for trial in left:
            self._complete_draw(trial)
        trials = [Trial(self.study, trial._trial_id) for trial in left]
        for running_trial in trials:
            running_trial.set_user_attr(TUNER, self.tuner)
        return trials

    def _complete_draw(self, trial: FrozenTrial) -> None:
        """Draw the parameters that a tuner killed inside `ask` had not drawn."""
        space, params = self.resolved.space, trial.params
        if space.is_complete(params):
            return
        earlier = self.study.get_trials(deepcopy=False)[: trial.number]
        # They depend on the draws before.
        copy = copied(self.study, earlier, self._sampler(earlier))
        if planned := trial.system_attrs.get("fixed_params"):
            copy.enqueue_trial(planned)
        again = copy.ask()
        space.draw(again)  # as the killed tuner drew, unless other trials have ended since
        drawn_by = copy.get_trials(deepcopy=False)[trial.number].system_attrs
        for key in drawn_by.keys() - trial.system_attrs.keys():  # such as its generation
            self.study._storage.set_trial_system_attr(trial._trial_id, key, drawn_by[key])
        for key, drawn in space.draw(again, params).items():
            if key not in params:
                value = space[key].to_internal_repr(drawn)
                self.study._storage.set_trial_param(trial._trial_id, key, value, space[key])

    def tell(self, trial: Trial, summary: Mapping[str, Any]) -> FrozenTrial:
        """Complete a trial with the summary of its run."""
        trial.set_user_attr("summary", dict(summary))
        for name, most in self.options.constraints.items():
            if name not in trial.constraints:  # set by a tuner that was killed here
                trial.set_constraint(name, quantity(summary, name) - most)
        return self.study.tell(trial.number, self.values(summary))

    def values(self, summary: Mapping[str, Any]) -> list[float]:
        """Return the values of the objectives in the summary of a run."""
        return [quantity(summary, name) for name in self.options.objectives]

    def combined(self, summaries: Sequence[Mapping[str, Any]]) -> dict[str, Any]:
        """Return the summary of a trial from its runs' summaries; see `results.combined`."""
        return combined(summaries, self.options.over_seeds)

    def prune(self, trial: Trial) -> FrozenTrial:
        """Mark a trial as pruned."""
        return self.study.tell(trial.number, state=TrialState.PRUNED)

    def fail(self, trial: Trial, error: str) -> FrozenTrial:
        """Mark a trial as failed."""
        trial.set_user_attr("failed", error)
        return self.study.tell(trial.number, state=TrialState.FAIL)

    def most_trials(self) -> float:
        """Return the number of trials that exhausts the search."""
        if self.options.sampler != "grid":
            return math.inf
        return len(self._points) + sum(trial not in self._points for trial in self._first)

    @cached_property
    def _points(self) -> list[dict[str, Any]]:
        return self.resolved.space.points()

    @cached_property
    def _first(self) -> Sequence[Mapping[str, Any]]:
        """Distinct values of the first trials, completed by a grid's."""
        first, space = self.resolved.first, self.resolved.space
        if self.options.sampler == "grid":
            first = tuple(space.completed(values, self._points) for values in first)
        return [
            values
            for number, values in enumerate(first)
            if values not in first[:number] or not space.is_complete(values)  # draws differ
        ]

    def _sampler(self, earlier: Sequence[FrozenTrial]) -> BaseSampler:
        """Return the sampler of the trial after earlier ones."""
        seed, common = self.resolved.settings.seed, self.resolved.space.common
        number = _begun(earlier)
        return self.options.build_sampler(seed, number, common)


def _begun(trials: Sequence[FrozenTrial]) -> int:
    """Return the number of trials that repeat no other."""
    return sum(RETRY_OF not in trial.user_attrs for trial in trials)
