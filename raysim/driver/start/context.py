"""Parts of a run, checked and opened, and the result of a finished run."""

from __future__ import annotations

from collections.abc import Generator, Mapping, Sequence
from dataclasses import dataclass
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import pyarrow as pa
from torch import Tensor

from raysim.api.columns import OF_ENGINE, Column
from raysim.api.selection import Sampling
from raysim.display.notebook import values_table
from raysim.driver.analyses.run_analyses import Analyses
from raysim.driver.clock.clock import VirtualClock
from raysim.driver.evaluation.evaluation import Evaluator
from raysim.driver.evaluation.weights import Weights
from raysim.driver.listeners.listener import Listener
from raysim.driver.listeners.progress import final_score, result_values
from raysim.driver.privacy.accounting import Accounting
from raysim.driver.rounds.selecting import sampling_of
from raysim.driver.start.parts import RunParts
from raysim.driver.uploads.order import ORDER
from raysim.execution.base import Executor
from raysim.execution.resources import ABSENT_GPUS
from raysim.execution.worker import WorkerSpec
from raysim.federation.federation import Federation
from raysim.storage.client_states import ClientStates
from raysim.storage.declared import of_components
from raysim.storage.environment import node_differences
from raysim.storage.recorder import Row
from raysim.storage.rows.metrics import declared_in
from raysim.storage.run_directory import RunDirectory
from raysim.storage.run_state import RunState
from raysim.storage.trace import COLUMNS as TRACED
from raysim.storage.trace import Stopwatch
from raysim.storage.updates import UpdateFiles
from raysim.user_input import resume_advice


@dataclass(frozen=True)
class Result:
    """Result of a finished run.

    Attributes:
        run_dir: The run directory.
        summary: The figures of `summary.json`.
        metrics: A row for each round, as in `metrics.parquet`.
        params: The deployed model's tensors, as in `model.safetensors`.
    """

    run_dir: Path
    summary: dict[str, Any]
    metrics: pa.Table
    params: dict[str, Tensor]

    def __repr__(self) -> str:
        score = " ".join(final_score(self.summary, declared_in(self.metrics.schema)) or ())
        rounds, seconds = self.summary["rounds"], self.summary["seconds"]
        ended = [score, f"{rounds} rounds", f"{seconds:.1f} s"]
        return f"Result({str(self.run_dir)!r}: {', '.join(filter(None, ended))})"

    def _repr_html_(self) -> str:
        """Return a table of the summary, for notebooks."""
        columns = declared_in(self.metrics.schema)
        return values_table(result_values(self.summary, columns) | self._parts())

    def _parts(self) -> dict[str, str]:
        """Return the parts outside the summary, as text."""
        hint = "" if find_spec("pandas") else " (first: pip install 'raysim-fl[pandas]')"
        size = f"{self.metrics.num_rows} rounds, {self.metrics.num_columns} columns"
        values = sum(tensor.numel() for tensor in self.params.values())
        return {
            "metrics": f"{size}; as a data frame: .metrics.to_pandas(){hint}",
            "params": f"{len(self.params)} tensors, {values:,} values",
            "run_dir": str(self.run_dir),
        }


Rounds = Generator[Row, bool | None, Result]
"""Rounds of a run: a generator that yields the row of each committed round and returns the run's
result. If it is sent True, it ends the run after the rounds so far."""


@dataclass(frozen=True, kw_only=True)
class CheckedRun(RunParts):
    """Checked parts of a run; nothing is started or written yet.

    In `settings`, the claiming method or stage has the accounted noise.

    Attributes:
        federation: The run's samples, client indices and network.
        states: Client states on disk.
        evaluator: Evaluates the run's models.
        analyses: The analyses of the run.
        identity: Identity of the run, without the executor's part.
        clock: The virtual clock; None without one.
        privacy: The accounting of the claim of privacy; None without one.
        weights: Weights of each client [K] from a user's table; None without one.
    """

    federation: Federation
    states: ClientStates
    evaluator: Evaluator
    analyses: Analyses
    identity: Mapping[str, Any]
    clock: VirtualClock | None
    privacy: Accounting | None
    weights: Weights | None = None

    def sampling(self, before: RunState, tick: int = 0) -> Sampling:
        """Return the input of a selection before a round that begins at a tick of virtual time."""
        return sampling_of(self.settings, before, self.sizes, self.clock, tick)

    @property
    def declared(self) -> dict[str, Column]:
        """Declared columns of the run's rounds, by name; the engine's override components'."""
        name = self.privacy.column if self.privacy else ""
        epsilon = {name: Column(name, "smaller", title=name.replace("_", " "))} if name else {}
        component_columns = of_components(self.settings)
        return {**component_columns, **OF_ENGINE, **TRACED, **epsilon, **self.evaluator.columns}

    @property
    def last_round(self) -> int:
        """The last round that may run: `rounds`, or the last one within an epsilon."""
        rounds = self.settings.rounds
        return self.privacy.last_round(rounds) if self.privacy else rounds

    @property
    def spec(self) -> WorkerSpec:
        """Specification of the workers."""
        sets = self.evaluator.evaluated_sets
        folders = (self.states.folder, self.updates.folder)
        return WorkerSpec(self.settings, self.federation, *folders, sets)

    @property
    def updates(self) -> UpdateFiles:
        """Files of the updates that an aggregation sees one by one."""
        return UpdateFiles(self.states.folder.with_name("updates"))


@dataclass(frozen=True, kw_only=True)
class RunContext(CheckedRun):
    """Opened parts of a run.

    Attributes:
        watch: Times the driver's phases.
        listener: Receives progress and notes.
        run_dir: The run directory, locked by this process.
        executor: Runs the clients.
        own_task: Whether the run has its own task.
        force: Whether the run resumes from a checkpoint of another identity.
    """

    watch: Stopwatch
    listener: Listener
    run_dir: RunDirectory
    executor: Executor
    own_task: bool = False
    force: bool = False

    def resume_advice(self, *, force: bool = False, **overrides: Any) -> str:
        """Return the command, or the Python call, that resumes this run."""
        path = self.run_dir.path
        return resume_advice(path, own_task=self.own_task, force=force, overrides=overrides)

    def note_workers(
        self, before: Mapping[str, Any], *, stack_size: int | None, forced: Sequence[str]
    ) -> dict[str, Any]:
        """Record the description of the workers if it has changed; return it.

        Args:
            before: The last description; empty before the first round.
            stack_size: Clients in a stack; None before it is decided.
            forced: Differences of identity that the user accepted by force.
        """
        workers = self.executor.describe()
        if workers == before:
            return workers
        more: dict[str, Any] = {"stack_size": stack_size, "forced": forced}
        if self.federation.class_names:
            more["class_names"] = self.federation.class_names
        for concern in ORDER:
            more |= concern.recorded(self.settings)
        self.run_dir.save_environment(**workers, **more)
        difference = node_differences(workers["actors"])
        if difference and difference != node_differences(before.get("actors", [])):
            self.listener.note(difference)
        declared = (actor for actor in workers["actors"] if actor.get("gpus"))
        if not before and any(actor["device"] == "cpu" for actor in declared):
            self.listener.note(ABSENT_GPUS)
        return workers
