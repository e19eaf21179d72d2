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
INHERITED = ("RAYSIM_DATA",)
"""Environment variables that slots take over from the tuner."""


@dataclass(frozen=True)
class Report:
    """What a slot says of its trial.

    Attributes:
        curve: What evaluations since the last report found on the held-out samples, by round; all
            of them where the trial is finished.
        summary: What came of the trial, where it is finished.
        error: Why it failed, where it did.
        held: Seconds for which it was held up at the evaluation before.
    """

    curve: Mapping[int, float] = field(default_factory=dict)
    summary: dict[str, Any] | None = None
    error: str | None = None
    held: float = 0.0


def finished(folder: Path) -> Report:
    """Return the report of a run that is finished."""
    summary = json.loads((folder / "summary.json").read_text(encoding="utf-8"))
    rows = pq.read_table(folder / "metrics.parquet", columns=["round", "holdout_accuracy"])
    found = {row["round"]: row["holdout_accuracy"] for row in rows.to_pylist()}
    curve = {number: value for number, value in found.items() if value is not None}
    return Report(curve, summary)


class _Stopped(Exception):  # noqa: N818 - what happened to the trial; nothing went wrong
    """The trial is not wanted any more."""


class _Trial(raysim.Listener):
    """A run in a thread of its own, which may be held up at each evaluation."""

    def __init__(self, settings: dict[str, Any], judged: bool) -> None:
        self._judged = judged
        self._reports: SimpleQueue[Report] = SimpleQueue()
        self._wanted: SimpleQueue[bool] = SimpleQueue()
        self._held = 0.0
        self._thread = threading.Thread(target=self._run, args=(settings,), daemon=True)
        self._thread.start()

    def report(self) -> Report:
        """Wait for an evaluation, or for the end; return all that there is to say."""
        report = self._reports.get()
        while not self._reports.empty():
            later = self._reports.get()
            report = replace(later, curve={**report.curve, **later.curve})
        return report

    def go_on(self) -> None:
        """Let it go on, if it was held up."""
        if self._judged:
            self._wanted.put(True)

    def stop(self) -> None:
        """End it, where it is held up."""
        self._wanted.put(False)
        self._thread.join()

    def round_done(self, row: Any) -> None:
        if row["holdout_accuracy"] is None:
            return
        self._say(Report({row["round"]: row["holdout_accuracy"]}))
        if self._judged:
            begun = perf_counter()
            if not self._wanted.get():
                raise _Stopped
            self._held = perf_counter() - begun

    def _say(self, report: Report) -> None:
        self._reports.put(replace(report, held=self._held))

    def _run(self, settings: dict[str, Any]) -> None:
        try:
            result = raysim.run(parse(settings), listener=self)
            self._say(finished(result.run_dir))
        except _Stopped:
            return
        except RaysimError as error:
            self._say(Report(error=str(error)))
        except Exception as error:
            self._say(Report(error=f"{type(error).__name__}: {error}"))


class SlotActor:
    """Runs trials, one at a time."""

    def __init__(self, environment: Mapping[str, str]) -> None:
        import raysim.workloads  # noqa: F401 - registers what settings name

        os.environ.update(environment)
        self._trial: _Trial

    def pid(self) -> int:
        """Return the process's id."""
        return os.getpid()

    def start(self, settings: dict[str, Any], judged: bool) -> Report:
        """Start a trial; return its first report.

        Args:
            settings: The settings of its run.
            judged: Whether it is held up at each evaluation until it is told to go on or to stop.
        """
        if settings["engine"]["backend"] == "inline" and not torch.cuda.is_available():
            settings["engine"]["gpus_per_actor"] = 0.0  # declared, but not there
        self._trial = _Trial(settings, judged)
        return self._trial.report()

    def go_on(self) -> Report:
        """Let the trial go on; return its next report."""
        self._trial.go_on()
        return self._trial.report()

    def stop(self) -> None:
        """End the trial where it is."""
        self._trial.stop()


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
    actor = ray.remote(with_driver_path(SlotActor))
    plan = plan_actors(settings.engine.model_copy(update={"actors": slots * own}), nodes, 10**9)
    if settings.engine.actors == "auto":
        each = actor.options(num_cpus=plan.cpus, num_gpus=plan.gpus)
        make = partial(each.remote, inherited)
        return [Slot(make, {"engine.backend": "inline"}) for _ in range(slots)]
    return [_with_group(actor, inherited, plan, own) for _ in range(slots)]


def _with_group(actor: Any, inherited: Mapping[str, str], plan: ActorPlan, own: int) -> Slot:
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
    return Slot(partial(beside.remote, inherited), engine, group)
