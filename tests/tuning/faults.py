"""A tuner in a process of its own, to be killed.

`python -m tests.tuning.faults FOLDER TRIALS [--storage=URL] [dotted.key=value ...]`
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
OPTION = "--storage="
"""Option of the study's database; default: a file in the folder."""


class Printing(StudyListener):
    """Listener that prints notes at once: its process may be killed."""

    def started(self, slots: int, done: int, trials: int) -> None:
        print(f"{slots} slots", flush=True)

    def note(self, text: str) -> None:
        print(text, flush=True)


if __name__ == "__main__":
    folder, trials, *words = sys.argv[1:]
    given = [word.removeprefix(OPTION) for word in words if word.startswith(OPTION)]
    overrides = dict(parse_override(word) for word in words if not word.startswith(OPTION))
    search = make_search(Path(folder), RANDOM, (given or [None])[0], **overrides)
    result = Tuner(search, Path(folder) / "out", Printing(lambda _: None)).run(int(trials), None)
    print(f"busy {result.busy}")
