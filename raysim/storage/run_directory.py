"""The run directory: names of its files, and the lock of its writer."""

from __future__ import annotations

import fcntl
import json
import os
import platform
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from datetime import UTC, datetime
from importlib.metadata import version
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import torch
from pyarrow import ipc

from raysim.config import Settings
from raysim.core.data import ClientIndices, ListedIndices
from raysim.core.errors import RunError
from raysim.storage.atomic import replace_file, write_json
from raysim.storage.recorder import dotted

PACKAGES = ("raysim", "torch", "ray", "numpy", "pyarrow", "safetensors")


class RunDir:
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
        """Check, without leaving files, that a run with these settings may write here.

        The directory must be empty, without a recorded round, or of an unfinished run with equal
        settings.

        Raises:
            RunError: the directory has other contents, or cannot be written.
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
        if not (self.metrics.exists() or self.checkpoints.exists()):
            return
        if difference := _difference(found, settings.to_dict()):
            raise RunError(f"out={self.path}: holds a run with {difference}; choose another `out`")
        if found_task != own_task:
            raise RunError(f"out={self.path}: holds a run of another task; choose another `out`")
        if self.summary.exists():
            raise RunError(f"out={self.path}: holds a finished run; choose another `out`")

    @contextmanager
    def claim(self, settings: Settings, own_task: bool) -> Iterator[None]:
        """Lock the directory for this process; the lock ends with the process.

        Raises:
            RunError: it cannot be written, or another process has the lock.
        """
        try:
            self.path.mkdir(parents=True, exist_ok=True)
            lock = (self.path / ".lock").open("w")
        except OSError as error:
            raise RunError(f"out={self.path}: cannot be written: {error.strerror}") from error
        with lock:
            try:
                fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
            except OSError as error:
                raise RunError(f"out={self.path}: another process is writing to it") from error
            write_json(self.config, {**settings.to_dict(), "own_task": own_task})
            yield

    def read_config(self) -> tuple[dict[str, Any], bool]:
        """Return the settings of the run, and whether it has a task of its own.

        Raises:
            RunError: the directory contains no run.
        """
        try:
            values = json.loads(self.config.read_text(encoding="utf-8"))
            own_task = bool(values.pop("own_task"))
        except (OSError, ValueError, KeyError, AttributeError, TypeError) as error:
            raise RunError(f"{self.path}: holds no run (config.json: {error})") from error
        return values, own_task

    def save_partition(self, shares: ClientIndices) -> None:
        """Save the client indices; those computed on demand follow from settings and seed."""
        if not isinstance(shares, ListedIndices):
            return
        lists = pa.LargeListArray.from_arrays(shares.offsets, shares.indices)
        table = pa.table({"client": np.arange(len(lists)), "samples": lists})

        def write(path: Path) -> None:
            with pa.OSFile(str(path), "wb") as sink, ipc.new_file(sink, table.schema) as writer:
                writer.write_table(table)

        replace_file(self.partition, write)

    def save_environment(self, **values: Any) -> None:
        """Write versions, machine and workers."""
        write_json(
            self.environment,
            {
                "started": self._opened,
                "python": platform.python_version(),
                "platform": platform.platform(),
                "cpu": platform.processor() or platform.machine(),
                "cpus": os.cpu_count(),
                "cuda": torch.version.cuda if torch.cuda.is_available() else None,
                "gpus": [torch.cuda.get_device_name(i) for i in range(torch.cuda.device_count())],
                "packages": {name: _version(name) for name in PACKAGES},
                **values,
            },
        )


def _version(package: str) -> str | None:
    try:
        return version(package)
    except ImportError:
        return None


def _difference(found: dict[str, Any], wanted: dict[str, Any]) -> str | None:
    """Return the first different setting that can change a result; resources cannot."""
    for values in (found := dotted(found)), (wanted := dotted(wanted)):
        for key in [k for k in values if k in {"out", "trace"} or k.startswith("engine.")]:
            if key not in {"engine.precision", "engine.vectorize"}:
                del values[key]
    for key in {**found, **wanted}:
        if found.get(key) != wanted.get(key):
            return f"{key}={found.get(key)} (here {wanted.get(key)})"
    return None
