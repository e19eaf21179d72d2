"""Records of a run: tables, TensorBoard events and the summary.

`metrics.parquet` has a row per round, `clients.parquet` a row per client and round. Both are
replaced aside and renamed, so they are readable at any moment. How often they are written is
bounded by the time that writing takes. `clients.parquet` is a folder of files; a file that is long
enough is closed, so that the rows held in memory stay bounded. `client_accuracy.parquet` has a row
per client, of the last evaluation. A checkpoint holds copies of the metrics and of the open file,
and the checksums of the closed ones: a resumed run has the rows of its rounds, all of them, or none
of it goes on.
"""

from __future__ import annotations

import math
import shutil
from collections.abc import Collection, Mapping, Sequence
from itertools import chain
from pathlib import Path
from time import perf_counter, time
from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq

from raysim.core.arrow import checksum
from raysim.core.errors import RunError
from raysim.storage.atomic import remove, replace_file
from raysim.storage.tensorboard_events import Events

Row = dict[str, Any]
Columns = Mapping[str, npt.NDArray[Any]]
FILE_ROWS = 50_000
"""Rows after which a file of `clients.parquet` is closed."""
WRITING_FRACTION = 0.01
"""Fraction of a run's time that may go into writing tables between checkpoints."""
METRICS, OPEN = "metrics.parquet", "open.parquet"
"""Names of the tables within a checkpoint."""


class SealedTables(NamedTuple):
    """Tables as of a checkpoint.

    Attributes:
        folder: The checkpoint's folder, with copies of the metrics and the open file.
        closed: The checksum of every closed file of `clients.parquet`, by name.
    """

    folder: Path
    closed: Mapping[str, str]


class RunRecorder:
    """Recorder of one run directory: rows of rounds and clients, and events.

    Attributes:
        rows: A row per recorded round; its `checkpoint_seconds` are 0 until it is checkpointed.
    """

    def __init__(self, folder: Path, settings: Mapping[str, Any]) -> None:
        self._folder = folder
        self._metrics_path = folder / METRICS
        self._clients_path = folder / "clients.parquet"
        self._accuracy_path = folder / "client_accuracy.parquet"
        self._settings = settings
        self._client_rows: list[pa.Table] = []
        self._accuracy: pa.Table | None = None
        self._closed: dict[str, str] = {}
        self.rows: list[Row] = []
        self._events: Events | None = None
        self._next_write = 0.0

    def open(self, rounds: int, sealed: SealedTables | None = None) -> None:
        """Go back to the records of the committed rounds, and create the event file.

        Events are written anew from the rows, so that a resumed run has none twice.

        Args:
            rounds: Number of the last committed round; 0 starts anew.
            sealed: The tables as of that round, where its checkpoint sealed them.

        Raises:
            RunError: rows of a round are lost, or a file cannot be written.
        """
        if sealed:
            self.rows = _read(sealed.folder / METRICS).to_pylist()
            self._restore_clients(sealed)
        elif rounds:
            self._reopen(rounds)
        else:
            self.rows = []
            remove(self._clients_path)
        for old in self._folder.glob("events.out.tfevents.*"):
            remove(old)
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

    def check(self, sealed: SealedTables) -> None:
        """Check that the closed files of `clients.parquet` are as they were sealed.

        Raises:
            OSError: one is missing.
            ValueError: one is damaged; it is named.
        """
        for name, expected in sealed.closed.items():
            if checksum(self._clients_path / name) != expected:
                raise ValueError(f"{self._clients_path / name} does not match its checksum")

    def seal(self, folder: Path, number: int, seconds: float) -> Mapping[str, str]:
        """Write everything, with the seconds of a round's checkpoint in its row; copy it there.

        Args:
            folder: The checkpoint's folder, which is not to be found yet.
            number: The round.
            seconds: Seconds that its checkpoint took.

        Returns:
            `SealedTables.closed` of the checkpoint.
        """
        row = next(row for row in reversed(self.rows) if row["round"] == number)
        row["checkpoint_seconds"] = seconds
        self.flush()
        shutil.copyfile(self._metrics_path, folder / METRICS)
        if self._client_rows:
            shutil.copyfile(self._open_path, folder / OPEN)
        return dict(self._closed)

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
            self.close_events()

    def close_events(self) -> None:
        """Close the event file, if it is open."""
        if self._events:
            events, self._events = self._events, None
            events.close()

    @property
    def _open_path(self) -> Path:
        return self._clients_path / f"part-{len(self._closed):06d}.parquet"

    def _write_clients(self) -> None:
        """Write the rows of the open file of `clients.parquet`; close it when it is long enough."""
        table = pa.concat_tables(self._client_rows, promote_options="default")
        path, full = self._open_path, len(table) >= FILE_ROWS
        replace_file(path, lambda aside: pq.write_table(table, aside), durable=full)
        self._client_rows = [] if full else [table]
        if full:
            self._closed[path.name] = checksum(path)

    def _restore_clients(self, sealed: SealedTables) -> None:
        """Delete the files of later rounds, and write the open file as it was."""
        self._closed = dict(sealed.closed)
        for path in self._clients_path.glob("part-*.parquet"):
            if path.name not in self._closed:
                remove(path)
        if (sealed.folder / OPEN).exists():
            self._client_rows = [_read(sealed.folder / OPEN)]
            self._write_clients()

    def _reopen(self, rounds: int) -> None:
        """Read tables that no checkpoint sealed; leave out the rows of later rounds."""
        self.rows = [r for r in _read(self._metrics_path).to_pylist() if r["round"] <= rounds]
        _check_rounds(self._metrics_path, rounds, {row["round"] for row in self.rows})
        files = sorted(self._clients_path.glob("part-*.parquet"))
        seen = [_read(path, ["round"])["round"].unique().to_pylist() for path in files]
        _check_rounds(self._clients_path, rounds, set(chain.from_iterable(seen)))
        while files:
            table = _read(path := files.pop())
            committed = table.filter(pc.less_equal(table["round"], rounds))
            if len(committed):
                self._closed = {closed.name: checksum(closed) for closed in files}
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


def _read(path: Path, columns: list[str] | None = None) -> pa.Table:
    try:
        return pq.read_table(path, columns=columns)
    except (OSError, pa.ArrowException) as error:
        raise RunError(
            f"{path}: is damaged ({error}); restore it, or start the run again in another `out`"
        ) from error


def _check_rounds(path: Path, rounds: int, found: Collection[int]) -> None:
    """Check that a table has rows of every committed round.

    Raises:
        RunError: it has not; it names the first of them.
    """
    for number in range(1, rounds + 1):
        if number not in found:
            raise RunError(
                f"{path}: lacks round {number} of {rounds}; restore it, or start the run again in"
                " another `out`"
            )


def _client_table(number: int, columns: Columns) -> pa.Table:
    integers = ("client", "samples", "steps", "pass")
    typed = {n: v.astype(np.int64) if n in integers else v for n, v in columns.items()}
    rows = len(next(iter(columns.values())))
    return pa.table({"round": np.full(rows, number), **typed})
