"""Random combinations of settings: `python -m tests.combinations --count 300 --seed 1`.

Each case is run whole, interrupted and resumed, grown, stacked, and with `--actors` on two actors;
all must agree, and the saved model must have the metrics of its row. A case that fails is printed
with the command that runs it again. Ends with exit code 1 if any did.
"""

from __future__ import annotations

import argparse
import json
import sys
import warnings
from collections import Counter
from collections.abc import Sequence
from pathlib import Path
from tempfile import TemporaryDirectory

import torch

from tests.combinations.cases import Case, cases
from tests.combinations.checks import failures


def show(case: Case, found: Sequence[str]) -> None:
    """Print a case that failed, and the command that runs it again."""
    task = case.federation.family, case.federation.sizes
    print(f"\n{case.command}\n  {task}\n  {json.dumps(case.settings, sort_keys=True)}")
    print("".join(f"  {text}\n" for text in found), end="", flush=True)


def main(arguments: Sequence[str] | None = None) -> int:
    """Run the cases; return 1 if one failed."""
    parser = argparse.ArgumentParser(prog="python -m tests.combinations", description=__doc__)
    parser.add_argument("--count", type=int, default=100, help="number of cases")
    parser.add_argument("--seed", type=int, default=0, help="seed of the cases")
    parser.add_argument("--only", type=int, metavar="N", help="run case N alone")
    parser.add_argument("--from", type=int, default=0, dest="first", help="number of the first")
    parser.add_argument("--actors", action="store_true", help="run each on two actors as well")
    given = parser.parse_args(arguments)
    numbers = range(given.first, given.first + given.count)
    if given.only is not None:
        numbers = range(given.only, given.only + 1)
    torch.set_num_threads(1)
    warnings.simplefilter("error")
    counts = Counter[str]()
    with TemporaryDirectory() as folder:
        for case in cases(given.seed, numbers, Path(folder)):
            outcome, found = failures(case, given.actors)
            counts["refused before the start"] += len(case.refusals)
            if found:
                counts["failed"] += 1
                show(case, found)
            elif outcome.refused:
                counts["never valid"] += 1
                print(f"{case.command}: never valid: {outcome.error}", flush=True)
            elif outcome.error:
                counts["stopped in one line"] += 1
                counts["refused after round 1"] += outcome.rounds > 0
                print(f"{case.command}: {outcome.error}", flush=True)
            else:
                counts["held"] += 1
    print(f"{len(numbers)} cases: {', '.join(f'{n} {what}' for what, n in counts.items())}")
    return int(counts["failed"] > 0)


if __name__ == "__main__":
    sys.exit(main())
