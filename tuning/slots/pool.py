"""Pool of slots: resident actors; each executes one run at a time.

A slot reserves all resources of its runs from the start: a fraction of a GPU or cores for an inline
run, or a placement group for a run with its own actors. A run requests no resources later, so that
two runs never wait for each other. Slots start as the cluster has room for them; a
lost one starts again, and its run goes to any free slot.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Iterable, Iterator
from contextlib import closing, contextmanager
from functools import partial
from time import perf_counter
from typing import Any, Generic, TypeVar

import ray
import torch
from ray.exceptions import RayError, RayTaskError
from ray.util.placement_group import placement_group
from ray.util.scheduling_strategies import PlacementGroupSchedulingStrategy

import raysim
from raysim.errors import MachineError, SettingsError
from raysim.execution.autoscaler import autoscaler_runs
from raysim.execution.cluster_health import ClusterHealth, NodeLostError, alive_nodes
from raysim.execution.module_path import with_driver_path
from raysim.execution.pool.actors import last_line
from raysim.execution.ray_runtime import note_unused_gpus, ray_runtime
from raysim.execution.resources import bundle_of, crowding, with_whole_cores
from raysim.process.exits import delay_signals, interruptible
from raysim.tuning.slots.fitting import fitting_actors, free_resources, plan_slots
from raysim.tuning.slots.report import Report, SlotLost
from raysim.tuning.slots.slot import Slot, SlotActor

R = TypeVar("R")


class SlotUsage:
    """Time that slots spent in runs."""

    def __init__(self) -> None:
        self._slots = set[Slot]()
        # Times at which slots, and runs, begin (1) and end (-1).
        self._there, self._inside = list[tuple[float, int]](), list[tuple[float, int]]()
        self._last_start = self._paused_before = self._paused = 0.0

    def joined(self, slot: Slot) -> None:
        """Record that a slot has started."""
        self._slots.add(slot)
        self._there.append((perf_counter(), 1))

    def lost(self, slot: Slot) -> None:
        """Record the loss of a slot, with its run if it has one."""
        self._there.append((perf_counter(), -1))
        if slot.run is not None:
            self.run_ended()

    def run_started(self) -> None:
        """Record the start of a run, possibly the last run."""
        self._last_start, self._paused_before = perf_counter(), self._paused
        self._inside.append((self._last_start, 1))

    def run_paused(self, seconds: float) -> None:
        """Record the pause of a run that waited for the pruner."""
        self._paused += seconds

    def run_ended(self) -> None:
        """Record the end of a run."""
        self._inside.append((perf_counter(), -1))

    @property
    def busy(self) -> float | None:
        """Fraction of the slots' time in unpaused runs, until the last run started."""
        if sum(change < 0 for _, change in self._inside) <= len(self._slots):
            return None
        until = self._last_start
        inside, there = (
            sum(change * (until - at) for at, change in changes if at < until)
            for changes in (self._inside, self._there)
        )
        return (inside - self._paused_before) / there


WATCH_SECONDS = 5.0
"""Seconds between checks of the cluster's health and for new nodes."""
START_SECONDS = 10.0
"""Seconds of waiting for a slot to start before a note."""
MAX_FAILURES = 3
"""Consecutive deaths of a slot's actor during its start after which the command stops."""
INHERITED_VARIABLES = ("RAYSIM_DATA",)
"""Environment variables that slots inherit from the command."""


class SlotPool(Generic[R]):
    """Slots of a command, which start when the cluster has room for them.

    Ray's autoscaler, if one runs, starts nodes for them.
    """

    def __init__(
        self,
        settings: raysim.Settings,
        jobs: int | None,
        note: Callable[[str], None],
    ) -> None:
        """Start slots; Ray must be running.

        If engine.actors is a number, a run has that many actors of its own; if it is "auto", the
        run trains inline in its slot.

        Args:
            settings: Settings of the runs; their `engine` decides the resources.
            jobs: Number of slots; None takes as many as fit, also on nodes that join later.
            note: Shows the user a line.

        Raises:
            SettingsError: the slots do not fit on the cluster.
        """
        self._engine, self._jobs, self._note = settings.engine, jobs, note
        self._grows = autoscaler_runs()
        if self._grows:
            self._engine = with_whole_cores(self._engine)
        self._actors = 1 if self._engine.actors == "auto" else self._engine.actors
        self._usage = SlotUsage()
        self._slots, self._free = list[Slot](), list[Slot]()
        self._calls: dict[ray.ObjectRef[Any], Slot] = {}
        self._due: list[tuple[R, Report | SlotLost]] = []
        count = (self._fitting() or int(self._grows)) if jobs is None else jobs
        self._plan = plan_slots(self._engine, count, self._actors, self._grows)
        for line in () if self._grows else self._crowding(count):
            note(line)
        self._cluster = ClusterHealth()
        self._last_check = perf_counter()
        self._noted, self._shown = False, set[str]()
        try:
            self._grow(count)
        except BaseException:
            self.close()
            raise

    def _crowding(self, count: int) -> Iterator[str]:
        """Yield a line if the actors of `count` slots are more than the cores."""
        asked = f"jobs={count}"
        if self._engine.actors != "auto":
            asked += f" engine.actors={self._actors}"
        yield from crowding(asked, count * self._actors, self._engine, alive_nodes())

    def __len__(self) -> int:
        """Return the number of slots, started or not."""
        return len(self._slots)

    @property
    def busy(self) -> float | None:
        """Fraction of the slots' time in runs while runs remained; None if none waited."""
        return self._usage.busy

    def has_free(self) -> bool:
        """Return whether a run can start at once."""
        return bool(self._free)

    def start(self, run: R, settings: raysim.Settings, pausing: bool, forced: bool = False) -> None:
        """Start a run in a free slot; see `SlotActor.advance`."""
        slot = self._free.pop(0)
        self._usage.run_started()
        slot.run = run
        order = settings.override(slot.engine).to_dict(), pausing, forced
        self._call(slot, slot.actor.advance.remote(order))

    def release(self, run: R, paused: bool) -> None:
        """Free the slot of an ended run; a paused one ends, and can be resumed."""
        slot = next(candidate for candidate in self._slots if candidate.run == run)
        self._usage.run_ended()
        slot.run = None
        if paused:
            self._call(slot, slot.actor.stop.remote())
        else:
            self._free.append(slot)

    def wait(self) -> tuple[R, Report | SlotLost] | None:
        """Wait for a report of a run; return None if there was none for a while.

        Raises:
            MachineError: the cluster is lost, or a slot dies repeatedly while it starts.
        """
        if not self._due:
            for slot in self._slots:
                if slot.run is not None and not slot.called:
                    self._call(slot, slot.actor.advance.remote(None))
            self._cluster.check_store()
            done, _ = ray.wait(list(self._calls), num_returns=1, timeout=WATCH_SECONDS)
            if perf_counter() - self._last_check >= WATCH_SECONDS:
                self._look()
            for call in done:
                self._receive(call)
        return self._due.pop(0) if self._due else None

    def close(self) -> None:
        """Release the slots' resources."""
        with delay_signals():
            silent = self._cluster.silent()
            for slot in self._slots:
                slot.close(silent)
            self._cluster.close()

    def _look(self) -> None:
        """Check the cluster, use new nodes, and note slots that do not start."""
        self._last_check = perf_counter()
        if not self._cluster.check():
            return  # a silent head would not answer the other calls either
        if self._jobs is None:
            try:
                self._grow(self._fitting())
            except SettingsError:
                return  # the remaining nodes have no room; lost ones may return
        if not self._noted and (waiting := sum(map(self._waits_for_room, self._slots))):
            self._noted = True
            self._note(
                f"{len(self) - waiting} of {len(self)} slots have started; the others start when"
                f" the cluster has room for them ({free_resources()}); meanwhile runs start in the"
                " started slots"
            )

    def _waits_for_room(self, slot: Slot) -> bool:
        """Return whether the cluster has had no room for a slot for a while."""
        if slot.node is not None or self._last_check - slot.asked < START_SECONDS:
            return False
        return not self._cluster.has_process(slot.actor)

    def _receive(self, call: ray.ObjectRef[Any]) -> None:
        """Process the outcome of a call: a slot that is free, a report, or the loss of a slot."""
        slot = self._calls.pop(call)
        slot.called = False
        self._cluster.check_store()
        try:
            outcome = ray.get(call)
        except RayTaskError as error:
            if not isinstance(error.cause, NodeLostError):  # the slot raises it before Ray ends it
                raise error.cause from error
            self._restart(slot, str(error.cause), node_lost=True)
        except RayError as error:
            self._restart(slot, last_line(error), self._cluster.lost(slot.node))
        else:
            if slot.node is None:
                slot.node, slot.failures = outcome, 0
                self._usage.joined(slot)
            if slot.run is not None:
                self._reported(slot, *outcome)
            else:
                self._free.append(slot)

    def _reported(self, slot: Slot, report: Report, notes: Iterable[str]) -> None:
        self._usage.run_paused(report.paused_seconds)
        self._due.append((slot.run, report))
        for text in notes:
            if text not in self._shown:
                self._shown.add(text)
                self._note(text)

    def _restart(self, slot: Slot, cause: str, node_lost: bool) -> None:
        """Start a lost slot again, without its run."""
        if slot.node is not None:
            self._usage.lost(slot)
        else:
            slot.failures += 1
            if slot.failures >= MAX_FAILURES:
                raise MachineError(
                    f"a slot died {MAX_FAILURES} times in a row while it started: {cause}"
                )
        ray.kill(slot.actor)
        if slot.run is not None:
            self._due.append((slot.run, SlotLost(cause, suspicious=not node_lost)))
        slot.node = slot.run = None
        self._start(slot)

    def _grow(self, count: int) -> None:
        """Start slots until there are `count`."""
        while len(self._slots) < count:
            with delay_signals():  # a placement group unknown to the pool would stay
                slot = self._make_slot()
                self._slots.append(slot)
            self._start(slot)

    def _start(self, slot: Slot) -> None:
        slot.asked, slot.actor = perf_counter(), slot.start_actor()
        self._call(slot, slot.actor.node.remote())

    def _call(self, slot: Slot, call: ray.ObjectRef[Any]) -> None:
        slot.called, self._calls[call] = True, slot

    def _fitting(self) -> int:
        """Return the number of slots that fit on the present nodes."""
        return fitting_actors(self._engine) // self._actors

    def _make_slot(self) -> Slot:
        plan, actor = self._plan, ray.remote(with_driver_path(SlotActor))
        inherited = {name: os.environ[name] for name in INHERITED_VARIABLES if name in os.environ}
        dtype = torch.get_default_dtype()
        labels = dict(self._engine.node_labels) or None
        if self._engine.actors == "auto":
            slot_actor = actor.options(
                num_cpus=plan.cpus,
                num_gpus=plan.gpus,
                accelerator_type=self._engine.accelerator_type,
                label_selector=labels,
            )
            return Slot(partial(slot_actor.remote, inherited, dtype), {"engine.backend": "inline"})
        bundles = [bundle_of(self._engine, plan.cpus)] * self._actors
        group = placement_group(bundles, bundle_label_selector=labels and [labels] * self._actors)
        strategy = PlacementGroupSchedulingStrategy(group, placement_group_capture_child_tasks=True)
        beside = actor.options(num_cpus=0, scheduling_strategy=strategy)
        engine = {"engine.backend": "ray", "engine.cpus_per_actor": plan.cpus}
        return Slot(partial(beside.remote, inherited, dtype), engine, group)


@contextmanager
def open_slots(
    settings: raysim.Settings, jobs: int | None, note: Callable[[str], None]
) -> Iterator[SlotPool[Any]]:
    """Provide a Ray instance and its slots; see `SlotPool`."""
    engine = settings.engine.model_copy(update={"backend": "ray"})
    with (
        interruptible(),
        ray_runtime(engine),
        closing(SlotPool[Any](settings, jobs, note)) as slots,
    ):
        note_unused_gpus(engine, note)
        yield slots
