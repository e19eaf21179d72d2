"""The drill of a sweep: its runs in slots on two nodes, and faults that strike between two ends.

A moment `1.end` is the end of the sweep's first run; the others go on while a fault strikes.
"""

from __future__ import annotations

import json
import os
import re
import signal
import sys
from collections.abc import Iterator
from contextlib import suppress
from functools import cached_property
from pathlib import Path
from unittest import mock

import psutil

from raysim.cli import app
from raysim.process import exits
from tests.faults import disks
from tests.faults.drill import Fault, Stage
from tests.faults.forked import Ended
from tests.faults.interrupted_study import here
from tests.faults.interrupted_sweep import local_slots, sweep_difference
from tests.faults.processes import Run
from tests.faults.strikes import KILLED, fill_disk, kill_driver, saw, sent_signals
from tests.tuning.common import PRESET

WORDS = ("method.name=fedavg,fedprox", "seed=3,0", "rounds=12", "engine.gpus_per_actor=0")


class SweepRun(Run):
    """A sweep in a process of its own.

    Attributes:
        rounds: Empty: runs are counted, not rounds.
    """

    def __init__(self, folder: Path, preset: Path, address: str) -> None:
        words = ("sweep", str(preset), *WORDS, "--jobs", "2", "--out", str(folder))
        self._start(folder, [sys.executable, "-m", "raysim", *words], address)

    def _hear(self, line: str) -> None:
        if ended := re.match(r"(\d+)/\d+ ", line):
            self._reached.append(f"{ended[1]}.end")
        elif line.startswith("note: "):
            self.notes.append(line)

    def go(self) -> None:
        """Do nothing: it has not held still."""

    @property
    def held(self) -> int | None:
        """Process of a slot in which a run goes on."""
        return next((each.pid for each in slots()), None)


def slots() -> Iterator[psutil.Process]:
    """Yield the processes of slots on the nodes that this process has started."""
    for each in psutil.Process(os.getpid()).children(recursive=True):
        with suppress(psutil.Error):
            if "SlotActor" in " ".join(each.cmdline()[:1]):
                yield each


class SweepStage(Stage):
    """Place of the drill of a sweep."""

    def run(self, moments: object = ()) -> SweepRun:
        """Start the sweep, or go on with it."""
        return SweepRun(self.disk / "run", self._preset, self.nodes.address)

    @cached_property
    def _preset(self) -> Path:
        path = self.folder / "blobs.json"
        path.write_text(json.dumps(PRESET))
        return path

    @cached_property
    def undisturbed(self) -> Path:
        """The same sweep in this process."""
        path = self.folder / "undisturbed"
        ended = sweep_here(self._preset, path)
        assert not ended.code, ended.errors
        return path

    def difference(self) -> str | None:
        """Return how the finished sweep differs from the undisturbed one."""
        return sweep_difference(self.disk / "run", self.undisturbed)


def sweep_here(preset: Path, path: Path) -> Ended:
    """Run the sweep with a slot in this process."""
    sys.argv = ["raysim", "sweep", str(preset), *WORDS, "--out", str(path)]
    with mock.patch.object(sys, "argv", sys.argv), local_slots():
        return here(app.main)


def kill_slot(stage: Stage, run: Run) -> None:
    """End the process of a slot."""
    assert run.held, "there is no slot"
    os.kill(run.held, signal.SIGKILL)
    stage.evidence.append("killed")


def was_resumed(stage: Stage, run: Run) -> bool:
    """Return whether a run's slot was struck, and the run resumed in another one."""
    return bool(stage.evidence) and any("its slot was lost; resuming" in n for n in run.notes)


FAULTS = (
    Fault("sweep: slot killed", kill_slot, was_resumed, at="end"),
    Fault("sweep: driver killed", kill_driver, saw("killed"), at="end", codes=(KILLED,), says=""),
    Fault(
        "sweep: preempted",
        sent_signals(signal.SIGTERM),
        saw("SIGTERM"),
        at="end",
        codes=(143,),
        says="",
    ),
    Fault(
        "sweep: disk full",
        fill_disk,
        saw("full"),
        lambda stage: disks.empty(stage.disk),
        at="end",
        says="No space left on device",
        codes=(exits.FAULT,),
    ),
)
"""Faults that strike a sweep, each in a schedule of its own."""
