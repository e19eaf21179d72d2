"""The search: Optuna's samplers, pruners and storage, asked and told by one process alone."""

from __future__ import annotations

import itertools
import warnings
from collections import defaultdict
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import optuna
from optuna.pruners import BasePruner, HyperbandPruner, MedianPruner, NopPruner
from optuna.samplers import BaseSampler, GPSampler, RandomSampler, TPESampler
from optuna.storages import RDBStorage
from optuna.study import StudyDirection
from optuna.trial import FrozenTrial, Trial, TrialState

from raysim.config import parse
from raysim.core.errors import RunError, SettingsError
from raysim.core.seeds import torch_seed
from raysim.storage.schema import renamed
from raysim.tuning.storage import reason, shown
from raysim.tuning.study import Range, Resolved, grid

SAMPLERS = ("tpe", "random", "grid", "gp")
PRUNERS = ("median", "hyperband", "none")
OBJECTIVES = {"accuracy": StudyDirection.MAXIMIZE, "bytes": StudyDirection.MINIMIZE}
"""What can be sought: accuracy on the held-out samples, and bytes sent both ways."""
UNCOMPARED = {"engine", "out"}
"""Settings in which the calls of one study may differ."""


@dataclass(frozen=True)
class SearchOptions:
    """How to search.

    Attributes:
        sampler: One of SAMPLERS.
        pruner: One of PRUNERS.
        objectives: One or two of OBJECTIVES.
    """

    sampler: str = "tpe"
    pruner: str = "none"
    objectives: tuple[str, ...] = ("accuracy",)

    def check(self) -> None:
        """Refuse what there is not, and what does not go together.

        Raises:
            SettingsError: such a thing.
        """
        for name, value, known in (
            ("sampler", self.sampler, SAMPLERS),
            ("pruner", self.pruner, PRUNERS),
        ):
            if value not in known:
                raise SettingsError(f"{name}={value}: must be one of {', '.join(known)}")
        sought = {*self.objectives}
        if not sought or sought - {*OBJECTIVES} or len(sought) < len(self.objectives):
            wanted = ",".join(self.objectives)
            raise SettingsError(
                f"objectives={wanted}: must be one or both of {', '.join(OBJECTIVES)}"
            )
        if len(self.objectives) > 1 and self.pruner != "none":
            raise SettingsError(
                f"pruner={self.pruner}: a pruner compares one figure of unfinished trials, and"
                f" there are {len(self.objectives)} objectives; use --pruner none"
            )


class Search:
    """An Optuna study; only this process talks to its storage."""

    def __init__(self, name: str, storage: str, asked: SearchOptions, resolved: Resolved) -> None:
        """Open a study, or go on with it.

        Raises:
            RunError: the storage cannot be used, or holds a study that searches otherwise.
        """
        self.asked, self.resolved = asked, resolved
        self._reported: defaultdict[int, set[int]] = defaultdict(set)
        optuna.logging.set_verbosity(optuna.logging.WARNING)
        try:
            self._storage = RDBStorage(storage)
            self.study = optuna.create_study(
                study_name=name,
                storage=self._storage,
                directions=[OBJECTIVES[objective] for objective in asked.objectives],
                pruner=self._pruner(),
                load_if_exists=True,
            )
        except Exception as error:  # whatever the database's own driver raises
            raise RunError(f"storage={shown(storage)}: cannot be used: {reason(error)}") from error
        try:
            self._check_same(shown(storage))
        except RunError:
            self.close()
            raise

    def close(self) -> None:
        """Close the connections to the storage."""
        self._storage.remove_session()
        self._storage.engine.dispose()

    def next(self) -> Trial:
        """Return a new trial with its settings.

        The sampler's draws depend on the seed, the trial's number and the trials before it, so an
        interrupted study goes on as it would have.
        """
        trials = self.study.get_trials(deepcopy=False)
        number = len(trials)
        waiting = any(trial.state is TrialState.WAITING for trial in trials)  # lost when enqueued
        if self.asked.sampler == "grid" and not waiting:
            self.study.enqueue_trial(self.points[number])
        self.study.sampler = self._sampler(number)
        return self.study.ask(dict(self.resolved.space))

    def unfinished(self) -> list[Trial]:
        """Return the trials that were running when the tuner was lost."""
        running = self.study.get_trials(deepcopy=False, states=(TrialState.RUNNING,))
        for trial in running:
            self._reported[trial.number].update(trial.intermediate_values)
        return [Trial(self.study, trial._trial_id) for trial in running]

    @property
    def judges(self) -> bool:
        """Whether a trial may be stopped before its end."""
        return self.asked.pruner != "none"

    def report(self, trial: Trial, curve: Mapping[int, float]) -> None:
        """Note intermediate figures, by round.

        What the storage has is left alone: a lost trial repeats some.
        """
        if len(self.asked.objectives) > 1:
            return
        known = self._reported[trial.number]
        for step, accuracy in curve.items():
            if step not in known:
                trial.report(accuracy, step)
                known.add(step)

    def gives_up(self, trial: Trial) -> bool:
        """Return whether a trial should be stopped, by what it has reported."""
        return self.judges and trial.should_prune()

    def tell(self, trial: Trial, summary: Mapping[str, Any]) -> FrozenTrial:
        """Note what a trial came to."""
        figures = {"accuracy": summary["final_holdout_accuracy"], "bytes": bytes_sent(summary)}
        trial.set_user_attr("summary", dict(summary))
        return self.study.tell(trial.number, [figures[name] for name in self.asked.objectives])

    def prune(self, trial: Trial) -> FrozenTrial:
        """Note that a trial was stopped."""
        return self.study.tell(trial.number, state=TrialState.PRUNED)

    def fail(self, trial: Trial, reason: str) -> FrozenTrial:
        """Note that a trial failed."""
        trial.set_user_attr("failed", reason)
        return self.study.tell(trial.number, state=TrialState.FAIL)

    @property
    def points(self) -> list[dict[str, Any]]:
        """The points of the grid."""
        space = self.resolved.space
        return [
            dict(zip(space, point, strict=True))
            for point in itertools.product(*(grid(values) for values in space.values()))
        ]

    def _pruner(self) -> BasePruner:
        if self.asked.pruner == "median":
            return MedianPruner()
        if self.asked.pruner == "hyperband":
            every = self.resolved.settings.evaluation.every
            return HyperbandPruner(min_resource=every, max_resource=self.resolved.settings.rounds)
        return NopPruner()

    def _sampler(self, number: int) -> BaseSampler:
        seed = torch_seed(self.resolved.settings.seed, "trial", number) % 2**32
        with warnings.catch_warnings():
            warnings.simplefilter("ignore", optuna.exceptions.ExperimentalWarning)
            if self.asked.sampler == "tpe":
                return TPESampler(seed=seed)
            if self.asked.sampler == "gp":
                return GPSampler(seed=seed)
        return RandomSampler(seed=seed)

    def _check_same(self, storage: str) -> None:
        """Refuse to mix trials that cannot be compared."""
        searched = {
            "settings": self.resolved.settings.model_dump(mode="json", exclude=UNCOMPARED),
            "space": _written(self.resolved.space),
            "sampler": self.asked.sampler,
            "objectives": list(self.asked.objectives),
        }
        found, empty = self.study.user_attrs, not self.study.get_trials(deepcopy=False)
        if isinstance(settings := found.get("settings"), Mapping):
            found = {**found, "settings": _current(settings)}
        for key, value in searched.items():
            if key not in found or (empty and key != "objectives"):  # which no trial depends on yet
                self.study.set_user_attr(key, value)
            elif found[key] != value:
                raise RunError(
                    f"study {self.study.study_name} in {storage} has other {_what(key)}"
                    f" ({_first_difference(found[key], value)}); give this one another --name"
                )


def _written(space: Mapping[str, Range]) -> dict[str, str]:
    return {key: optuna.distributions.distribution_to_json(space[key]) for key in space}


def _current(settings: Mapping[str, Any]) -> dict[str, Any]:
    """Return the settings of a study, which an earlier version may have written, as of today."""
    current = renamed(settings)
    try:
        return parse(current).model_dump(mode="json", exclude=UNCOMPARED)
    except SettingsError:  # the caller names the difference
        return current


def _what(key: str) -> str:
    return {"space": "ranges", "sampler": "draws"}.get(key, key)


def _first_difference(found: Any, wanted: Any, prefix: str = "") -> str:
    if isinstance(found, Mapping) and isinstance(wanted, Mapping):
        for key in {**found, **wanted}:
            if found.get(key) != wanted.get(key):
                return _first_difference(found.get(key), wanted.get(key), f"{prefix}{key}.")
    return f"{prefix.rstrip('.')}: {found}, here {wanted}".removeprefix(": ")


def bytes_sent(summary: Mapping[str, Any]) -> int:
    """Return the bytes that a run sent both ways."""
    sent: int = summary["bytes_up"] + summary["bytes_down"]
    return sent


def best(search: Search) -> list[FrozenTrial]:
    """Return the best trial, or the Pareto front, by number."""
    done = search.study.get_trials(deepcopy=False, states=(TrialState.COMPLETE,))
    return sorted(search.study.best_trials, key=lambda trial: trial.number) if done else []
