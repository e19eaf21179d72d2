"""Run directories: names of their files, the lock, settings, client indices and environment."""

from __future__ import annotations

import json
import os
import platform
import tempfile
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from datetime import UTC, datetime
from importlib.metadata import version
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import torch
from pyarrow import ipc

from raysim.config import Settings, parse
from raysim.core.client_indices import ClientIndices, ListedIndices
from raysim.core.errors import RunError, SettingsError
from raysim.storage.atomic import replace_file, write_json
from raysim.storage.environment import by_environment, environment
from raysim.storage.lock import lock_folder
from raysim.storage.recorder import dotted
from raysim.storage.schema import SCHEMA, current_settings

PACKAGES = ("raysim", "torch", "ray", "numpy", "pyarrow", "safetensors")


class RunDirectory:
    """A run directory, locked by the process that writes to it."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self._opened = datetime.now(UTC).isoformat(timespec="seconds")

    config = property(lambda self: self.path / "config.json")
    environment = property(lambda self: self.path / "environment.json")
    metrics = property(lambda self: self.path / "metrics.parquet")
    clients = property(lambda self: self.path / "clients.parquet")
    summary = property(lambda self: self.path / "summary.json")
    model = property(lambda self: self.path / "model.safetensors")
    partition = property(lambda self: self.path / "partition.arrow")
    checkpoints = property(lambda self: self.path / "checkpoints")
    errors = property(lambda self: self.path / "errors.log")
    states = property(lambda self: self.path / "clients")

    @classmethod
    def default(cls, name: str) -> Path:
        """Return a new path under `runs/`."""
        moment = datetime.now(UTC).strftime("%Y%m%d-%H%M%S")
        path = Path("runs") / f"{name}-{moment}"
        return path if not path.exists() else path.with_name(f"{path.name}-{os.getpid()}")

    def check(self, settings: Settings, own_task: bool) -> None:
        """Check that a run with these settings may write here; create nothing.

        It may where nothing exists yet, where no round was recorded, or where an unfinished run
        has equal settings.

        Raises:
            RunError: the folder holds something else, or cannot be written.
        """
        parent = next(p for p in (self.path, *self.path.absolute().parents) if p.exists())
        try:
            with tempfile.TemporaryFile(dir=parent):
                pass
        except OSError as error:
            raise RunError(
                f"out={self.path}: {parent} is not a folder that can be written: {error.strerror}"
            ) from error
        if parent != self.path or not any(self.path.iterdir()):
            return
        found, found_task = self.read_config()
        if self.metrics.exists() or self.checkpoints.exists():
            self._check_unfinished(found, found_task, settings, own_task)

    def _check_unfinished(
        self, found: dict[str, Any], found_task: bool, settings: Settings, own_task: bool
    ) -> None:
        """Check that the run in this directory may go on with these settings."""
        try:
            values = parse(found).to_dict()
        except SettingsError as error:
            raise RunError(
                f"out={self.path}: holds a run with other settings ({error}); choose another `out`"
            ) from error
        if difference := _difference(values, settings.to_dict()):
            raise RunError(f"out={self.path}: holds a run with {difference}; choose another `out`")
        if found_task != own_task:
            raise RunError(f"out={self.path}: holds a run of another task; choose another `out`")
        if self.summary.exists():
            raise RunError(f"out={self.path}: holds a finished run; choose another `out`")

    @contextmanager
    def lock(self, settings: Settings, own_task: bool) -> Iterator[None]:
        """Lock the directory for this process and write the settings.

        Raises:
            RunError: it cannot be written, or another process holds the lock.
        """
        with lock_folder(self.path, "another process is writing to it"):
            write_json(self.config, {"schema": SCHEMA, **settings.to_dict(), "own_task": own_task})
            yield

    def read_config(self) -> tuple[dict[str, Any], bool]:
        """Return the settings of the run, and whether it has a task of its own.

        Raises:
            RunError: the directory holds no run, or one of a newer version.
        """
        try:
            values = json.loads(self.config.read_text(encoding="utf-8"))
            own_task = bool(values.pop("own_task"))
        except (OSError, ValueError, KeyError, AttributeError, TypeError) as error:
            raise RunError(f"{self.path}: holds no run (config.json: {error})") from error
        return current_settings(self.config, values), own_task

    def save_partition(self, client_indices: ClientIndices) -> None:
        """Save the samples of each client; drawn ones follow from settings and seed."""
        if not isinstance(client_indices, ListedIndices):
            return
        lists = pa.LargeListArray.from_arrays(client_indices.offsets, client_indices.indices)
        table = pa.table({"client": np.arange(len(lists)), "samples": lists})

        def write(path: Path) -> None:
            with pa.OSFile(str(path), "wb") as sink, ipc.new_file(sink, table.schema) as writer:
                writer.write_table(table)

        replace_file(self.partition, write)

    def save_environment(self, actors: Sequence[Mapping[str, Any]] = (), **resources: Any) -> None:
        """Write versions, machine, actors, and of every node what decides bits.

        Args:
            actors: Each with what `Worker.about` returns, and its host.
            resources: The backend, and what each actor reserves.
        """
        write_json(
            self.environment,
            {
                "started": self._opened,
                "python": platform.python_version(),
                "platform": platform.platform(),
                "cpus": os.cpu_count(),
                "gpus": [torch.cuda.get_device_name(i) for i in range(torch.cuda.device_count())],
                "packages": {name: _version(name) for name in PACKAGES},
                "driver": environment(torch.device("cpu")),
                **resources,
                "actors": [
                    {key: value for key, value in actor.items() if key != "environment"}
                    for actor in actors
                ],
                "environments": by_environment(actors),
            },
        )


def _version(package: str) -> str | None:
    try:
        return version(package)
    except ImportError:
        return None


def _difference(found: dict[str, Any], wanted: dict[str, Any]) -> str | None:
    """Return the first setting that differs, but for those that change no result."""
    for values in (found := dotted(found)), (wanted := dotted(wanted)):
        for key in [k for k in values if k in {"out", "trace"} or k.startswith("engine.")]:
            if key not in {"engine.precision", "engine.vectorize"}:
                del values[key]
    for key in {**found, **wanted}:
        if found.get(key) != wanted.get(key):
            return f"{key}={found.get(key)} (here {wanted.get(key)})"
    return None
