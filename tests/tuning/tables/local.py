"""`raysim table` on blobs in a process of its own, to be killed; its slot is that process.

`python -m tests.tuning.tables.local FOLDER OUT [words ...]`
"""

from __future__ import annotations

import sys
from pathlib import Path

from raysim.cli.app import main
from raysim.tuning.runs import queue
from raysim.workloads.tables import TABLES
from tests.tuning.common import LocalSlots
from tests.tuning.tables.common import NAME, make_table, run_of

if __name__ == "__main__":
    folder, out, *words = sys.argv[1:]
    TABLES[NAME] = make_table(Path(folder))  # type: ignore[index]
    queue.open_slots = LocalSlots(key=run_of).open  # type: ignore[assignment]
    sys.argv = ["raysim", "table", NAME, "--out", out, *words]
    main()
