"""Faults of a machine: memory that is short, and an actor that is killed within a round."""

from __future__ import annotations

import signal
import statistics
import threading
from typing import Any

import psutil

import raysim
from tests.benchmarks.gpu.results import Emit, Row
from tests.benchmarks.gpu.runs import Timed, run, work
from tests.benchmarks.gpu.work import System, device_of_benchmark

ROUNDS = 8
SOON_SECONDS = 0.2
"""Seconds after the first round when an actor is killed."""


def measure_memory(emit: Emit) -> None:
    """Note what a user reads where the memory of a share is short."""
    rows: list[Row] = []
    for case, network, clients, own in (
        ("a share below the context", "2nn", 2, {"gpus_per_actor": 0.01}),
        ("a stack beyond the share", "resnet18", 256, {"gpus_per_actor": 0.1, "vectorize": 256}),
        ("auto on that share", "resnet18", 64, {"gpus_per_actor": 0.1, "vectorize": "auto"}),
    ):
        settings = {f"engine__{name}": value for name, value in own.items()}
        row: Row = {"case": case, "network": network, "clients": clients}
        try:
            ran = run(System("raysim", graphs=True), work(network, clients, 20), 2, **settings)
        except raysim.RaysimError as error:
            row |= {"came of it": f"{type(error).__name__}: {error}"}
        else:
            row |= {"came of it": "it trained", "notes": ran.notes}
        emit(rows := [*rows, row])


def measure_killed(emit: Emit) -> None:
    """Kill one of two actors within the rounds after the first; compare with one process."""
    share = 0.5 if device_of_benchmark().type == "cuda" else 0.0
    own: dict[str, Any] = {"engine__backend": "ray", "engine__actors": 2}
    own["engine__gpus_per_actor"] = share
    case = work("2nn", 64, 60)
    found: list[int] = []

    def kill() -> None:
        family = psutil.Process().children(recursive=True)
        actors = [each for each in family if "ClientActor" in " ".join(each.cmdline())]
        found.append(len(actors))
        if actors:
            threading.Timer(SOON_SECONDS, actors[0].send_signal, [signal.SIGKILL]).start()

    inline = run(System("raysim", graphs=True), case, ROUNDS)
    ran = run(System("raysim", graphs=True), case, ROUNDS, listener=Timed(kill), **own)
    row: Row = {"case": "a killed actor", "actors found": found[0]}
    row |= {"round, s": statistics.median(ran.seconds), "the slowest": max(ran.seconds)}
    emit([row | {"bits of inline": ran.digest == inline.digest, "notes": ran.notes}])
