"""Run directories: names of their files, the lock, settings, client indices and environment."""

from __future__ import annotations

import json
import os
import platform
import shutil
import tempfile
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import torch
from pyarrow import ipc

from raysim.config import Settings, parse
from raysim.errors import DataError, RunError, SettingsError
from raysim.numbers.tensors import Tensors
from raysim.process.source import source
from raysim.samples.client_indices import ClientIndices, ListedIndices, own_indices
from raysim.samples.preparation import Preparation
from raysim.storage.atomic import is_leftover, remove, replace_file, sweep, write_json
from raysim.storage.checkpoints import BEST_MODEL, MODEL, Checkpoints, save_tensors
from raysim.storage.environment import by_environment, environment, gpu_names, installed_version
from raysim.storage.lock import LOCK, check_place, is_locked, lock_folder, make_new_folder
from raysim.storage.plugins import SEALS, Plugins, modules_of
from raysim.storage.revisions import revisions_of
from raysim.storage.rows.metrics import declared_in, read_metrics
from raysim.storage.rows.parted import with_names
from raysim.storage.schema import SCHEMA, check_schema, recorded_settings
from raysim.storage.sealed.words import read_sealed, sealed
from raysim.storage.summary import end_of, summarise
from raysim.user_input import (
    as_typed,
    canonical,
    may_change,
    may_grow,
    parse_json,
    resume_advice,
)

PACKAGES = ("raysim-fl", "torch", "ray", "numpy", "pyarrow", "safetensors")
LOCKED = "another process is writing to it"


class RunDirectory:
    """Run directory, locked by the process that writes to it."""

    def __init__(self, path: Path, *, grows: bool = False) -> None:
        """Name a run directory.

        Args:
            path: Its path.
            grows: Whether the run that it holds may get more rounds.
        """
        self.path, self.grows = path, grows
        self.config_values: dict[str, Any] = {}
        """Content of `config.json`, set when the directory is locked."""
        self._descriptor: int | None = None
        self._opened = datetime.now(UTC).isoformat(timespec="seconds")

    config = property(lambda self: self.path / "config.json")
    environment = property(lambda self: self.path / "environment.json")
    metrics = property(lambda self: self.path / "metrics.parquet")
    clients = property(lambda self: self.path / "clients.parquet")
    summary = property(lambda self: self.path / "summary.json")
    model = property(lambda self: self.path / MODEL)
    base = property(lambda self: self.path / "base.safetensors")
    best_model = property(lambda self: self.path / BEST_MODEL)
    partition = property(lambda self: self.path / "partition.arrow")
    preparation = property(lambda self: self.path / "preparation.json")
    checkpoints = property(lambda self: self.path / "checkpoints")
    errors = property(lambda self: self.path / "errors.log")
    failed = property(lambda self: self.path / "failed.json")
    client_models = property(lambda self: self.path / "client_models")
    states = property(lambda self: self.path / "clients")
    begun = property(lambda self: any(self.checkpoints.glob("round_*")))

    @classmethod
    @contextmanager
    def reserved(cls, out: str | None, name: str) -> Iterator[Path]:
        """Yield the path of a run: `out`, or else a new folder under `runs/`.

        A new folder is created for this run alone, and removed if the body leaves it empty.

        Raises:
            RunError: the folder cannot be created.
        """
        if out is not None:
            yield Path(out)
            return
        moment = datetime.now(UTC).strftime("%Y%m%d-%H%M%S")
        path = make_new_folder(Path("runs") / f"{name}-{moment}")
        try:
            yield path
        finally:
            for folder in (path, path.parent):
                with suppress(OSError):
                    folder.rmdir()

    @contextmanager
    def gone_if_refused(self) -> Iterator[None]:
        """Remove the folder if a run that begins in the body is refused before its first commit.

        Raises:
            RaysimError: the body's error.
        """
        fresh = not self.path.is_dir() or all(map(_is_before_a_run, self.path.iterdir()))
        missing = [parent for parent in self.path.parents if not parent.exists()]
        try:
            yield
        except (SettingsError, DataError):
            if (
                fresh and not self.begun and not is_locked(self.path)
            ):  # another may have been faster
                shutil.rmtree(self.path, ignore_errors=True)
                with suppress(OSError):
                    for parent in missing:
                        parent.rmdir()
            raise

    def is_finished(self, target: float | None, rounds: int, every: int = 1) -> bool:
        """Return whether the summary agrees with the rounds; resuming replaces a damaged one."""
        try:
            recorded = parse_json(self.summary.read_text("utf-8"))
            table = read_metrics(self.metrics, rounds)
            recorded_rows = table.to_pylist(), declared_in(table.schema), target
            expected = summarise(*recorded_rows, every=every, rounds=end_of(recorded, rounds))
            # As text: a loss of NaN is not equal to itself.
            return all(
                json.dumps(recorded[name]) == json.dumps(expected[name]) for name in expected
            )
        except (OSError, ValueError, LookupError, TypeError, RecursionError, pa.ArrowException):
            return False

    def is_finished_by(self, settings: Settings) -> bool:
        """Return `is_finished` by the settings of the run."""
        every = settings.evaluation.every
        return self.is_finished(settings.target_accuracy, settings.rounds, every)

    def check_finished(self, settings: Settings, own_task: bool) -> None:
        """Check that the run is finished, by its settings.

        Raises:
            RunError: it is not.
        """
        if not self.is_finished_by(settings):
            number, rounds = Checkpoints(self.checkpoints).words().get("round", 0), settings.rounds
            raise RunError(
                f"{self.path}: is unfinished: its checkpoints reach round {number} of {rounds};"
                f" to finish it, {resume_advice(self.path, own_task=own_task)}"
            )

    def holds_finished(self, settings: Settings) -> bool:
        """Return whether this is a finished run with equal settings and formula."""
        if not self.is_finished_by(settings) or not self.config.exists():
            return False
        recorded, own_task = self.read_config()
        return not (
            own_task or difference_from(recorded, settings) or self.other_revision(settings)
        )

    def other_revision(self, settings: Settings) -> str | None:
        """Return the difference in the revisions of components, or None."""
        sealed = Checkpoints(self.checkpoints).revisions() or {}
        here = revisions_of(settings)
        changes = (f"{n} {sealed[n]} (here {here[n]})" for n in sealed if sealed[n] != here[n])
        return ", ".join(changes) or None

    def check(
        self,
        settings: Settings,
        own_task: bool,
        note: Callable[[str], None] = lambda text: None,
    ) -> None:
        """Check that a run with these settings may write here; create nothing.

        It may if there is no folder, no recorded round, or a run with equal settings and, if it is
        finished, with the same formula.

        Args:
            settings: The settings.
            own_task: Whether the run has its own task.
            note: Called with a line if `config.json` is damaged.

        Raises:
            RunError: the folder holds other files or runs, or cannot be written.
        """
        parent = next(p for p in (self.path, *self.path.absolute().parents) if p.exists())
        try:
            with tempfile.TemporaryFile(dir=parent):
                pass
        except OSError as error:
            raise RunError(
                f"out={self.path}: {parent} is not a folder that can be written: {error.strerror}"
            ) from error
        if parent != self.path or all(map(_is_before_a_run, self.path.iterdir())):
            return
        recorded, recorded_task = self.read_config(note)
        if self.metrics.exists() or self.checkpoints.exists():
            self._check_unfinished(recorded, recorded_task, settings, own_task)

    def _check_unfinished(
        self, recorded: dict[str, Any], recorded_task: bool, settings: Settings, own_task: bool
    ) -> None:
        """Check that the run in this directory may continue with these settings."""
        if difference := difference_from(recorded, settings, grows=self.grows):
            longer = settings.rounds > recorded["rounds"]
            longer &= settings.asynchrony is None
            more = ""
            if difference.startswith("rounds=") and longer:
                more = f"; to train it further, type: raysim resume {self.path} rounds=..., or"
            raise RunError(
                f"out={self.path}: holds a run with {difference}{more or ';'} choose another `out`"
            )
        if recorded_task != own_task:
            raise RunError(f"out={self.path}: holds a run of another task; choose another `out`")
        other = self.other_revision(settings)
        if other and self.is_finished_by(settings):
            raise RunError(
                f"out={self.path}: holds a finished run with {other}; choose another `out`"
            )

    @contextmanager
    def lock(self, settings: Settings, own_task: bool) -> Iterator[None]:
        """Lock the directory for this process, check it again, write seals and settings.

        Another process may have used it since the first check. Half-written files of a killed
        process are deleted, and so is the record of an earlier failure.

        Raises:
            RunError: the directory cannot be written, another process holds the lock, or `check`
                refuses it.
        """
        with lock_folder(self.path, LOCKED) as descriptor:
            self._descriptor = descriptor
            for folder in (self.path, self.clients, self.checkpoints):
                sweep(folder)
            self.check(settings, own_task)
            Plugins(self.path).seal(settings.to_dict())  # before a run needs them
            self.config_values = {"schema": SCHEMA, **settings.to_dict(), "own_task": own_task}
            # A run that grows has its new rounds once nothing refuses it any more.
            before = self.read_config()[0] if self.grows else {}
            grown = {key: before[key] for key in filter(may_grow, before)}
            write_json(self.config, self.config_values | grown)
            remove(self.failed)
            try:
                yield
            finally:
                self._descriptor = None

    def grow(self) -> None:
        """Write the new number of rounds of a run that goes on after its end."""
        remove(self.summary)
        write_json(self.config, self.config_values)

    def check_place(self) -> None:
        """Check that the path still leads to the directory that this process has locked.

        Raises:
            MovedError: the directory was renamed, deleted or replaced; writing would create it.
        """
        if self._descriptor is not None:
            check_place(self.path, self._descriptor)

    def read_config(
        self, note: Callable[[str], None] = lambda text: None
    ) -> tuple[dict[str, Any], bool]:
        """Return the settings of the run, and whether it has its own task.

        If `config.json` is damaged, or differs from the newest checkpoint in a setting that decides
        results, the checkpoint's settings are returned.

        Args:
            note: Called with a line if the checkpoint's settings are used.

        Raises:
            RunError: the directory holds no run, or a run of another version.
        """
        sealed = Checkpoints(self.checkpoints).words().get("config")
        try:
            values = dict(parse_json(self.config.read_text("utf-8")))
            config = recorded_settings(self.config, values)
        except (OSError, ValueError, KeyError, TypeError) as error:
            if sealed is None:
                raise RunError(f"{self.path}: holds no run: {self._lacking(error)}") from error
            problem = "is damaged"
        else:
            if sealed is None or (other := _other_settings(config[0], sealed)) is None:
                return config  # perhaps with more rounds, which the next checkpoint seals
            problem = f"differs from the newest checkpoint ({other})"
        note(f"{self.config}: {problem}; taking the settings from the checkpoint")
        return recorded_settings(self.config, sealed)

    def _lacking(self, error: Exception) -> str:
        """Return why there are no settings of a run, which could not be read."""
        if not self.path.is_dir():
            return "there is no such folder"
        if isinstance(error, FileNotFoundError):
            return f"there is no {self.config.name}"
        return f"{self.config.name}: {getattr(error, 'strerror', None) or error}"

    def save_partition(self, client_indices: ClientIndices, names: Sequence[str] = ()) -> None:
        """Save the samples of each client, unless all are drawn from settings and seed.

        Args:
            client_indices: The samples [K].
            names: The clients' names [K]; empty if they have numbers alone.
        """
        if not isinstance(own_indices(client_indices), ListedIndices):
            return
        if not isinstance(client_indices, ListedIndices):
            held = [client_indices[client] for client in range(len(client_indices.sizes))]
            client_indices = ListedIndices.of(held)
        lists = pa.LargeListArray.from_arrays(client_indices.offsets, client_indices.indices)
        table = pa.table(with_names({"client": np.arange(len(lists)), "samples": lists}, names))

        def write(path: Path) -> None:
            with pa.OSFile(str(path), "wb") as sink, ipc.new_file(sink, table.schema) as writer:
                writer.write_table(table)

        replace_file(self.partition, write)

    def save_base(self, tensors: Tensors) -> None:
        """Write the frozen tensors that the run directory holds, once.

        A file without checkpoints is that of another attempt.
        """
        if self.begun and self.base.exists():
            return
        if tensors:
            save_tensors(self.base, tensors)
        else:
            remove(self.base)

    def save_preparation(self, preparation: Preparation) -> None:
        """Save how samples become inputs of the network."""
        write_json(self.preparation, sealed({"schema": SCHEMA, **preparation.to_json()}))

    def read_preparation(self) -> Preparation | None:
        """Return how samples become inputs of the network; None if the run has not stored it.

        Raises:
            RunError: the file is damaged, or another version wrote it.
        """
        if not os.path.lexists(self.preparation):
            return None
        try:
            values = read_sealed(self.path, self.preparation.name)
            check_schema(self.preparation, values)
            return Preparation.of({k: v for k, v in values.items() if k not in ("schema", "seal")})
        except (OSError, ValueError) as error:
            cause = getattr(error, "strerror", None) or error
            raise RunError(f"{self.preparation}: is damaged ({cause}); restore it") from error

    def save_environment(self, actors: Sequence[Mapping[str, Any]] = (), **resources: Any) -> None:
        """Write versions, machine, actors, and the environment of each node.

        Args:
            actors: Result of `Worker.about` and host of each actor.
            resources: The backend, and the resources of each actor.
        """
        write_json(
            self.environment,
            {
                "started": self._opened,
                "python": platform.python_version(),
                "platform": platform.platform(),
                "cpus": os.cpu_count(),
                "gpus": gpu_names(),
                "packages": {name: installed_version(name) for name in PACKAGES},
                "source": source(),
                "driver": environment(torch.device("cpu")),
                **resources,
                "actors": [
                    {key: value for key, value in actor.items() if key != "environment"}
                    for actor in actors
                ],
                "environments": by_environment(actors),
            },
        )


def _is_before_a_run(path: Path) -> bool:
    """Return whether a killed start may leave such a file before it writes the settings."""
    return path.name in (LOCK, SEALS) or is_leftover(path)


def _other_settings(recorded: dict[str, Any], sealed: dict[str, Any]) -> str | None:
    """Return the first setting that decides results and differs from the sealed ones, or None."""
    expected = {k: v for k, v in sealed.items() if k not in ("schema", "own_task")}
    if other := modules_of(recorded) ^ modules_of(expected):  # not checked: `parse` would import it
        return ", ".join(sorted(other))
    try:
        return difference_from(expected, parse(recorded), grows=True)
    except SettingsError as error:
        return str(error)


def difference_from(
    recorded: Mapping[str, Any], settings: Settings, *, grows: bool = False
) -> str | None:
    """Return the first recorded setting that differs from a run's; None if it may continue.

    Args:
        recorded: The recorded settings.
        settings: The run's settings.
        grows: Whether it may have larger values of settings that may grow.
    """
    try:
        values = parse(recorded).to_dict()
    except SettingsError as error:
        return f"other settings ({error})"
    wanted = settings.to_dict()
    if grows:
        values |= {key: max(values[key], wanted[key]) for key in filter(may_grow, wanted)}
    written, wanted = canonical(values), canonical(wanted)
    for key in {**written, **wanted}:
        if not may_change(key) and written.get(key) != wanted.get(key):
            return f"{key}={as_typed(written.get(key))} (here {as_typed(wanted.get(key))})"
    return None
