"""Scaling of raysim: engine cost, skewed clients, round time by size, hundreds of actors, memory.

Usage: python -m tests.benchmarks.scale
           [--parts cost overlap skew sizes placement streaming sums paper memory]
           [--rounds 5] [--out FOLDER] [--tiny] [--models 2nn mnist-cnn-128]

Prints a table in Markdown per part; `--out` is a folder for plots. Runs train on MNIST, on all
cores, with E=1 and B=10 where nothing else is said, and without evaluation. `--rounds` are counted
after two that are not. `--tiny` shows quickly that everything works; its figures mean nothing.
`--models` are those of `cost`.

cost       Worker-seconds outside local steps, over all: 100 clients of 600 samples and 1000 of 60,
           all of them every round. All are the actors times the time from round to round, records
           and checkpoints included; `set-up` is what a client's training takes without steps,
           measured in a run whose clients take none. The steps' seconds are of the clock and hold
           what else ran on a core meanwhile, the driver too; the last column takes them from
           inline runs of a tenth of them instead, which train on one core and leave the others
           idle: compare the two on a quiet machine alone.
overlap    The same parts of the workers' seconds in asynchronous rounds of FedBuff, with 64 clients
           of 600 samples at work for two actors, on simulated phones.
skew       1000 clients of log-normal sizes, 1 to 5000 samples (median 60, sigma 1.5), 100 a round:
           round time over max(all clients' seconds / actors, longest client's seconds) of the same
           round.
sizes      Round time against clients, cohort, parameters and actors; clients draw 60 samples each.
placement  The engine's schedule on simulated pools of 64 and 512 actors, 32 a node and foreman, on
           a simulated clock: what a message costs the driver, what the 2NN's sums cost and what
           the schedule takes are measured here, the rest is assumed as printed. Round time over
           the longest-first bound, and the part of the actors' seconds that is local training.
streaming  Asynchronous rounds on the same simulated pools, with eight clients at work for each
           actor: time over the schedule's bound, and the part of the actors' seconds that is
           training.
sums       What handing over a sum costs, by the size of the model, and what the driver does between
           rounds, measured here, and simulated rounds of 64 and 256 actors with the sums' costs,
           with foremen and without.
paper      Simulated rounds of 64 and 1000 GPUs with costs that are assumed: `cluster/sizing.md`.
memory     The driver's memory in 100 rounds of 6 steps a client, as `mnist-million` runs them.
           Resident memory includes pages that it shares with Ray's object store, private memory
           does not.
"""

from __future__ import annotations

import argparse
import os
from collections.abc import Callable, Iterator
from pathlib import Path

os.environ["RAY_worker_niceness"] = "0"  # noqa: SIM112 - 15 by default: any other load would count against Ray

from raysim.config import EngineSettings
from raysim.execution.ray_runtime import ray_runtime
from tests.benchmarks.report import machine
from tests.benchmarks.scaling.large_models import paper, sums
from tests.benchmarks.scaling.output import Options
from tests.benchmarks.scaling.placement import placement
from tests.benchmarks.scaling.streaming import streaming
from tests.benchmarks.scaling.trained import cost, memory, overlap, sizes, skew

PARTS: dict[str, Callable[[Options], Iterator[str]]] = {
    "memory": memory,  # first: its growth must not hide in what other parts freed
    "cost": cost,
    "overlap": overlap,
    "skew": skew,
    "sizes": sizes,
    "placement": placement,
    "streaming": streaming,
    "sums": sums,
    "paper": paper,
}


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--parts", nargs="+", choices=PARTS, default=[*PARTS])
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--out", type=Path)
    parser.add_argument("--tiny", action="store_true")
    parser.add_argument("--models", nargs="+", choices=Options.models, default=Options.models)
    arguments = parser.parse_args()
    if arguments.out:
        arguments.out.mkdir(parents=True, exist_ok=True)
    options = Options(arguments.rounds, arguments.out, arguments.tiny, tuple(arguments.models))
    print(machine())
    with ray_runtime(EngineSettings()):
        for name, part in PARTS.items():
            if name in arguments.parts:
                print(f"\n{name}\n")
                for text in part(options):
                    print(text, flush=True)


if __name__ == "__main__":
    main()
