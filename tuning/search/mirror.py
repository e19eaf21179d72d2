"""Mirror of a database's study in memory: changes go to the database first, and are not read again.

Optuna's own cache reads every unfinished trial again, with all its evaluations, at each decision of
a pruner, because another process may have changed it. Here only one tuner changes a trial; other
tuners' trials are read before a new one is drawn.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from optuna.distributions import BaseDistribution
from optuna.storages import BaseStorage, InMemoryStorage
from optuna.trial import FrozenTrial, TrialState


class Mirror(InMemoryStorage):
    """Study of a database, in memory; a trial's id is its number."""

    def __init__(self, database: BaseStorage, study_id: int) -> None:
        self._database, self._study_id = database, study_id
        self.refresh()

    def refresh(self) -> None:
        """Read the study again, with changes by other processes."""
        super().__init__()
        database, study_id = self._database, self._study_id
        self._ids: list[int] = []
        name = database.get_study_name_from_id(study_id)
        number = super().create_new_study(database.get_study_directions(study_id), name)
        for key, value in database.get_study_user_attrs(study_id).items():
            super().set_study_user_attr(number, key, value)
        for key, value in database.get_study_system_attrs(study_id).items():
            super().set_study_system_attr(number, key, value)
        self._read_new(number)

    def _read_new(self, number: int) -> None:
        """Read the trials that are not in memory."""
        trials = self._database.get_all_trials(self._study_id, deepcopy=False)
        for trial in trials[len(self._ids) :]:
            self._ids.append(trial._trial_id)
            super().create_new_trial(number, trial)

    def set_study_user_attr(self, study_id: int, key: str, value: Any) -> None:
        """Set an attribute of the study."""
        self._database.set_study_user_attr(self._study_id, key, value)
        super().set_study_user_attr(study_id, key, value)

    def set_study_system_attr(self, study_id: int, key: str, value: Any) -> None:
        """Set an attribute that Optuna keeps with the study."""
        self._database.set_study_system_attr(self._study_id, key, value)
        super().set_study_system_attr(study_id, key, value)

    def create_new_trial(self, study_id: int, template_trial: FrozenTrial | None = None) -> int:
        """Create a trial, after the trials of other processes."""
        created = self._database.create_new_trial(self._study_id, template_trial)
        if self._database.get_trial_number_from_id(created) > len(self._ids):
            self._read_new(study_id)
        else:
            self._ids.append(created)
            super().create_new_trial(study_id, template_trial)
        return self._ids.index(created)

    def set_trial_param(
        self,
        trial_id: int,
        param_name: str,
        param_value_internal: float,
        distribution: BaseDistribution,
    ) -> None:
        """Set a parameter of a trial."""
        value = param_value_internal
        self._database.set_trial_param(self._ids[trial_id], param_name, value, distribution)
        super().set_trial_param(trial_id, param_name, value, distribution)

    def set_trial_state_values(
        self, trial_id: int, state: TrialState, values: Sequence[float] | None = None
    ) -> bool:
        """Set state and values of a trial."""
        changed = self._database.set_trial_state_values(self._ids[trial_id], state, values)
        return changed and super().set_trial_state_values(trial_id, state, values)

    def set_trial_intermediate_value(
        self, trial_id: int, step: int, intermediate_value: float
    ) -> None:
        """Set the evaluation of a step."""
        value = intermediate_value
        self._database.set_trial_intermediate_value(self._ids[trial_id], step, value)
        super().set_trial_intermediate_value(trial_id, step, value)

    def set_trial_user_attr(self, trial_id: int, key: str, value: Any) -> None:
        """Set an attribute of a trial."""
        self._database.set_trial_user_attr(self._ids[trial_id], key, value)
        super().set_trial_user_attr(trial_id, key, value)

    def set_trial_system_attr(self, trial_id: int, key: str, value: Any) -> None:
        """Set an attribute that Optuna keeps with a trial."""
        self._database.set_trial_system_attr(self._ids[trial_id], key, value)
        super().set_trial_system_attr(trial_id, key, value)
