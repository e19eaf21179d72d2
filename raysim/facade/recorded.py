"""Runs in run directories: resume them, and load their models.

The module removes a run directory from the paths of modules before it imports the driver, because
the driver's packages try optional imports.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from contextlib import nullcontext
from pathlib import Path
from typing import TYPE_CHECKING, Any

from torch import Tensor, nn

from raysim import methods, workloads  # noqa: F401 - registers the components
from raysim.config import apply_overrides, parse
from raysim.errors import RunError
from raysim.storage.plugins import Plugins
from raysim.storage.run_directory import RunDirectory
from raysim.user_input import may_grow, user_path
from raysim.user_input.user_modules import leave_out_working_directory

if TYPE_CHECKING:
    from raysim.config import Settings
    from raysim.driver.listeners.listener import Listener
    from raysim.driver.rounds.replay import Replay
    from raysim.driver.start.context import Result
    from raysim.federation.federation import Federation
    from raysim.federation.task import Task


def resume(
    run_dir: str | Path,
    task: Task | None = None,
    listener: Listener | None = None,
    *,
    overrides: Mapping[str, Any] | None = None,
    force: bool = False,
) -> Result:
    """Resume a run that was interrupted or killed; return a finished run as it is.

    Args:
        run_dir: The run directory.
        task: The task that the run was started with, if it had one.
        listener: See `run`.
        overrides: Values by dotted key, of `on_client_error`, `reference` (the same model),
            `trace`, `tracker`, and the settings of `engine` that change no result. More `rounds`
            train a run further, a finished one, too; the result is the same as that of a run with
            so many rounds.
        force: Resume even if data, versions or machines differ from before; the run records it.

    Raises:
        RaysimError: the directory holds no run, or every checkpoint is damaged.
    """
    overrides = overrides or {}
    directory = RunDirectory(user_path(run_dir), grows=any(map(may_grow, overrides)))
    leave_out_working_directory(directory.path)
    from raysim.driver.start.checks.preflight import with_cohort
    from raysim.driver.start.resume_checks import check_growth, check_unchanged
    from raysim.facade.runs import begun
    from raysim.notebook.runs import shown

    Plugins(directory.path).check_recorded(force)
    with shown(listener, "starting") as told:
        raw, own_task = directory.read_config(told.note)
        if own_task and task is None:
            message = "this run has its own task; raysim.resume needs its `task`"
            raise RunError(f"{run_dir}: {message}")
        settings = with_cohort(parse(apply_overrides(raw, overrides)), task)
        check_growth(directory.path, raw, settings)
        check_unchanged(directory.path, raw, settings, overrides, own_task=own_task)
        directory.check(settings, own_task)
        return begun(settings, task, nullcontext(directory), told, force=force).drain()


def load(
    run_dir: str | Path,
    model: nn.Module | Callable[[], nn.Module] | None = None,
    *,
    best: bool = False,
) -> nn.Module:
    """Return the trained network of a run, in evaluation mode, for plain PyTorch.

    Args:
        run_dir: The run directory; an unfinished run gives its last checkpoint's model.
        model: The network of a run with its own task, or a function that builds it; its tensors are
            replaced.
        best: Whether to return the model of the best round, by `patience_metric`, not the last one.

    Raises:
        RunError: the directory holds no run or no model.
        SettingsError: `model` is another network.
    """
    path = user_path(run_dir)
    leave_out_working_directory(path)
    from raysim.driver.evaluation.loading import load_network
    from raysim.driver.listeners.listener import Listener
    from raysim.workloads.datasets.fetch import data_root

    return load_network(path, model, data_root, Listener().note, best=best)


def client_model(
    run_dir: str | Path,
    client: int | str,
    task: Task | None = None,
    listener: Listener | None = None,
) -> dict[str, Tensor]:
    """Return the tensors of the model that a client of a run deploys, for `load_state_dict`.

    The run's last checkpoint scores it as the client's own: the method's `deployment`, or with
    `evaluation.when=after` the client's model after its local training. If clients deploy the
    global model, this function returns it, and tells the listener.

    Args:
        run_dir: The run directory.
        client: The client's number, from 0, or its name.
        task: The task that the run was started with, if it had one.
        listener: Told about the model.

    Raises:
        RaysimError: there is no such client, no checkpoint, or other data than the run's.
    """
    directory = RunDirectory(user_path(run_dir))
    leave_out_working_directory(directory.path)
    from raysim.driver.evaluation import client_export as export
    from raysim.driver.listeners.listener import Listener

    listener = listener or Listener()
    Plugins(directory.path).check_recorded(force=False)
    settings, federation = _recorded(directory, task, listener)
    return dict(export.client_model(directory, settings, federation, client, listener.note))


def replay(
    run_dir: str | Path,
    round_number: int,
    client: int | str,
    task: Task | None = None,
    listener: Listener | None = None,
    *,
    force: bool = False,
) -> Replay:
    """Train a client again as in a round of a run, in this process, where `breakpoint()` stops.

    The round begins from the checkpoint before it; rounds between are run again. The run directory
    is only read.

    Args:
        run_dir: The run directory.
        round_number: The round, counted from 1.
        client: The client's number, from 0, or its name.
        task: The task that the run was started with, if it had one.
        listener: Told what is run, and the traceback of a client that fails.
        force: Go on with other data or code than the run's.

    Raises:
        RaysimError: there is no such client or round, the client fails, or data or code differ.
    """
    directory = RunDirectory(user_path(run_dir))
    leave_out_working_directory(directory.path)
    from raysim.driver.evaluation.client_export import client_number
    from raysim.driver.listeners.listener import Listener
    from raysim.driver.rounds import replay as replays

    listener = listener or Listener()
    try:
        Plugins(directory.path).check_recorded(force)
    except RunError as error:
        raise RunError(f"{error}; to replay with the present one, type --force") from error
    settings, federation = _recorded(directory, task, listener)
    number = client_number(client, settings.clients, federation.names)
    of_run = directory, settings, federation
    return replays.replay(*of_run, round_number, number, listener=listener, force=force)


def _recorded(
    directory: RunDirectory, task: Task | None, listener: Listener
) -> tuple[Settings, Federation]:
    """Return the settings of a run, and its samples, client indices and network.

    Raises:
        RunError: the directory holds no run, or one with its own task, which is not given.
    """
    from raysim.driver.start.checks.preflight import with_cohort
    from raysim.facade.runs import federation_of

    raw, own_task = directory.read_config(listener.note)
    if own_task and task is None:
        raise RunError(f"{directory.path}: this run has its own task; give it as `task`")
    settings = with_cohort(parse(raw), task)
    return settings, federation_of(settings, task, listener)
