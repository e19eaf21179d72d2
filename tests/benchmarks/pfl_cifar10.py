"""pfl's own CIFAR-10 benchmark beside raysim's preset of it: accuracy by round, seconds a round.

Usage: python -m tests.benchmarks.pfl_cifar10 CLONE [--rounds 200] [--seeds 1] [--dp]
    [--environments DIR]

CLONE is a clone of github.com/apple/pfl-research. Prints a table in Markdown. For each seed both
run the same number of rounds, one after the other: pfl its `image_classification/pytorch/train.py`
with `configs/baseline.yaml`, a process a core under torchrun; raysim `pfl-cifar10` (`--dp`:
`pfl-cifar10-dp`), an actor a core, in float32 and with `engine.precision=bf16`, for which pfl's
script has no option. All have one thread a process and evaluate every tenth round.
pfl evaluates a round later than the table says. A round's seconds, the median, are without those of
its evaluation in raysim, and of the rounds that do not evaluate in pfl.

Both have the pictures as they are. pfl's own script for the data takes planes of colours for
pixels, which scrambles them; here it is given the same file in the order of pixels.
"""

from __future__ import annotations

import argparse
import csv
import os
import pickle
import statistics
import subprocess
import sys
import tempfile
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import pyarrow.parquet as pq
from platformdirs import user_cache_path

import raysim
from raysim.federation.federation import from_settings, open_samples
from raysim.workloads.datasets.fetch import data_root
from tests.benchmarks.environments import make
from tests.benchmarks.report import heading, line, machine
from tests.benchmarks.runner import process_environment

EVERY = 10
"""Rounds between evaluations of both."""
DP = ["--central_privacy_mechanism", "gaussian_moments_accountant"]


@dataclass(frozen=True)
class Found:
    """Test accuracies by the number of rounds before, and the median seconds of a round."""

    accuracy: Mapping[int, float]
    seconds: float


def write_data(folder: Path) -> None:
    """Write the samples as pfl's benchmark reads them: bytes [n, 32, 32, 3], labels [n, 1]."""
    federation = from_settings(raysim.load_config("pfl-cifar10"), data_root, lambda *_: None)
    for name, data in (("train", federation.train), ("test", federation.test)):
        samples = open_samples(data)
        pixels = np.asarray(samples.x).reshape(-1, 3, 32, 32).transpose(0, 2, 3, 1)
        labels = np.asarray(samples.y).reshape(-1, 1)
        (folder / f"cifar10_{name}.p").write_bytes(pickle.dumps((pixels, labels)))


def run_pfl(python: Path, clone: Path, data: Path, rounds: int, seed: int, dp: bool) -> Found:
    benchmarks = clone / "benchmarks"
    launcher = ["-m", "torch.distributed.run", "--standalone", "--nnodes=1"]
    options = {
        "args_config": benchmarks / "image_classification" / "configs" / "baseline.yaml",
        "data_path": data,
        "central_num_iterations": rounds,
        "evaluation_frequency": EVERY,
        "seed": seed,
    }
    command = [
        *(str(python), *launcher, f"--nproc-per-node={os.cpu_count()}"),
        str(benchmarks / "image_classification" / "pytorch" / "train.py"),
        *(text for name, value in options.items() for text in (f"--{name}", str(value))),
        *(DP if dp else []),
    ]
    environment = {**process_environment(), "PYTHONPATH": str(benchmarks)}
    with tempfile.TemporaryDirectory() as folder:
        done = subprocess.run(command, check=False, cwd=folder, env=environment, stdout=sys.stderr)
        found = Path(folder) / "metrics.csv"
        rows = [*csv.DictReader(found.open())] if found.exists() else []
        if len(rows) < rounds:  # with all rounds it may still abort as it exits
            done.check_returncode()
    accuracy, seconds = {}, []
    for number, row in enumerate(rows):
        found = next((v for k, v in row.items() if k == "Central val | accuracy" and v), None)
        if found is not None:
            accuracy[number] = float(found)
        else:
            seconds.append(float(row["Duration of iteration (s)"]))
    return Found(accuracy, statistics.median(seconds))


def run_raysim(rounds: int, seed: int, dp: bool, precision: str) -> Found:
    settings = {"rounds": rounds, "seed": seed, "evaluation.every": EVERY, "target_accuracy": None}
    settings["engine.precision"] = precision
    with tempfile.TemporaryDirectory() as folder:
        preset = f"pfl-cifar10{'-dp' * dp}"
        raysim.run(raysim.load_config(preset, {**settings, "out": folder}))
        table = pq.read_table(Path(folder) / "metrics.parquet").to_pylist()
    accuracy = {r["round"]: r["test_accuracy"] for r in table if r["test_accuracy"] is not None}
    return Found(accuracy, statistics.median(r["seconds"] + r["checkpoint_seconds"] for r in table))


def percent(accuracies: list[float]) -> str:
    mean, deviation = statistics.mean(accuracies), ""
    if len(accuracies) > 1:
        deviation = f" ± {100 * statistics.stdev(accuracies):.1f}"
    return f"{100 * mean:.1f}{deviation}"


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("clone", type=Path, help="folder of a clone of pfl-research")
    parser.add_argument("--rounds", type=int, default=200)
    parser.add_argument("--seeds", type=int, default=1)
    parser.add_argument("--dp", action="store_true", help="with pfl's noise")
    parser.add_argument(
        "--environments", type=Path, default=user_cache_path("raysim") / "benchmarks"
    )
    options = parser.parse_args()
    os.environ["CUDA_VISIBLE_DEVICES"] = ""
    os.environ["RAY_worker_niceness"] = "0"  # noqa: SIM112 - 15 by default: other load would count
    python = make("pfl", options.environments.absolute())
    print(f"{machine()}.\n")
    with tempfile.TemporaryDirectory() as data:
        write_data(Path(data))
        shown: dict[str, list[Found]] = {"pfl": [], "raysim": [], "raysim, bf16": []}
        for seed in range(options.seeds):
            run = (options.rounds, seed, options.dp)
            shown["pfl"].append(run_pfl(python, options.clone.absolute(), Path(data), *run))
            shown["raysim"].append(run_raysim(*run, precision="fp32"))
            shown["raysim, bf16"].append(run_raysim(*run, precision="bf16"))
    rounds = sorted(set.intersection(*(set(f.accuracy) for each in shown.values() for f in each)))
    print(heading("after round", *map(str, rounds), "seconds a round"))
    for name, found in shown.items():
        texts = [percent([f.accuracy[n] for f in found]) for n in rounds]
        print(line([name, *texts, f"{statistics.median(f.seconds for f in found):.3g}"]))


if __name__ == "__main__":
    main()
