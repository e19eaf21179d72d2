"""CPU time of a local step in torch's default memory layout and in channels-last.

Usage: python -m tests.benchmarks.layout [--models mnist-cnn-128 ...] [--batch 10] [--repeats 7]

One thread; both layouts take turns; medians of CPU time (other load of the machine counts less).
"""

from __future__ import annotations

import argparse
import statistics
from time import process_time

import torch
import torch.nn.functional as F

import raysim.workloads  # noqa: F401 - registers the models
from raysim.samples.data import MODELS

STEPS = 10


def step_seconds(module: torch.nn.Module, x: torch.Tensor, y: torch.Tensor) -> float:
    params = list(module.parameters())
    begun = process_time()
    for _ in range(STEPS):
        gradients = torch.autograd.grad(F.cross_entropy(module(x), y), params)
        with torch.no_grad():
            torch._foreach_add_(params, gradients, alpha=-0.01)
    return (process_time() - begun) / STEPS


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--models", nargs="+", default=["mnist-cnn-128", "cifar-cnn-5", "resnet18"])
    parser.add_argument("--batch", type=int, default=10)
    parser.add_argument("--repeats", type=int, default=7)
    arguments = parser.parse_args()
    torch.set_num_threads(1)
    print("| model | default, ms | channels-last, ms | ratio |\n|---|---|---|---|")
    for name in arguments.models:
        shape = (1, 28, 28) if name.startswith("mnist") else (3, 32, 32)
        x, y = torch.rand(arguments.batch, *shape), torch.randint(0, 10, (arguments.batch,))
        plain = MODELS.get(name)().build(shape, 10)
        moved = MODELS.get(name)().build(shape, 10).to(memory_format=torch.channels_last)
        seconds: list[list[float]] = [[], []]
        for _ in range(arguments.repeats + 1):
            for module, times in zip((plain, moved), seconds, strict=True):
                times.append(step_seconds(module, x, y))
        before, after = (1000 * statistics.median(times[1:]) for times in seconds)
        print(f"| {name} | {before:.2f} | {after:.2f} | {after / before:.2f} |", flush=True)


if __name__ == "__main__":
    main()
