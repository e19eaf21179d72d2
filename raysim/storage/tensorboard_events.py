"""TensorBoard events of a run, written by the calling thread.

`torch.utils.tensorboard.SummaryWriter` writes from a thread of its own, which prints a traceback
when the disk is full; here the error reaches the caller.
"""

from __future__ import annotations

import os
import socket
from collections.abc import Mapping
from pathlib import Path
from time import time
from typing import Any

from tensorboard.compat.proto.event_pb2 import Event
from tensorboard.summary.writer.record_writer import RecordWriter
from torch.utils.tensorboard.summary import hparams, scalar

from raysim.storage.atomic import writing


class Events:
    """Event file of one process; readers see flushed events.

    Every method raises MachineError if the file cannot be written.
    """

    def __init__(self, folder: Path) -> None:
        name = f"events.out.tfevents.{int(time()):010d}.{socket.gethostname()}.{os.getpid()}"
        self._path = folder / name
        with writing(self._path):
            self._file = self._path.open("ab")
        self._records = RecordWriter(self._file)
        self._write(file_version="brain.Event:2")
        self.flush()

    def scalar(self, name: str, value: float, step: int, moment: float) -> None:
        """Write a value of a round; `moment` is in seconds since the epoch."""
        summary = scalar(name, value)  # type: ignore[no-untyped-call]
        self._write(summary=summary, step=step, wall_time=moment)

    def hyperparameters(self, values: Mapping[str, Any]) -> None:
        """Write settings for TensorBoard's HPARAMS tab."""
        # Without the first summary, the list of columns: TensorBoard would use that of any one run.
        for summary in hparams(dict(values), {})[1:]:  # type: ignore[no-untyped-call]
            self._write(summary=summary)

    def flush(self) -> None:
        """Flush the events to the file."""
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
