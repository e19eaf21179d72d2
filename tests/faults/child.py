"""A run in a process of its own that holds still at set moments until it is told to go on.

Usage: python -m tests.faults.child OUT ORDERS SIZES WIDTH MOMENTS KEY=VALUE...

OUT holds a run that goes on, or none yet. ORDERS is a folder for `tests.faults.held` and
`tests.faults.doubles`, or empty: then the model and the disk are ordinary ones. SIZES are the
clients' numbers of samples, WIDTH is the model's, MOMENTS are like `2.mid,3.end,4.held`: when the
first clients of round 2 are done, when round 3 is committed, when a worker is in the middle of a
client in round 4. Standard output says `at MOMENT`, `round NUMBER`, `note TEXT` and `event TEXT`;
at a moment a line of standard input is waited for, but `held` ends with the worker's file. Errors
end it as they end the command line.
"""

from __future__ import annotations

import signal
import sys
from pathlib import Path

from tests.faults import doubles

if __name__ == "__main__" and sys.argv[2]:
    doubles.install(Path(sys.argv[2]))  # before others take the names of `time` and `os`

from collections.abc import Mapping
from functools import partial
from typing import Any
from unittest import mock

import raysim
from raysim.config import parse_override
from raysim.execution.pool.actor import ActorHandle
from raysim.execution.scheduling.schedule import Schedule
from raysim.process.exits import SIGNALS, exit_code
from raysim.testing.tasks import SmallNet
from tests.faults.held import held_task
from tests.tasks import long_settings, make_task


class Moments(raysim.Listener):
    """Holds still at each of the moments once."""

    def __init__(self, moments: set[str], orders: Path) -> None:
        self._left, self._orders = moments, orders
        self._round = 0

    def started(self, run: raysim.Started) -> None:
        self._begin(run.round_number + 1)

    def progress(self, done: int, total: int) -> None:
        if 0 < done < total:
            self._hold(f"{self._round}.mid")

    def round_done(self, row: Mapping[str, Any]) -> None:
        print("round", row["round"], flush=True)
        self._hold(f"{row['round']}.end")
        self._begin(row["round"] + 1)

    def note(self, text: str) -> None:
        print("note", text, flush=True)

    def _begin(self, number: int) -> None:
        self._round = number
        if f"{number}.held" in self._left:
            self._left.remove(f"{number}.held")
            (self._orders / "held").touch()

    def _hold(self, moment: str) -> None:
        if moment in self._left:
            self._left.remove(moment)
            print("at", moment, flush=True)
            sys.stdin.readline()


def renew(handle: ActorHandle) -> None:
    """Renew an actor, and say which."""
    if getattr(handle, "about", None):
        print("event renewed", handle.about["pid"], flush=True)
    RENEW(handle)


def lost(schedule: Schedule, worker: int, suspicious: bool = True) -> Any:
    """Take back what a lost worker had, and say how many items join how many in the queues."""
    before = schedule.queued
    first = LOST(schedule, worker, suspicious)
    print("event taken back", schedule.queued - before, "beside", before, flush=True)
    return first


RENEW, LOST = ActorHandle.renew, Schedule.lost


def main() -> None:
    for number in SIGNALS:  # under nohup and in a shell's background they are ignored
        signal.signal(number, signal.SIG_DFL)
    out, folder, sizes, width, moments, *overrides = sys.argv[1:]
    orders = Path(folder)
    numbers = tuple(int(size) for size in sizes.split(","))
    if folder:
        task = held_task(numbers, orders, int(width))
    else:
        task = make_task(numbers, partial(SmallNet, width=int(width)))
    settings = long_settings(Path(out), **dict(parse_override(text) for text in overrides))
    watched = (
        mock.patch.object(ActorHandle, "renew", renew),
        mock.patch.object(Schedule, "lost", lost),
    )
    try:
        with watched[0], watched[1]:
            raysim.run(settings, task, Moments(set(moments.split(",")), orders))
    except raysim.RaysimError as error:
        print(f"raysim: {error}", file=sys.stderr)
        sys.exit(error.exit_code)
    except KeyboardInterrupt as stop:
        sys.exit(exit_code(stop))


if __name__ == "__main__":
    main()
