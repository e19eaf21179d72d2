"""Export of a run's values by Ray."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from raysim.driver.listeners.listener import Forwarding, Listener, Started
from raysim.driver.listeners.trackers.base import run_name
from raysim.execution.ray_metrics import RayMetrics, ray_runs


def exported(listener: Listener) -> Listener:
    """Return a listener that also has Ray export the run's values; the listener without Ray."""
    return ExportingListener(listener) if ray_runs() else listener


class ExportingListener(Forwarding):
    """Listener that feeds Ray's metrics and another listener."""

    _metrics: RayMetrics
    _score: str | None

    def started(self, run: Started) -> None:
        """Name the run in its metrics."""
        self._score = run.score
        self._metrics = RayMetrics(run_name(run.path), run.method)
        super().started(run)

    def progress(self, done: int, total: int) -> None:
        """Keep the values of the last round."""
        self._metrics.refresh()
        super().progress(done, total)

    def round_done(self, row: Mapping[str, Any]) -> None:
        """Export the round, and its main score as `score`."""
        self._metrics.record({"score": row.get(self._score or ""), **row})
        super().round_done(row)
