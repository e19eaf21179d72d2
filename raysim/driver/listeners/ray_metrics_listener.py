"""Export of a run's values with Ray's metrics for Prometheus (`ray.util.metrics`).

Each process hands its values to Ray's agent on its node every 10 seconds; to set a value takes
microseconds. Ray drops a gauge that is not set again before two more reports.
"""

from __future__ import annotations

from collections.abc import Mapping
from time import perf_counter
from typing import Any

import ray
from ray.util.metrics import Counter, Gauge

from raysim.driver.listeners.listener import Forwarding, Listener, Started
from raysim.driver.listeners.trackers.base import run_name

GAUGES = {
    "round": "Last committed round",
    "train_loss": "Training loss of the last round",
    "score": "Main score of the last round that was evaluated",
}
"""Exported values of the last round, with their descriptions."""
CLIENTS = "Clients that have been trained; its rate is clients a second"
LABELS = ("run", "method")
REFRESH_SECONDS = 1.0
"""Seconds after which gauges are set again; the shortest interval of Ray's reports."""


def ray_runs() -> bool:
    """Return whether this process is connected to Ray."""
    return bool(ray.is_initialized())


class RayMetrics:
    """Metrics of a run: `ray_raysim_clients_total`, and `ray_raysim_<name>` for GAUGES.

    Args:
        run: Label of the values: the run's name.
        method: Label of the values: the run's method.
    """

    def __init__(self, run: str, method: str) -> None:
        labels = dict(zip(LABELS, (run, method), strict=True))
        self._clients = Counter("raysim_clients", CLIENTS, LABELS).set_default_tags(labels)
        self._gauges = {
            name: Gauge(f"raysim_{name}", description, LABELS).set_default_tags(labels)
            for name, description in GAUGES.items()
        }
        self._values: dict[str, float | None] = {}
        self._refreshed = 0.0

    def record(self, row: Mapping[str, Any]) -> None:
        """Record a row of `metrics.parquet` with its `score`; missing values stay as they were."""
        if row["clients"]:
            self._clients.inc(row["clients"])
        self._values |= {name: row[name] for name in GAUGES if row.get(name) is not None}
        self._set_gauges()

    def refresh(self) -> None:
        """Set the gauges again during a long round; may be called after every client."""
        if perf_counter() - self._refreshed >= REFRESH_SECONDS:
            self._set_gauges()

    def _set_gauges(self) -> None:
        for name, value in self._values.items():
            self._gauges[name].set(value)
        self._refreshed = perf_counter()


def exported(listener: Listener) -> Listener:
    """Return a listener that also exports the run's values; the same listener without Ray."""
    return ExportingListener(listener) if ray_runs() else listener


class ExportingListener(Forwarding):
    """Listener that exports values with Ray's metrics and forwards to another listener."""

    _metrics: RayMetrics
    _score: str | None

    def started(self, run: Started) -> None:
        """Begin the run's metrics."""
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
