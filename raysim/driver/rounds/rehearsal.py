"""Rehearsal of a run: its first round on few clients and samples, before anything starts.

The rehearsal finds what no component states: the groups that clients send and keep, the numbers
that they report, the state that the server returns. An error in it would end the first round, so
the engine refuses the run before it starts actors or writes anything.

The rehearsal is the run's own first round, with its evaluation and analyses, in this process and on
the CPU. It uses copies of network and state, and its own folders and executor. It has no virtual
time, because clients could drop out in it. The clients of an asynchronous method arrive at once.
Columns of virtual time and of staleness are 0. Nothing of the rehearsal stays.

A run on GPUs is not refused for clients that fail here, because they may work on a GPU. A resumed
run is not rehearsed: its settings and code have not changed since its first round.
"""

from __future__ import annotations

import copy
import random
import warnings
from collections.abc import Collection, Iterator
from contextlib import closing, contextmanager
from dataclasses import replace
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import numpy as np
import torch

from raysim.api.components import called
from raysim.combinations import Seen, check_rules
from raysim.config import Settings
from raysim.driver.listeners.listener import Listener
from raysim.driver.rounds.method_rounds import (
    passes_of,
    round_inputs,
    run_round,
    run_without_clients,
)
from raysim.driver.rounds.run import Run
from raysim.driver.start.context import CheckedRun, RunContext
from raysim.driver.start.parts import RunParts
from raysim.driver.start.stacking import check_parts
from raysim.driver.uploads.aggregating import fewest_clients
from raysim.driver.uploads.channel import states_of
from raysim.errors import (
    ChangedInputError,
    MachineError,
    RaysimError,
    RuleError,
    RunError,
    SettingsError,
)
from raysim.execution.base import InlineExecutor
from raysim.numbers.tensors import CPU, Groups, nbytes
from raysim.storage.client_states import NEVER, ClientStates, latest_versions, owner_of
from raysim.storage.run_directory import RunDirectory
from raysim.storage.run_state import RunState
from raysim.storage.trace import Stopwatch

FEW, MORE = (1, 8), (20, 1000)
"""Clients and samples of each, in the first rehearsal and in a second one if that fails."""
OF_MACHINES = (MachineError, MemoryError, OSError)
"""Errors of the machine, not of the run."""


def rehearse(checked: CheckedRun) -> int:
    """Rehearse a run; return the bytes that a client keeps for stages of the channel.

    A single client may lack what a round needs, or fail for its own reasons. If the first rehearsal
    fails, a larger one decides.

    Args:
        checked: The run; the rehearsal does not change its parts.

    Raises:
        RaysimError: the first round fails.
    """
    kept: Groups = {}
    of_server: Collection[str] = ()
    settings = checked.settings
    for few in (FEW, MORE):
        try:
            with _rehearsing(checked, *few) as run:
                after, *_ = run.done_round(run.context.initial)
                kept = _kept_for_stages(run.context, after)
                of_server = states_of(after, settings.stages)
                if kept or of_server or after.downlink:  # another round, which reads these states
                    run.done_round(after)
            break
        except OF_MACHINES:
            break
        except Exception as error:  # a user's code may raise any
            of_clients = isinstance(error, RunError)
            if few is MORE and of_clients and settings.engine.gpus_per_actor:
                break  # on a GPU they may work
            if few is MORE and of_clients:
                raise SettingsError(str(error)) from error
            if few is MORE or isinstance(error, RuleError | ChangedInputError):
                raise  # of what was changed, nothing may be read
    owners = {owner for group in kept if (owner := owner_of(group, settings.keepers))}
    check_rules(settings, "rehearsed", Seen(settings, None, keeping=owners | {*of_server}))
    check_rounds_without_clients(checked)
    check_parts(checked)
    return nbytes(kept)


@contextmanager
def _rehearsing(checked: CheckedRun, clients: int, samples: int) -> Iterator[Run]:
    """Yield a copy of a checked run for the rehearsal.

    Args:
        checked: The run.
        clients: Most clients of a pass, unless an aggregation or attack needs more.
        samples: Most samples of a client.
    """
    settings = checked.settings
    more: dict[str, Any] = {"backend": "inline", "gpus_per_actor": 0}
    engine = settings.engine.model_copy(update=more)
    evaluation = settings.evaluation.model_copy(update={"every": 1})
    more = {"engine": engine, "evaluation": evaluation, "trace": False, "on_client_error": "drop"}
    settings = settings.model_copy(update=more)
    evaluator = copy.copy(checked.evaluator)
    evaluator.few = True
    initial = checked.initial
    with TemporaryDirectory(prefix="raysim-") as folder, _unseen():
        run_dir = RunDirectory(Path(folder))
        parts: dict[str, Any] = {
            "settings": settings,
            "federation": replace(checked.federation, most=samples),
            "network": copy.deepcopy(checked.network),
            "initial": replace(initial, state=copy.deepcopy(initial.state)),
            "states": ClientStates(run_dir.states),
            "evaluator": evaluator,
            "clock": None,
        }
        parts = {**vars(checked), **parts}
        spec = CheckedRun(**parts).spec
        spec = replace(
            spec,
            evaluated=tuple(evaluation_set.first(samples) for evaluation_set in spec.evaluated),
        )
        trained = copy.deepcopy(checked.network)
        with closing(InlineExecutor(spec, trained)) as executor:
            watch, listener = Stopwatch(False), Listener()
            rehearsal_parts: dict[str, Any] = {
                "watch": watch,
                "listener": listener,
                "run_dir": run_dir,
            }
            context = RunContext(**parts, **rehearsal_parts, executor=executor)
            yield Run(context, few=_few(settings, clients))


def _few(settings: Settings, clients: int) -> int:
    """Return the number of clients of a rehearsal; if rounds overlap, no more than the buffer."""
    asynchrony = settings.asynchrony
    most = asynchrony.buffer if asynchrony and asynchrony.buffer else clients
    return fewest_clients(settings, min(clients, most))


def _kept_for_stages(context: RunContext, after: RunState) -> Groups:
    """Return the groups that a client keeps for stages: those of the first client with a state."""
    first = np.flatnonzero(after.versions[:, 0] != NEVER[0])[:1].tolist()
    for client, (version,) in latest_versions(after.versions, first).items():
        groups = context.states.read(client, version, CPU)
        return {g: t for g, t in groups.items() if owner_of(g, context.settings.keepers)}
    return {}


@contextmanager
def _unseen() -> Iterator[None]:
    """Restore the process's random generators afterwards, and suppress warnings."""
    before = torch.random.get_rng_state(), np.random.get_state(), random.getstate()
    with warnings.catch_warnings(action="ignore"):
        try:
            yield
        finally:
            torch.random.set_rng_state(before[0])
            np.random.set_state(before[1])
            random.setstate(before[2])


def check_rounds_without_clients(parts: RunParts) -> None:
    """Check that a method's round runs without clients, if a stage acts on such rounds.

    A round is without clients if none is selected, or if all drop out.

    Args:
        parts: The run's parts.

    Raises:
        SettingsError: the round fails, or has passes over clients that were not selected.
    """
    settings, initial = parts.settings, parts.initial
    acting = [stage for stage in settings.stages.values() if stage.acts_on_empty_rounds]
    may_be_empty, may_be_lost = settings.selection.may_be_empty, settings.clock.has_time
    if not acting or not (may_be_empty or may_be_lost):
        return
    note = Listener().note
    arguments = (settings, parts.network, initial)
    now = round_inputs(*arguments, sizes=parts.sizes, note=note, cohort=())
    passes = passes_of(settings, now, initial.state)
    try:
        run_round(passes, run_without_clients)
    except RaysimError as error:
        others = ["selection.name=uniform"] * may_be_empty + ["clock.name=none"] * may_be_lost
        raise SettingsError(
            f"{called(acting[0])}: acts on rounds without clients, and"
            f" {called(settings.method)} fails in them: {error}; choose {' '.join(others)}"
        ) from error
