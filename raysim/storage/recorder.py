"""Records of a run: tables, TensorBoard events and the summary.

`metrics.parquet` has a row per round, `clients.parquet` a row per client and round. Both are
replaced aside and renamed, so they are readable at any moment. How often they are written is
bounded by the time that writing takes. `clients.parquet` is a folder of files; a file that is long
enough is closed, so that the rows held in memory stay bounded. `client_accuracy.parquet` has a row
per client, of the last evaluation.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from pathlib import Path
from time import perf_counter, time
from typing import Any

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq

from raysim.core.errors import RunError
from raysim.storage.atomic import replace_file
from raysim.storage.tensorboard_events import Events

Row = dict[str, Any]
Columns = Mapping[str, npt.NDArray[Any]]
FILE_ROWS = 50_000
"""Rows after which a file of `clients.parquet` is closed."""
WRITING_FRACTION = 0.01
"""Fraction of a run's time that may go into writing tables between checkpoints."""


class RunRecorder:
    """Recorder of one run directory: rows of rounds and clients, and events.

    Attributes:
        rows: A row per recorded round; its `checkpoint_seconds` are 0 until it is checkpointed.
    """

    def __init__(self, folder: Path, settings: Mapping[str, Any]) -> None:
        self._folder = folder
        self._metrics_path = folder / "metrics.parquet"
        self._clients_path = folder / "clients.parquet"
        self._accuracy_path = folder / "client_accuracy.parquet"
        self._settings = settings
        self._client_rows: list[pa.Table] = []
        self._accuracy: pa.Table | None = None
        self._file = 0
        self.rows: list[Row] = []
        self._events: Events | None = None
        self._next_write = 0.0

    def open(self, rounds: int) -> None:
        """Read the records of the committed rounds, delete later ones, create the event file.

        Events are written anew from the rows, so that a resumed run has none twice.

        Args:
            rounds: Number of the last committed round.

        Raises:
            RunError: a table is damaged, or a file cannot be written.
        """
        self.rows = [row for row in self._read_metrics() if row["round"] <= rounds]
        self._reopen_clients(rounds)
        for old in self._folder.glob("events.out.tfevents.*"):
            old.unlink()
        self._events = Events.create(self._folder)
        self._emit_hyperparameters(self._events)
        moment = time() - sum(row["seconds"] for row in self.rows)
        for row in self.rows:
            moment += row["seconds"]
            self._emit(row, moment)

    def add(self, row: Row, columns: Sequence[Columns], accuracy: Columns | None = None) -> None:
        """Record a round.

        Args:
            row: Its row of `metrics.parquet`.
            columns: Columns of its clients, by pass.
            accuracy: Columns of the evaluated clients, if any.
        """
        self.rows.append(row)
        self._client_rows += [_client_table(row["round"], values) for values in columns]
        if accuracy:
            self._accuracy = _client_table(row["round"], accuracy)

    def add_checkpoint(self, number: int, seconds: float) -> None:
        """Write everything, with the seconds of a round's checkpoint in its row.

        Call it before the checkpoint can be found: a run that resumes from it reads this row.
        """
        row = next(row for row in reversed(self.rows) if row["round"] == number)
        row["checkpoint_seconds"] = seconds
        self.flush()

    def publish(self, row: Row) -> None:
        """Show a recorded round to readers: its events now, the tables when they are due."""
        self._emit(row, time())
        if perf_counter() >= self._next_write:
            self.flush()

    def flush(self) -> None:
        """Write all recorded rows and events."""
        begun = perf_counter()
        if self.rows:
            table = self.table()
            replace_file(self._metrics_path, lambda path: pq.write_table(table, path))
        if self._client_rows:
            self._write_clients()
        if self._accuracy is not None:
            accuracy, self._accuracy = self._accuracy, None
            replace_file(self._accuracy_path, lambda path: pq.write_table(accuracy, path))
        if self._events:
            self._events.flush()
        end = perf_counter()
        self._next_write = end + max((end - begun) / WRITING_FRACTION, 1.0)

    def table(self) -> pa.Table:
        """Return the metrics of all rounds so far."""
        names = dict.fromkeys(name for row in self.rows for name in row)
        return pa.table({name: [row.get(name) for row in self.rows] for name in names})

    def close(self) -> None:
        """Write everything and close the event file."""
        try:
            self.flush()
        finally:
            if self._events:
                events, self._events = self._events, None
                events.close()

    def _write_clients(self) -> None:
        """Write the rows of the open file of `clients.parquet`; close it when it is long enough."""
        table = pa.concat_tables(self._client_rows, promote_options="default")
        path = self._clients_path / f"part-{self._file:06d}.parquet"
        replace_file(path, lambda aside: pq.write_table(table, aside))
        self._client_rows = [table]
        if len(table) >= FILE_ROWS:
            self._client_rows = []
            self._file += 1

    def _read_metrics(self) -> list[Row]:
        if not self._metrics_path.exists():
            return []
        rows: list[Row] = _read(self._metrics_path).to_pylist()
        return rows

    def _reopen_clients(self, rounds: int) -> None:
        """Delete the clients' rows of later rounds; reopen the last file that has others."""
        files = sorted(self._clients_path.glob("part-*.parquet"))
        while files:
            path = files.pop()
            table = _read(path)
            committed = table.filter(pc.less_equal(table["round"], rounds))
            self._file = int(path.stem.removeprefix("part-"))
            if len(committed):
                self._client_rows = [committed]
                self._write_clients()
                return
            path.unlink()

    def _emit(self, row: Row, moment: float) -> None:
        if self._events is None:
            return
        for name, value in row.items():
            if name != "round" and isinstance(value, int | float) and math.isfinite(value):
                self._events.scalar(name, value, row["round"], moment)

    def _emit_hyperparameters(self, events: Events) -> None:
        values = {
            key: value if isinstance(value, int | float | str) else str(value)
            for key, value in dotted(self._settings).items()
        }
        events.hyperparameters(values)


def dotted(values: Mapping[str, Any], prefix: str = "") -> Row:
    """Return nested settings by dotted key."""
    flat: Row = {}
    for key, value in values.items():
        if isinstance(value, Mapping):
            flat |= dotted(value, f"{prefix}{key}.")
        else:
            flat[prefix + key] = value
    return flat


def rounds_to_target(rows: Sequence[Row], target: float | None) -> float | None:
    """Return the rounds until the running maximum of the test accuracy reached a target.

    The curve is interpolated between the evaluation that reached it and the one before, as in
    McMahan et al., section 3. None if there is no target or it was not reached.
    """
    before: tuple[float, float] | None = None
    for row in rows:
        accuracy = row.get("test_accuracy")  # a task that is no classification has none
        if target is None or accuracy is None:
            continue
        if accuracy >= target:
            if before is None:
                return float(row["round"])
            number, best = before
            reached: float = number + (target - best) / (accuracy - best) * (row["round"] - number)
            return reached
        before = (row["round"], max(accuracy, before[1] if before else 0.0))
    return None


def summarise(rows: Sequence[Row], target: float | None) -> Row:
    """Return the figures of a run, as in `summary.json`.

    Rounds below 1, as the first version numbered a pre-pass, are left out.
    """
    counted = [row for row in rows if row["round"] >= 1]
    evaluated = [row for row in counted if row["test_loss"] is not None]
    accuracies = [row["test_accuracy"] for row in evaluated if "test_accuracy" in row]
    last = (evaluated or counted)[-1]
    seconds = sum(
        row["seconds"] + (row["evaluation_seconds"] or 0) + row["checkpoint_seconds"]
        for row in counted
    )
    return {
        "final_accuracy": accuracies[-1] if accuracies else None,
        "best_accuracy": max(accuracies, default=None),
        **{
            f"final_{name.removeprefix('test_')}": value
            for name, value in last.items()
            if name.startswith(("holdout_", "client_accuracy_"))
            or (name.startswith("test_") and name != "test_accuracy")
        },
        "rounds_to_target": rounds_to_target(counted, target),
        "rounds": len(counted),
        "seconds": seconds,
        "seconds_per_round": float(np.median([row["seconds"] for row in counted])),
        "bytes_up": sum(row["bytes_up"] for row in counted),
        "bytes_down": sum(row["bytes_down"] for row in counted),
    }


def _read(path: Path) -> pa.Table:
    try:
        return pq.read_table(path)
    except (OSError, pa.ArrowException) as error:
        raise RunError(f"{path}: is damaged: {error}; restore or delete it") from error


def _client_table(number: int, columns: Columns) -> pa.Table:
    integers = ("client", "samples", "steps", "pass")
    typed = {n: v.astype(np.int64) if n in integers else v for n, v in columns.items()}
    rows = len(next(iter(columns.values())))
    return pa.table({"round": np.full(rows, number), **typed})
