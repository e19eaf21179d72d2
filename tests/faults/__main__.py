"""The fault drill: `python -m tests.faults [--seed 0] [--schedules 20]`; needs root, for a disk.

Each schedule is a run on two nodes on which faults strike in mid-round; where one ends the run, it
is mended and the run is resumed. All end with the bytes of the undisturbed inline run.
"""

from __future__ import annotations

import argparse
import sys
from collections import defaultdict
from pathlib import Path
from tempfile import TemporaryDirectory
from time import perf_counter

from rich.console import Console
from rich.table import Table

from tests.faults.drill import FAULTS, Outcome, Stage, play, schedules, small_disk


def table(outcomes: list[Outcome], failed: dict[str, int]) -> Table:
    """Return the drill's table."""
    page = Table("fault", "tried", "went on", "resumed", "other bytes or error", "rounds run again")
    for fault in FAULTS:
        of = [outcome for outcome in outcomes if outcome.fault is fault]
        went_on = sum(outcome.went_on for outcome in of)
        lost = sum(outcome.rounds_lost for outcome in of)
        wrong = failed[fault.title]
        numbers = (len(of) + wrong, went_on, len(of) - went_on, wrong, lost)
        page.add_row(fault.title, *map(str, numbers))
    return page


def main() -> int:
    parser = argparse.ArgumentParser(prog="python -m tests.faults", description=__doc__)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--schedules", type=int, default=20)
    asked = parser.parse_args()
    console, outcomes = Console(), []
    failed: dict[str, int] = defaultdict(int)
    with TemporaryDirectory() as folder:
        for number, schedule in enumerate(schedules(asked.seed, asked.schedules), 1):
            begun = perf_counter()
            # A disk and a cluster of its own: what one fault leaves behind is no other's matter.
            own = Path(folder) / str(number)
            own.mkdir()
            with small_disk(own / "disk") as disk, Stage(own, disk) as stage:
                try:
                    outcomes += play(stage, schedule)
                    said = "the same bytes"
                except AssertionError as error:
                    failed[schedule[-1][0].title] += 1
                    said = f"FAILED: {error}"
            struck = ", ".join(f"{fault.title} in round {at}" for fault, at in schedule)
            seconds = perf_counter() - begun
            console.print(f"{number}. {struck}: {said} ({seconds:.0f} s)", highlight=False)
    console.print(table(outcomes, failed))
    return 1 if failed else 0


if __name__ == "__main__":
    sys.exit(main())
