"""TensorBoard events of a run, written as they come.

`torch.utils.tensorboard.SummaryWriter` writes from a thread of its own, which ends with a traceback
on the terminal when the disk is full; here the error reaches the caller.
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
    """The event file of one process; readers see what was flushed.

    Every method raises MachineError where the disk refuses.
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
        """Write a value of a round, and when it was there in seconds since the epoch."""
        summary = scalar(name, value)  # type: ignore[no-untyped-call]
        self._write(summary=summary, step=step, wall_time=moment)

    def hyperparameters(self, values: Mapping[str, Any]) -> None:
        """Write settings, which TensorBoard compares."""
        # Not the first, which lists what to compare: of many runs TensorBoard takes any one's, and
        # without it all that they have. A study writes its own.
        for summary in hparams(dict(values), {})[1:]:  # type: ignore[no-untyped-call]
            self._write(summary=summary)

    def flush(self) -> None:
        """Let readers see what was written."""
        with writing(self._path):
            self._records.flush()

    def close(self) -> None:
        """Write everything and close the file."""
        with writing(self._path):
            self._records.close()

    def _write(self, **fields: Any) -> None:
        event = Event(**{"wall_time": time(), **fields})
        with writing(self._path):
            self._records.write(event.SerializeToString())
