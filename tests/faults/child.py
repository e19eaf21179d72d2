"""A run in a process of its own that holds still at set moments until it is told to go on.

Usage: python -m tests.faults.child OUT SIZES WIDTH MOMENTS KEY=VALUE...

OUT holds a run that goes on, or none yet. SIZES are the clients' numbers of samples, WIDTH is the
model's, MOMENTS are like `2.mid,3.end`: when the first clients of round 2 are done, when round 3 is
committed. Standard output says `at MOMENT`, `round NUMBER` and `note TEXT`; at a moment a line of
standard input is waited for. Errors end it as they end the command line.
"""

from __future__ import annotations

import sys
from collections.abc import Mapping
from functools import partial
from pathlib import Path
from typing import Any

import raysim
from raysim.config import parse_override
from tests.conftest import SmallNet, make_settings, make_task


class Moments(raysim.Listener):
    """Holds still at each of the moments once."""

    def __init__(self, moments: set[str]) -> None:
        self._left = moments
        self._round = 0

    def started(self, run: raysim.Started) -> None:
        self._round = run.round_number + 1

    def progress(self, done: int, total: int) -> None:
        if 0 < done < total:
            self._hold(f"{self._round}.mid")

    def round_done(self, row: Mapping[str, Any]) -> None:
        print("round", row["round"], flush=True)
        self._hold(f"{row['round']}.end")
        self._round = row["round"] + 1

    def note(self, text: str) -> None:
        print("note", text, flush=True)

    def _hold(self, moment: str) -> None:
        if moment in self._left:
            self._left.remove(moment)
            print("at", moment, flush=True)
            sys.stdin.readline()


def main() -> None:
    out, sizes, width, moments, *overrides = sys.argv[1:]
    model = partial(SmallNet, width=int(width))
    task = make_task(tuple(int(size) for size in sizes.split(",")), model)
    settings = make_settings(Path(out), **dict(parse_override(text) for text in overrides))
    try:
        raysim.run(settings, task, Moments(set(moments.split(","))))
    except raysim.RaysimError as error:
        print(f"raysim: {error}", file=sys.stderr)
        sys.exit(2)


if __name__ == "__main__":
    main()
