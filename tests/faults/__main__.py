"""Faults of runs, studies and sweeps: a drill, a matrix of damaged files, kills at random times.

`python -m tests.faults` plays schedules of faults of a run and of a sweep on a cluster of two nodes
(needs root, for a disk); where one ends it, it is mended and resumed. `--matrix` damages every file
of a run directory, of a sweep and of a study in every way. `--kills 200` ends runs and a study with
SIGKILL at random times. All end with the bytes of the undisturbed run, or with one line that says
what to do.
"""

from __future__ import annotations

import argparse
import os
import sys
from collections import Counter, defaultdict
from pathlib import Path
from tempfile import TemporaryDirectory
from time import perf_counter

from rich.console import Console
from rich.table import Table

from tests.faults.damages import DAMAGES
from tests.faults.disks import small_disk
from tests.faults.drill import Outcome, Play, Stage
from tests.faults.kills import PHASES, Killed, kill, own_places
from tests.faults.matrix import FAILED, Verdict
from tests.faults.matrix_cases import verdicts
from tests.faults.strikes import FAULTS, schedules
from tests.faults.sweep_drill import FAULTS as SWEEP_FAULTS
from tests.faults.sweep_drill import SweepStage

LOG_COLUMNS = 200
"""Width of the tables in a file, where nothing says how wide it may be."""


def drill_table(outcomes: list[Outcome], failed: dict[str, int]) -> Table:
    """Return the drill's table."""
    page = Table("fault", "tried", "went on", "resumed", "other bytes or error", "rounds run again")
    for fault in (*FAULTS, *SWEEP_FAULTS):
        of = [outcome for outcome in outcomes if outcome.fault is fault]
        went_on = sum(outcome.went_on for outcome in of)
        lost = sum(outcome.rounds_lost for outcome in of)
        wrong = failed[fault.title]
        numbers = (len(of) + wrong, went_on, len(of) - went_on, wrong, lost)
        page.add_row(fault.title, *map(str, numbers))
    return page


def drill(console: Console, seed: int, count: int) -> bool:
    """Play schedules of faults; return whether all went well."""
    outcomes: list[Outcome] = []
    failed: dict[str, int] = defaultdict(int)
    with TemporaryDirectory() as folder:
        places = [(Stage, each) for each in schedules(seed, count)]
        places += [(SweepStage, [(fault, 1)]) for fault in SWEEP_FAULTS]
        for number, (kind, schedule) in enumerate(places, 1):
            begun = perf_counter()
            # A disk and a cluster of its own: what one fault leaves behind is no other's matter.
            own = Path(folder) / str(number)
            own.mkdir()
            with small_disk(own / "disk") as disk, kind(own, disk) as stage:
                play = Play(stage, schedule)
                try:
                    play.through()
                    said = "the same bytes"
                except AssertionError as error:
                    last = min(len(play.outcomes), len(schedule) - 1)  # of it, if the end is wrong
                    del play.outcomes[last:]
                    failed[schedule[last][0].title] += 1
                    said = f"FAILED: {error}"
                outcomes += play.outcomes
            struck = ", ".join(f"{fault.title} at {at}.{fault.at}" for fault, at in schedule)
            seconds = perf_counter() - begun
            console.print(f"{number}. {struck}: {said} ({seconds:.0f} s)", highlight=False)
    console.print(drill_table(outcomes, failed))
    return not failed


def matrix_table(found: list[Verdict]) -> Table:
    """Return the matrix."""
    page = Table("file", *DAMAGES)
    for row in dict.fromkeys(verdict.row for verdict in found):
        page.add_row(row, *(verdict.outcome for verdict in found if verdict.row == row))
    return page


def matrix(console: Console, only: str) -> bool:
    """Damage every file in every way; return whether all went well."""
    found: list[Verdict] = []
    with TemporaryDirectory() as folder:
        os.environ["RAYSIM_DATA"] = str(Path(folder) / "data")
        begun = perf_counter()
        for verdict in verdicts(Path(folder), only):
            found.append(verdict)
            if verdict.outcome == FAILED:
                words = f"{verdict.row}, {verdict.damage}: {verdict.words}"
                console.print(words, highlight=False, markup=False)
    console.print(matrix_table(found))
    counts = Counter(verdict.outcome for verdict in found if verdict.outcome)
    said = ", ".join(f"{number} {outcome}" for outcome, number in sorted(counts.items()))
    console.print(f"{said} in {perf_counter() - begun:.0f} s", highlight=False)
    return bool(found) and not counts[FAILED]


def kills(console: Console, count: int, seed: int) -> bool:
    """Kill runs and a study at random times; return whether all went well."""
    page = Table("run", "kills", *PHASES, "compared", "other bytes or error")
    found: list[Killed] = []
    begun = perf_counter()
    with TemporaryDirectory(prefix="rk") as folder, own_places(Path(folder)) as left_over:
        os.environ["RAYSIM_DATA"] = str(Path(folder) / "data")
        for each in kill(count, seed, Path(folder)):
            found.append(each)
            phases = [each.phases[phase] for phase in PHASES]
            numbers = (each.phases.total(), *phases, each.finished, len(each.wrong))
            page.add_row(each.name, *map(str, numbers))
            for wrong in each.wrong:
                console.print(f"{each.name}: {wrong}", highlight=False, markup=False)
        left = left_over()
    console.print(page)
    seconds, hits = perf_counter() - begun, sum(each.phases.total() for each in found)
    console.print(f"{hits} kills in {seconds:.0f} s; left over: {', '.join(left) or 'nothing'}")
    return not left and not any(each.wrong for each in found)


def main() -> int:
    parser = argparse.ArgumentParser(prog="python -m tests.faults", description=__doc__)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--schedules", type=int, default=20)
    parser.add_argument("--matrix", action="store_true")
    parser.add_argument("--only", default="", help="rows of the matrix, a regular expression")
    parser.add_argument("--kills", type=int, metavar="N", help="number of kills")
    asked = parser.parse_args()
    console = Console(width=None if sys.stdout.isatty() else LOG_COLUMNS)
    if asked.kills:
        return int(not kills(console, asked.kills, asked.seed))
    if asked.matrix:
        return int(not matrix(console, asked.only))
    return int(not drill(console, asked.seed, asked.schedules))


if __name__ == "__main__":
    sys.exit(main())
