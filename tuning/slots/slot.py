"""Slot: an actor that executes one run at a time, and its handle."""

from __future__ import annotations

import os
from collections.abc import Callable, Generator, Iterable, Mapping
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass, replace
from itertools import chain
from pathlib import Path
from time import monotonic, perf_counter, sleep
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import ray
import torch
from filelock import Timeout
from ray.util.placement_group import PlacementGroup, remove_placement_group

import raysim
from raysim.api.scoring import ACCURACY, HOLDOUT, PERSONAL
from raysim.config import parse
from raysim.errors import MachineError, RunError
from raysim.execution.cluster_health import NodeLostError
from raysim.execution.process import mps_limits
from raysim.execution.resources import ABSENT_GPUS
from raysim.process.exits import interruptible
from raysim.storage.lock import lock_folder
from raysim.storage.recorder import METRICS
from raysim.storage.run_directory import RunDirectory
from raysim.tuning.slots.report import Report, causes, error_line, machine_failure
from raysim.user_input import parse_json

LOCK_SECONDS = 30.0
"""Seconds to wait for a run directory, as a slot briefly outlives its killed command."""


def finished(folder: Path) -> Report:
    """Return the report of a finished run."""
    summary = parse_json((folder / "summary.json").read_text(encoding="utf-8"))
    return Report(_curve(_rows(folder)), summary)


def _evaluated(folder: Path) -> dict[int, float]:
    """Return the recorded accuracies of a run; empty for a damaged file, which stops the run."""
    try:
        return _curve(_rows(folder))
    except (OSError, pa.ArrowInvalid):
        return {}


def _rows(folder: Path) -> list[dict[str, Any]]:
    rows: list[dict[str, Any]] = pq.read_table(folder / METRICS).to_pylist()
    return rows


def _curve(rows: Iterable[Mapping[str, Any]]) -> dict[int, float]:
    """Return the accuracy of deployed models on held-out samples by evaluated round."""
    shared = HOLDOUT._replace(score=ACCURACY.name)
    personal = shared._replace(model=PERSONAL)
    accuracies = {row["round"]: row.get(personal.name, row.get(shared.name)) for row in rows}
    return {number: value for number, value in accuracies.items() if value is not None}


def _is_finished(settings: raysim.Settings) -> bool:
    """Return whether a run is finished although its slot was lost before the report.

    Raises:
        MachineError: the run is not finished, and cannot write to its run directory.
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


class _Notes(raysim.Listener):
    """Listener that collects a run's notes until they are taken."""

    def __init__(self) -> None:
        self._kept: dict[str, None] = {}

    def note(self, text: str) -> None:
        """Collect a note, equal ones once."""
        self._kept[text] = None

    def take(self) -> tuple[str, ...]:
        """Return the notes since the last call."""
        notes, self._kept = tuple(self._kept), {}
        return notes


def _reports(settings: dict[str, Any], pausing: bool, forced: bool) -> Generator[Report]:
    """Execute a run; yield a report of each evaluation if it pauses, and of its end.

    A resumed run first reports its earlier evaluations.

    Raises:
        NodeLostError: the slot's node is lost, and the run with it.
    """
    paused_seconds, reported, notes = 0.0, 0, _Notes()
    try:
        config = parse(settings)
        run: AbstractContextManager[Iterable[Mapping[str, Any]]] = nullcontext(())
        if not _is_finished(config):
            run = raysim.rounds(config, listener=notes, force=forced)
        curve = _evaluated(Path(str(config.out)))
        with run as rows:
            for row in chain(({"round": 0},), rows):
                curve |= _curve([row])
                if pausing and len(curve) > reported:
                    begun, new = perf_counter(), dict([*curve.items()][reported:])
                    yield Report(new, paused_seconds=paused_seconds, notes=notes.take())
                    paused_seconds, reported = perf_counter() - begun, len(curve)
        end = finished(Path(str(config.out)))
    except Exception as error:
        end = _failure(error)
    yield replace(end, paused_seconds=paused_seconds, notes=notes.take())


def _failure(error: Exception) -> Report:
    """Return the report of a failed run.

    Raises:
        NodeLostError: the slot's node is lost, and the run with it.
    """
    if lost := [cause for cause in causes(error) if isinstance(cause, NodeLostError)]:
        raise lost[0]
    machine = machine_failure(error)
    return Report(error=None if machine else error_line(error), machine_error=machine)


class SlotActor:
    """Ray actor that executes one run at a time."""

    def __init__(
        self, environment: Mapping[str, str], default_dtype: torch.dtype = torch.float32
    ) -> None:
        from raysim import methods, workloads  # noqa: F401 - registers the components

        os.environ.update(environment)
        torch.set_default_dtype(default_dtype)
        self._reports: Generator[Report] = (_ for _ in ())

    def node(self) -> str:
        """Return the id of the process's node."""
        node_id: str = ray.get_runtime_context().get_node_id()
        return node_id

    def advance(self, order: tuple[dict[str, Any], bool, bool] | None) -> tuple[Report, list[str]]:
        """Advance the run to its next report.

        Args:
            order: Settings of the run to start, whether it pauses after each evaluation, and
                whether it is forced to continue with other data, versions or machines. None: the
                paused run goes on.

        Returns:
            Report of a pause or of the end of the run, and lines for the user.
        """
        notes = self._start(*order) if order else []
        with interruptible():
            return next(self._reports), notes

    def stop(self) -> None:
        """End the paused run, which can be resumed."""
        with interruptible():
            self._reports.close()

    def _start(self, settings: dict[str, Any], pausing: bool, forced: bool) -> list[str]:
        """Prepare a run; return lines for the user."""
        engine, notes = settings["engine"], []
        if engine["backend"] == "inline":
            os.environ.update(mps_limits(engine["gpus_per_actor"]))  # before CUDA starts
            if engine["gpus_per_actor"] and not torch.cuda.is_available():
                engine["gpus_per_actor"] = 0.0
                notes = [ABSENT_GPUS]
        self._reports = _reports(settings, pausing, forced)
        return notes


@dataclass(eq=False)
class Slot:
    """Handle of a slot.

    Attributes:
        start_actor: Starts the slot's actor and returns its handle.
        engine: Settings of its runs by dotted key.
        group: Placement group of the slot and its runs' own actors, if they have any.
        node: Id of its node, once its actor has started.
        failures: Consecutive deaths of its actor during the start.
        asked: When it was asked to start.
        called: Whether a call of its actor has not returned.
        run: Its run, as the pool was given it; None if it has none.
        actor: Its actor, once it was asked to start.
    """

    start_actor: Callable[[], Any]
    engine: dict[str, Any]
    group: PlacementGroup | None = None
    node: str | None = None
    failures: int = 0
    asked: float = 0.0
    called: bool = False
    run: Any = None
    actor: Any = None

    def close(self, silent: bool) -> None:
        """Release the slot's resources, unless the head is silent: then Ray does."""
        if self.actor is not None:
            ray.kill(self.actor)
        if self.group and not silent:
            remove_placement_group(self.group)
