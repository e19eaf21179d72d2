"""CPU time of a local step by method, beside FedAvg's and beside a bare PyTorch loop's.

Usage: python -m tests.benchmarks.steps [--models 2nn mnist-cnn-128] [--methods fedavg ...]
           [--repeats 7] [--out FILE]

One thread. In every repeat one client takes an epoch (B=10) by each method in turn, so the
machine's other load meets all of them alike; CPU time counts, in which it matters less. The time is
that of the passes with local epochs, start and upload included, over their steps; server and
aggregation are left out. Ratios are medians over the repeats of ratios within a repeat, with
their quartiles. The first repeats do not count: steps are recorded in them, earlier than in a run.
`chain` is FedProx with SCAFFOLD. `goal` is what a method's step may cost in FedAvg's; `bare` is a
loop of the same arithmetic in plain PyTorch (`bare`): it takes each pass just before the
engine does, in the same process, from the same tensors and on the same batches.
"""

from __future__ import annotations

import argparse
import statistics
from collections.abc import Mapping, Sequence
from dataclasses import replace
from functools import partial
from pathlib import Path
from time import process_time
from types import MappingProxyType
from typing import Any

import numpy as np
import torch

import raysim
import raysim.methods
import raysim.workloads
from raysim.api.method import METHODS, Round
from raysim.api.rules import LocalValues, Pass, Reduced
from raysim.driver.rounds.method_rounds import opened_pass, round_inputs
from raysim.driver.start.checks.preflight import initial_checkpoint
from raysim.execution.partial_sum import PartialSum
from raysim.execution.process import configure, keep_freed_memory
from raysim.federation.opened import OpenedSamples
from raysim.federation.task import from_task
from raysim.numbers.seeds import stream, torch_generator
from raysim.numbers.tensors import Groups
from raysim.samples.data import MODELS
from raysim.training import recorded_steps
from raysim.training.job import ClientJob
from raysim.training.network import Network
from raysim.training.sequential import SequentialTrainer
from tests.adapters import task_for
from tests.benchmarks.bare.loop import Given
from tests.benchmarks.bare.methods import bare_loop
from tests.benchmarks.peers.networks import NETWORKS
from tests.benchmarks.peers.work import Case
from tests.benchmarks.report import line, machine
from tests.steps import run_round

CPU = torch.device("cpu")
SAMPLES = {"2nn": 600, "mnist-cnn-128": 60}
"""Samples of the client, so that an epoch of any model takes about as long; others have 60."""
BATCH, LR = 10, 0.01
WARM_UP, STEPS_BEFORE = 3, 10
"""Repeats that do not count, and steps before steps are recorded, which they hold."""
GOALS: Mapping[str, Mapping[str, float]] = {
    "2nn": {
        **dict.fromkeys(("fedprox", "momentum"), 1.2),
        "scaffold": 1.35,
        **dict.fromkeys(("fedmax", "activation_l2"), 1.3),
        "mifl": 1.6,
        **dict.fromkeys(("fedmmd", "two_stream_l2", "fedfusion"), 1.9),
        "fsvrg": 2.6,
    },
    "mnist-cnn-128": {
        **dict.fromkeys(("fedprox", "momentum", "fedmax", "activation_l2"), 1.1),
        "scaffold": 1.15,
        **dict.fromkeys(("mifl", "fedmmd", "two_stream_l2", "fedfusion"), 1.4),
        "fsvrg": 2.2,
    },
}
"""Most that a step may take, in FedAvg's."""
SETTINGS: Mapping[str, Mapping[str, Any]] = {
    "chain": {"method.methods": {"fedprox": {}, "scaffold": {}}},
    "divide_and_conquer": {"method.split": 1},
    "dp_ftrl": {"aggregation.weighting": "fixed"},
    "fedat": {"method.tiers": 1},
}
"""Settings of methods that measure little or nothing under their defaults; one client, one tier."""


class Stepper:
    """Rounds of one method with one client, of which the local steps are timed."""

    def __init__(
        self,
        method: str,
        model: str,
        case: Case,
        x: Any,
        y: Any,
        given: Mapping[str, Any] = MappingProxyType({}),
    ) -> None:
        options = {"method.name": method, "clients": 1, "fraction": 1.0, "target_accuracy": None}
        local = {"local.batch_size": case.batch, "local.epochs": 1, "local.lr": case.lr}
        self.settings = raysim.load_config("mnist-fedavg", {**options, **local, **given})
        configure(self.settings.engine)
        build = partial(MODELS.get(model)().build, NETWORKS[model].shape, NETWORKS[model].classes)
        task = raysim.Task(build, [(x, y)], (x[:BATCH], y[:BATCH]))
        federation = from_task(task_for(method, task))
        self.network, self.checkpoint = initial_checkpoint(self.settings, federation)
        module = self.settings.method.network(federation.network(self.settings.seed))
        self.trainer = SequentialTrainer(Network(module).placed(CPU), self.settings.local, "fp32")
        self.data = OpenedSamples(federation, CPU).client(0)
        self.state: Groups = self.settings.method.client_init(self.checkpoint.state)
        self.bare = bare_loop(
            method, self.settings.method, self.settings.local, case.build(), self.data.x[:BATCH]
        )
        self.seconds, self.bare_seconds, self.steps = 0.0, 0.0, 0

    def round(self) -> tuple[float, float | None]:
        """Run a round; return the seconds of a local step in it, and those of the bare loop's."""
        self.seconds, self.bare_seconds, self.steps = 0.0, 0.0, 0
        now = self.inputs()
        passes = self.settings.method.round(now, self.checkpoint.state)
        state, _ = run_round(passes, lambda pass_: self.run(opened_pass(pass_, now)))
        self.checkpoint = replace(self.checkpoint, number=self.checkpoint.number + 1, state=state)
        return self.seconds / self.steps, self.bare_seconds / self.steps if self.bare else None

    def inputs(self) -> Round:
        """Return the input of the next round."""
        return round_inputs(
            self.settings,
            self.network,
            self.checkpoint,
            sizes=np.array([len(self.data.y)]),
            note=lambda note: None,
            cohort=(0,),
        )

    def job(self, pass_: Pass) -> ClientJob:
        """Return the client's job in a pass."""
        return ClientJob(
            rules=pass_.rules,
            epochs=pass_.epochs_of(0),
            lr=pass_.lr_of(0),
            trainable=pass_.trainable,
            data=self.data,
            broadcast=pass_.broadcast,
            state=self.state,
            personal=pass_.personal.get(0, {}),
            augment=lambda x, generator: x,
            values=LocalValues(self.settings.local.temperature),
            batches=partial(stream, 0, "batches", self.checkpoint.number),
            torch_seed=0,
            generator=partial(torch_generator, 0),
        )

    def run(self, pass_: Pass) -> Reduced:
        """Train the client in a pass."""
        job = self.job(pass_)
        if job.epochs:
            self.run_bare(pass_)
        start = process_time()
        upload, losses = self.trainer.run(job)
        if job.epochs:
            self.seconds += process_time() - start
            self.steps += losses.steps
        kept = {**upload.state, **upload.round_state}  # the live network's tensors may be in it
        copies = {name: {n: t.detach().clone() for n, t in g.items()} for name, g in kept.items()}
        self.state = {**self.state, **copies}
        total = PartialSum()
        total.add({"client": 0}, total.check(upload)(), 1, 1)
        return replace(total.reduced(1, total.columns()), tiers={0: 0})

    def run_bare(self, pass_: Pass) -> None:
        """Train the client in a pass by the bare loop, if the method has one."""
        if self.bare:
            given = Given.of(self.job(pass_), pass_.label)
            start = process_time()
            self.bare.run(given)
            self.bare_seconds += process_time() - start


def table(model: str, methods: Sequence[str], repeats: int) -> list[str]:
    """Measure methods on a model; return the lines of a table."""
    case = Case(model, 1, SAMPLES.get(model, 60), 1, BATCH, lr=LR)
    x, y = NETWORKS[model].samples(case.samples, np.random.default_rng(0))
    steppers = {name: Stepper(name, model, case, x, y, SETTINGS.get(name, {})) for name in methods}
    seconds: dict[str, list[float]] = {name: [] for name in methods}
    by_hand: dict[str, list[float]] = {name: [] for name in methods}
    for repeat in range(WARM_UP + repeats):
        for name, stepper in steppers.items():
            own, bare = stepper.round()
            if repeat >= WARM_UP:
                seconds[name].append(own)
                by_hand[name] += [] if bare is None else [bare]
    lines = [line([model, "ms a step", "/ fedavg", "goal", "bare, ms", "/ bare"])]
    lines.append(line(["---"] * 6))
    for name, times in seconds.items():
        goal, loop = GOALS.get(model, {}).get(name, "-"), by_hand[name]
        cells = [name, milliseconds(times), spread(times, seconds["fedavg"]), goal]
        cells += [milliseconds(loop), spread(times, loop)] if loop else ["-", "-"]
        lines.append(line(cells))
    return lines


def milliseconds(seconds: Sequence[float]) -> str:
    """Return the median in milliseconds."""
    return f"{1000 * statistics.median(seconds):.3g}"


def spread(seconds: Sequence[float], base: Sequence[float]) -> str:
    """Return "median (lower to upper quartile)" of the ratios within each repeat."""
    ratios = [a / b for a, b in zip(seconds, base, strict=True)]
    low, middle, high = np.quantile(ratios, (0.25, 0.5, 0.75))
    return f"{middle:.2f} ({low:.2f} to {high:.2f})"


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--models", nargs="+", default=["2nn", "mnist-cnn-128"])
    parser.add_argument("--methods", nargs="+", default=[*METHODS])
    parser.add_argument("--repeats", type=int, default=7)
    parser.add_argument("--out", type=Path, help="file for the tables, beside the terminal")
    arguments = parser.parse_args()
    recorded_steps.STEPS_BEFORE = STEPS_BEFORE
    keep_freed_memory()
    methods = ["fedavg", *(name for name in arguments.methods if name != "fedavg")]
    lines = [machine(), ""]
    for model in arguments.models:
        lines += [*table(model, methods, arguments.repeats), ""]
    print("\n".join(lines))
    if arguments.out:
        arguments.out.write_text("\n".join(lines))


if __name__ == "__main__":
    main()
