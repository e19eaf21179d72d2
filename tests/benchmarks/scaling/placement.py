"""The part of the scale benchmarks that plays pools of 64 and 512 actors on a simulated clock."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import asdict, replace
from statistics import median

from tests.benchmarks.report import heading, line
from tests.benchmarks.scaling.costs import MODELS, broadcast_seconds, message_costs, sum_costs
from tests.benchmarks.scaling.output import Options, new_figure, percent
from tests.benchmarks.scaling.population import Played, Population
from tests.benchmarks.scaling.runs import WARM_UP
from tests.benchmarks.scaling.simulation import Costs

WORKERS = (64, 512)
COHORTS = (1000, 2000, 5000)
CASES = (
    *((0.1, 0.0, 0.5), (0.1, 0.5, 0.5)),
    *((1.0, 0.0, 0.5), (1.0, 0.5, 0.5), (1.0, 1.0, 0.5)),
    (1.0, 0.0, 0.0),
)
"""Mean seconds of a client, sigma of their logarithm, spread of the actors' speeds."""
NODE = 32
"""Actors of a node, which its foreman schedules: eight GPUs of four actors."""
GOAL = 0.9
"""Busy share that is wanted at a cohort of 5000."""
NAMES = (
    *("seconds a client, sigma", "speeds", "actors", "foremen", "cohort", "round, s"),
    "over the bound",
    *("at worst", "busy", "busy at worst", "ideal", "driver's share", "schedule's"),
    "messages an actor",
)


def placement(options: Options) -> Iterator[str]:
    """Rounds of many actors: time over the longest-first bound, busy actors, the driver's share.

    Busy is the seconds that all actors spend in local training, over actors times the round's
    seconds. A second counts alike on a slow actor and on a fast one, so it says how little the
    actors wait and not how well clients are placed: that is what `over the bound` says. `ideal` is
    the busy share of whole clients dealt longest first with hindsight and free messages: it is low
    where the longest client alone takes most of a round. The driver's share has the schedule's.
    Models and sums are those of the 2NN.
    """
    figure = new_figure(9)
    plots = figure.subplots(1, len(WORKERS), sharey=True, squeeze=False)[0]
    for workers, axes in zip(WORKERS, plots, strict=True):
        node = min(NODE, workers // 2)
        each = costs_of_2nn(workers, workers // node, 20 if options.tiny else 200)
        yield f"{described(each, workers)}\n"
        yield heading(*NAMES)
        axes.set(title=f"{workers} actors", xlabel="cohort", ylabel="busy share", ylim=(0, 1))
        axes.axhline(GOAL, color="gray", linestyle=":")
        for mean, sigma, spread in CASES:
            name = [f"{mean:g}, {sigma:g}", f"{1 - spread:g} to {1 + spread:g}"]
            shares = []
            for cohort in COHORTS[: 1 if options.tiny else None]:
                population = Population(workers, cohort, mean, sigma, spread, node=node)
                rounds = population.rounds(WARM_UP + options.rounds, each)[WARM_UP:]
                cells = [*name, workers, workers // node, cohort]
                yield line([*cells, *figures(rounds, workers)])
                shares.append(median(busy_shares(rounds, workers)))
            axes.plot(COHORTS[: len(shares)], shares, marker=".", label="; ".join(name))
        yield ""
    plots[0].legend(title="seconds, sigma; speeds")
    options.save("placement", figure)


def costs_of_2nn(workers: int, nodes: int, repeats: int) -> Costs:
    """Measure what messages cost and the 2NN's sums, where foremen hand them over."""
    parameters = MODELS["2NN"]
    _, foreman = sum_costs(parameters, message_costs(workers, repeats))
    return replace(foreman, broadcast=broadcast_seconds(parameters, nodes))


def described(each: Costs, workers: int) -> str:
    """Say what messages and sums cost, in milliseconds: what is known, and what is assumed."""
    usual = asdict(Costs())
    known, assumed = (
        ", ".join(
            f"{name} {1000 * seconds:.2f} ms"
            for name, seconds in asdict(each).items()
            if (seconds == usual[name]) == is_assumed
        )
        for is_assumed in (False, True)
    )
    return (
        f"{workers} actors: measured on this machine or, of the network, worked out, {known};"
        f" assumed, {assumed}; clients are 10% off what their work says"
    )


def busy_shares(rounds: list[Played], workers: int) -> list[float]:
    """Return per round the part of the actors' seconds that is local training."""
    return [each.round.busy / (workers * each.round.seconds) for each in rounds]


def figures(rounds: list[Played], workers: int) -> list[str]:
    """Return the cells of a case that are measured: medians over rounds, and the worst of some."""
    over = [each.round.seconds / each.bound for each in rounds]
    busy = busy_shares(rounds, workers)
    return [
        f"{median(each.round.seconds for each in rounds):.3g}",
        f"{median(over):.3f}",
        f"{max(over):.3f}",
        percent(median(busy)),
        percent(min(busy)),
        percent(median(each.ideal for each in rounds)),
        percent(median(each.round.driver / each.round.seconds for each in rounds)),
        percent(median(each.round.deciding / each.round.seconds for each in rounds)),
        f"{median(each.round.messages for each in rounds) / workers:.1f}",
    ]
