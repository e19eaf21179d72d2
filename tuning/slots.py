"""Slots: resident actors, each of which runs one trial at a time.

A slot reserves all resources of its trials from the start: a fraction of a GPU or cores, where the
trial runs inline, or a placement group, where the trial's own actors run beside it. A trial
requests nothing later, so that two trials never wait for each other.
"""

from __future__ import annotations

import json
import os
import threading
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, replace
from functools import partial
from pathlib import Path
from queue import SimpleQueue
from time import perf_counter
from typing import Any

import pyarrow.parquet as pq
import ray
import torch
from ray.util.placement_group import PlacementGroup, placement_group, remove_placement_group
from ray.util.scheduling_strategies import PlacementGroupSchedulingStrategy

import raysim
from raysim.config import parse
from raysim.core.errors import RaysimError, SettingsError
from raysim.execution.module_path import with_driver_path
from raysim.execution.ray_runtime import alive_nodes
from raysim.execution.resources import ActorPlan, plan_actors

RESERVE_SECONDS = 60.0
INHERITED_VARIABLES = ("RAYSIM_DATA",)
"""Environment variables that slots inherit from the tuner."""


@dataclass(frozen=True)
class Report:
    """Report of a slot about its trial.

    Attributes:
        curve: Accuracies on the held-out samples by round, of the evaluations since the last
            report; of all evaluations if the trial is finished.
        summary: Summary of the run if the trial is finished.
        error: Error message if the trial failed.
        paused_seconds: Duration of the pause at the evaluation before.
    """

    curve: Mapping[int, float] = field(default_factory=dict)
    summary: dict[str, Any] | None = None
    error: str | None = None
    paused_seconds: float = 0.0


def finished(folder: Path) -> Report:
    """Return the report of a finished run."""
    summary = json.loads((folder / "summary.json").read_text(encoding="utf-8"))
    rows = pq.read_table(folder / "metrics.parquet", columns=["round", "holdout_accuracy"])
    found = {row["round"]: row["holdout_accuracy"] for row in rows.to_pylist()}
    curve = {number: value for number, value in found.items() if value is not None}
    return Report(curve, summary)


class _Pruned(Exception):  # noqa: N818 - like optuna.TrialPruned, not an error
    """Raised in a trial's run to end it."""


class _TrialThread(raysim.Listener):
    """Run of a trial in a thread of its own, which may pause after each evaluation."""

    def __init__(self, settings: dict[str, Any], pausing: bool) -> None:
        self._pausing = pausing
        self._reports: SimpleQueue[Report] = SimpleQueue()
        self._decisions: SimpleQueue[bool] = SimpleQueue()
        self._paused_seconds = 0.0
        self._thread = threading.Thread(target=self._run, args=(settings,), daemon=True)
        self._thread.start()

    def report(self) -> Report:
        """Wait for an evaluation or the end of the run; return all reports since, merged."""
        report = self._reports.get()
        while not self._reports.empty():
            later = self._reports.get()
            report = replace(later, curve={**report.curve, **later.curve})
        return report

    def unpause(self) -> None:
        """Continue a paused run."""
        if self._pausing:
            self._decisions.put(True)

    def stop(self) -> None:
        """End a paused run."""
        self._decisions.put(False)
        self._thread.join()

    def round_done(self, row: Any) -> None:
        if row["holdout_accuracy"] is None:
            return
        self._send(Report({row["round"]: row["holdout_accuracy"]}))
        if self._pausing:
            begun = perf_counter()
            if not self._decisions.get():
                raise _Pruned
            self._paused_seconds = perf_counter() - begun

    def _send(self, report: Report) -> None:
        self._reports.put(replace(report, paused_seconds=self._paused_seconds))

    def _run(self, settings: dict[str, Any]) -> None:
        try:
            result = raysim.run(parse(settings), listener=self, force=True)
            self._send(finished(result.run_dir))
        except _Pruned:
            return
        except RaysimError as error:
            self._send(Report(error=str(error)))
        except Exception as error:
            self._send(Report(error=f"{type(error).__name__}: {error}"))


class SlotActor:
    """Ray actor that runs trials, one at a time."""

    def __init__(self, environment: Mapping[str, str]) -> None:
        import raysim.workloads  # noqa: F401 - registers the components

        os.environ.update(environment)
        self._trial: _TrialThread

    def pid(self) -> int:
        """Return the process's id."""
        return os.getpid()

    def start(self, settings: dict[str, Any], pausing: bool) -> Report:
        """Start a trial; return its first report.

        Args:
            settings: Settings of its run.
            pausing: Pause after each evaluation until `unpause` or `stop` is called.
        """
        if settings["engine"]["backend"] == "inline" and not torch.cuda.is_available():
            settings["engine"]["gpus_per_actor"] = 0.0  # GPUs declared to Ray but absent
        self._trial = _TrialThread(settings, pausing)
        return self._trial.report()

    def unpause(self) -> Report:
        """Continue the paused trial; return its next report."""
        self._trial.unpause()
        return self._trial.report()

    def stop(self) -> None:
        """End the paused trial."""
        self._trial.stop()


@dataclass
class Slot:
    """A slot, as the tuner sees it.

    Attributes:
        start_actor: Starts the slot's actor and returns its handle.
        engine: Settings of its trials by dotted key.
        group: Placement group of the slot and its trials' own actors, if they have any.
    """

    start_actor: Callable[[], Any]
    engine: dict[str, Any]
    group: PlacementGroup | None = None

    def __post_init__(self) -> None:
        self.actor = self.start_actor()

    def restart(self) -> None:
        """Replace a lost actor."""
        ray.kill(self.actor)
        self.actor = self.start_actor()

    def close(self) -> None:
        """Release the slot's resources."""
        ray.kill(self.actor)
        if self.group:
            remove_placement_group(self.group)


def make_slots(settings: raysim.Settings, jobs: int | None) -> list[Slot]:
    """Reserve slots on the cluster; Ray must be running.

    With a number in engine.actors, a trial runs on that many actors of its own; with "auto" it runs
    inline in its slot.

    Args:
        settings: Settings of a trial.
        jobs: Number of slots; None takes as many as fit.

    Raises:
        SettingsError: the slots do not fit on the cluster.
    """
    nodes = alive_nodes()
    actors_per_trial = 1 if settings.engine.actors == "auto" else settings.engine.actors
    fitting = plan_actors(settings.engine.model_copy(update={"actors": "auto"}), nodes, 10**9)
    slots = fitting.actors // actors_per_trial if jobs is None else jobs
    if not slots or (slots * actors_per_trial > fitting.actors and settings.engine.gpus_per_actor):
        raise SettingsError(
            f"jobs={slots}: {slots} trials of {actors_per_trial} actors do not fit; the cluster"
            f" fits {fitting.actors} actors of"
            f" engine.gpus_per_actor={settings.engine.gpus_per_actor:g}"
        )
    inherited = {name: os.environ[name] for name in INHERITED_VARIABLES if name in os.environ}
    actor = ray.remote(with_driver_path(SlotActor))
    plan = plan_actors(
        settings.engine.model_copy(update={"actors": slots * actors_per_trial}), nodes, 10**9
    )
    if settings.engine.actors == "auto":
        each = actor.options(num_cpus=plan.cpus, num_gpus=plan.gpus)
        start_actor = partial(each.remote, inherited)
        return [Slot(start_actor, {"engine.backend": "inline"}) for _ in range(slots)]
    return [_slot_with_group(actor, inherited, plan, actors_per_trial) for _ in range(slots)]


def _slot_with_group(
    actor: Any, inherited: Mapping[str, str], plan: ActorPlan, actors_per_trial: int
) -> Slot:
    bundle = {"CPU": plan.cpus} | ({"GPU": plan.gpus} if plan.gpus else {})
    group = placement_group([bundle] * actors_per_trial)
    if not group.wait(RESERVE_SECONDS):
        remove_placement_group(group)
        raise SettingsError(
            f"engine.actors={actors_per_trial}: no placement group of {actors_per_trial} actors"
            f" became available within {RESERVE_SECONDS:g} seconds; use fewer --jobs"
        )
    strategy = PlacementGroupSchedulingStrategy(group, placement_group_capture_child_tasks=True)
    beside = actor.options(num_cpus=0, scheduling_strategy=strategy)
    engine = {"engine.backend": "ray", "engine.cpus_per_actor": plan.cpus}
    return Slot(partial(beside.remote, inherited), engine, group)
