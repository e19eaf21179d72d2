"""All cases of the matrix, in the order of its rows."""

from __future__ import annotations

import multiprocessing
import re
from collections.abc import Iterable, Iterator
from pathlib import Path

from tests.faults.damages import DAMAGES
from tests.faults.interrupted import InterruptedRun
from tests.faults.interrupted_study import InterruptedStudy, interrupted_studies
from tests.faults.interrupted_sweep import InterruptedSweep
from tests.faults.matrix import Strike, Verdict

METHODS = {"fedavg": "", "scaffold": r"checkpoints|clients($|/00000$|/00000/00000000)"}
"""Methods of the runs, without and with client states, and files that are damaged, as a pattern."""
LANES = 2
"""Cases of runs at a time."""


def run_strikes(folder: Path) -> Iterator[Strike]:
    """Yield all damages of runs: of interrupted ones, and of the summary of finished ones."""
    for method, pattern in METHODS.items():
        run = InterruptedRun(method, folder)
        assert (wrong := run.difference(run.undisturbed)) is None, wrong
        for path in sorted(run.path.rglob("*")):
            target = path.relative_to(run.path)
            if re.search(pattern, str(target)):
                yield from (Strike(run, target, damage, folder) for damage in DAMAGES)
        if not pattern:
            target = Path("summary.json")
            yield from (Strike(run, target, name, folder, run.undisturbed) for name in DAMAGES)


def target_strikes(study: InterruptedStudy | InterruptedSweep, folder: Path) -> Iterator[Strike]:
    """Yield all damages of a study or a sweep."""
    for target in study.targets():
        yield from (Strike(study, target, damage, folder) for damage in DAMAGES)


def verdicts(folder: Path, only: str) -> Iterator[Verdict]:
    """Yield what became of each damage of each file whose row matches a pattern."""

    def chosen(strikes: Iterable[Strike]) -> list[Strike]:
        return [strike for strike in strikes if re.search(only, strike.row)]

    # Forked before Ray has threads in this process, which do not survive a fork.
    with multiprocessing.get_context("fork").Pool(LANES) as pool:
        runs = pool.imap(Strike.verdict, chosen(run_strikes(folder)))
        if re.search("sweep", only) or not only:
            for strike in chosen(target_strikes(InterruptedSweep(folder), folder)):
                yield strike.verdict()
        if re.search("study", only) or not only:
            with interrupted_studies(folder) as studies:
                strikes = (strike for study in studies for strike in target_strikes(study, folder))
                for strike in chosen(strikes):
                    yield strike.verdict()
        yield from runs
