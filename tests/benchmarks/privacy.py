"""Cost of clipping and noise: rounds of the 2NN with a cohort of 10, with and without them.

Usage: python -m tests.benchmarks.privacy [--rounds 6] [--pairs 5] [--epochs 5]

Runs take turns in one process. CPU seconds count, in which a machine's other load matters less.
"""

from __future__ import annotations

import argparse
import statistics
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import raysim
from tests.benchmarks.client_states import Timed

PRIVATE = {"channel.gaussian.clip": 0.5}


def seconds(rounds: int, epochs: int, more: dict[str, Any]) -> float:
    """Return the median CPU seconds of a round but the first."""
    given = {
        "rounds": rounds,
        "local.epochs": epochs,
        "aggregation.weighting": "fixed",
        "target_accuracy": None,
        "evaluation.every": rounds,
        "engine.backend": "inline",
    }
    timed = Timed()
    with TemporaryDirectory() as folder:
        settings = {**given, **more, "out": str(Path(folder) / "run")}
        raysim.run(raysim.load_config("mnist-fedavg", settings), listener=timed)
    return statistics.median(timed.seconds()[:-1])  # the last is evaluated


def main() -> None:
    """Print the median of the ratios of pairs."""
    parser = argparse.ArgumentParser(description=__doc__)
    for name, default in (("--rounds", 6), ("--pairs", 5), ("--epochs", 5)):
        parser.add_argument(name, type=int, default=default)
    given = parser.parse_args()
    pairs = [
        (seconds(given.rounds, given.epochs, {}), seconds(given.rounds, given.epochs, PRIVATE))
        for _ in range(given.pairs)
    ]
    ratios = sorted(private / plain for plain, private in pairs)
    plain = statistics.median(plain for plain, _ in pairs)
    print(
        f"{plain:.3f} CPU s a round without; with clip and noise times"
        f" {statistics.median(ratios):.3f} ({ratios[0]:.3f} to {ratios[-1]:.3f})"
    )


if __name__ == "__main__":
    main()
