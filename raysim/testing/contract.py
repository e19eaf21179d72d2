"""Tests that components must pass, as classes that pytest collects from.

Nothing here needs pytest itself: a test is a method that takes an empty folder.
"""

from __future__ import annotations

import math
import re
import shutil
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any, ClassVar
from unittest.mock import patch

import pyarrow.parquet as pq

import raysim
from raysim.api.method import METHODS
from raysim.execution.client_jobs import ClientJobs
from raysim.execution.messages import PassMessage
from raysim.numbers.tensors import Tensors, flatten
from raysim.numbers.tensors.digests import tensors_digest
from raysim.storage.rows.metrics import declared_in
from raysim.testing.tasks import SIZES, small_task
from raysim.training.job import ClientJob


class CopyAfter(raysim.Listener):
    """Copies a run directory after a round: so a process leaves it that is killed then."""

    def __init__(self, number: int, run_dir: Path, to: Path) -> None:
        self._number, self._run_dir, self._to = number, run_dir, to

    def round_done(self, row: Mapping[str, Any]) -> None:
        """Copy it if this was the round."""
        if row["round"] == self._number:
            shutil.copytree(self._run_dir, self._to)


class Contract:
    """Short runs that tests compare.

    Attributes:
        method: Value of `method.name`.
        settings: Overrides, by dotted key.
        unsupported: Model families that the component refuses before round 1, with a line that
            begins with the setting that names it: "mlp", "odd", and for methods "cnn", "residual"
            and "lstm".
    """

    method: ClassVar[str] = "scaffold"
    settings: ClassVar[Mapping[str, Any]] = {}
    unsupported: ClassVar[frozenset[str]] = frozenset()

    def settings_for(self, out: Path, overrides: Mapping[str, Any]) -> raysim.Settings:
        """Return the settings of a short inline run, with overrides."""
        short = {
            "method.name": self.method,
            "rounds": 2,
            "fraction": 0.7,
            "target_accuracy": None,
            "local.epochs": 1,
            "local.batch_size": 8,
            "engine.backend": "inline",
            "out": str(out),
        }
        changes = {**short, **self.settings, **overrides}
        if METHODS.get(changes["method.name"]).needs_everyone:
            changes["fraction"] = 1.0
        return raysim.load_config("mnist-fedavg", changes)

    def task(self, family: str, sizes: tuple[int, ...] = SIZES) -> raysim.Task:
        """Return the task of a run: of a model family, with clients of these sizes."""
        return small_task(family, sizes)

    def assert_trains(self, folder: Path, family: str) -> raysim.Result | None:
        """Check that two rounds give finite figures, or that the family is refused."""
        out = folder / "run"
        if family in self.unsupported:
            settings = self.settings_for(out, {"fraction": 1.0})
            with refused(self.refusal):
                raysim.run(settings, self.task(family))
            require(not out.exists(), "a refused run did not delete its directory")
            return None
        return self.assert_finite(out, family, {})

    @property
    def refusal(self) -> str:
        """Pattern of the line that refuses a family: the setting that names the component."""
        return r"^[a-z_]+\.\S+: "

    def assert_finite(
        self,
        out: Path,
        family: str,
        overrides: Mapping[str, Any],
        sizes: tuple[int, ...] = SIZES,
    ) -> raysim.Result:
        """Check that two rounds of all clients give finite figures."""
        settings = self.settings_for(out, {"fraction": 1.0, **overrides})
        result = raysim.run(settings, self.task(family, sizes))
        for name, tensor in result.params.items():
            require(bool(tensor.isfinite().all()), f"{name} is not finite")
        undeclared = [field.name for field in result.metrics.schema if not field.metadata]
        require(not undeclared, f"`columns` lacks a raysim.Column of {undeclared}")
        rows = result.metrics.to_pylist()
        numbers = [row["round"] for row in rows if row["round"] > 0]
        require(numbers == [1, 2], f"metrics.parquet has the rounds {numbers}")
        losses = [row["train_loss"] for row in rows if row["train_loss"] is not None]
        require(all(map(math.isfinite, losses)), f"train_loss: {rows}")
        return result

    def learned(self, folder: Path, overrides: Mapping[str, Any]) -> tuple[float, float]:
        """Check that the loss falls; return the accuracy after the first and the last round.

        The tensors that clients receive must stay as they are, to the byte. If clients deploy their
        own models, the check takes these, on held-out samples.
        """
        changes = {"rounds": 6, "local.epochs": 3, **overrides}
        settings, scored = self.settings_for(folder / "run", changes), "test"
        if settings.method.deploys_client_models:
            settings = self.settings_for(folder / "run", {**changes, "evaluation.holdout": 0.25})
            scored = "personal_holdout"
        with inputs_watched():
            result = raysim.run(settings, self.task("mlp", (40,) * 6))
        first, *_, last = [row for row in result.metrics.to_pylist() if row["round"] > 0]
        loss, accuracy = f"{scored}_loss", f"{scored}_accuracy"
        require(last[loss] < first[loss], f"{loss} rises: {first}, {last}")
        return first[accuracy], last[accuracy]

    def assert_same_on_actors(
        self, folder: Path, family: str, actors: int, overrides: Mapping[str, Any]
    ) -> None:
        """Check that a run on actors has the bits and figures of an inline run."""
        more = {"engine.actors": actors, **overrides}
        runs = {backend: {"engine.backend": backend, **more} for backend in ("inline", "ray")}
        self.assert_same(folder, family, runs)

    def assert_same(self, folder: Path, family: str, runs: Mapping[str, Mapping[str, Any]]) -> None:
        """Check that two runs, by the name of their folder, have the same bits and figures."""
        tables: list[list[dict[str, Any]]] = []
        for name, overrides in runs.items():
            settings = self.settings_for(folder / name, {"rounds": 3, **overrides})
            metrics = raysim.run(settings, self.task(family)).metrics
            declared = declared_in(metrics.schema).values()
            timed = [column.name for column in declared if column.unit == "s"]
            tables.append(metrics.drop_columns(timed).to_pylist())
        require_same_model(*map(folder.joinpath, runs))
        first, second = runs
        require(tables[0] == tables[1], f"{first}: {tables[0]}\n{second}: {tables[1]}")

    def assert_resumes(
        self, folder: Path, family: str, overrides: Mapping[str, Any], stop: int = 3
    ) -> None:
        """Check that a killed run that lost its last checkpoint ends with the same bits."""
        task, straight, broken = self.task(family), folder / "straight", folder / "broken"
        longer = {"rounds": 3, "checkpoint_every": 1, **overrides}
        settings = self.settings_for(straight, longer)
        whole = raysim.run(settings, task, CopyAfter(stop, straight, broken))
        checkpoints = broken / "checkpoints"
        files = {path.name for path in checkpoints.iterdir()}
        due = {f"round_{number:06d}" for number in (stop - 1, stop)}
        require(files == due, f"checkpoints: {files}, expected {due}")
        shutil.rmtree(checkpoints / f"round_{stop:06d}")  # as if killed before it wrote this
        result = raysim.resume(broken, task)
        require_same_model(straight, broken)
        rounds = [run.metrics["round"].to_pylist() for run in (whole, result)]
        require(rounds[0] == rounds[1], f"rounds of metrics.parquet: {rounds}")


class ComponentContract(Contract):
    """Tests for components around a method; subclass it and name the component in settings.

    Selections, stages of the channel, aggregations and temperatures must pass it.
    """

    def test_loss_falls_on_separable_data(self, tmp_path: Path) -> None:
        """Learn a linear teacher's classes."""
        self.learned(tmp_path, {"rounds": 3})

    def test_same_bits_and_figures_on_two_actors(self, tmp_path: Path) -> None:
        """Give the same model and tables inline and on Ray."""
        self.assert_same_on_actors(tmp_path, "mlp", 2, {})

    def test_resumed_run_has_the_same_bits(self, tmp_path: Path) -> None:
        """Give the same model after an interruption."""
        self.assert_resumes(tmp_path, "mlp", {})

    def test_trains_odd_tensors(self, tmp_path: Path) -> None:
        """Train scalar, empty, boolean and tied tensors, or refuse them."""
        self.assert_trains(tmp_path, "odd")

    def test_clients_may_have_no_tests_and_nothing_held_out(self, tmp_path: Path) -> None:
        """Train clients: some have no test samples, and among the new ones none has."""
        nothing = {
            **{"evaluation.local_test": 0.25, "evaluation.new_clients": 0.1, "seed": 4},
            **{"evaluation.holdout": 0.2, "evaluation.clients": True},
        }
        self.assert_finite(tmp_path / "run", "mlp", nothing, (1, 9, 1, 17, 1, 12, 1, 20))


class LoopContract(Contract):
    """Tests for a training loop; subclass it and name the loop.

    The loop trains a small network of two linear layers on three classes; one that needs another
    model overrides `task`.

    Attributes:
        loop: Value of `local.train`.
    """

    method: ClassVar[str] = "fedavg"
    loop: ClassVar[str]

    def settings_for(self, out: Path, overrides: Mapping[str, Any]) -> raysim.Settings:
        """Return the settings of a short inline run of the loop, with overrides."""
        return super().settings_for(out, {"local.train": self.loop, **overrides})

    def test_two_runs_have_the_same_bits_and_figures(self, tmp_path: Path) -> None:
        """Give the same model and tables twice in one process."""
        with self.explained("two runs"):
            self.assert_same(tmp_path, "mlp", {"first": {}, "second": {}})

    def test_same_bits_and_figures_on_two_actors(self, tmp_path: Path) -> None:
        """Give the same model and tables inline and on Ray."""
        with self.explained("runs inline and on actors"):
            self.assert_same_on_actors(tmp_path, "mlp", 2, {})

    def test_resumed_run_has_the_same_bits(self, tmp_path: Path) -> None:
        """Give the same model after an interruption."""
        with self.explained("a run and its resumed copy"):
            self.assert_resumes(tmp_path, "mlp", {})

    @contextmanager
    def explained(self, which: str) -> Iterator[None]:
        """Say what to look for if runs in the body differ."""
        try:
            yield
        except AssertionError as error:
            raise AssertionError(
                f"{which} differ: the loop draws from the system's entropy, as"
                f" np.random.default_rng() does, or keeps values outside of client.state: {error}"
            ) from error


class MethodContract(ComponentContract):
    """Tests that every federated method must pass; subclass it and name the method.

    Attributes:
        method: Value of `method.name`.
        settings: Overrides that suit small networks, by dotted key.
        models_sent: Models that a client receives and sends in a round of one pass over the cohort;
            None if the method's own tests count its bytes.
    """

    method: ClassVar[str]
    models_sent: ClassVar[int | None] = 1

    @property
    def refusal(self) -> str:
        """Pattern of the line that refuses a family: the method, by its name."""
        return rf"^method\.name={re.escape(self.method)}: "

    def test_trains_an_mlp(self, tmp_path: Path) -> None:
        """Train the family, with clients of one sample, and count the bytes; or refuse it."""
        result = self.assert_trains(tmp_path, "mlp")
        if result is None or self.models_sent is None:
            return
        model = sum(4 * tensor.numel() for tensor in result.params.values())
        sent = len(SIZES) * model * self.models_sent
        for name in ("bytes_up", "bytes_down"):
            values = result.metrics[name].to_pylist()
            require(values == [sent] * 2, f"{name}: {values}, expected {sent} a round")

    def test_trains_a_cnn(self, tmp_path: Path) -> None:
        """Train the family, with clients of one sample, or refuse it."""
        self.assert_trains(tmp_path, "cnn")

    def test_trains_a_residual_network(self, tmp_path: Path) -> None:
        """Train the family, with clients of one sample, or refuse it."""
        self.assert_trains(tmp_path, "residual")

    def test_trains_an_lstm(self, tmp_path: Path) -> None:
        """Train the family, with clients of one sample, or refuse it."""
        self.assert_trains(tmp_path, "lstm")

    def test_loss_falls_on_separable_data(self, tmp_path: Path) -> None:
        """Learn a linear teacher's classes, with half of the clients a round, each logged once."""
        first, last = self.learned(tmp_path, {"fraction": 0.5})
        least = max(first, 0.6)
        require(last > least, f"accuracy at most {least}: {last}")
        require_a_row_per_client_and_pass(tmp_path / "run")

    def test_bad_settings_are_refused_with_their_name(self, tmp_path: Path) -> None:
        """Refuse values beyond the limits of the method's fields, and unknown fields."""
        for name, field in METHODS.get(self.method).model_fields.items():
            for limit in field.metadata:
                for value in beyond(limit):
                    with refused(rf"^method\.{name}={re.escape(str(value))}"):
                        self.settings_for(tmp_path, {f"method.{name}": value})
        with refused(r"^method\.no_such: no such setting"):
            self.settings_for(tmp_path, {"method.no_such": 1})


def beyond(limit: Any) -> list[Any]:
    """Return a value that a field's limit excludes, or nothing for another constraint."""
    steps = {"ge": -1, "gt": 0, "le": 1, "lt": 0}
    return [getattr(limit, name) + step for name, step in steps.items() if hasattr(limit, name)]


@contextmanager
def inputs_watched() -> Iterator[None]:
    """Compare the bytes of the tensors that clients receive, before and after each client.

    A run finds most of their changes in place by itself, but none through `.data` or NumPy.
    """
    job, seen, changed = ClientJobs.job, dict[int, tuple[Tensors, str]](), list[int]()

    def check() -> None:
        changed.extend(c for c, (tensors, was) in seen.items() if tensors_digest(tensors) != was)

    def watched(jobs: ClientJobs, message: PassMessage, client: int, *given: Any) -> ClientJob:
        check()
        sent, initial = jobs.open(message)
        tensors = flatten(sent) | flatten(
            {f"state/{group}": state for group, state in initial.items()}
        )
        seen.clear()
        seen[client] = tensors, tensors_digest(tensors)
        return job(jobs, message, client, *given)

    with patch.object(ClientJobs, "job", watched):
        yield
    check()
    require(not changed, f"clients {changed} change in place the tensors that clients receive")


@contextmanager
def refused(pattern: str) -> Iterator[None]:
    """Expect a RaysimError with a message that matches the pattern."""
    try:
        yield
    except raysim.RaysimError as error:
        require(bool(re.search(pattern, str(error))), f"{error}: does not match {pattern}")
    else:
        raise AssertionError(f"not refused: expected a RaysimError that matches {pattern}")


def require_same_model(*run_dirs: Path) -> None:
    """Compare the bytes of the runs' models, and of their clients' states."""
    models = {(run_dir / "model.safetensors").read_bytes() for run_dir in run_dirs}
    require(len(models) == 1, f"model.safetensors differs: {', '.join(map(str, run_dirs))}")
    first, *others = map(newest_states, run_dirs)
    for other in others:
        clients = sorted(c for c in first.keys() | other.keys() if first.get(c) != other.get(c))
        require(not clients, f"states of clients {clients} differ: {', '.join(map(str, run_dirs))}")


def require_a_row_per_client_and_pass(run_dir: Path) -> None:
    """Check the clients of a run's tables: each once a pass, and the number that trained."""
    rows = pq.read_table(run_dir / "clients.parquet").to_pylist()
    keys = [(row["round"], row["pass"], row["client"]) for row in rows]
    require(len(set(keys)) == len(keys), f"rows of clients.parquet repeat: {sorted(keys)}")
    for row in pq.read_table(run_dir / "metrics.parquet").to_pylist():
        trained = {r["client"] for r in rows if r["round"] == row["round"] and r["steps"] > 0}
        require(len(trained) == row["clients"], f"{len(trained)} clients trained: {row}")


def newest_states(run_dir: Path) -> dict[str, bytes]:
    """Return the newest state of each client that keeps one, by the client's folder."""
    states: dict[str, tuple[tuple[int, ...], Path]] = {}
    for path in (run_dir / "clients").glob("*/*/*.safetensors"):
        version = tuple(map(int, path.stem.split("_")))
        folder = path.parent.name
        states[folder] = max(states.get(folder, (version, path)), (version, path))
    return {folder: path.read_bytes() for folder, (_, path) in states.items()}


def require(condition: bool, message: str) -> None:
    """Raise AssertionError with the message unless the condition holds."""
    if not condition:
        raise AssertionError(message)
