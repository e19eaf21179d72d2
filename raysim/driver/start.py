"""Start of a run: checks everything, then opens executor and run directory."""

from __future__ import annotations

from contextlib import closing
from typing import Any

from raysim.config import Settings
from raysim.core.exits import interruptible
from raysim.driver.analyses.run_analyses import Analyses
from raysim.driver.context import CheckedRun, Result, RunContext
from raysim.driver.evaluation import Evaluator
from raysim.driver.identity import identity_of
from raysim.driver.listener import Listener
from raysim.driver.preflight import check_space, initial_checkpoint
from raysim.driver.run import Run
from raysim.execution.process import threads_of
from raysim.execution.ray_runtime import make_executor, ray_runtime
from raysim.federation.federation import Federation
from raysim.storage.client_states import ClientStates
from raysim.storage.run_directory import RunDirectory
from raysim.storage.trace import Stopwatch


def drive(
    settings: Settings,
    federation: Federation,
    run_dir: RunDirectory,
    listener: Listener,
    *,
    own_task: bool = False,
    force: bool = False,
) -> Result:
    """Start or resume a run; nothing is written before everything has been checked.

    Args:
        settings: The run's settings.
        federation: Its samples, client indices and network.
        run_dir: Its run directory.
        listener: Receives what happens.
        own_task: Whether it has a task of its own.
        force: Whether to go on where data, versions or machines differ from the checkpoint's.

    Raises:
        RaysimError: a setting, a file or a client does not allow the run.
        KeyboardInterrupt: the run was interrupted; its last committed round is checkpointed.
    """
    checked = check_run(settings, federation, run_dir)
    watch = Stopwatch(settings.trace)
    with (
        interruptible(),
        threads_of(settings.engine),
        ray_runtime(settings.engine) as if_killed,
        closing(make_executor(checked.spec, watch, listener.note)) as executor,
        run_dir.lock(settings, own_task),
    ):
        if_killed(f"type: raysim resume {run_dir.path}")
        driver: dict[str, Any] = {"watch": watch, "listener": listener, "force": force}
        run = Run(RunContext(**vars(checked), **driver, run_dir=run_dir, executor=executor))
        try:
            return run.execute()
        finally:
            run.recorder.close_events()


def check_run(settings: Settings, federation: Federation, run_dir: RunDirectory) -> CheckedRun:
    """Check the parts of a run; write nothing.

    Raises:
        RaysimError: a setting or a file does not allow the run.
    """
    states = ClientStates(run_dir.states.absolute())
    federation = federation.with_holdout(settings.evaluation.holdout, settings.seed)
    network, initial = initial_checkpoint(settings, federation)
    check_space(settings, states, initial.state)
    evaluator = Evaluator(settings, federation)
    analyses = Analyses(settings, federation, network, initial)
    return CheckedRun(
        settings=settings,
        federation=federation,
        network=network,
        initial=initial,
        states=states,
        evaluator=evaluator,
        analyses=analyses,
        identity=identity_of(settings.method, federation, network, analyses.reference),
    )
