"""All methods on non-IID MNIST: final accuracy and rounds to 90%, over seeds.

Usage: python -m tests.benchmarks.methods --out runs/methods [--seeds 3] [--rounds 30] [--only ...]

Preset `mnist-noniid` with mnist-cnn-128, E=1, B=10, C=0.1. The command is resumable: finished runs
are read, an unfinished one goes on. It prints a table in Markdown.
"""

from __future__ import annotations

import argparse
import json
import statistics
from pathlib import Path
from typing import Any

import pyarrow.parquet as pq

import raysim
from raysim.core.method import METHODS
from raysim.engine.metrics import rounds_to_target

TUNED: dict[str, dict[str, Any]] = {
    "activation_l2": {"method.beta": 1e-3},
    "divide_and_conquer": {"method.split": 3, "method.finetune_epochs": 1},
    "fedmax": {"method.beta": 100},
    "fedmmd": {"method.lam": 0.1},
    "fedprox": {"method.mu": 0.01},
    "momentum": {"method.gamma": 0.5},
    "scaffold": {"local.lr": 0.05},
    "two_stream_l2": {"method.lam": 0.01},
}
TARGET = 0.9


def settings_of(method: str, seed: int, rounds: int, out: Path) -> raysim.Settings:
    overrides = {
        "model.name": "mnist-cnn-128",
        "method.name": method,
        "local.epochs": 1,
        "rounds": rounds,
        "target_accuracy": None,
        "seed": seed,
        "out": str(out / f"{method}-{seed}"),
    }
    return raysim.load_config("mnist-noniid", overrides | TUNED.get(method, {}))


def result_of(settings: raysim.Settings) -> tuple[float, float | None, float]:
    """Return final accuracy, rounds to the target and megabytes both ways; run what is missing."""
    folder = Path(str(settings.out))
    if not (folder / "summary.json").exists():
        raysim.run(settings)
    summary = json.loads((folder / "summary.json").read_text())
    rows = pq.read_table(folder / "metrics.parquet").to_pylist()
    sent = (summary["bytes_up"] + summary["bytes_down"]) / 1e6
    return summary["final_accuracy"], rounds_to_target(rows, TARGET), sent


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--out", type=Path, required=True)
    parser.add_argument("--seeds", type=int, default=3)
    parser.add_argument("--rounds", type=int, default=30)
    parser.add_argument("--only", nargs="+", default=sorted(METHODS))
    arguments = parser.parse_args()
    print(f"| method | accuracy after {arguments.rounds} rounds | rounds to {TARGET:.0%} | MB |")
    print("|---|---|---|---|")
    for method in arguments.only:
        results = [
            result_of(settings_of(method, seed, arguments.rounds, arguments.out))
            for seed in range(arguments.seeds)
        ]
        accuracy = [final for final, _, _ in results]
        spread = f" ± {statistics.stdev(accuracy):.2%}" if len(accuracy) > 1 else ""
        reached = [f"{number:.1f}" if number else "-" for _, number, _ in results]
        print(
            f"| {method} | {statistics.mean(accuracy):.2%}{spread} | {', '.join(reached)}"
            f" | {results[0][2]:.0f} |",
            flush=True,
        )


if __name__ == "__main__":
    main()
