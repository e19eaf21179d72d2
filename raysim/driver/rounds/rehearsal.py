"""Rehearsal of a run: its first round, on few clients and samples; nothing of it stays.

It shows facts that no component states: the groups that clients send and keep, the numbers that
they report, the state that the server returns. An error in it would have ended the first round, so
the engine refuses the run before actors start and before it writes anything. The rehearsal is the
round that the run begins with, its evaluation and analyses included, in this process and on the
CPU. It works on copies of network and state, with its own folders and executor, and without virtual
time, in which clients may drop out. The clients of an asynchronous method arrive at once. Columns
of virtual time and of staleness are 0.

Clients that fail here do not refuse a run on GPUs, as they may work there.

A resumed run is not rehearsed: its settings and code have not changed since its first round.
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

from raysim.combinations import Seen, check_rules
from raysim.config import Settings
from raysim.driver.listeners.listener import Listener
from raysim.driver.rounds.run import Run
from raysim.driver.start.checks.stages import check_rounds_without_clients
from raysim.driver.start.context import CheckedRun, RunContext
from raysim.driver.uploads.aggregating import fewest_clients
from raysim.driver.uploads.channel import states_of
from raysim.errors import MachineError, RuleError, RunError, SettingsError
from raysim.execution.base import InlineExecutor
from raysim.numbers.tensors import CPU, Groups, nbytes
from raysim.storage.client_states import NEVER, ClientStates, latest_versions, owner_of
from raysim.storage.run_directory import RunDirectory
from raysim.storage.run_state import RunState
from raysim.storage.trace import Stopwatch

FEW, MORE = (1, 8), (20, 1000)
"""Clients of a rehearsal and samples of each; and of a second one, where the first fails."""
OF_MACHINES = (MachineError, MemoryError, OSError)
"""Errors that say nothing of a run, which may train elsewhere."""


def rehearse(checked: CheckedRun) -> int:
    """Rehearse a run; return the bytes that a client keeps for stages of the channel.

    One client alone may lack what a round needs, or fail alone. Where it fails, others decide: the
    run is refused if all of them fail, too.

    Args:
        checked: The run, whose parts stay as they are.

    Raises:
        RaysimError: its first round fails.
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
                if kept or of_server or after.downlink:  # once more with it
                    run.done_round(after)
            break
        except OF_MACHINES:
            break
        except Exception as error:  # of a user's code it may be any
            of_clients = isinstance(error, RunError)
            if few is MORE and of_clients and settings.engine.gpus_per_actor:
                break  # on a GPU they may work
            if few is MORE and of_clients:
                raise SettingsError(str(error)) from error
            if few is MORE or isinstance(error, RuleError):
                raise
    owners = {owner for group in kept if (owner := owner_of(group, settings.stages))}
    check_rules(settings, "rehearsed", Seen(settings, None, keeping=owners | {*of_server}))
    check_rounds_without_clients(checked)
    return nbytes(kept)


@contextmanager
def _rehearsing(checked: CheckedRun, clients: int, samples: int) -> Iterator[Run]:
    """Yield a run like a checked one, whose rounds are rehearsals.

    Args:
        checked: The run.
        clients: Most clients of a pass, unless aggregations and attacks need more.
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
        spec = replace(spec, evaluated=tuple(each.first(samples) for each in spec.evaluated))
        trained = copy.deepcopy(checked.network)
        with closing(InlineExecutor(spec, trained)) as executor:
            watch, listener = Stopwatch(False), Listener()
            given: dict[str, Any] = {"watch": watch, "listener": listener, "run_dir": run_dir}
            context = RunContext(**parts, **given, executor=executor)
            yield Run(context, few=_few(settings, clients))


def _few(settings: Settings, clients: int) -> int:
    """Return the clients of a rehearsal: at most a version's clients, where rounds overlap."""
    asynchrony = settings.asynchrony
    most = asynchrony.buffer if asynchrony and asynchrony.buffer else clients
    return fewest_clients(settings, min(clients, most))


def _kept_for_stages(context: RunContext, after: RunState) -> Groups:
    """Return the groups that the first client with a state keeps for stages after a round."""
    first = np.flatnonzero(after.versions[:, 0] != NEVER[0])[:1].tolist()
    for client, (version,) in latest_versions(after.versions, first).items():
        groups = context.states.read(client, version, CPU)
        return {g: t for g, t in groups.items() if owner_of(g, context.settings.stages)}
    return {}


@contextmanager
def _unseen() -> Iterator[None]:
    """Leave the generators of the process as they are, and let nothing warn."""
    before = torch.random.get_rng_state(), np.random.get_state(), random.getstate()
    with warnings.catch_warnings(action="ignore"):
        try:
            yield
        finally:
            torch.random.set_rng_state(before[0])
            np.random.set_state(before[1])
            random.setstate(before[2])
