"""Virtual time to accuracy: FedAvg under each policy of the server, FedBuff, FedAT, on one fleet.

Usage: python -m tests.benchmarks.virtual_time [--data mnist cifar10] [--rounds 40]
    [--seeds 1] [--out DIR]

Prints a table in Markdown and draws `DIR/virtual_time.png`, test accuracy against virtual minutes.
The runs are cut down: `partition.limit` samples a client, 100 clients, 10 a round. The fleet is
that of `clock.kind=phones` with devices twice as different as FLASH's (`clock.spread=2`), and 5% of
the clients drop out of a round; it is the same under all policies. FedBuff has as many clients at
work, and makes a version of 5 updates: twice as many rounds do the same work. FedAT has two clients
at work in each of five tiers: five times as many rounds do. The deadline is the time within which
about two thirds of the clients finish, found from the fleet.
"""

from __future__ import annotations

import argparse
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow.parquet as pq

import raysim
from raysim.results.metrics import parse_metric
from raysim.results.runs import RunRecord, read_run
from raysim.user_input import portable_name

COMMON = {
    "clients": 100,
    "fraction": 0.1,
    "target_accuracy": None,
    "local.epochs": 5,
    "clock.name": "devices",
    "clock.spread": 2.0,
    "clock.dropout": 0.05,
}
DATA: dict[str, tuple[str, dict[str, Any], float]] = {
    "mnist": ("mnist-fedavg", {"partition.limit": 200}, 0.92),
    "cifar10": (
        "fedmax-cifar10-iid",
        {
            "method.name": "fedavg",
            "partition.limit": 100,
            "local.batch_size": 20,
            "local.lr": 0.05,
            "evaluation.every": 2,
        },
        0.3,
    ),
}
"""Per data set the preset, what is cut down, and the accuracy to be reached."""
WAITING = "FedAvg, wait for all"
IN_TIME = 2 / 3
"""Share of the clients' works that end before the deadline."""


def policies(deadline: float, rounds: int) -> dict[str, dict[str, Any]]:
    """Return the settings of each policy but waiting, by the name that is shown."""
    return {
        "deadline": {"clock.policy": "deadline", "clock.deadline": deadline},
        "partial work": {"clock.policy": "partial", "clock.deadline": deadline},
        "over-selection, 10 of 13": {"clock.policy": "over_selection", "clock.extra": 3},
        "FedBuff, 5 of 10": {
            "method.name": "fedbuff",
            "method.buffer": 5,
            "rounds": 2 * rounds,
        },
        "FedAT, 5 tiers of 2": {
            "method.name": "fedat",
            "method.tiers": 5,
            "rounds": 5 * rounds,
        },
        "Oort, wait for all": {"selection.name": "oort"},
        "Oort, 10 of 13": {
            "selection.name": "oort",
            "clock.policy": "over_selection",
            "clock.extra": 3,
        },
    }


def ran(folder: Path, preset: str, **overrides: Any) -> RunRecord:
    """Return a run, run now where it has not been."""
    path = folder / portable_name(overrides.pop("label"))
    if not (path / "summary.json").exists():
        raysim.run(raysim.load_config(preset, {**COMMON, **overrides, "out": str(path)}))
    return read_run(path)


def main() -> None:
    """Run the policies on each data set, print the table, draw the picture."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--data", nargs="+", default=["mnist"], choices=[*DATA])
    parser.add_argument("--rounds", type=int, default=40)
    parser.add_argument("--seeds", type=int, default=1)
    parser.add_argument("--out", type=Path, default=Path("runs/virtual-time"))
    given = parser.parse_args()
    found: dict[str, dict[str, list[RunRecord]]] = {}
    for data in given.data:
        preset, cut, _ = DATA[data]
        found[data] = {}
        for seed in range(given.seeds):
            own = {**cut, "rounds": given.rounds, "seed": seed, "engine.backend": "inline"}
            folder = given.out / data / f"{given.rounds}-rounds" / str(seed)
            waiting = ran(folder, preset, **own, label=WAITING)
            rows = pq.read_table(waiting.path / "clients.parquet")
            deadline = float(np.quantile(rows["virtual_seconds"].to_numpy(), IN_TIME).round(1))
            found[data].setdefault(WAITING, []).append(waiting)
            for label, policy in policies(deadline, given.rounds).items():
                record = ran(folder, preset, **(own | policy), label=label)
                found[data].setdefault(label, []).append(record)
    for data, runs in found.items():
        print_table(data, runs)
    draw(found, given.out / "virtual_time.png")


def print_table(data: str, runs: dict[str, list[RunRecord]]) -> None:
    """Print rounds, virtual minutes and joules to the accuracy, means over seeds."""
    target = DATA[data][2]
    metrics = [
        parse_metric(f"{name}_to(test_accuracy, {target})")
        for name in ("rounds", "virtual_seconds", "joules")
    ]
    print(f"\n| {data} | rounds to {target:.0%} | virtual minutes | kJ of all clients | lost |")
    print("|---|---|---|---|---|")
    for label, records in runs.items():
        values = [[metric.of(record) for record in records] for metric in metrics]
        cells = [
            "-" if None in each else f"{np.mean(np.array(each, dtype=float)) / scale:.2f}"
            for each, scale in zip(values, (1, 60, 1000), strict=True)
        ]
        lost = np.mean([sum(v for _, v in r.points("lost_clients")) / r.rounds for r in records])
        print(f"| {label} | {' | '.join(cells)} | {lost:.1f} a round |")


def draw(found: dict[str, dict[str, list[RunRecord]]], path: Path) -> None:
    """Draw the accuracy of the first seed's runs against virtual minutes."""
    from matplotlib.figure import Figure

    figure = Figure(figsize=(6.0 * len(found), 4.2), layout="constrained")
    for axes, (data, runs) in zip(
        np.atleast_1d(figure.subplots(1, len(found))), found.items(), strict=True
    ):
        for label, (record, *_) in runs.items():
            places = dict(record.points("total_virtual_seconds"))
            points = record.points("test_accuracy")
            axes.plot([places[n] / 60 for n, _ in points], [a for _, a in points], label=label)
        axes.set(xlabel="virtual minutes", ylabel="test accuracy", title=data)
        axes.grid(alpha=0.3)
    axes.legend()
    path.parent.mkdir(parents=True, exist_ok=True)
    figure.savefig(path, dpi=110)


if __name__ == "__main__":
    main()
