"""Optuna's samplers without state in the database: draws depend only on the trials.

So a trial draws the same again if its tuner is killed, and nothing is unpickled from a database.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from itertools import product
from typing import Any, cast

import numpy as np
import optuna
from optuna.distributions import BaseDistribution, FloatDistribution
from optuna.samplers import CmaEsSampler, QMCSampler
from optuna.study import StudyDirection
from optuna.trial import FrozenTrial, TrialState

from raysim.tuning.studies.ranges import Range, grid_points


class QuasiMonteCarlo(QMCSampler):
    """QMC sampler that takes the point of the trial's number, in the space of all trials.

    Optuna's own counts draws in the database, where a killed tuner's draws are lost. If all ranges
    are of choices or integers, a point that was tried is replaced by the first one that was not.

    Args:
        number: The trial's number.
        common: Ranges searched by every trial.
        coordinates: Keys of the coordinates of a point; keys without a range are skipped.
        options: Optuna's own options.
    """

    def __init__(
        self,
        *,
        number: int,
        common: Mapping[str, Range],
        coordinates: Sequence[str],
        **options: Any,
    ) -> None:
        super().__init__(**options)
        self._number, self._common = number, dict(common)
        unused = FloatDistribution(0, 1)
        self._point = {key: common.get(key, unused) for key in coordinates or common}

    def infer_relative_search_space(
        self, study: optuna.Study, trial: FrozenTrial
    ) -> dict[str, BaseDistribution]:
        """Return the ranges searched by every trial."""
        return {**self._common}

    def sample_relative(
        self, study: optuna.Study, trial: FrozenTrial, search_space: dict[str, BaseDistribution]
    ) -> dict[str, Any]:
        """Return the values of a trial."""
        point = super().sample_relative(study, trial, {**self._point})
        drawn = {key: point[key] for key in self._common}
        trials = study.get_trials(deepcopy=False)
        tried = [
            earlier_trial.params for earlier_trial in trials if earlier_trial.number < trial.number
        ]
        real = any(isinstance(values, FloatDistribution) for values in self._common.values())
        if real or drawn not in tried:
            return drawn
        most = len(tried) + 1  # of so many points, one was not tried
        points = product(*(grid_points(values)[:most] for values in self._common.values()))
        untried = (dict(zip(self._common, point, strict=True)) for point in points)
        return next((candidate for candidate in untried if candidate not in tried), drawn)

    def _find_sample_id(self, study: optuna.Study, search_space: Any) -> int:
        return self._number


class CmaEs(CmaEsSampler):
    """CMA-ES that computes its distribution from the generations of completed trials.

    Optuna's own keeps the distribution pickled in the database.
    """

    def _restore_optimizer(self, completed_trials: list[FrozenTrial]) -> None:
        self._completed = completed_trials  # the next call of _init_optimizer gets them

    def _init_optimizer(self, trans: Any, direction: StudyDirection) -> Any:
        """Return the distribution after all complete generations."""
        optimizer = super()._init_optimizer(trans, direction)
        sign = 1 if direction is StudyDirection.MINIMIZE else -1
        size = optimizer.population_size
        while True:
            told = self._get_solution_trials(self._completed, optimizer.generation)[:size]
            if len(told) < size:
                return optimizer
            values = [sign * cast("float", trial.value) for trial in told]
            points = [self._point(trial, trans) for trial in told]
            optimizer.tell(list(zip(points, values, strict=True)))

    def _point(self, trial: FrozenTrial, trans: Any) -> Any:
        drawn = trial.system_attrs.get("x_for_tell", ())  # where steps have a margin
        if len(drawn) != len(trans.bounds):  # of ranges that later trials do not all have
            return trans.transform(trial.params)
        return np.array(drawn)

    def after_trial(
        self,
        study: optuna.Study,
        trial: FrozenTrial,
        state: TrialState,
        values: Sequence[float] | None,
    ) -> None:
        """Ignore constraints, which Optuna warns about here: they bound only the best trial."""


class NSGAIISampler(optuna.samplers.NSGAIISampler):
    """NSGA-II with parents in the order of their numbers.

    In Optuna's own, the trial that selects the parents has them in another order than the others.
    Optuna marks trials with the class's name, which is therefore the same.
    """

    def get_parent_population(self, study: optuna.Study, generation: int) -> list[FrozenTrial]:
        """Return the parents of a generation."""
        parents = super().get_parent_population(study, generation)
        return sorted(parents, key=lambda trial: trial.number)
