"""The parts of the scale benchmarks on models whose sums are large: measured, and on paper."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from statistics import median

from tests.benchmarks.report import line
from tests.benchmarks.scaling.costs import SUM_BYTES, message_costs, sum_costs, transfer_seconds
from tests.benchmarks.scaling.output import Options, heading, percent
from tests.benchmarks.scaling.placement import NODE, busy_shares
from tests.benchmarks.scaling.population import Population
from tests.benchmarks.scaling.runs import WARM_UP
from tests.benchmarks.scaling.simulation import Costs

MODELS = {"2NN": 199_210, "ResNet-18": 11_181_642, "transformer of 110M": 110_000_000}
"""Parameters by model."""
COHORT, SIGMA, SPREAD = 1000, 0.5, 0.5
"""Clients a round, sigma of the logarithm of their work, spread of the actors' speeds."""
BYTES_A_SECOND = {"pack": 3.0e9, "merge": 2.2e9, "node_merge": 4.5e9}
"""Of a sum, on paper: 30, 40 and 20 ms for the 89 MB of ResNet-18."""
CLUSTER, THOUSAND = 256, 4000
"""Actors of 64 GPUs, and of a thousand, four on each."""
NAMES = ("model", "seconds a client", "actors", "foremen", "cohort", "round, s")


def sums(options: Options) -> Iterator[str]:
    """What handing over a sum costs by the size of the model, and rounds with those costs.

    Packing, fetching and adding up are measured in this machine's object store: by the driver with
    one thread, by a foreman with up to eight. The transfer is worked out for 10 Gbit/s.
    """
    found = {}
    yield heading("model", "MB a sum", "pack, s", "driver adds up, s", "foreman, s", "transfer, s")
    for model, parameters in [*MODELS.items()][: 1 if options.tiny else None]:
        each = found[model] = sum_costs(parameters, message_costs(64, 20))
        times = (each.pack, each.merge, each.node_merge, each.transfer)
        yield line([model, f"{parameters * SUM_BYTES / 1e6:.0f}", *(f"{t:.4f}" for t in times)])
    yield f"\n{_titles()}"
    for model, each in found.items():
        for workers in (64, CLUSTER)[: 1 if options.tiny else None]:
            for node in (0, NODE):
                yield _row(model, each, 1.0, workers, node, COHORT, options.rounds)


def paper(options: Options) -> Iterator[str]:
    """Rounds of 8 nodes of 8 GPUs, and of 125, four actors a GPU, with costs that are assumed."""
    yield _titles()
    for model in [*MODELS][1 : 2 if options.tiny else None]:
        size = MODELS[model] * SUM_BYTES
        spent = {name: size / rate for name, rate in BYTES_A_SECOND.items()}
        each = Costs(**spent, transfer=transfer_seconds(size))
        for seconds in (1.0, 10.0):
            for node in (0, NODE):
                yield _row(model, each, seconds, CLUSTER, node, COHORT, options.rounds)
            if not options.tiny:
                yield _row(model, each, seconds, THOUSAND, NODE, 16 * COHORT, 1)


def _titles() -> str:
    return heading(*NAMES, "busy", "ideal", "of the ideal", "driver's share", "GB into the driver")


def _row(
    model: str, each: Costs, seconds: float, workers: int, node: int, cohort: int, rounds: int
) -> str:
    """Return the line of a case; `of the ideal` is the busy share over the ideal one."""
    population = Population(workers, cohort, seconds, SIGMA, SPREAD, node=node)
    played = population.rounds(WARM_UP + rounds, each)[WARM_UP:]
    busy, ideal = median(busy_shares(played, workers)), median(each.ideal for each in played)
    cells: Sequence[object] = [
        *(model, f"{seconds:g}", workers, workers // node if node else 0, cohort),
        f"{median(each.round.seconds for each in played):.3g}",
        *(percent(share) for share in (busy, ideal, busy / ideal)),
        percent(median(each.round.driver / each.round.seconds for each in played)),
        f"{median(each.round.sums for each in played) * MODELS[model] * SUM_BYTES / 1e9:.3g}",
    ]
    return line(cells)
