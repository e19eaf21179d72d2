"""Experiment trackers: a run's settings, rounds and summary in MLflow or W&B (`tracker`).

`tracker.json` in the run directory names the tracker's run and its last round, so that a resumed
run continues there without repeated rounds. The tracker's own environment variables and files give
server, project and credentials.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from importlib.util import find_spec
from pkgutil import resolve_name

from raysim.config import Settings
from raysim.driver.listeners.listener import Listener
from raysim.driver.listeners.trackers.base import Tracker, TrackingListener
from raysim.errors import SettingsError, without_passwords

TRACKERS = {
    "mlflow": "raysim.driver.listeners.trackers.mlflow_runs:MlflowRuns",
    "wandb": "raysim.driver.listeners.trackers.wandb_runs:WandbRuns",
}


def check_tracker(name: str | None) -> None:
    """Check that the package of a tracker is installed.

    Raises:
        SettingsError: the package is not installed.
    """
    if name is not None and find_spec(name) is None:
        raise SettingsError(f"tracker={name}: needs {name}; pip install 'raysim-fl[{name}]'")


@contextmanager
def tracked(settings: Settings, listener: Listener) -> Iterator[Listener]:
    """Yield a listener that also feeds the settings' tracker; the same listener without one.

    Raises:
        SettingsError: the tracker's package is missing, or its store or server cannot be used.
    """
    check_tracker(name := settings.tracker)
    if name is None:
        yield listener
        return
    try:
        tracker: Tracker = resolve_name(TRACKERS[name])()
    except Exception as error:  # the package may raise any class
        why = without_passwords(" ".join(str(error).split()))
        raise SettingsError(f"tracker={name}: cannot be used: {why}") from error
    with TrackingListener(name, tracker, settings, listener) as tracking:
        yield tracking
