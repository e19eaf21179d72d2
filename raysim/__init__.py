"""raysim: a Ray-scaled simulation engine for federated learning.

settings = raysim.load_config("mnist-fedavg", {"rounds": 5, "method.name": "scaffold"})
result = raysim.run(settings)
result.summary["final_accuracy"], result.metrics.to_pandas(), result.params
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from contextlib import nullcontext, suppress
from functools import partial
from importlib import import_module
from pathlib import Path
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from torch import Tensor, nn

    __version__: str

    from raysim.config import Settings
    from raysim.core.aggregation import (
        Aggregation,
        AggregationPlan,
        ArrivedUpdates,
        Updates,
    )
    from raysim.core.arrow import write_split
    from raysim.core.attack import Attack, KnownUpdates, MeasuredUpdates
    from raysim.core.chain import chain
    from raysim.core.channel import Received, Stage
    from raysim.core.client_indices import ClientIndices, ListedIndices
    from raysim.core.columns import Column
    from raysim.core.data import Dataset, Model, Partition, Split
    from raysim.core.encoding import Encoding
    from raysim.core.errors import RaysimError, RunError, SettingsError
    from raysim.core.masking import SecureSum
    from raysim.core.method import Asynchrony, Method, Passes, Round, ServerState
    from raysim.core.optimizer import Optimizer
    from raysim.core.privacy import NoiseTree, PrivacyClaim
    from raysim.core.rules import (
        Batch,
        Companion,
        LocalSteps,
        Outputs,
        Pass,
        Reduced,
        Rules,
        Trained,
        Transform,
        Upload,
        View,
    )
    from raysim.core.scoring import CLASSIFICATION, REGRESSION, Scoring
    from raysim.core.selection import Results, Sampling, Selection
    from raysim.core.temperature import Temperature, TemperatureRound
    from raysim.driver.context import Result
    from raysim.driver.iterator import RoundIterator
    from raysim.driver.listener import Listener, Started
    from raysim.federation.federation import Federation
    from raysim.federation.task import Task
    from raysim.tuning.tables.sweep import Sweep, sweep
    from raysim.tuning.tune import StudyTrials, tune
else:
    _HOMES = {
        "raysim.config": ("Settings",),
        "raysim.core.aggregation": (
            "Aggregation",
            "AggregationPlan",
            "ArrivedUpdates",
            "Updates",
        ),
        "raysim.core.arrow": ("write_split",),
        "raysim.core.attack": ("Attack", "KnownUpdates", "MeasuredUpdates"),
        "raysim.core.chain": ("chain",),
        "raysim.core.channel": ("Received", "Stage"),
        "raysim.core.client_indices": ("ClientIndices", "ListedIndices"),
        "raysim.core.columns": ("Column",),
        "raysim.core.data": ("Dataset", "Model", "Partition", "Split"),
        "raysim.core.encoding": ("Encoding",),
        "raysim.core.errors": ("RaysimError", "RunError", "SettingsError"),
        "raysim.core.masking": ("SecureSum",),
        "raysim.core.method": (
            "Asynchrony",
            "Method",
            "Passes",
            "Round",
            "ServerState",
        ),
        "raysim.core.optimizer": ("Optimizer",),
        "raysim.core.privacy": ("NoiseTree", "PrivacyClaim"),
        "raysim.core.scoring": ("CLASSIFICATION", "REGRESSION", "Scoring"),
        "raysim.core.rules": (
            *("Batch", "Companion", "LocalSteps", "Outputs", "Pass", "Reduced", "Rules"),
            *("Trained", "Transform", "Upload", "View"),
        ),
        "raysim.core.selection": ("Results", "Sampling", "Selection"),
        "raysim.core.temperature": ("Temperature", "TemperatureRound"),
        "raysim.driver.listener": ("Listener", "Started"),
        "raysim.driver.context": ("Result",),
        "raysim.driver.iterator": ("RoundIterator",),
        "raysim.federation.task": ("Task",),
        "raysim.tuning.tables.sweep": ("Sweep", "sweep"),
        "raysim.tuning.tune": ("StudyTrials", "tune"),
    }

    def __getattr__(name: str) -> Any:
        """Import a name of the interface when it is first asked for; torch takes seconds."""
        if name == "__version__":
            return _version()
        home = next((module for module, names in _HOMES.items() if name in names), None)
        if home is None:
            raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
        import_module("raysim.methods")  # registers them
        globals()[name] = found = getattr(import_module(home), name)
        return found

    def __dir__() -> list[str]:
        """Return the names of the interface, imported or not."""
        return sorted({*globals(), *__all__})


__all__ = [
    "CLASSIFICATION",
    "REGRESSION",
    "Aggregation",
    "AggregationPlan",
    "ArrivedUpdates",
    "Asynchrony",
    "Attack",
    "Batch",
    "ClientIndices",
    "Column",
    "Companion",
    "Dataset",
    "Encoding",
    "KnownUpdates",
    "ListedIndices",
    "Listener",
    "LocalSteps",
    "MeasuredUpdates",
    "Method",
    "Model",
    "NoiseTree",
    "Optimizer",
    "Outputs",
    "Partition",
    "Pass",
    "Passes",
    "PrivacyClaim",
    "RaysimError",
    "Received",
    "Reduced",
    "Result",
    "Results",
    "Round",
    "RoundIterator",
    "Rules",
    "RunError",
    "Sampling",
    "Scoring",
    "SecureSum",
    "Selection",
    "ServerState",
    "Settings",
    "SettingsError",
    "Split",
    "Stage",
    "Started",
    "StudyTrials",
    "Sweep",
    "Task",
    "Temperature",
    "TemperatureRound",
    "Trained",
    "Transform",
    "Updates",
    "Upload",
    "View",
    "chain",
    "check",
    "client_model",
    "load",
    "load_config",
    "resume",
    "rounds",
    "run",
    "sweep",
    "tune",
    "write_split",
]


def _version() -> str:
    """Return the installed version; that of a checkout that is not installed is unknown."""
    from importlib.metadata import PackageNotFoundError, version

    try:
        return version("raysim-fl")
    except PackageNotFoundError:
        return "unknown"


def load_config(
    source: str | Path,
    overrides: Mapping[str, Any] | None = None,
    listener: Listener | None = None,
) -> Settings:
    """Return validated settings.

    Args:
        source: Name of a preset, or path of a TOML or JSON file with the same keys; its key
            `preset` names one that gives the others. The table `[study]` of a study is left out.
            Without a preset, `dataset.name=NAME`: FedAvg on the partition `iid`, and what settings
            are by default; `model.name` is to be given.
        overrides: Values by dotted key, for example {"local.lr": 0.05}.
        listener: Told how the data is prepared, where its natural clients have to be counted; as
            that of `run`.

    Raises:
        SettingsError: the preset is unknown, a key is unknown, or a value is out of range.
        RunError: a newer version wrote the file, or a class that is named lies in a run directory.
    """
    from raysim import methods, workloads  # noqa: F401 - registers the components
    from raysim.config import apply_overrides
    from raysim.core.exits import interruptible
    from raysim.core.user_input import check_plain
    from raysim.driver.listener import listener_of_command
    from raysim.federation.natural import with_clients
    from raysim.notebook.runs import shown
    from raysim.storage.plugins import check_places
    from raysim.workloads.datasets.fetch import data_root

    raw, own = _read(str(source))
    raw = apply_overrides(raw, overrides or {})
    check_plain(raw)
    check_places(raw)
    with interruptible(), shown(listener or listener_of_command()) as told:
        return with_clients(raw, {*own, *(overrides or {})}, data_root(), told.preparing)


PLAIN = {"method.name": "fedavg", "partition.name": "iid"}
"""Settings that a start without a preset need not give."""


def _read(name: str) -> tuple[dict[str, Any], set[str]]:
    """Return the settings of a preset, a file or none, and the dotted keys that a user gave.

    Raises:
        SettingsError: there is no such preset, or the file holds something else.
    """
    from raysim.config import apply_overrides, parse_override
    from raysim.core.errors import SettingsError, visible
    from raysim.core.user_input import DATASET, dotted, read_file, user_path
    from raysim.storage.schema import settings_of_file
    from raysim.workloads.presets import PRESETS, on_preset
    from raysim.workloads.sweeps import FILE_KEYS

    if name in PRESETS:
        return PRESETS[name].settings.to_dict(), set()
    if name.startswith(DATASET):
        given = dict([parse_override(name)])
        return apply_overrides({}, {**PLAIN, **given}), {*given}
    if Path(name).suffix not in (".toml", ".json"):
        raise SettingsError(f"{visible(name)}: no such preset; {_instead_of(name)}")
    path = user_path(name)
    raw = settings_of_file(path, read_file(path))
    if {*FILE_KEYS} & raw.keys():
        raise SettingsError(f"{name}: is a file of a sweep; type: raysim sweep {name}")
    keys = {*dotted(raw)}
    raw = on_preset(raw)
    raw.pop("study", None)  # for `tune`
    if raw.pop("own_task", False):  # the config.json of such a run
        raise SettingsError(f"{name}: this run had a task of its own, which no file holds")
    return raw, keys


def _instead_of(name: str) -> str:
    """Return what to give in place of a name that is no preset."""
    from raysim.core.components import suggest
    from raysim.core.errors import SettingsError
    from raysim.core.user_input import override_text, user_path
    from raysim.workloads.presets import PRESETS

    hint = f"{suggest(name, sorted(PRESETS))} (or a .toml or .json file)"
    if "=" in name:
        hint = "name a preset first, such as mnist-fedavg, or begin with dataset.name=NAME"
    with suppress(OSError, SettingsError):  # no path
        if user_path(name).is_file():
            hint = "settings are a .toml or .json file; files of data are read with a preset,"
            hint += f" dataset.name=files and {override_text('dataset.path', name)}"
        elif Path(name).suffix.lower() in (".yaml", ".yml"):
            hint = "settings are a .toml or .json file"
    return hint


def _loaded(settings: Settings | str | Path) -> Settings:
    """Return settings, or those of a preset or file that is named in their place.

    Raises:
        SettingsError: they are something else, or cannot be loaded.
    """
    from raysim.config import Settings
    from raysim.core.errors import SettingsError

    if isinstance(settings, str | Path):
        return load_config(settings)
    given: Any = settings
    if not isinstance(given, Settings):
        kind = type(given).__name__
        raise SettingsError(f"settings: must be of raysim.load_config, or a name; is a {kind}")
    return settings


def check(
    settings: Settings | str | Path, task: Task | None = None, listener: Listener | None = None
) -> None:
    """Check that a run can start, as `run` does: with its data, network and analyses.

    Data that is missing is fetched; nothing is written to the run directory.

    Args:
        settings: From `load_config`, or the name of a preset or file.
        task: As that of `run`.
        listener: Told how the data is prepared.

    Raises:
        RaysimError: a setting or a file does not allow the run.
    """
    from raysim.driver.checks.preflight import with_cohort
    from raysim.driver.start import check_run
    from raysim.driver.trackers import check_tracker
    from raysim.notebook.runs import shown
    from raysim.storage.run_directory import RunDirectory

    settings = with_cohort(_loaded(settings), task)
    check_tracker(settings)
    with shown(listener) as told:
        federation = _federation(settings, task, told)
        check_run(settings, federation, RunDirectory(Path(settings.out or "runs")), told.note)


def rounds(
    settings: Settings | str | Path,
    task: Task | None = None,
    listener: Listener | None = None,
    *,
    force: bool = False,
) -> RoundIterator:
    """Iterate over the rounds of a run, from the first or where `settings.out` stopped.

    Each is a row of `metrics.parquet`, and is committed:

        with raysim.rounds(settings) as rounds:
            for row in rounds:
                if (row["train_loss"] or 0) > 10:
                    break
        rounds.result  # that of `run`, if the last round has been reached

    The end of the `with` statement closes the run: committed rounds are checkpointed, and the run
    directory, actors and Ray are released. `rounds` with the same settings, or `resume`, goes on
    to the bytes of an undisturbed run; rounds committed before are not yielded again.

    Arguments are those of `run`; without a listener nothing is shown.

    Raises:
        RaysimError: something is wrong that you can mend; its message says what.
    """
    from raysim.driver.checks.preflight import with_cohort
    from raysim.driver.iterator import RoundIterator
    from raysim.driver.listener import Listener
    from raysim.driver.start import drive, reserved_directory

    settings, listener = with_cohort(_loaded(settings), task), listener or Listener()
    prepare, own = partial(_federation, settings, task), task is not None
    held = reserved_directory(settings, listener, own_task=own, force=force)
    known = partial(_known_digests, settings)
    started = drive(settings, prepare, known, held, listener, own_task=own, force=force)
    return RoundIterator(started)


def run(
    settings: Settings | str | Path,
    task: Task | None = None,
    listener: Listener | None = None,
    *,
    force: bool = False,
) -> Result:
    """Simulate a federation, from the first round or where `settings.out` stopped.

    Args:
        settings: From `load_config`, or the name of a preset or file; a finished run of theirs is
            returned.
        task: Your own clients, test set and model, in place of those of the settings.
        listener: Told how the run goes. None shows a progress bar and a curve in a notebook, and
            nothing elsewhere; `raysim.Listener()` shows nothing.
        force: Go on where data, versions or machines differ from those before; the run records it.

    Raises:
        RaysimError: something is wrong that you can mend; its message says what.
        KeyboardInterrupt: the run was interrupted and can be resumed.
    """
    from raysim.notebook.runs import shown

    with shown(listener, "starting") as told:
        return rounds(settings, task, told, force=force).drain()


def resume(
    run_dir: str | Path,
    task: Task | None = None,
    listener: Listener | None = None,
    *,
    overrides: Mapping[str, Any] | None = None,
    force: bool = False,
) -> Result:
    """Go on with a run that was interrupted or killed; return a finished one as it is.

    Args:
        run_dir: The run directory.
        task: The task that the run was started with, where it had one.
        listener: As that of `run`.
        overrides: Values by dotted key, of `on_client_error`, `reference` (the same model),
            `trace`, `tracker`, and the settings of `engine` that change no result. More `rounds`
            train a run further, a finished one too, to what one of that many rounds has.
        force: Go on where data, versions or machines differ from those before; the run records it.

    Raises:
        RaysimError: the directory holds no run, or every checkpoint is damaged.
    """
    from raysim import methods, workloads  # noqa: F401 - registers the components
    from raysim.config import apply_overrides, parse
    from raysim.core.errors import RunError
    from raysim.core.user_input import may_grow, user_path
    from raysim.core.user_input.user_modules import leave_out_working_directory
    from raysim.storage.plugins import Plugins
    from raysim.storage.run_directory import RunDirectory

    overrides = overrides or {}
    directory = RunDirectory(user_path(run_dir), grows=any(map(may_grow, overrides)))
    leave_out_working_directory(directory.path)
    from raysim.driver.checks.preflight import with_cohort  # their packages try optional imports
    from raysim.driver.finished import check_growth, check_unchanged
    from raysim.driver.iterator import RoundIterator
    from raysim.driver.start import drive
    from raysim.notebook.runs import shown

    Plugins(directory.path).check_recorded(force)
    with shown(listener, "starting") as told:
        raw, own_task = directory.read_config(told.note)
        if own_task and task is None:
            message = "this run has a task of its own; raysim.resume needs its `task`"
            raise RunError(f"{run_dir}: {message}")
        settings = with_cohort(parse(apply_overrides(raw, overrides)), task)
        check_growth(directory.path, raw, settings)
        check_unchanged(directory.path, raw, settings, overrides, own_task=own_task)
        directory.check(settings, own_task)
        prepare, held = partial(_federation, settings, task), nullcontext(directory)
        own_task = task is not None
        known = partial(_known_digests, settings)
        started = drive(settings, prepare, known, held, told, own_task=own_task, force=force)
        return RoundIterator(started).drain()


def load(
    run_dir: str | Path,
    model: nn.Module | Callable[[], nn.Module] | None = None,
    *,
    best: bool = False,
) -> nn.Module:
    """Return the trained network of a run, in evaluation mode, for plain PyTorch.

    Args:
        run_dir: The run directory; of an unfinished run the last checkpoint's model.
        model: The network of a run with a task of its own, or a function that builds it; its
            tensors are replaced.
        best: Return that of the best round, by `patience_metric`, in place of the last one.

    Raises:
        RunError: the directory holds no run or no model.
        SettingsError: the network is another one.
    """
    from raysim import methods, workloads  # noqa: F401 - registers the components
    from raysim.core.user_input import user_path
    from raysim.core.user_input.user_modules import leave_out_working_directory
    from raysim.driver.listener import Listener

    path = user_path(run_dir)
    leave_out_working_directory(path)
    from raysim.driver.loading import load_network  # its packages try optional imports
    from raysim.workloads.datasets.fetch import data_root

    return load_network(path, model, data_root, Listener().note, best=best)


def client_model(
    run_dir: str | Path,
    client: int | str,
    task: Task | None = None,
    listener: Listener | None = None,
) -> dict[str, Tensor]:
    """Return the tensors of the model that a client of a run deploys, for `load_state_dict`.

    It is what the run's last checkpoint scores as the client's own: the method's `deployment`, or
    with `evaluation.when=after` what the client has after its local training. Where clients deploy
    the global model it is that one, and the listener is told.

    Args:
        run_dir: The run directory.
        client: The client's number, from 0, or its name.
        task: The task that the run was started with, where it had one.
        listener: Told about the model.

    Raises:
        RaysimError: there is no such client, no checkpoint, or other data than the run's.
    """
    from raysim import methods, workloads  # noqa: F401 - registers the components
    from raysim.config import parse
    from raysim.core.errors import RunError
    from raysim.core.user_input import user_path
    from raysim.core.user_input.user_modules import leave_out_working_directory
    from raysim.driver.listener import Listener
    from raysim.storage.plugins import Plugins
    from raysim.storage.run_directory import RunDirectory

    directory, listener = RunDirectory(user_path(run_dir)), listener or Listener()
    leave_out_working_directory(directory.path)
    from raysim.driver import export  # its packages try optional imports
    from raysim.driver.checks.preflight import with_cohort

    Plugins(directory.path).check_recorded(force=False)
    raw, own_task = directory.read_config(listener.note)
    if own_task and task is None:
        raise RunError(f"{run_dir}: this run has a task of its own; give it as `task`")
    settings = with_cohort(parse(raw), task)
    federation = _federation(settings, task, listener)
    return dict(export.client_model(directory, settings, federation, client, listener.note))


def _federation(settings: Settings, task: Task | None, listener: Listener) -> Federation:
    from dataclasses import replace  # tries an optional import, which the start must not find

    from raysim.driver.loading import read_start
    from raysim.federation.federation import from_settings
    from raysim.federation.task import from_task
    from raysim.workloads.datasets.fetch import data_root

    note, told = listener.note, (listener.preparing, listener.note)
    opened = from_task(task, note) if task else from_settings(settings, data_root, *told)
    if settings.start_from is None:
        return opened
    return replace(opened, start=read_start(Path(settings.start_from), note))


def _known_digests(settings: Settings) -> dict[str, str]:
    from raysim.federation.prepared import known_digests
    from raysim.workloads.datasets.fetch import data_root

    return known_digests(settings, data_root())
