"""raysim: a Ray-scaled simulation engine for federated learning.

import raysim

settings = raysim.load_config("mnist-fedavg", {"rounds": 5, "method.name": "scaffold"})
result = raysim.run(settings)
result.summary["final_accuracy"], result.metrics.to_pandas(), result.params
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from importlib import import_module
from pathlib import Path
from typing import Any

from raysim import methods as _methods  # registers the methods
from raysim.config import Settings, apply_overrides, parse, read_file
from raysim.core.chain import chain
from raysim.core.components import suggest
from raysim.core.data import ClientIndices, Dataset, ListedIndices, Model, Partition, Split
from raysim.core.errors import RaysimError, RunError, SettingsError
from raysim.core.method import Method, Round, ServerState
from raysim.core.rules import (
    Batch,
    Outputs,
    Pass,
    Reduced,
    Rules,
    Trained,
    Transform,
    Upload,
    View,
)
from raysim.driver.listener import Listener, Started
from raysim.driver.run import Result, drive
from raysim.federation.federation import Task, from_settings, from_task
from raysim.storage.run_directory import RunDir

__all__ = [
    "Batch",
    "ClientIndices",
    "Dataset",
    "ListedIndices",
    "Listener",
    "Method",
    "Model",
    "Outputs",
    "Partition",
    "Pass",
    "RaysimError",
    "Reduced",
    "Result",
    "Round",
    "Rules",
    "ServerState",
    "Settings",
    "Split",
    "Started",
    "Task",
    "Trained",
    "Transform",
    "Upload",
    "View",
    "chain",
    "load_config",
    "resume",
    "run",
]

del _methods


def load_config(source: str | Path, overrides: Mapping[str, Any] | None = None) -> Settings:
    """Return validated settings.

    Args:
        source: Name of a preset, or path of a TOML or JSON file with the same keys.
        overrides: Values by dotted key, for example {"local.lr": 0.05}.

    Raises:
        SettingsError: the preset is unknown, a key is unknown, or a value is out of range.
    """
    import_module("raysim.workloads")  # registers datasets, partitions and models
    presets: Mapping[str, Any] = import_module("raysim.workloads.presets").PRESETS
    name = str(source)
    if name in presets:
        raw = presets[name].settings.to_dict()
    elif Path(name).suffix in (".toml", ".json"):
        raw = read_file(Path(name))
        if raw.pop("own_task", False):  # the config.json of such a run
            raise SettingsError(f"{name}: this run had a task of its own, which no file holds")
    else:
        raise SettingsError(
            f"{name}: no such preset; {suggest(name, sorted(presets))} (or a .toml or .json file)"
        )
    return parse(apply_overrides(raw, overrides or {}))


def run(settings: Settings, task: Task | None = None, listener: Listener | None = None) -> Result:
    """Simulate a federation, from the first round or where `settings.out` stopped.

    Args:
        settings: From `load_config`.
        task: Your own clients, test set and model; the settings' dataset, partition, model and
            clients do not apply then.
        listener: Told how the run goes.

    Raises:
        RaysimError: something is wrong that you can mend; its message says what.
        KeyboardInterrupt: the run was interrupted and can be resumed.
    """
    settings = _adapt(settings, task)
    run_dir = RunDir(Path(settings.out) if settings.out else RunDir.default(settings.method.title))
    run_dir.check(settings, own_task=task is not None)
    return _drive(settings, task, run_dir, listener or Listener())


def resume(
    run_dir: str | Path, task: Task | None = None, listener: Listener | None = None
) -> Result:
    """Go on with a run that was interrupted or killed.

    Args:
        run_dir: The run directory.
        task: The task that the run was started with, where it had one.
        listener: Told how the run goes.

    Raises:
        RaysimError: the directory holds no run, a finished run, or every checkpoint is damaged.
    """
    import_module("raysim.workloads")
    directory = RunDir(Path(run_dir))
    raw, own_task = directory.read_config()
    if own_task and task is None:
        raise RunError(f"{run_dir}: this run has a task of its own; raysim.resume needs its `task`")
    if directory.summary.exists():
        raise RunError(f"{run_dir}: the run is finished; nothing is left to resume")
    return _drive(_adapt(parse(raw), task), task, directory, listener or Listener())


def _adapt(settings: Settings, task: Task | None) -> Settings:
    return settings.model_copy(update={"clients": len(task.clients)}) if task else settings


def _drive(settings: Settings, task: Task | None, run_dir: RunDir, listener: Listener) -> Result:
    if task:
        return drive(settings, from_task(task), run_dir, listener, own_task=True)
    root: Callable[[], Path] = import_module("raysim.workloads.datasets.fetch").data_root
    return drive(settings, from_settings(settings, root, listener.preparing), run_dir, listener)
