"""An interrupted, tuned sweep that damages strike, and its comparison with an undisturbed one."""

from __future__ import annotations

import json
import shutil
import sys
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path
from unittest import mock

import pyarrow.parquet as pq

from raysim.cli import app
from raysim.tuning.runs.queue import Runs
from raysim.tuning.slots.report import Report
from raysim.workloads.papers.run import Run
from tests.faults.forked import Ended
from tests.faults.interrupted_study import here
from tests.tuning.common import PRESET, LocalSlots

WORDS = ("method.name=fedavg,fedprox", "seed=0..1", "rounds=2")
SEARCH = ("--tune", "local.lr=0.01..0.5:log", "--tune-trials", "2", "--jobs", "1")
KILLED_RUN = 3
SLOTS = ("runs.queue", "tables.tuned")
"""Modules that open slots."""


class Killed(BaseException):
    """Ends a sweep as a kill does: nothing that it would still do is done."""


class InterruptedSweep:
    """A sweep that was killed before its third run was recorded, and the same undisturbed.

    Its slot is this process.
    """

    name = "sweep"

    def __init__(self, folder: Path) -> None:
        """Make the sweeps in a folder."""
        own = folder / "sweep"
        own.mkdir()
        self._preset = own / "blobs.json"
        self._preset.write_text(json.dumps(PRESET))
        self.path, self.undisturbed = own / "killed", own / "undisturbed"
        ended = self.resume(self.undisturbed)
        assert not ended.code, ended.errors
        record, count = Runs.ended, iter(range(1, 100))

        def dying(runs: Runs, run: Run, report: Report, seconds: float) -> None:
            if next(count) == KILLED_RUN:
                shutil.copytree(own / "running", self.path, symlinks=True)
                raise Killed
            record(runs, run, report, seconds)

        with mock.patch.object(Runs, "ended", dying):
            ended = self.resume(own / "running")
        assert "Killed" in ended.errors, ended.errors

    def targets(self) -> Iterator[Path]:
        """Yield what is damaged: files of the sweep, of a finished run, and of its searches."""
        run = min((self.path / "runs").glob("*/seed-0"))
        study = min((self.path / "tuning").iterdir())
        names = ("config.json", "summary.json", "metrics.parquet", "checkpoints")
        found = [self.path / "table.json", self.path / "table.parquet", self.path / "table.md"]
        found += [self.path / "runs", self.path / "tuning", study, study / "study.db"]
        found += [study / "study.json", study / "trials/0000/summary.json"]
        yield from (path.relative_to(self.path) for path in (*found, *(run / n for n in names)))

    def resume(self, path: Path) -> Ended:
        sys.argv = ["raysim", "sweep", str(self._preset), *WORDS, *SEARCH, "--out", str(path)]
        with local_slots():
            return here(app.main)

    def start(self, path: Path) -> Ended:
        return self.resume(path)

    def difference(self, path: Path) -> str | None:
        """Return how a sweep that is to be finished differs from the undisturbed one."""
        return sweep_difference(path, self.undisturbed)


@contextmanager
def local_slots() -> Iterator[None]:
    """Have sweeps use a slot in this process."""
    with ExitStack() as patches:
        for module in SLOTS:
            target = f"raysim.tuning.{module}.open_slots"
            patches.enter_context(mock.patch(target, LocalSlots(key=str).open))
        yield


def sweep_difference(path: Path, undisturbed: Path) -> str | None:
    """Return how a sweep that is to be finished differs from another one.

    Notes may tell of what was lost, as of the formula of a run without its checkpoints.
    """
    found, expected = (pq.read_table(each / "table.parquet") for each in (path, undisturbed))
    for name in {*expected.column_names} - {"notes"}:
        if found[name].to_pylist() != expected[name].to_pylist():
            return f"other {name}: {found[name].to_pylist()}"
    return None
