"""Reports of evaluations to Optuna, and the pruner's decisions on them."""

from __future__ import annotations

from collections.abc import Iterable, Mapping

import optuna
from optuna.pruners import NopPruner
from optuna.samplers import BaseSampler, RandomSampler
from optuna.study import StudyDirection
from optuna.trial import FrozenTrial, Trial, TrialState, create_trial


class Decisions:
    """Evaluations of a study's running trials; each is reported and judged once."""

    def __init__(self, study: optuna.Study) -> None:
        self._study = study

    @property
    def prunes(self) -> bool:
        """True if trials may be pruned."""
        return not isinstance(self._study.pruner, NopPruner)

    def judge(self, trial: Trial, curve: Mapping[int, float]) -> bool:
        """Report accuracies by round; return whether the pruner lets the trial continue.

        Rounds that were reported before, which a lost trial repeats, are left out. In a study with
        objectives besides accuracy, accuracies are not reported.
        """
        if self._study.directions != [StudyDirection.MAXIMIZE]:  # not of accuracy alone
            return True
        reported = self._study.get_trials(deepcopy=False)[trial.number].intermediate_values
        for step in sorted(curve.keys() - reported.keys()):
            trial.report(curve[step], step)
            if self.prunes and trial.should_prune():
                return False
        return True

    def judge_again(self, trial: Trial) -> bool:
        """Return whether the pruner lets an interrupted trial continue.

        Its tuner may not have acted on the decision about the last reported round, or may have
        recorded a part of it: successive halving and Hyperband write the rung of a trial, and do
        not judge the trial there again. So this decides on a copy, where the trial starts again.
        """
        if not self.prunes:
            return True
        trials = self._study.get_trials(deepcopy=False)
        running = trials[trial.number]
        params, distributions = running.params, running.distributions
        anew = create_trial(state=TrialState.RUNNING, params=params, distributions=distributions)
        copy = copied(
            self._study, (anew if known_trial is running else known_trial for known_trial in trials)
        )
        again, pruned = Trial(copy, trial.number), False
        for step, accuracy in sorted(running.intermediate_values.items()):
            again.report(accuracy, step)
            pruned = again.should_prune()
        for key, value in copy.get_trials(deepcopy=False)[trial.number].system_attrs.items():
            if key not in running.system_attrs:
                self._study._storage.set_trial_system_attr(trial._trial_id, key, value)
        return not pruned


def copied(
    study: optuna.Study, trials: Iterable[FrozenTrial], sampler: BaseSampler | None = None
) -> optuna.Study:
    """Return a study in memory with another's attributes and these trials, numbered from 0."""
    copy = optuna.create_study(
        study_name=study.study_name,
        directions=study.directions,
        sampler=sampler or RandomSampler(),
        pruner=study.pruner,
    )
    copy.add_trials(trials)
    for key, value in study._storage.get_study_system_attrs(study._study_id).items():
        copy._storage.set_study_system_attr(copy._study_id, key, value)
    return copy
