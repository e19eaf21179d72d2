"""Study for callbacks."""

from __future__ import annotations

from typing import Any

import optuna
from optuna.pruners import BasePruner
from optuna.storages import BaseStorage

from raysim.errors import SettingsError, visible
from raysim.tuning.studies.ranges import contains, format_range
from raysim.tuning.studies.space import Space


class SearchedStudy(optuna.Study):
    """Optuna study whose trials a tuner runs, instead of `optimize`.

    Attributes:
        stopped: Whether `stop` was called, after which no trial begins.
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
