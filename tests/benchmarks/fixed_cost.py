"""The fixed cost of a round: rounds of one and of two local epochs, in turn.

Usage: python -m tests.benchmarks.fixed_cost [--cohorts 10] [--rounds 40] [--repeats 3]

A round of E epochs takes F + E T: F is what it takes without a step, 2 t_1 - t_2, and T an epoch
of the whole cohort, t_2 - t_1. Four systems of one case of `tests.benchmarks.compare` (the 2NN, 100
clients of 600 samples, B=10, FedAvg) take turns: raysim and the bare loop, each with one and with
two epochs. Prints per repeat the medians over the sweeps, and of a step: T, over the cohort's steps
of one process. F of the bare loop is what its model and its sum cost.

Then F by the phases of `tests.benchmarks.phases`, from two traced runs of raysim in turn: of a
worker, the milliseconds of each phase that do not grow with the epochs; of the driver too, most of
which workers wait for.
"""

from __future__ import annotations

import argparse
import os
import sys
import tempfile
from contextlib import ExitStack
from dataclasses import replace
from pathlib import Path

import numpy as np
import ray

import raysim
from raysim.storage.trace import DRIVER_PHASES, WORKER_PHASES
from tests.benchmarks import compare
from tests.benchmarks.peers.ours import settings_of, task_of
from tests.benchmarks.peers.work import Case, make_data
from tests.benchmarks.report import line, machine
from tests.benchmarks.runner import WARM_UP, Runner, command_of, take_turns

CASE = compare.CASES[0]
SYSTEMS = ("raysim", "bare")
EPOCHS = (1, 2)
WORKERS = os.cpu_count() or 1


def measure(case: Case, rounds: int) -> dict[tuple[str, int], list[float]]:
    """Return the seconds of rounds that are neighbours, by system and number of epochs."""
    with tempfile.TemporaryDirectory() as folder, ExitStack() as ends:
        make_data(case, Path(folder))
        runners = {}
        for system in SYSTEMS:
            for epochs in EPOCHS:
                name, command = f"{system}-{epochs}", command_of(system, Path(sys.executable))
                own = replace(case, epochs=epochs)
                suspended = system == "raysim"
                runner = Runner(name, command, own, Path(folder), {}, suspended=suspended)
                runners[name] = runner
                ends.callback(runner.close)
        found = take_turns(runners, rounds, limit_seconds=600)
    return {
        (system, epochs): found[f"{system}-{epochs}"] for system in SYSTEMS for epochs in EPOCHS
    }


def costs(case: Case, one: list[float], two: list[float]) -> list[float]:
    """Return the milliseconds of a round of one epoch, of its fixed cost, and of a step."""
    first, second = (1e3 * np.array(seconds) for seconds in (one, two))
    steps = case.cohort * -(-case.samples // case.batch) / WORKERS
    fixed = 2 * first - second
    return [float(np.median(each)) for each in (first, fixed, (second - first) / steps)]


def phases(case: Case, rounds: int) -> dict[str, float]:
    """Return the fixed milliseconds of a round, and of each phase of a worker and of the driver."""
    with tempfile.TemporaryDirectory() as folder:
        ray.init(num_cpus=WORKERS, include_dashboard=False)  # for both runs
        make_data(case, Path(folder))
        task = task_of(case, Path(folder))
        engine = {"engine.actors": WORKERS, "engine.cpus_per_actor": 1 / len(EPOCHS)}
        runs = [
            raysim.rounds(
                settings_of(
                    replace(case, epochs=epochs), Path(folder) / f"{epochs}", trace=True, **engine
                ),
                task,
            )
            for epochs in EPOCHS
        ]
        rows = [[next(run) for run in runs] for _ in range(WARM_UP + rounds)][WARM_UP:]
        for run in runs:
            run.close()
        ray.shutdown()
    names = {"round": "seconds"}
    names |= {f"worker: {p}": f"worker_{p}_seconds" for p in (*WORKER_PHASES, "waiting")}
    names |= {f"driver: {p}": f"driver_{p}_seconds" for p in DRIVER_PHASES}
    found = {}
    for name, column in names.items():
        first, second = (1e3 * np.array([row[n][column] for row in rows]) for n in range(2))
        of = WORKERS if name.startswith("worker") else 1
        found[name] = float(np.median(2 * first - second)) / of
    return found


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--cohorts", nargs="+", type=int, default=[CASE.cohort])
    parser.add_argument("--rounds", type=int, default=40)
    parser.add_argument("--repeats", type=int, default=3, help="each in new processes")
    arguments = parser.parse_args()
    print(machine(), end="\n\n")
    print(line(["cohort", "repeat", "system", "ms a round, E=1", "fixed ms", "ms a step"]))
    print(line(["---"] * 6), flush=True)
    for cohort in arguments.cohorts:
        case = replace(CASE, cohort=cohort)
        for repeat in range(arguments.repeats):
            found = measure(case, arguments.rounds)
            for system in SYSTEMS:
                cells = costs(case, *(found[system, epochs] for epochs in EPOCHS))
                row = [str(cohort), str(repeat + 1), system, *(f"{cell:.3g}" for cell in cells)]
                print(line(row), flush=True)
    print()
    for number, cohort in enumerate(arguments.cohorts):
        found = phases(replace(CASE, cohort=cohort), arguments.rounds)
        if not number:
            print(line(["cohort", *found]), line(["---"] * (1 + len(found))), sep="\n")
        print(line([str(cohort), *(f"{each:.3g}" for each in found.values())]), flush=True)


if __name__ == "__main__":
    main()
