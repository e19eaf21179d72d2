"""Interrupted runs that damages strike, and their comparison with undisturbed ones."""

from __future__ import annotations

import json
import os
import signal
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq

import raysim
from raysim.config import parse
from tests.faults.forked import Child, Ended, raysim_command

SETTINGS: Mapping[str, Any] = {
    "dataset": {"name": "tests.blobs:Blobs"},
    "partition": {"name": "iid", "limit": 40},
    "model": {"name": "tests.blobs:Raw"},
    "clients": 4,
    "rounds": 6,
    "fraction": 1.0,
    "checkpoint_every": 2,
    "trace": True,
    "evaluation": {"clients": True, "holdout": 0.1},
    "local": {"epochs": 1, "batch_size": 20, "lr": 0.05},
    "engine": {"backend": "inline"},
}
KILLED_IN = 6
"""Round in the middle of which the run is killed; there are checkpoints of rounds 2 and 4."""


def settings_of(method: str, out: Path, **changes: Any) -> raysim.Settings:
    if method == "fedma":  # which can match linear layers alone
        changes = {"model": {"name": "tests.blobs:Linear"}, **changes}
    return parse({**SETTINGS, "method": {"name": method}, "out": str(out), **changes})


class Killer(raysim.Listener):
    """Ends its own process with SIGKILL in the middle of a round."""

    def __init__(self, in_round: int) -> None:
        self._in_round, self._round = in_round, 1

    def progress(self, done: int, total: int) -> None:
        if self._round == self._in_round and 0 < done < total:
            os.kill(os.getpid(), signal.SIGKILL)

    def round_done(self, row: Mapping[str, Any]) -> None:
        self._round = row["round"] + 1


class InterruptedRun:
    """A run that was killed, and the same run undisturbed.

    Attributes:
        name: The method's.
        path: The killed run.
        undisturbed: The other one.
    """

    def __init__(self, method: str, folder: Path) -> None:
        self.name = method
        self.path, self.undisturbed = (folder / method / kind for kind in ("killed", "undisturbed"))
        # In this process, so that its children have done all imports.
        raysim.run(settings_of(method, self.undisturbed))
        settings = settings_of(method, self.path)
        ended = Child(lambda: raysim.run(settings, listener=Killer(KILLED_IN))).wait()
        assert ended.code == -signal.SIGKILL, ended.errors

    def resume(self, path: Path) -> Ended:
        """Resume a copy."""
        return raysim_command("resume", str(path))

    def start(self, path: Path) -> Ended:
        """Start it again in another folder."""
        return raysim_command("run", str(self.undisturbed / "config.json"), f"out={path}")

    def difference(self, path: Path) -> str | None:
        """Return in which file a run that is to be finished differs from the undisturbed one."""
        if not (path / "summary.json").exists():
            return "it is not finished"
        for name in ("model.safetensors", "model_best.safetensors"):
            if (path / name).read_bytes() != (self.undisturbed / name).read_bytes():
                return f"{name} has other bytes"
        for name, read in CONTENTS.items():
            expected = self.undisturbed / name
            try:
                found, wanted = read(path / name, expected), read(expected, expected)
            except (OSError, ValueError, KeyError, pa.ArrowException) as error:
                return f"{name} cannot be read: {error}"
            if other := [column for column in wanted if found[column] != wanted[column]]:
                return f"{name} has other values of {', '.join(other)}"
        left = [hidden for hidden in path.rglob(".*") if hidden.name != ".lock"]
        return f"{left[0].name} is left over" if left else None


def _table(path: Path, columns_of: Path) -> dict[str, list[str]]:
    """Return the columns that another table has, without seconds, sorted by row."""
    names = [name for name in pq.read_table(columns_of).column_names if "seconds" not in name]
    keys = [(name, "ascending") for name in ("round", "client", "pass") if name in names]
    columns = pq.read_table(path).select(names).sort_by(keys).to_pydict()
    return {name: [*map(repr, values)] for name, values in columns.items()}  # nan is nan


def _figures(path: Path, figures_of: Path) -> dict[str, Any]:
    """Return the figures that another summary has, without seconds."""
    values = json.loads(path.read_text())
    names = [name for name in json.loads(figures_of.read_text()) if "seconds" not in name]
    return {name: values.get(name) for name in names}


CONTENTS: Mapping[str, Callable[[Path, Path], Any]] = {
    "metrics.parquet": _table,
    "clients.parquet": _table,
    "client_accuracy.parquet": _table,
    "summary.json": _figures,
}
"""How the files of a run are read, besides its model."""
