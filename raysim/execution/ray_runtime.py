"""Ray for a run: started or joined without output; and the choice of the executor.

A Ray that this module starts is for this run alone: it listens on the loopback interface, every
request needs a token that only its processes have in their environment, and its folder is removed
after the run (`ray_folder`). A signal to the whole process group, as timeout(1) and Slurm send it,
does not reach Ray, which the checkpoint still needs. Ray's autoscaler, log monitor and API server,
which has no dashboard here, are not started: no run needs these three processes, and `ray.init`
waits for the last one. Ray has no public settings for the loopback interface on Linux, for signals
and for these processes: its modules are changed.
"""

from __future__ import annotations

import logging
import os
import secrets
import signal
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import partial
from pathlib import Path
from threading import Timer
from typing import Any

import ray
import torch
from ray._private import parameter, ray_constants, services
from ray._private import utils as ray_utils
from ray._private import worker as ray_worker
from ray._raylet import (  # type: ignore[attr-defined]  # written in Cython
    AuthenticationTokenLoader,
    Config,
)
from ray.util.client import ray as client

from raysim.config import EngineSettings
from raysim.errors import MachineError, RunError, SettingsError
from raysim.execution.base import Executor, InlineExecutor
from raysim.execution.cluster_health import alive_nodes, check_head
from raysim.execution.pool.demand import plan_pool
from raysim.execution.pool.ray_folder import RAY, own_folder, short_place
from raysim.execution.pool.ray_pool import ActorPool
from raysim.execution.process import unsupported_gpus
from raysim.execution.resources import unused_gpus
from raysim.execution.worker import WorkerSpec
from raysim.process.exits import FAULT, delay_signals, exit_code, last_words, retake_signals
from raysim.process.machine.cores import usable_cores
from raysim.process.machine.memory_limit import memory_limit
from raysim.storage.environment import gpu_names
from raysim.storage.trace import Stopwatch

CONNECT_SECONDS = 10.0
END_SECONDS = 60.0
"""Seconds within which Ray must disconnect a driver."""
RESUME = "type the same command again"
KILLED = (
    "raysim: this process was killed, by a user, by the system for want of memory, or by Ray, which"
    " was stopped or killed on this machine; fix this, then {}"
)
"""Last line of a process that could not write one itself."""


@contextmanager
def ray_runtime(engine: EngineSettings) -> Iterator[Callable[[str], None]]:
    """Provide a Ray instance for a run: the caller's, the one at RAY_ADDRESS, or a new one.

    Yields a function that sets the advice for the case that this process is killed, at first
    `RESUME`. The caller raises interruptions: Ray ends with the body.

    Raises:
        RunError: the cluster at RAY_ADDRESS cannot be joined, or only by Ray Client, or a token is
            missing.
        MachineError: Ray cannot be started.
    """
    address = os.environ.get("RAY_ADDRESS", "local")
    if engine.backend != "inline":
        _refuse_client(address)
    if engine.backend == "inline" or ray.is_initialized():
        yield lambda resume: None
        return
    os.environ.setdefault("RAY_ACCEL_ENV_VAR_OVERRIDE_ON_ZERO", "0")
    with (
        last_words(KILLED.format(RESUME)) as say,
        _own_cluster() if address == "local" else _joined_cluster(address),
    ):
        yield lambda resume: say(KILLED.format(resume))


def _refuse_client(address: str) -> None:
    """Check that the driver is not connected by Ray Client.

    Raises:
        RunError: it is, or would be.
    """
    if client.is_connected():  # type: ignore[no-untyped-call]
        setting = "ray.init"
    elif address.startswith("ray://") and not ray.is_initialized():
        setting = f"RAY_ADDRESS={address}"
    else:
        return
    raise RunError(
        f"{setting}: Ray Client (ray://) is not allowed: start the run on a node of the cluster,"
        " with HOST:PORT of its head as RAY_ADDRESS, or from here with raysim submit"
    )


@contextmanager
def _joined_cluster(address: str) -> Iterator[None]:
    """Join a cluster, with the user's token."""
    try:
        try:
            if head := services.canonicalize_bootstrap_address(address):
                check_head(head, CONNECT_SECONDS)
            _init(address=address)
        except Exception as error:  # Ray raises errors of many kinds
            line = " ".join(str(error).split())
            raise RunError(f"RAY_ADDRESS={address}: cannot be joined: {line}") from error
        yield
    finally:
        with delay_signals():
            _shut_down(sys.exception())


@contextmanager
def _own_cluster() -> Iterator[None]:
    """Start Ray on this machine for this process alone; after a fault, name its logs."""
    with own_folder(short_place()) as folder, _own_token():
        try:
            with delay_signals():
                _start(folder / RAY)  # a subfolder, as Ray opens its folder to all users
            yield
        finally:
            with delay_signals():
                _continue_stopped()
                _shut_down(sys.exception())


def _shut_down(error: BaseException | None) -> None:
    """Disconnect from Ray; end the process if that takes too long, as with a stopped raylet.

    Args:
        error: The error that ended the run, which sets the exit code; `last_words` prints how to
            continue.
    """
    code = exit_code(error) if isinstance(error, KeyboardInterrupt) else FAULT
    timer = Timer(END_SECONDS, os._exit, [getattr(error, "exit_code", code)])
    timer.start()
    try:
        ray.shutdown()
    finally:
        timer.cancel()


def _continue_stopped() -> None:
    """Continue stopped processes of this run's Ray; its shutdown would wait for them forever."""
    if not hasattr(signal, "SIGCONT"):  # Windows stops none
        return
    node: Any = ray_worker._global_node
    for started in node.all_processes.values() if node else ():
        for process_info in started:
            process_info.process.send_signal(signal.SIGCONT)


def _start(folder: Path) -> None:
    """Start Ray on the loopback interface, with all its files in a folder.

    Raises:
        MachineError: Ray cannot be started.
    """
    try:
        detached = partial(services.ConsolePopen, start_new_session=True)
        fewer: dict[str, Any] = {"no_monitor": True, "include_log_monitor": False}
        with (
            _changed(ray_constants, "ENABLE_RAY_CLUSTER", False),
            _changed(services, "ConsolePopen", detached),
            _changed(parameter, "RayParams", partial(parameter.RayParams, **fewer)),
            _changed(services, "start_api_server", lambda *_, **__: (None, None)),
        ):
            _init(
                address="local",
                num_cpus=usable_cores(),
                include_dashboard=False,
                _temp_dir=str(folder),
            )
    except Exception as error:  # Ray raises errors of many kinds, a bare one after a timeout
        cause = memory_limit() or " ".join(str(error).split())
        raise MachineError(f"Ray cannot be started: {cause}") from error


def _init(**arguments: Any) -> None:
    """Start or join Ray.

    Signal handlers are kept, as Ray's would end the process at once. The output of its other
    processes, such as the log of a killed raylet, is not printed below raysim's line.
    """
    with (
        _changed(ray_utils, "set_sigterm_handler", lambda _: None),
        _changed(ray_worker, "listen_error_messages", lambda *_: None),
    ):
        ray.init(**arguments, log_to_driver=False, logging_level=logging.ERROR)
    retake_signals()


@contextmanager
def _own_token() -> Iterator[None]:
    """Let Ray require a new random token, which its processes inherit."""
    token = {"RAY_AUTH_MODE": "token", "RAY_AUTH_TOKEN": secrets.token_hex(32)}
    before = {name: os.environ.pop(name, None) for name in token}
    os.environ.update(token)
    _reread_token()
    try:
        yield
    finally:
        for name, value in before.items():
            os.environ.pop(name)
            if value is not None:
                os.environ[name] = value
        _reread_token()


def _reread_token() -> None:
    """Let Ray read the mode and the token from the environment again."""
    Config.initialize("")
    AuthenticationTokenLoader.instance().reset_cache()


@contextmanager
def _changed(module: Any, name: str, value: object) -> Iterator[None]:
    """Set a name in a module of Ray to another value during the body."""
    before = getattr(module, name)
    setattr(module, name, value)
    try:
        yield
    finally:
        setattr(module, name, before)


def open_executor(spec: WorkerSpec, watch: Stopwatch, note: Callable[[str], None]) -> Executor:
    """Build the executor of a run; Ray must be running for the backend "ray".

    Args:
        spec: Specification of its workers.
        watch: The driver's stopwatch.
        note: Shows the user a line.

    Raises:
        SettingsError: the settings need more than the machine or cluster has, or can have.
    """
    engine = spec.settings.engine
    absent = bool(engine.gpus_per_actor) and not torch.cuda.is_available()
    unsupported = unsupported_gpus() if absent else ""
    if unsupported or (absent and engine.backend == "inline"):
        raise SettingsError(
            f"engine.gpus_per_actor={engine.gpus_per_actor:g}: must be 0, as"
            f" {unsupported or 'this machine has no GPU that torch can use'}"
        )
    if engine.backend == "ray":
        plan, demand = plan_pool(engine, spec.settings.cohort_size, note)
        try:
            note_unused_gpus(engine, note)
            return ActorPool(spec, plan, watch, demand)
        except BaseException:
            if demand:
                demand.close()
            raise
    note_unused_gpus(engine, note)
    return InlineExecutor(spec)


def note_unused_gpus(engine: EngineSettings, note: Callable[[str], None]) -> None:
    """Note that GPUs are left unused; for a study's trials, the study does."""
    in_trial = ray.is_initialized() and ray.get_runtime_context().get_actor_id()
    if engine.backend == "ray":
        gpus = unused_gpus(engine, alive_nodes())
    else:
        gpus = 0 if engine.gpus_per_actor else len(gpu_names())
    if gpus and not in_trial:
        note(
            f"engine.gpus_per_actor=0: training on the CPU, and leaving GPUs unused: {gpus:g};"
            " engine.gpus_per_actor=1 uses one for each actor, slot or inline run"
        )
