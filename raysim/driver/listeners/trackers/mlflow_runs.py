"""Runs in MLflow.

MLFLOW_TRACKING_URI names the server or folder. MLFLOW_EXPERIMENT_NAME names the experiment; the
default is `raysim`. If a server does not answer, raysim retries less often than MLflow would: for
seconds, not minutes. MLFLOW_HTTP_REQUEST_MAX_RETRIES overrides this.
"""

from __future__ import annotations

import os
from collections.abc import Mapping
from time import time
from typing import Any

from raysim.driver.listeners.trackers.base import Tracker, check_answers

PARAMETERS = 100
"""Most parameters in one request to MLflow."""
URI = "MLFLOW_TRACKING_URI"
FOLDERS = "MLFLOW_ALLOW_FILE_STORE"
"""Variable without which newer versions of MLflow refuse a folder."""
RETRIES = "MLFLOW_HTTP_REQUEST_MAX_RETRIES"
EVERY_ROUND = "seconds"
"""Column that every round has."""


class MlflowRuns(Tracker):
    """Runs of an MLflow experiment."""

    def __init__(self) -> None:
        """Open the store.

        Raises:
            Exception: it cannot be used; MLflow has several classes for this.
        """
        from mlflow import MlflowClient, get_tracking_uri
        from mlflow.exceptions import MlflowException

        os.environ.setdefault(RETRIES, "2")
        if (uri := get_tracking_uri()).startswith(("http://", "https://")):
            check_answers(URI, uri)
        try:
            self._client: Any = MlflowClient()
        except MlflowException as error:
            if FOLDERS not in str(error):
                raise
            answers = f"set {URI}=sqlite:///mlflow.db, or {FOLDERS}=true"
            raise OSError(f"{URI}={uri}: is a folder; {answers}") from error
        self._run = ""

    def open(self, known: str | None, name: str, parameters: Mapping[str, Any]) -> tuple[str, int]:
        """Open a run; return its id and its last round."""
        if known is not None:
            self._run = known
            self._client.update_run(known, status="RUNNING")
            history = self._client.get_metric_history(known, EVERY_ROUND)
            return known, max((metric.step for metric in history), default=0)
        from mlflow.entities import Param

        run = self._client.create_run(self._experiment(), run_name=name)
        self._run = run.info.run_id
        params = [Param(key, str(value)) for key, value in parameters.items()]
        for start in range(0, len(params), PARAMETERS):
            self._client.log_batch(self._run, params=params[start : start + PARAMETERS])
        return self._run, 0

    def log(self, values: Mapping[str, float], step: int) -> None:
        """Log the values of a round."""
        from mlflow.entities import Metric

        moment = int(time() * 1000)
        metrics = [Metric(name, value, moment, step) for name, value in values.items()]
        self._client.log_batch(self._run, metrics=metrics)

    def summarise(self, values: Mapping[str, float], step: int) -> None:
        """Log the final values at the last round."""
        self.log(values, step)

    def close(self, *, finished: bool) -> None:
        """Mark the run as finished, or as killed, because it may go on."""
        self._client.set_terminated(self._run, "FINISHED" if finished else "KILLED")

    def _experiment(self) -> str:
        from mlflow.exceptions import MlflowException

        name = os.environ.get("MLFLOW_EXPERIMENT_NAME", "raysim")
        if (experiment := self._client.get_experiment_by_name(name)) is None:
            try:
                return str(self._client.create_experiment(name))
            except MlflowException:
                if (experiment := self._client.get_experiment_by_name(name)) is None:
                    raise
        return str(experiment.experiment_id)  # another process may have created it meanwhile
