"""Seconds to match the neurons of all clients, layer by layer, on one core.

Usage: python -m tests.benchmarks.matching [--clients 10] [--width 512] [--layers 2] [--sweeps 5]

Every client's layer is the same one with noise and in an order of its own, as after local training
from a common start. `noise` is relative to the weights; without any, and where neurons are all
foreign to each other (noise 10), the assignment problems are of different difficulty. The first
layer has 784 inputs, every other as many as the layer before has atoms.
"""

from __future__ import annotations

import argparse
import os
from time import perf_counter

import numpy as np

from raysim.methods.fedma.matching import Beliefs, match

INPUTS = 784
LIMIT = 1.5


def measure(clients: int, width: int, layers: int, sweeps: int, noise: float) -> tuple[float, int]:
    """Return the seconds, and the atoms of the last layer."""
    generator = np.random.default_rng(0)
    seconds, inputs = 0.0, INPUTS
    for _ in range(layers):
        base = generator.normal(size=(width, inputs + 1)) / np.sqrt(inputs)
        rows = [
            base[generator.permutation(width)]
            + noise * generator.normal(size=base.shape) / np.sqrt(inputs)
            for _ in range(clients)
        ]
        begun = perf_counter()
        matching = match(rows, Beliefs(), sweeps, limit=int(LIMIT * width))
        seconds += perf_counter() - begun
        inputs = len(matching.members)
    return seconds, inputs


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--clients", type=int, default=10)
    parser.add_argument("--width", type=int, default=512)
    parser.add_argument("--layers", type=int, default=2)
    parser.add_argument("--sweeps", type=int, default=5)
    parser.add_argument("--noise", type=float, nargs="+", default=[0.0, 0.5, 10.0])
    arguments = parser.parse_args()
    if hasattr(os, "sched_setaffinity"):
        os.sched_setaffinity(0, {min(os.sched_getaffinity(0))})
    for noise in arguments.noise:
        seconds, atoms = measure(
            arguments.clients, arguments.width, arguments.layers, arguments.sweeps, noise
        )
        print(
            f"{arguments.layers} layers of {arguments.width}, {arguments.clients} clients,"
            f" {arguments.sweeps} sweeps, noise {noise:g}: {seconds:.1f} s, {atoms} atoms"
        )


if __name__ == "__main__":
    main()
