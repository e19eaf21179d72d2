"""Where the time of a round goes: shares of the workers' time by phase, from traced runs.

Usage: python -m tests.benchmarks.phases [--workloads 2nn ...] [--rounds 20]

FedAvg with `trace=true`, otherwise the work and settings of `tests.benchmarks.compare`. Prints a
line per case: the mean seconds a round, and the shares of them in percent. The workers' shares are
of all workers' time and add up to 100: `broadcast` is reading what is sent, `data` gathering a
client's samples, `training` its steps, `reduction` adding up and handing over, `waiting` everything
else: for a chunk, for the last client of another worker, for the server. The driver's shares are of
the round, while workers may be busy. The first rounds, in which much is done once, are left out.
"""

from __future__ import annotations

import argparse
import tempfile
from pathlib import Path

import raysim
from raysim.storage.trace import DRIVER_PHASES, WORKER_PHASES
from tests.benchmarks import compare
from tests.benchmarks.peers.ours import settings_of, task_of
from tests.benchmarks.peers.work import Case, make_data
from tests.benchmarks.report import line, machine

TRACED = {("2nn", 10), ("2nn", 1000), ("mnist-cnn-128", 10), ("char-lstm", 10), ("resnet18", 10)}
"""Networks and cohorts of the comparison's cases that are traced, with the batch size 10."""
CASES = [
    case for case in compare.CASES if (case.network, case.cohort) in TRACED and case.batch == 10
]
FIRST = 2
"""Rounds that are left out."""


def shares(case: Case, rounds: int, **settings: object) -> tuple[float, dict[str, float]]:
    """Run a case; return the mean seconds of its rounds, and the share of each phase."""
    with tempfile.TemporaryDirectory() as folder:
        make_data(case, Path(folder))
        traced = {"trace": True, "rounds": FIRST + rounds, **settings}
        result = raysim.run(
            settings_of(case, Path(folder) / "run", **traced), task_of(case, Path(folder))
        )
        rows = result.metrics.to_pylist()[FIRST:]
    workers = [f"worker_{phase}_seconds" for phase in (*WORKER_PHASES, "waiting")]
    driver = [f"driver_{phase}_seconds" for phase in DRIVER_PHASES]
    total = {name: sum(row[name] for row in rows) for name in ("seconds", *workers, *driver)}
    all_workers = sum(total[name] for name in workers)
    found = {name: total[name] / all_workers for name in workers}
    return total["seconds"] / rounds, found | {
        name: total[name] / total["seconds"] for name in driver
    }


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    networks = [*dict.fromkeys(case.network for case in CASES)]
    parser.add_argument("--workloads", nargs="+", choices=networks, default=networks)
    parser.add_argument("--rounds", type=int, default=20)
    arguments = parser.parse_args()
    print(machine(), end="\n\n")
    phases = [f"worker: {phase}" for phase in (*WORKER_PHASES, "waiting")]
    phases += [f"driver: {phase}" for phase in DRIVER_PHASES]
    header = ["workload", "cohort", "clients x samples", "s a round", *phases]
    print(line(header), line(["---"] * len(header)), sep="\n")
    for case in (case for case in CASES if case.network in arguments.workloads):
        seconds, found = shares(case, arguments.rounds)
        work = f"{case.clients} x {case.samples}, B={case.batch}"
        cells = [f"{share:.1%}" for share in found.values()]
        print(line([case.network, case.cohort, work, f"{seconds:.3g}", *cells]), flush=True)


if __name__ == "__main__":
    main()
