"""Clients of unequal sizes in a stack, which wait for the largest, against equal ones."""

from __future__ import annotations

import statistics

import numpy as np

from tests.benchmarks.gpu.results import Emit, Row
from tests.benchmarks.gpu.runs import run, work
from tests.benchmarks.gpu.work import System, sizes_of

CASES = (("2nn", 32), ("mnist-cnn-128", 32), ("resnet18", 8))
"""Networks and stacks."""


def measure(emit: Emit, tiny: bool) -> None:
    """Measure rounds of a stack of equal clients, and of those from half to one and a half."""
    rows: list[Row] = []
    for network, stack in (("2nn", 2),) if tiny else CASES:
        case = work(network, stack, 40 if tiny else 300)
        for unequal in (False, True):
            ran = run(
                System("raysim", stack=stack, graphs=True),
                case,
                3 if tiny else 6,
                partition__unequal=unequal,
            )
            sizes = sizes_of(case.clients, case.samples, unequal=unequal)
            steps, median = int(np.ceil(sizes / case.batch).sum()), statistics.median(ran.seconds)
            row: Row = {"network": network, "stack": stack, "unequal": unequal, "steps": steps}
            rows.append(row | {"round, s": median, "local steps/s": steps / median})
            rows[-1]["notes"] = ran.notes
            emit(rows)
