"""The parts of the scale benchmarks that train: engine cost, skewed clients, sizes, memory."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

import numpy as np
from matplotlib.ticker import EngFormatter

from tests.benchmarks.report import heading, line
from tests.benchmarks.scaling.output import Options, new_figure, percent
from tests.benchmarks.scaling.runs import (
    Measured,
    cost_beside,
    driver_memory,
    measure,
    over_the_bound,
    slope,
    worker_shares,
)
from tests.benchmarks.scaling.workloads import parameters

WORKLOADS = "tests.benchmarks.scaling.workloads"
NO_STEPS = {"method.name": f"{WORKLOADS}:NoSteps"}
INLINE_FRACTION = 0.1
COSTS = ("engine cost", "engine cost by inline steps")


def cost(options: Options) -> Iterator[str]:
    """Where the workers' time goes, at 60 and at 6 steps a client.

    The engine's cost is read in two ways: with the steps' seconds as they were in the run, where
    the driver may share the cores, and with those of an inline run, where nobody else trains.
    """
    names = ("steps", "set-up", "data", "broadcast", "reduction", "waiting", "between")
    yield heading("model", "steps", "cohort", "actors", "round, s", *names, *COSTS)
    for clients in (100, 1000):
        for model in options.models:
            work = {
                "model.name": model,
                "local.epochs": 1,
                "clients": clients,
                "fraction": 0.05 if options.tiny else 1.0,
            }
            run = measure("mnist-fedavg", options.rounds, work)
            setup = measure("mnist-fedavg", options.rounds, work | NO_STEPS).training
            shares = worker_shares(run, setup)
            steps = inline_steps(work, options.rounds)
            cells = [model, 6000 // clients, len(run.clients[0]), run.actors, f"{run.seconds:.3g}"]
            cells += [percent(shares[name]) for name in names]
            costs = (1 - shares["steps"], cost_beside(run, steps))
            yield line([*cells, *map(percent, costs)])


def overlap(options: Options) -> Iterator[str]:
    """Where the workers' time goes in asynchronous rounds: 64 clients at work for two actors."""
    names = ("steps", "set-up", "data", "broadcast", "reduction", "waiting")
    yield heading("model", "steps", "actors", "M", "K", "round, s", *names)
    for epochs in (1, 5):
        work = {"model.name": "2nn", "local.epochs": epochs, "engine.actors": 2}
        overlapping = {"method.name": "fedbuff", "method.concurrency": 64, "clock.name": "devices"}
        run = measure("mnist-fedavg", options.rounds, work | overlapping)
        setup = measure("mnist-fedavg", options.rounds, work | NO_STEPS).training
        shares = worker_shares(run, setup)
        shares["waiting"] += shares.pop("between")  # workers go on between rounds
        cells = ["2nn", 60 * epochs, run.actors, 64, 32, f"{run.seconds:.3g}"]
        yield line([*cells, *(percent(shares[name]) for name in names)])


def inline_steps(work: Mapping[str, Any], rounds: int) -> float:
    """Return the mean seconds of a client's local steps in a process that has a core of its own."""
    few = {**work, "engine.backend": "inline", "fraction": INLINE_FRACTION}
    training, setup = (measure("mnist-fedavg", rounds, few | m).training for m in ({}, NO_STEPS))
    return training - setup


def skew(options: Options) -> Iterator[str]:
    """Round time over the longest-first bound, for clients of very unequal sizes."""
    figure = new_figure()
    axes = figure.add_subplot(xlabel="round", ylabel="round time / longest-first bound")
    axes.axhline(1.05, color="gray", linestyle=":")
    yield heading(
        "model", "epochs", "samples: least, median, most", "round, s", "over the bound", "at worst"
    )
    for model, epochs in (("2nn", 1), ("2nn", 5), ("mnist-cnn-128", 1)):
        work = {
            "model.name": model,
            "partition.name": f"{WORKLOADS}:LogNormal",
            "clients": 1000,
            "fraction": 0.02 if options.tiny else 0.1,
            "local.epochs": epochs,
        }
        run = measure("mnist-fedavg", options.rounds, work)
        ratios = over_the_bound(run)
        axes.plot(range(1, len(ratios) + 1), ratios, marker=".", label=f"{model}, E={epochs}")
        sizes = ", ".join(f"{size:.0f}" for size in np.quantile(run.samples, [0, 0.5, 1]))
        middle, worst = np.median(ratios), max(ratios)
        yield line([model, epochs, sizes, f"{run.seconds:.3g}", f"{middle:.3f}", f"{worst:.3f}"])
    axes.legend()
    options.save("skew", figure)


def sizes(options: Options) -> Iterator[str]:
    """Round time against each size by itself."""
    cohorts, widths = (10, 100, 1000, 5000), (200, 600, 1200, 2500, 4600)
    sweeps: dict[str, list[dict[str, Any]]] = {
        "clients": [{"clients": 10**power} for power in range(2, 7)],
        "cohort": [{"cohort": cohort} for cohort in cohorts[: 2 if options.tiny else None]],
        "parameters": [
            {"cohort": 20, "width": width} for width in widths[: 2 if options.tiny else None]
        ],
        "actors": [{"actors": actors} for actors in (1, 2, 4)],
    }
    yield heading("clients", "cohort", "parameters", "actors", "first round after, s", "round, s")
    figure = new_figure(9, 6)
    all_axes = figure.subplots(2, 2, sharey=True)  # one scale, so that they can be compared
    for axes, (sweep, cases) in zip(all_axes.flat, sweeps.items(), strict=True):
        points = []
        for case in cases:
            value, run = _sized(options, case)
            points.append((value[sweep], run.seconds))
            cells = [f"{value[name]:,}" for name in ("clients", "cohort", "parameters", "actors")]
            yield line([*cells, f"{run.first:.1f}", f"{run.seconds:.3g}"])
        axes.loglog(*zip(*points, strict=True), marker="o")
        axes.set(xlabel=sweep, ylabel="seconds a round")
        axes.set_xticks([value for value, _ in points])
        axes.set_xticks([], minor=True)
        axes.xaxis.set_major_formatter(EngFormatter(places=0, sep=""))
        axes.grid(alpha=0.3)
    options.save("sizes", figure)


def _sized(options: Options, case: Mapping[str, Any]) -> tuple[dict[str, int], Measured]:
    """Return the sizes of a case of `sizes`, and its run."""
    usual = {"clients": 10_000, "cohort": 20 if options.tiny else 100, "width": 200}
    given = {**usual, "actors": "auto", **case}
    work = {
        "clients": given["clients"],
        "fraction": given["cohort"] / given["clients"],
        "model.name": f"{WORKLOADS}:Perceptron",
        "model.width": given["width"],
        "engine.actors": given["actors"],
    }
    run = measure("mnist-million", options.rounds, work)
    return {**given, "parameters": parameters(given["width"]), "actors": run.actors}, run


def memory(options: Options) -> Iterator[str]:
    """The driver's memory, from its tenth round on."""
    figure = new_figure()
    axes = figure.add_subplot(xlabel="round", ylabel="driver's memory, MB")
    yield heading(
        "clients",
        "cohort",
        "resident after round 10 and the last, MB",
        "private, MB",
        "private at most, MB",
        "growth of private, kB a round",
    )
    for clients, cohort in ((1000, 100), (1_000_000, 1000)):
        fraction = cohort / clients / (10 if options.tiny else 1)
        work = {"clients": clients, "fraction": fraction}
        clock = driver_memory("mnist-million", 20 if options.tiny else 100, work)
        cells: list[object] = [f"{clients:,}", round(fraction * clients)]
        for name, values in (("resident", clock.resident), ("private", clock.private)):
            axes.plot(np.array(values) / 1e6, label=f"{name}, {clients:,} clients")
            cells.append(f"{values[9] / 1e6:.0f}, {values[-1] / 1e6:.0f}")
        later = clock.private[9:]
        yield line([*cells, f"{max(later) / 1e6:.0f}", f"{slope(later) / 1e3:.0f}"])
    axes.set_ylim(bottom=0)
    axes.legend()
    options.save("memory", figure)
