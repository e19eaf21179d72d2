"""All methods on non-IID MNIST: final accuracy and rounds to 90%, over seeds.

Usage: python -m tests.benchmarks.methods --out runs/methods [--seeds 3] [--rounds 30] [--only ...]

Preset `mnist-noniid` with mnist-cnn-128, E=1, B=10, C=0.1. The command is resumable: finished runs
are read, an unfinished one goes on. It prints a table in Markdown.
"""

from __future__ import annotations

import argparse
import json
import statistics
import sys
from pathlib import Path
from typing import Any

import pyarrow.parquet as pq

import raysim
import raysim.methods  # registers them
from raysim.core.method import METHODS
from raysim.storage.summary import rounds_to_target

NAMES = [name for name in METHODS if name != "chain"]  # one of no methods is FedAvg
ROWS: dict[str, dict[str, Any]] = {name: {"method.name": name} for name in NAMES} | {
    "activation_l2": {"method.name": "activation_l2", "method.beta": 1e-3},
    "divide_and_conquer": {
        "method.name": "divide_and_conquer",
        "method.split": 3,
        "method.finetune_epochs": 1,
    },
    "fedmax": {"method.name": "fedmax", "method.beta": 100},
    "fedmmd": {"method.name": "fedmmd", "method.lam": 0.1},
    "fedprox": {"method.name": "fedprox", "method.mu": 0.01},
    "flexchill": {"method.name": "fedavg", "local.temperature": 0.5},
    "fsvrg": {"method.name": "fsvrg", "fraction": 1.0},
    "mifl, aggregation alone": {"method.name": "mifl", "method.update": False},
    "momentum": {"method.name": "momentum", "method.gamma": 0.5},
    "scaffold": {"method.name": "scaffold", "local.lr": 0.02},
    "two_stream_l2": {"method.name": "two_stream_l2", "method.lam": 0.01},
}
"""What each row of the table changes: the method, and its lightly tuned settings."""
TARGET = 0.9


def settings_of(row: str, seed: int, rounds: int, out: Path) -> raysim.Settings:
    overrides = {
        "model.name": "mnist-cnn-128",
        "local.epochs": 1,
        "rounds": rounds,
        "target_accuracy": None,
        "seed": seed,
        "out": str(out / f"{row.replace(', ', '-').replace(' ', '-')}-{seed}"),
    }
    return raysim.load_config("mnist-noniid", overrides | ROWS[row])


def result_of(settings: raysim.Settings) -> tuple[float, float | None, float] | None:
    """Return final accuracy, rounds to the target and megabytes both ways; run what is missing.

    None stands for a run that stopped because a client's update was not finite.
    """
    folder = Path(str(settings.out))
    if not (folder / "summary.json").exists():
        try:
            raysim.run(settings)
        except raysim.RunError as error:
            print(f"{folder.name}: {error}", file=sys.stderr, flush=True)
            return None
    summary = json.loads((folder / "summary.json").read_text())
    if (found := summary["rounds"]) != settings.rounds:
        sys.exit(f"{folder}: holds {found} rounds, not {settings.rounds}; use another --out")
    rows = pq.read_table(folder / "metrics.parquet").to_pylist()
    sent = (summary["bytes_up"] + summary["bytes_down"]) / 1e6
    return summary["final_accuracy"], rounds_to_target(rows, TARGET), sent


def line_of(row: str, results: list[tuple[float, float | None, float] | None]) -> str:
    """Return a row of the table; seeds whose run stopped are counted."""
    ended = [result for result in results if result]
    settings = [(key, value) for key, value in ROWS[row].items() if value != row]
    changed = ", ".join(f"{key}={value}".lower() for key, value in settings)
    if not ended:
        return f"| {row} | {changed} | stopped with every seed | | |"
    accuracy = [final for final, _, _ in ended]
    spread = f" ± {statistics.stdev(accuracy):.2%}" if len(accuracy) > 1 else ""
    stopped = f" ({len(results) - len(ended)} stopped)" if len(ended) < len(results) else ""
    reached = ", ".join(f"{number:.1f}" if number else "-" for _, number, _ in ended)
    reached += " *" if own_round_of(row) else ""
    mean = f"{statistics.mean(accuracy):.2%}{spread}{stopped}"
    return f"| {row} | {changed} | {mean} | {reached} | {ended[0][2]:.0f} |"


def own_round_of(row: str) -> str:
    """Return a round in words, where that of the row's method is no communication round."""
    return METHODS.get(ROWS[row]["method.name"]).own_round


def note_of(row: str) -> str:
    """Return the line below the table about a row whose rounds are others than the rest's."""
    return f"\\* a round of {row} is {own_round_of(row)}: rounds of others do not compare with it"


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--out", type=Path, required=True)
    parser.add_argument("--seeds", type=int, default=3)
    parser.add_argument("--rounds", type=int, default=30)
    parser.add_argument("--only", nargs="+", default=sorted(ROWS), choices=sorted(ROWS))
    arguments = parser.parse_args()
    figures = f"accuracy after {arguments.rounds} rounds | rounds to {TARGET:.0%} | MB"
    print(f"| method | settings | {figures} |")
    print("|---|---|---|---|---|")
    for row in arguments.only:
        each = [
            settings_of(row, n, arguments.rounds, arguments.out) for n in range(arguments.seeds)
        ]
        print(line_of(row, [result_of(settings) for settings in each]), flush=True)
    for row in filter(own_round_of, arguments.only):
        print(f"\n{note_of(row)}")


if __name__ == "__main__":
    main()
