"""The parts of the scale benchmarks on models whose sums are large: measured, and on paper."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import replace
from statistics import median

from tests.benchmarks.report import heading, line
from tests.benchmarks.scaling.costs import (
    MODELS,
    NODE_SUM_BYTES,
    SUM_BYTES,
    between_rounds,
    broadcast_seconds,
    message_costs,
    sum_costs,
    transfer_seconds,
)
from tests.benchmarks.scaling.output import Options, percent
from tests.benchmarks.scaling.placement import NODE, busy_shares
from tests.benchmarks.scaling.population import Population
from tests.benchmarks.scaling.runs import WARM_UP
from tests.benchmarks.scaling.simulation import Costs

COHORT, SIGMA, SPREAD = 1000, 0.5, 0.5
"""Clients a round, sigma of the logarithm of their work, spread of the actors' speeds."""
PARAMETERS_A_SECOND = {
    "pack": 0.65e9,
    "merge": 0.8e9,
    "node_merge": 1.25e9,
    "node_pack": 0.3e9,
    "merge_of_node": 0.3e9,
}
"""Of a sum, on paper: 17, 14, 9, 37 and 37 ms for ResNet-18, for which `sums` measured 13, 8, 7, 31
and 29."""
CLUSTER, THOUSAND = 256, 4000
"""Actors of 64 GPUs, and of a thousand, four on each."""
ADDING = "driver adds up, s", "foreman, s"
SHARES = ("busy", "ideal", "of the ideal", "of one with the model's way")
NAMES = ("model", "seconds a client", "actors", "foremen", "cohort", "round, s")


def sums(options: Options) -> Iterator[str]:
    """What handing over a sum costs by the size of the model, and rounds with those costs.

    Packing, fetching and adding up are measured in this machine's object store: by the driver with
    one thread, by a foreman with up to eight. The transfer is worked out for 10 Gbit/s. What the
    driver does between rounds comes on top of the rounds.
    """
    found = {}
    yield heading(
        "model", "sum of", "MB", "pack, s", "driver adds up, s", "foreman, s", "transfer, s"
    )
    for model, parameters in [*MODELS.items()][: 1 if options.tiny else None]:
        actor, foreman = found[model] = sum_costs(parameters, message_costs(64, 20))
        for who, each, size, pack, node_merge in (
            ("an actor", actor, SUM_BYTES, actor.pack, f"{actor.node_merge:.4f}"),
            ("a foreman", foreman, NODE_SUM_BYTES, foreman.node_pack, "-"),
        ):
            seconds = (f"{pack:.4f}", f"{each.merge:.4f}", node_merge, f"{each.transfer:.4f}")
            yield line([model, who, f"{parameters * size / 1e6:.0f}", *seconds])
    between = {model: between_rounds(MODELS[model]) for model in found}
    yield "\n" + heading("model", *next(iter(between.values())))
    for model, spent in between.items():
        yield line([model, *(f"{seconds:.4f}" for seconds in spent.values())])
    yield f"\n{_titles()}"
    for model, costs in found.items():
        for workers in (64, CLUSTER)[: 1 if options.tiny else None]:
            for node, each in zip((0, NODE), costs, strict=True):
                yield _row(model, each, 1.0, workers, node, COHORT, options.rounds)


def paper(options: Options) -> Iterator[str]:
    """Rounds of 8 nodes of 8 GPUs, and of 125, four actors a GPU, with costs by the parameters.

    The model goes out through the driver's network, too, once a node.
    """
    yield _titles()
    for model in [*MODELS][1 : 2 if options.tiny else None]:
        actor, foreman = on_paper(MODELS[model])
        for seconds in (1.0, 10.0):
            for node, each in ((0, actor), (NODE, foreman)):
                yield _row(model, each, seconds, CLUSTER, node, COHORT, options.rounds)
            if not options.tiny:
                yield _row(model, foreman, seconds, THOUSAND, NODE, 16 * COHORT, 1)


def on_paper(parameters: int) -> tuple[Costs, Costs]:
    """Return costs on paper where actors hand over to the driver, and where foremen do so."""
    spent = {name: parameters / rate for name, rate in PARAMETERS_A_SECOND.items()}
    merges = spent.pop("merge"), spent.pop("merge_of_node")
    sizes = SUM_BYTES, NODE_SUM_BYTES
    actor, foreman = (
        Costs(**spent, merge=merge, transfer=transfer_seconds(parameters * size))
        for merge, size in zip(merges, sizes, strict=True)
    )
    return actor, foreman


def _titles() -> str:
    return heading(*NAMES, *SHARES, "driver's share", "GB into the driver")


def _row(
    model: str, each: Costs, seconds: float, workers: int, node: int, cohort: int, rounds: int
) -> str:
    """Return the line of a case; `of the ideal` is the busy share over the ideal one.

    In an ideal round messages and sums cost nothing, and the model is everywhere at once. In one
    with the model's way it goes out as here, once a node through the driver's network.
    """
    population = Population(workers, cohort, seconds, SIGMA, SPREAD, node=node)
    out = broadcast_seconds(MODELS[model], workers // NODE)
    played = population.rounds(WARM_UP + rounds, replace(each, broadcast=out))[WARM_UP:]
    size = NODE_SUM_BYTES if node else SUM_BYTES
    busy, ideal = median(busy_shares(played, workers)), median(each.ideal for each in played)
    lasted = median(each.round.seconds for each in played)
    shares = busy, ideal, busy / ideal, busy / ideal + out / lasted
    cells: Sequence[object] = [
        *(model, f"{seconds:g}", workers, workers // node if node else 0, cohort),
        f"{lasted:.3g}",
        *map(percent, shares),
        percent(median(each.round.driver / each.round.seconds for each in played)),
        f"{median(each.round.sums for each in played) * MODELS[model] * size / 1e9:.3g}",
    ]
    return line(cells)
