"""CPU time of a local step of the 2NN when several models are trained at once.

Usage: python -m tests.benchmarks.stacks [--models 1 2 4 8 16 32] [--repeats 7] [--out FILE]

Models of one structure take an epoch of 600 samples (B=10) on one thread, each with its own tensors
and, by hand, its own learning rate.

- `one by one`: the engine's recorded steps, one model after another.
- `stack`: the engine's stacks of `engine.vectorize`, whose models share a learning rate.
- `by hand`: batched products in plain PyTorch, without autograd.
- `fused`: the same, but the product that gives a weight's gradient is added to the weight as it is
  computed. Only steps of plain SGD can be taken like this.

Times are microseconds a model and step. In brackets is the throughput in that of `one by one`, the
median over the repeats, in each of which all take turns. CPU time counts. The first repeats do not
count: steps are recorded in them. Below the table are a step's matrix products: their time at the
speed of a large product, and their time as they are, one by one and batched.
"""

from __future__ import annotations

import argparse
import statistics
from collections.abc import Callable, Sequence
from pathlib import Path
from time import process_time

import numpy as np
import torch
import torch.nn.functional as F
from torch import Tensor

from raysim.execution.process import keep_freed_memory
from raysim.numbers.tensors import Tensors
from raysim.training import recorded_steps
from raysim.training.stacked.trainer import StackedTrainer
from tests.benchmarks.peers.networks import NETWORKS
from tests.benchmarks.peers.work import Case
from tests.benchmarks.report import line, machine
from tests.benchmarks.steps import BATCH, LR, STEPS_BEFORE, WARM_UP, Stepper

SAMPLES = 600
LARGE = 1500
"""Rows and columns of the product whose speed is the machine's."""
SIZES = ((784, 200), (200, 200), (200, 10))
"""Inputs and outputs of the 2NN's layers."""
PRODUCTS = (
    *((BATCH, i, o) for i, o in SIZES),
    *((i, BATCH, o) for i, o in SIZES),
    *((BATCH, o, i) for i, o in SIZES[1:]),
)
"""Sizes [m, k, n] of a step's products: forward, gradients of weights, gradients of activations."""


class ByHand:
    """Stacked 2NNs whose gradients are written by hand; K models, each with its learning rate."""

    def __init__(self, tensors: Tensors, models: int, lr: Sequence[float], fused: bool) -> None:
        stacked = {n: t.detach().expand(models, *t.shape).clone() for n, t in tensors.items()}
        weights = {(*t.shape,): n for n, t in tensors.items() if t.dim() == 2}
        self.layers = [weights[o, i].removesuffix(".weight") for i, o in SIZES]
        self.weights = [stacked[f"{layer}.weight"] for layer in self.layers]
        self.biases = [stacked[f"{layer}.bias"] for layer in self.layers]
        self.lr = torch.tensor(lr).view(-1, 1, 1)
        self.fused = fused

    def epoch(self, x: Tensor, y: Tensor, order: Tensor) -> None:
        """Take the steps of an epoch on samples x [n, F] and labels y [n]."""
        for rows in order.split(BATCH):
            self.step(x[rows].expand(len(self.lr), -1, -1), y[rows])

    def step(self, x: Tensor, y: Tensor) -> None:
        """Take a step on inputs x [K, B, F] and labels y [B]."""
        inputs = [x]
        for weight, bias in zip(self.weights, self.biases, strict=True):
            inputs.append(torch.baddbmm(bias[:, None], inputs[-1], weight.transpose(1, 2)))
            if weight is not self.weights[-1]:
                inputs[-1].relu_()
        slope = (inputs.pop().softmax(-1) - F.one_hot(y, SIZES[-1][1])) / len(y)
        slopes = [slope]
        for weight, active in zip(self.weights[:0:-1], inputs[:0:-1], strict=True):
            slopes.insert(0, torch.bmm(slopes[0], weight) * (active > 0))
        scaled = [each * self.lr for each in slopes]
        torch._foreach_sub_(self.biases, [each.sum(1) for each in scaled])
        pairs = [(each.transpose(1, 2), x) for each, x in zip(scaled, inputs, strict=True)]
        if self.fused:
            for weight, pair in zip(self.weights, pairs, strict=True):
                weight.baddbmm_(*pair, alpha=-1)
        else:
            torch._foreach_sub_(self.weights, [torch.bmm(*pair) for pair in pairs])


def seconds_of(function: Callable[[], object]) -> float:
    """Return the CPU time of a call."""
    start = process_time()
    function()
    return process_time() - start


def ways(stepper: Stepper, models: int) -> dict[str, Callable[[], object]]:
    """Return functions that train models for an epoch, by way."""
    method, state = stepper.settings.method, stepper.checkpoint.state
    work = method.training_pass(stepper.inputs(), state)
    x, y = stepper.data.x.flatten(1), stepper.data.y
    order = torch.from_numpy(stepper.job(work).batches().permutation(len(y)))
    stacked = StackedTrainer(stepper.trainer, print)
    lr = np.linspace(0.5 * LR, 1.5 * LR, models).tolist()
    found: dict[str, Callable[[], object]] = {
        "one by one": lambda: [stepper.trainer.run(stepper.job(work)) for _ in range(models)],
        "stack": lambda: stacked.run([stepper.job(work) for _ in range(models)]),
    }
    for name in ("by hand", "fused"):
        hand = ByHand(state.groups["model"], models, lr, fused=name == "fused")
        found[name] = lambda hand=hand: hand.epoch(x, y, order)
    return found


def table(stepper: Stepper, models: Sequence[int], repeats: int) -> list[str]:
    """Measure stacks of these sizes; return the lines of a table."""
    by_size = {size: ways(stepper, size) for size in models}
    names = [*next(iter(by_size.values()))]
    seconds: dict[tuple[int, str], list[float]] = {}
    for repeat in range(WARM_UP + repeats):
        for size, functions in by_size.items():
            for name, function in functions.items():
                found = seconds_of(function)
                if repeat >= WARM_UP:
                    seconds.setdefault((size, name), []).append(found)
    lines = [line(["models", *(f"{name}, us" for name in names)])]
    lines.append(line(["---"] * (1 + len(names))))
    for size in models:
        steps, base, cells = size * SAMPLES / BATCH, seconds[size, names[0]], []
        for name in names:
            own = seconds[size, name]
            gain = statistics.median(a / b for a, b in zip(base, own, strict=True))
            cells.append(f"{statistics.median(own) / steps * 1e6:.0f} ({gain:.2f})")
        lines.append(line([size, *cells]))
    return lines


def products(models: int, repeats: int) -> str:
    """Measure the matrix products of a step for models one by one and batched; return a line."""
    ones = [(torch.randn(m, k), torch.randn(k, n)) for m, k, n in PRODUCTS for _ in range(models)]
    batched = [(torch.randn(models, m, k), torch.randn(models, k, n)) for m, k, n in PRODUCTS]
    large = torch.randn(LARGE, LARGE)
    peak, apart, together = (
        statistics.median(seconds_of(function) for _ in range(repeats))
        for function in (
            lambda: large @ large,
            lambda: [torch.mm(*pair) for pair in ones],
            lambda: [torch.bmm(*pair) for pair in batched],
        )
    )
    speed = 2 * LARGE**3 / peak
    operations = sum(2 * m * k * n for m, k, n in PRODUCTS)
    return (
        f"products of a step: {operations / 1e6:.1f} MFLOP; at the {speed / 1e9:.0f} GFLOP/s of a"
        f" large product {operations / speed * 1e6:.0f} us, one by one {apart / models * 1e6:.0f}"
        f" us, of {models} models batched {together / models * 1e6:.0f} us"
    )


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--models", nargs="+", type=int, default=[1, 2, 4, 8, 16, 32])
    parser.add_argument("--repeats", type=int, default=7)
    parser.add_argument("--out", type=Path, help="file for the table, beside the terminal")
    arguments = parser.parse_args()
    recorded_steps.STEPS_BEFORE = STEPS_BEFORE
    keep_freed_memory()
    samples = NETWORKS["2nn"].samples(SAMPLES, np.random.default_rng(0))
    stepper = Stepper("fedavg", "2nn", Case("2nn", 1, SAMPLES, 1, BATCH, lr=LR), *samples)
    lines = [machine(), "", *table(stepper, arguments.models, arguments.repeats), ""]
    lines += [products(8, 10 * arguments.repeats), ""]
    print("\n".join(lines))
    if arguments.out:
        arguments.out.write_text("\n".join(lines))


if __name__ == "__main__":
    main()
