"""A tuner in a process of its own, to be killed.

`python -m tests.tuning.faults FOLDER TRIALS [dotted.key=value ...]`
"""

from __future__ import annotations

import sys
from pathlib import Path

from raysim.config import parse_override
from raysim.tuning.studies.samplers import SearchOptions
from raysim.tuning.tuner import StudyListener, Tuner
from tests.tuning.common import make_search

RANDOM = SearchOptions(sampler="random")
"""Draws that do not depend on which trial ended first."""


class Printing(StudyListener):
    """Listener that prints notes at once: its process may be killed."""

    def started(self, slots: int, done: int, trials: int) -> None:
        print(f"{slots} slots", flush=True)

    def note(self, text: str) -> None:
        print(text, flush=True)


if __name__ == "__main__":
    folder, overrides = Path(sys.argv[1]), dict(map(parse_override, sys.argv[3:]))
    search = make_search(folder, RANDOM, **overrides)
    result = Tuner(search, folder / "out", Printing()).run(int(sys.argv[2]), None)
    print(f"busy {result.busy}")
