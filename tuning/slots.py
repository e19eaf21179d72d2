"""Slots: resident actors, each of which runs one trial at a time, evaluation by evaluation.

A slot holds everything that its trials need from the start: its own share of a GPU or of cores,
where the trial runs inline, or a whole placement group, where the trial's own actors run beside it.
A trial never asks for more, so no two can wait for each other.
"""

from __future__ import annotations

import json
import os
import threading
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from queue import SimpleQueue
from typing import Any

import pyarrow.parquet as pq
import ray
import torch
from ray.util.placement_group import PlacementGroup, placement_group, remove_placement_group
from ray.util.scheduling_strategies import PlacementGroupSchedulingStrategy

import raysim
from raysim.core.errors import RaysimError, SettingsError
from raysim.engine.resources import ActorPlan, plan_actors
from raysim.engine.session import alive_nodes

RESERVE_SECONDS = 60.0
INHERITED = ("RAYSIM_DATA",)
"""Environment variables that slots take over from the tuner."""


@dataclass(frozen=True)
class Report:
    """What a slot says of its trial.

    Attributes:
        step: The round of the evaluation that it has come to.
        accuracy: What that found on the held-out samples.
        summary: What came of the trial, where it is finished.
        curve: What all its evaluations found, by round, where it is finished.
        error: Why it failed, where it did.
    """

    step: int = 0
    accuracy: float = 0.0
    summary: dict[str, Any] | None = None
    curve: Mapping[int, float] = field(default_factory=dict)
    error: str | None = None


def finished(folder: Path) -> Report:
    """Return the report of a run that is finished."""
    summary = json.loads((folder / "summary.json").read_text(encoding="utf-8"))
    rows = pq.read_table(folder / "metrics.parquet", columns=["round", "holdout_accuracy"])
    found = {row["round"]: row["holdout_accuracy"] for row in rows.to_pylist()}
    curve = {number: value for number, value in found.items() if value is not None}
    return Report(summary=summary, curve=curve)


class _Stopped(Exception):  # noqa: N818 - what happened to the trial; nothing went wrong
    """The trial is not wanted any more."""


class _Trial(raysim.Listener):
    """A run in a thread of its own, held up at each evaluation until it is told to go on."""

    def __init__(self, settings: dict[str, Any]) -> None:
        self._reports: SimpleQueue[Report] = SimpleQueue()
        self._wanted: SimpleQueue[bool] = SimpleQueue()
        self._thread = threading.Thread(target=self._run, args=(settings,), daemon=True)
        self._thread.start()

    def report(self) -> Report:
        """Wait for the next evaluation, or for the end."""
        return self._reports.get()

    def go_on(self, wanted: bool) -> None:
        """Let it go on, or end it and wait until it has."""
        self._wanted.put(wanted)
        if not wanted:
            self._thread.join()

    def round_done(self, row: Any) -> None:
        if row["holdout_accuracy"] is None:
            return
        self._reports.put(Report(row["round"], row["holdout_accuracy"]))
        if not self._wanted.get():
            raise _Stopped

    def _run(self, settings: dict[str, Any]) -> None:
        try:
            result = raysim.run(raysim.config.parse(settings), listener=self)
            self._reports.put(finished(result.run_dir))
        except _Stopped:
            return
        except RaysimError as error:
            self._reports.put(Report(error=str(error)))
        except Exception as error:
            self._reports.put(Report(error=f"{type(error).__name__}: {error}"))


class SlotActor:
    """Runs trials, one at a time."""

    def __init__(self) -> None:
        import workloads  # noqa: F401 - registers what settings name

        self._trial: _Trial

    def pid(self) -> int:
        """Return the process's id."""
        return os.getpid()

    def start(self, settings: dict[str, Any]) -> Report:
        """Start a trial; return its first report."""
        if settings["engine"]["backend"] == "inline" and not torch.cuda.is_available():
            settings["engine"]["gpus_per_actor"] = 0.0  # declared, but not there
        self._trial = _Trial(settings)
        return self._trial.report()

    def go_on(self) -> Report:
        """Let the trial go on; return its next report."""
        self._trial.go_on(True)
        return self._trial.report()

    def stop(self) -> None:
        """End the trial where it is."""
        self._trial.go_on(False)


@dataclass
class Slot:
    """A slot, as the tuner sees it.

    Attributes:
        make: Makes its actor.
        engine: Settings of trials in it, by dotted key.
        group: The placement group that its trials' actors share with it, if they have any.
    """

    make: Callable[[], Any]
    engine: dict[str, Any]
    group: PlacementGroup | None = None

    def __post_init__(self) -> None:
        self.handle = self.make()

    def renew(self) -> None:
        """Put a new actor in the place of one that was lost."""
        ray.kill(self.handle)
        self.handle = self.make()

    def close(self) -> None:
        """Give back what it holds."""
        ray.kill(self.handle)
        if self.group:
            remove_placement_group(self.group)


def make_slots(settings: raysim.Settings, jobs: int | None) -> list[Slot]:
    """Reserve slots on the cluster; Ray must be running.

    A number of engine.actors makes a trial run on so many actors of its own; with "auto" it runs
    inline, in its slot.

    Args:
        settings: The settings of a trial.
        jobs: Number of slots; None takes as many as fit.

    Raises:
        SettingsError: so many do not fit.
    """
    nodes = alive_nodes()
    own = 1 if settings.engine.actors == "auto" else settings.engine.actors
    fitting = plan_actors(settings.engine.model_copy(update={"actors": "auto"}), nodes, 10**9)
    slots = fitting.actors // own if jobs is None else jobs
    if not slots or (slots * own > fitting.actors and settings.engine.gpus_per_actor):
        raise SettingsError(
            f"jobs={slots}: {slots} trials of {own} actors do not fit; the cluster holds"
            f" {fitting.actors} actors of engine.gpus_per_actor={settings.engine.gpus_per_actor:g}"
        )
    inherited = {name: os.environ[name] for name in INHERITED if name in os.environ}
    actor = ray.remote(runtime_env={"env_vars": inherited})(SlotActor)
    plan = plan_actors(settings.engine.model_copy(update={"actors": slots * own}), nodes, 10**9)
    if settings.engine.actors == "auto":
        each = actor.options(num_cpus=plan.cpus, num_gpus=plan.gpus)
        return [Slot(each.remote, {"engine.backend": "inline"}) for _ in range(slots)]
    return [_with_group(actor, plan, own) for _ in range(slots)]


def _with_group(actor: Any, plan: ActorPlan, own: int) -> Slot:
    bundle = {"CPU": plan.cpus} | ({"GPU": plan.gpus} if plan.gpus else {})
    group = placement_group([bundle] * own)
    if not group.wait(RESERVE_SECONDS):
        remove_placement_group(group)
        raise SettingsError(
            f"engine.actors={own}: no room for one more trial of so many actors came free within"
            f" {RESERVE_SECONDS:g} seconds; use fewer --jobs"
        )
    strategy = PlacementGroupSchedulingStrategy(group, placement_group_capture_child_tasks=True)
    beside = actor.options(num_cpus=0, scheduling_strategy=strategy)
    engine = {"engine.backend": "ray", "engine.cpus_per_actor": plan.cpus}
    return Slot(beside.remote, engine, group)
