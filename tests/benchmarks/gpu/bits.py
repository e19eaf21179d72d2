"""Bits of a model: the same run twice, with and without recorded steps; its distance from a CPU's.

Clients alone and in a stack, in fp32 and bf16; enough steps that most of them are recorded.
"""

from __future__ import annotations

import statistics

from tests.benchmarks.gpu.results import Emit, Row
from tests.benchmarks.gpu.runs import run, work
from tests.benchmarks.gpu.work import System

NETWORKS = ("2nn", "mnist-cnn-128", "char-lstm", "resnet18")
UNSTACKED = ("char-lstm",)
ROUNDS = 3


def measure(emit: Emit, network: str) -> None:
    """Compare runs of a network."""
    rows: list[Row] = []
    case = work(network, 2, 60)
    on_cpu = run(System("raysim"), case, ROUNDS, device=False)
    for stack in (1,) if network in UNSTACKED else (1, 2):
        for bf16 in (False, True):
            first, second, plain = (
                run(System("raysim", stack=stack, graphs=graphs, bf16=bf16), case, ROUNDS)
                for graphs in (True, True, False)
            )
            row = {
                "network": network,
                "stack": stack,
                "precision": "bf16" if bf16 else "fp32",
                "the same twice": first.digest == second.digest,
                "as not recorded": first.digest == plain.digest,
                "from a CPU": first.distance(on_cpu),
            }
            rows.append(row | {"notes": first.notes})
            emit(rows)


def measure_modes(emit: Emit, tiny: bool) -> None:
    """Compare deterministic algorithms with those that torch chooses."""
    rows: list[Row] = []
    for deterministic in (True, False):
        ran = run(
            System("raysim", graphs=True),
            work("mnist-cnn-128", 4, 20 if tiny else 300),
            2 if tiny else 6,
            engine__deterministic=deterministic,
        )
        row = {"deterministic": deterministic, "round, s": statistics.median(ran.seconds)}
        emit(rows := [*rows, row])
