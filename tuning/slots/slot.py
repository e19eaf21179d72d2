"""A slot: its actor, which runs trials one at a time, the tuner's handle, and its events."""

from __future__ import annotations

import errno
import json
import os
import threading
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, replace
from pathlib import Path
from queue import SimpleQueue
from time import perf_counter
from typing import Any

import pyarrow.parquet as pq
import ray
import torch
from ray.exceptions import RayError, RayTaskError
from ray.util.placement_group import PlacementGroup, remove_placement_group

import raysim
from raysim.config import parse
from raysim.core.errors import MachineError, RaysimError, RunError
from raysim.storage.run_directory import RunDirectory

DISK_ERRORS = {
    *(errno.ENOSPC, errno.EDQUOT, errno.EROFS, errno.EIO, errno.ESTALE),
    *(errno.ENOMEM, errno.EMFILE, errno.ENFILE),
}
"""Numbers of the system's errors that another trial would meet too."""


@dataclass(frozen=True)
class Report:
    """Report of a slot about its trial.

    Attributes:
        curve: Accuracies on the held-out samples by round, of the evaluations since the last
            report; of all evaluations if the trial is finished.
        summary: Summary of the run if the trial is finished.
        error: Error message if the trial failed.
        machine_error: Error message if disk, memory or cluster failed: the trial can be resumed.
        paused_seconds: Duration of the pause at the evaluation before.
    """

    curve: Mapping[int, float] = field(default_factory=dict)
    summary: dict[str, Any] | None = None
    error: str | None = None
    machine_error: str | None = None
    paused_seconds: float = 0.0


@dataclass(frozen=True)
class SlotLost:
    """Event: a slot was lost with its trial.

    Attributes:
        cause: One line.
        suspicious: Whether the trial may be the cause; not where the node was lost.
    """

    cause: str
    suspicious: bool


def finished(folder: Path) -> Report:
    """Return the report of a finished run."""
    summary = json.loads((folder / "summary.json").read_text(encoding="utf-8"))
    rows = pq.read_table(folder / "metrics.parquet", columns=["round", "holdout_accuracy"])
    found = {row["round"]: row["holdout_accuracy"] for row in rows.to_pylist()}
    curve = {number: value for number, value in found.items() if value is not None}
    return Report(curve, summary)


def machine_failure(error: BaseException) -> str | None:
    """Return the message of an error if disk, memory or cluster caused it, else None.

    Of several in a chain it is the first that was raised: a run adds how to resume it alone.
    """
    chain = [error]
    while (cause := chain[-1].__cause__) is not None:
        chain.append(cause)
    if failures := [each for each in chain if isinstance(each, MachineError)]:
        return str(failures[-1])
    return _line(error) if any(map(_is_of_the_machine, chain)) else None


def _is_of_the_machine(error: BaseException) -> bool:
    if isinstance(error, OSError):
        return error.errno in DISK_ERRORS
    if isinstance(error, RayTaskError):  # an exception of the code that a task ran
        return False
    return isinstance(error, MemoryError | RayError)


def _line(error: BaseException) -> str:
    if isinstance(error, RaysimError):
        return str(error)
    return f"{type(error).__name__}: {' '.join(str(error).split())}"


def _check_folder(settings: raysim.Settings) -> None:
    """Check that a trial may write to its run directory.

    Raises:
        MachineError: it may not, whatever its parameters are.
    """
    try:
        RunDirectory(Path(str(settings.out))).check(settings, own_task=False)
    except RunError as error:
        raise MachineError(str(error)) from error


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
            config = parse(settings)
            _check_folder(config)
            result = raysim.run(config, listener=self, force=True)
            self._send(finished(result.run_dir))
        except _Pruned:
            return
        except Exception as error:
            machine = machine_failure(error)
            self._send(Report(error=None if machine else _line(error), machine_error=machine))


class SlotActor:
    """Ray actor that runs trials, one at a time."""

    def __init__(self, environment: Mapping[str, str]) -> None:
        import raysim.workloads  # noqa: F401 - registers the components

        os.environ.update(environment)
        self._trial: _TrialThread

    def node(self) -> str:
        """Return the id of the process's node."""
        found: str = ray.get_runtime_context().get_node_id()
        return found

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


@dataclass(eq=False)
class Slot:
    """A slot, as the tuner sees it.

    Attributes:
        start_actor: Starts the slot's actor and returns its handle.
        engine: Settings of its trials by dotted key.
        group: Placement group of the slot and its trials' own actors, if they have any.
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
