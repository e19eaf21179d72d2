"""A slot: its actor, which executes one run at a time, and the handle of the actor."""

from __future__ import annotations

import json
import os
import threading
from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from queue import SimpleQueue
from time import monotonic, perf_counter, sleep
from typing import Any

import pyarrow.parquet as pq
import ray
import torch
from filelock import Timeout
from ray.util.placement_group import PlacementGroup, remove_placement_group

import raysim
from raysim.config import parse
from raysim.core.errors import MachineError, RunError
from raysim.execution.cluster_health import NodeLostError
from raysim.execution.process import mps_limits
from raysim.storage.lock import lock_folder
from raysim.storage.run_directory import RunDirectory
from raysim.tuning.slots.report import Report, causes, error_line, machine_failure

LOCK_SECONDS = 30.0
"""Seconds of waiting for a run directory: a slot outlives its killed command a little."""


def finished(folder: Path) -> Report:
    """Return the report of a finished run."""
    summary = json.loads((folder / "summary.json").read_text(encoding="utf-8"))
    rows = pq.read_table(folder / "metrics.parquet").to_pylist()
    found = {row["round"]: row.get("holdout_accuracy") for row in rows}
    curve = {number: value for number, value in found.items() if value is not None}
    return Report(curve, summary)


def _is_finished(settings: raysim.Settings) -> bool:
    """Return whether a run is finished, whose slot was lost before it could report that.

    Raises:
        MachineError: it is not, and may not write to its run directory, whatever its parameters.
    """
    path, begun = Path(str(settings.out)), monotonic()
    try:
        if RunDirectory(path).holds_finished(settings):
            return True
        RunDirectory(path).check(settings, own_task=False)
    except RunError as error:
        raise MachineError(str(error)) from error
    while True:
        try:
            with lock_folder(path, "another process is writing to it"):
                return False
        except RunError as error:
            if not isinstance(error.__cause__, Timeout) or monotonic() - begun > LOCK_SECONDS:
                raise MachineError(str(error)) from error
            sleep(0.2)


class _Stopped(Exception):  # noqa: N818 - no error
    """Raised in a run to end it."""


class _RunThread(raysim.Listener):
    """A run in a thread of its own, which may pause after each evaluation."""

    def __init__(self, settings: dict[str, Any], pausing: bool) -> None:
        self._pausing = pausing
        self._reports: SimpleQueue[Report | NodeLostError] = SimpleQueue()
        self._decisions: SimpleQueue[bool] = SimpleQueue()
        self._paused_seconds = 0.0
        self._thread = threading.Thread(target=self._run, args=(settings,), daemon=True)
        self._thread.start()

    def report(self) -> Report:
        """Wait for an evaluation or the end of the run; return all reports since, merged.

        Raises:
            NodeLostError: the slot's node is lost, and the run with it.
        """
        curve: dict[int, float] = {}
        while True:
            report = self._reports.get()
            if isinstance(report, NodeLostError):
                raise report
            curve |= report.curve
            if self._reports.empty():
                return replace(report, curve=curve)

    def unpause(self) -> None:
        """Continue a paused run."""
        if self._pausing:
            self._decisions.put(True)

    def stop(self) -> None:
        """End a paused run."""
        self._decisions.put(False)
        self._thread.join()

    def round_done(self, row: Any) -> None:
        if (accuracy := row.get("holdout_accuracy")) is None:
            return
        self._send(Report({row["round"]: accuracy}))
        if self._pausing:
            begun = perf_counter()
            if not self._decisions.get():
                raise _Stopped
            self._paused_seconds = perf_counter() - begun

    def _send(self, report: Report) -> None:
        self._reports.put(replace(report, paused_seconds=self._paused_seconds))

    def _run(self, settings: dict[str, Any]) -> None:
        try:
            config = parse(settings)
            if not _is_finished(config):
                raysim.run(config, listener=self, force=True)
            self._send(finished(Path(str(config.out))))
        except _Stopped:
            return
        except Exception as error:
            if lost := [each for each in causes(error) if isinstance(each, NodeLostError)]:
                self._reports.put(lost[0])
                return
            machine = machine_failure(error)
            self._send(Report(error=None if machine else error_line(error), machine_error=machine))


class SlotActor:
    """Ray actor that executes runs, one at a time."""

    def __init__(self, environment: Mapping[str, str]) -> None:
        import raysim.workloads  # noqa: F401 - registers the components

        os.environ.update(environment)
        self._run_thread: _RunThread

    def node(self) -> str:
        """Return the id of the process's node."""
        found: str = ray.get_runtime_context().get_node_id()
        return found

    def start(self, settings: dict[str, Any], pausing: bool) -> Report:
        """Start a run; return its first report.

        Args:
            settings: Settings of the run.
            pausing: Pause after each evaluation until `unpause` or `stop` is called.
        """
        engine = settings["engine"]
        if engine["backend"] == "inline":
            os.environ.update(mps_limits(engine["gpus_per_actor"]))  # before CUDA starts
            if not torch.cuda.is_available():
                engine["gpus_per_actor"] = 0.0  # GPUs declared to Ray but absent
        self._run_thread = _RunThread(settings, pausing)
        return self._run_thread.report()

    def unpause(self) -> Report:
        """Continue the paused run; return its next report."""
        self._run_thread.unpause()
        return self._run_thread.report()

    def stop(self) -> None:
        """End the paused run."""
        self._run_thread.stop()


@dataclass(eq=False)
class Slot:
    """Handle of a slot.

    Attributes:
        start_actor: Starts the slot's actor and returns its handle.
        engine: Settings of its runs by dotted key.
        group: Placement group of the slot and its runs' own actors, if they have any.
        node: Id of its node, once its actor has started.
        failures: Deaths of its actor in a row while it started.
        asked: When it was asked to start.
    """

    start_actor: Callable[[], Any]
    engine: dict[str, Any]
    group: PlacementGroup | None = None
    node: str | None = None
    failures: int = 0
    asked: float = 0.0

    def __post_init__(self) -> None:
        self.actor = self.start_actor()

    def restart(self) -> None:
        """Replace a lost actor."""
        ray.kill(self.actor)
        self.node = None
        self.actor = self.start_actor()

    def close(self) -> None:
        """Release the slot's resources."""
        ray.kill(self.actor)
        if self.group:
            remove_placement_group(self.group)
