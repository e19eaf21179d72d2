"""Records of a run: tables of its rounds and clients, and TensorBoard events.

`metrics.parquet` has a row per round, `clients.parquet` a row per client and round. Both are
written to a temporary file and renamed, so they are readable at any moment. Writing is limited to a
fraction of the run's time. `clients.parquet` is a folder of files, a `PartedTable`, and so is
`analysis/NAME.parquet` of each analysis. `client_accuracy.parquet` has a row per client, of the
last evaluation. A checkpoint holds copies of the metrics and of the open files, and the checksums
of the closed ones: a resumed run has all rows of its rounds, or stops.
"""

from __future__ import annotations

import math
import shutil
from collections.abc import Mapping, Sequence
from pathlib import Path
from time import perf_counter, time
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq

from raysim.api.columns import OF_ENGINE, Column, by_name
from raysim.numbers.arrays import Array
from raysim.storage.atomic import remove, replace_file
from raysim.storage.column_names import COUNTS
from raysim.storage.rows.metrics import declared_in, read_metrics, with_declared
from raysim.storage.rows.parted import PartedTable, reading, with_names
from raysim.user_input import canonical

if TYPE_CHECKING:
    from raysim.storage.rows.tensorboard_events import Events

Row = dict[str, Any]
Columns = Mapping[str, Array]
WRITING_FRACTION = 0.01
"""Largest fraction of a run's time for writing tables between checkpoints."""
METRICS, OPEN = "metrics.parquet", "open.parquet"
"""Names of the tables within a checkpoint, without the analyses'."""
ANALYSIS = "analysis"
"""Folder of the tables of the analyses."""


class SealedTables(NamedTuple):
    """Tables as of a checkpoint.

    Attributes:
        folder: The checkpoint's folder, with copies of the metrics and the open files.
        closed: Checksum of each closed file, by its name in `clients.parquet`, or its path.
    """

    folder: Path
    closed: Mapping[str, str]


class RunRecorder:
    """Recorder of one run directory: rows of rounds and clients, and events.

    Attributes:
        rows: A row per recorded round; `checkpoint_seconds` is 0 until its checkpoint.
        clients: Folder of the rows of clients.
        declared: Columns of the rows by name, as their writers declare them.
    """

    def __init__(
        self,
        folder: Path,
        settings: Mapping[str, Any],
        declared: Mapping[str, Column] = OF_ENGINE,
        names: Sequence[str] = (),
    ) -> None:
        """Set the run directory, its settings, and the known columns and clients.

        Nothing is read or written before `open`.

        Args:
            folder: The run directory.
            settings: Its settings.
            declared: Columns of the rows by name, as they are declared.
            names: Names of its clients [K], if they have any.
        """
        self._folder, self._names = folder, names
        self._metrics_path = folder / METRICS
        self._accuracy_path = folder / "client_accuracy.parquet"
        self._settings = settings
        self.clients = folder / "clients.parquet"
        self._clients = PartedTable(self.clients, OPEN)
        self._analyses = {
            name: PartedTable(folder / ANALYSIS / f"{name}.parquet", f"{ANALYSIS}.{name}.parquet")
            for name in settings.get(ANALYSIS, ())
        }
        self._accuracy: pa.Table | None = None
        self.rows: list[Row] = []
        self.declared = {**declared}
        self._events: Events | None = None
        self._next_write = 0.0

    def open(self, sealed: SealedTables | None = None) -> None:
        """Restore the records of the committed rounds, and create the event file.

        All events are written again from the rows, so that a resumed run has none twice.

        Args:
            sealed: The tables as of the last committed round; None deletes all records.

        Raises:
            RunError: rows of a round are lost, or a file cannot be written.
        """
        if sealed:
            self.rows = self._read(sealed.folder / METRICS)
            for prefix, table in self._parted().items():
                table.restore(sealed.folder, _of_table(sealed.closed, prefix))
        else:
            self.rows = []
            for table in self._parted().values():
                table.clear()
        for old in self._folder.glob("events.out.tfevents.*"):
            remove(old)
        # Late, while actors start, as it takes long.
        from raysim.storage.rows.tensorboard_events import Events

        self._events = Events.create(self._folder)
        values = {
            key: value if isinstance(value, int | float | str) else str(value)
            for key, value in canonical(self._settings).items()
        }
        self._events.hyperparameters(values)
        moment = time() - sum(row["seconds"] for row in self.rows)
        for row in self.rows:
            moment += row["seconds"]
            self._emit(row, moment)

    def _read(self, path: Path) -> list[Row]:
        with reading(path):
            table = read_metrics(path, self._settings["rounds"])
            self.declared = {**declared_in(table.schema), **self.declared}
            rows: list[Row] = table.to_pylist()
            return rows

    def _parted(self) -> dict[str, PartedTable]:
        """Return the parted tables, by the prefix of their sealed files' names."""
        analyses = {f"{ANALYSIS}/{name}/": table for name, table in self._analyses.items()}
        return {"": self._clients, **analyses}

    def add(
        self,
        row: Row,
        columns: Sequence[Columns],
        accuracy: Columns | None = None,
        analyses: Mapping[str, Columns] | None = None,
        declared: Mapping[str, Column] | None = None,
    ) -> None:
        """Record a round.

        Args:
            row: Row of `metrics.parquet`.
            columns: Columns of the round's clients, by pass.
            accuracy: Columns of the evaluated clients, if any.
            analyses: Columns of the analyses by name; an analysis without columns has no rows.
            declared: Further columns of the row that are declared.
        """
        numbered = [column for column in self.declared.values() if column.numbered]
        self.declared |= by_name(
            numbered_column for column in numbered for numbered_column in column.numbers(row)
        )
        self.declared |= declared or {}
        self.rows.append(row)
        for values in columns:
            self._clients.add(_client_table(row["round"], values, self._names))
        for name, of_analysis in (analyses or {}).items():
            if of_analysis:
                self._analyses[name].add(_table(row["round"], of_analysis))
        if accuracy:
            self._accuracy = _client_table(row["round"], accuracy, self._names)

    def check(self, sealed: SealedTables) -> None:
        """Check that the closed files of parted tables are as they were sealed.

        Raises:
            OSError: a file is missing.
            ValueError: a file is damaged; the message names it.
        """
        for prefix, table in self._parted().items():
            table.check(_of_table(sealed.closed, prefix))

    def seal(self, folder: Path, number: int, seconds: float) -> Mapping[str, str]:
        """Write all records, with the duration of a round's checkpoint; copy them into it.

        Args:
            folder: The checkpoint's folder, which has a temporary name.
            number: The round.
            seconds: Duration of its checkpoint.

        Returns:
            `SealedTables.closed` of the checkpoint.
        """
        row = next(row for row in reversed(self.rows) if row["round"] == number)
        row["checkpoint_seconds"] = seconds
        self.flush()
        shutil.copyfile(self._metrics_path, folder / METRICS)
        return {
            f"{prefix}{name}": digest
            for prefix, table in self._parted().items()
            for name, digest in table.seal(folder).items()
        }

    def publish(self, row: Row) -> None:
        """Publish a recorded round: its events now, the tables when they are due."""
        self._emit(row, time())
        if perf_counter() >= self._next_write:
            self.flush()

    def flush(self) -> None:
        """Write all recorded rows and events."""
        begun = perf_counter()
        if self.rows:
            table = self.table()
            replace_file(self._metrics_path, lambda path: pq.write_table(table, path))
        for parted in self._parted().values():
            parted.write()
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
        table = pa.table({name: [row.get(name) for row in self.rows] for name in names})
        return with_declared(table, self.declared)

    def close(self) -> None:
        """Write all records and close the event file."""
        try:
            self.flush()
        finally:
            self.close_events()

    def close_events(self) -> None:
        """Close the event file, if it is open."""
        if self._events:
            events, self._events = self._events, None
            events.close()

    def _emit(self, row: Row, moment: float) -> None:
        if self._events is None:
            return
        if row["round"] == self.rows[0]["round"]:
            self._events.charts(map(self._column, row))
        for name, value in row.items():
            if name != "round" and isinstance(value, int | float) and math.isfinite(value):
                self._events.scalar(self._column(name), value, row["round"], moment)

    def _column(self, name: str) -> Column:
        return self.declared.get(name) or Column(name)


def _client_table(number: int, columns: Columns, names: Sequence[str]) -> pa.Table:
    typed = {n: v.astype(np.int64) if n in COUNTS else v for n, v in columns.items()}
    return _table(number, with_names(typed, names))


def _table(number: int, columns: Columns) -> pa.Table:
    """Return a table of columns [n] or [n, F], with the round as first column."""
    rows = len(next(iter(columns.values())))
    arrays = {name: _array(np.asarray(values)) for name, values in columns.items()}
    return pa.table({"round": np.full(rows, number), **arrays})


def _array(values: Array) -> pa.Array:
    """Return values [n], or [n, F] as lists of F."""
    if values.ndim == 1:
        return pa.array(values)
    return pa.FixedSizeListArray.from_arrays(values.reshape(-1), values.shape[1])


def _of_table(closed: Mapping[str, str], prefix: str) -> dict[str, str]:
    """Select the checksums of one table's closed files, by name."""
    files = {n.removeprefix(prefix): d for n, d in closed.items() if n.startswith(prefix)}
    return {name: digest for name, digest in files.items() if "/" not in name}
