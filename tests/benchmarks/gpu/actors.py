"""Actors that share a GPU: 1, 2, 4 and 8 of them on Ray, against one process on the same work."""

from __future__ import annotations

import statistics
import subprocess

import raysim
from tests.benchmarks.gpu.memory import used_megabytes
from tests.benchmarks.gpu.results import Emit, Row
from tests.benchmarks.gpu.runs import Ran, Timed, run, work
from tests.benchmarks.gpu.work import System, device_of_benchmark

CASES = (("2nn", 1), ("2nn", 32), ("mnist-cnn-128", 32))
"""Networks and stacks."""
ACTORS = (1, 2, 4, 8)
STACKS = 8
"""Stacks of a round: one for each of the most actors."""
ALONE = 64
"""Clients of a round where they are trained alone."""


def measure(emit: Emit, network: str, stack: int, tiny: bool) -> None:
    """Measure a round of as many clients by one process, and by actors."""
    clients, samples = (4, 20) if tiny else (STACKS * stack if stack > 1 else ALONE, 300)
    system, case = System("raysim", stack=stack, graphs=True), work(network, clients, samples)
    rounds, rows = 3 if tiny else 5, list[Row]()
    inline = run(system, case, rounds)

    def add(actors: int, ran: Ran, held: list[str]) -> None:
        median = statistics.median(ran.seconds)
        row = {"network": network, "stack": stack, "actors": actors or "inline"}
        row |= {"round, s": median, "over inline": statistics.median(inline.seconds) / median}
        row |= {"bits of inline": ran.digest == inline.digest, "MiB": held, "notes": ran.notes}
        rows.append(row)
        emit(rows)

    add(0, inline, [])
    for actors in (2,) if tiny else ACTORS:
        held: list[str] = []
        share = 1 / actors if device_of_benchmark().type == "cuda" else 0.0
        own = {"engine__backend": "ray", "engine__actors": actors, "engine__gpus_per_actor": share}
        listener = Timed(lambda held=held: held.extend(megabytes()))
        try:
            add(actors, run(system, case, rounds, listener=listener, **own), held)
        except raysim.RaysimError as error:  # the others are still to be measured
            row = {"network": network, "stack": stack, "actors": actors}
            rows.append(row | {"notes": [f"{type(error).__name__}: {error}"]})
            emit(rows)


def megabytes() -> list[str]:
    """Return the memory of the GPU's processes, or of all together where they are not told."""
    query = ["nvidia-smi", "--query-compute-apps=used_memory", "--format=csv,noheader,nounits"]
    try:
        said = subprocess.run(query, check=True, capture_output=True, text=True).stdout.split()
    except (OSError, subprocess.SubprocessError):
        return []
    return said or [f"{used_megabytes()} together"]
