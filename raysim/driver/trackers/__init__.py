"""Experiment trackers: a run's settings, rounds and summary in MLflow or W&B (`tracker`).

A tracker's run is named in `tracker.json` of the run directory, with the last round that it has
got, so that a resumed run goes on in it: rounds that are repeated are left out. Server, project and
credentials are the tracker's own affair: its environment variables and files apply.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from importlib import import_module
from importlib.util import find_spec

from raysim.config import Settings
from raysim.core.errors import SettingsError
from raysim.driver.listener import Listener
from raysim.driver.trackers.base import TrackingListener

TRACKERS = {
    "mlflow": "raysim.driver.trackers.mlflow_runs",
    "wandb": "raysim.driver.trackers.wandb_runs",
}


def check_tracker(settings: Settings) -> None:
    """Check that the package of the settings' tracker is installed.

    Raises:
        SettingsError: it is not.
    """
    if (name := settings.tracker) is not None and find_spec(name) is None:
        raise SettingsError(f"tracker={name}: needs {name}; pip install 'raysim[{name}]'")


@contextmanager
def tracked(settings: Settings, listener: Listener) -> Iterator[Listener]:
    """Yield a listener that also feeds the tracker of the settings; the listener without one.

    Raises:
        SettingsError: the tracker's package is missing.
    """
    check_tracker(settings)
    if (name := settings.tracker) is None:
        yield listener
        return
    tracker = import_module(TRACKERS[name]).make()
    with TrackingListener(name, tracker, settings, listener) as tracking:
        yield tracking
