"""A tuner in a process of its own: `python -m tests.tuning.faults FOLDER TRIALS JOBS`."""

from __future__ import annotations

import sys
from pathlib import Path

from tests.tuning.common import make_search, make_tuner

if __name__ == "__main__":
    folder, trials, jobs = Path(sys.argv[1]), int(sys.argv[2]), int(sys.argv[3])
    make_tuner(make_search(folder), folder).run(trials, jobs)
