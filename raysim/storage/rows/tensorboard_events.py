"""TensorBoard events of a run.

`torch.utils.tensorboard.SummaryWriter` writes in a thread, which ends with a traceback on the
terminal if the disk is full. This writer raises the error in the caller.
"""

from __future__ import annotations

import os
import socket
from collections.abc import Iterable, Mapping
from pathlib import Path
from time import time
from typing import Any, BinaryIO, Self

from tensorboard.compat.proto.event_pb2 import Event
from tensorboard.summary.writer.record_writer import RecordWriter
from torch.utils.tensorboard.summary import custom_scalars, hparams, scalar

from raysim.api.columns import Column
from raysim.storage.atomic import writing
from raysim.storage.rows.tags import charts_of, tag_of


class Events:
    """Open event file of one process; readers see flushed events.

    Every method raises MachineError if the file cannot be written.
    """

    def __init__(self, path: Path, file: BinaryIO) -> None:
        self._path = path
        self._records = RecordWriter(file)

    @classmethod
    def create(cls, folder: Path) -> Self:
        """Create an event file in a folder."""
        name = f"events.out.tfevents.{int(time()):010d}.{socket.gethostname()}.{os.getpid()}"
        path = folder / name
        with writing(path):
            events = cls(path, path.open("ab"))
        events._write(file_version="brain.Event:2")
        events.flush()
        return events

    def charts(self, columns: Iterable[Column]) -> None:
        """Write the charts of the tab Custom Scalars, of the columns that a run has."""
        layout = {
            category: {title: ["Multiline", tags] for title, tags in charts.items()}
            for category, charts in charts_of(columns).items()
        }
        self._write(summary=custom_scalars(layout))  # type: ignore[no-untyped-call]

    def scalar(self, column: Column, value: float, step: int, moment: float) -> None:
        """Write a column's value of a round; `moment` is in seconds since the epoch."""
        summary = scalar(tag_of(column), value)  # type: ignore[no-untyped-call]
        self._write(summary=summary, step=step, wall_time=moment)

    def hyperparameters(self, values: Mapping[str, Any]) -> None:
        """Write settings for TensorBoard's table of hyperparameters."""
        # Without the first summary TensorBoard shows the settings and figures of all runs, with it
        # only one run's.
        for summary in hparams(dict(values), {})[1:]:  # type: ignore[no-untyped-call]
            self._write(summary=summary)

    def flush(self) -> None:
        """Flush the events written so far."""
        with writing(self._path):
            self._records.flush()

    def close(self) -> None:
        """Flush the events and close the file."""
        with writing(self._path):
            self._records.close()

    def _write(self, **fields: Any) -> None:
        event = Event(**{"wall_time": time(), **fields})
        with writing(self._path):
            self._records.write(event.SerializeToString())
