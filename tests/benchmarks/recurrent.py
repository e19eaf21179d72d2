"""What bounds a local step of char-lstm: its LSTM beside its matrix products alone.

Usage: python -m tests.benchmarks.recurrent [--repeats 40]

One thread; CPU time, medians with quartiles. All run forward and backward on one batch of ten
windows of 80 symbols: the bare step, oneDNN's LSTM of it, the same in bfloat16 and with the time
first, torch's own kernels, and the products that any LSTM needs, 80 in turn each way and the
weights' gradient at once. GFLOP/s count those products alone.
"""

from __future__ import annotations

import argparse
import statistics
from collections.abc import Callable
from functools import partial
from time import process_time

import torch
from torch import Tensor, nn

from raysim.execution.process import keep_freed_memory
from tests.benchmarks.peers.networks import NETWORKS
from tests.benchmarks.report import heading, line, machine

STEPS, BATCH, HIDDEN, EMBEDDED = 80, 10, 256, 8
GATES = 4 * HIDDEN
FLOP = 3 * 2 * STEPS * BATCH * GATES * HIDDEN
"""Of the three products with the recurrent weights; those with the embedding are 3% more."""


def step(network: nn.Module, x: Tensor, y: Tensor) -> None:
    """Take a step of SGD."""
    parameters = [*network.parameters()]
    loss = nn.functional.cross_entropy(network(x), y)
    gradients = torch.autograd.grad(loss, parameters)
    with torch.no_grad():
        for parameter, gradient in zip(parameters, gradients, strict=True):
            parameter.add_(gradient, alpha=-0.01)


def layer(lstm: nn.LSTM, x: Tensor, *, bf16: bool = False, native: bool = False) -> None:
    """Run an LSTM, and the gradients of the sum of its outputs."""
    with torch.autocast("cpu", torch.bfloat16, enabled=bf16):
        if native:
            with torch.backends.mkldnn.flags(enabled=False, allow_tf32=None):
                torch.autograd.grad(lstm(x)[0].sum(), [*lstm.parameters()])
            return
        outputs = lstm(x)[0]
    torch.autograd.grad(outputs.float().sum(), [*lstm.parameters()])


def products(weights: Tensor, hidden: Tensor, gates: Tensor) -> None:
    """Multiply hidden states [S, B, H] and gradients of gates [S, B, 4H] by weights [4H, H]."""
    for each in hidden:
        torch.mm(each, weights.t())
    for each in gates:
        torch.mm(each, weights)
    torch.mm(gates.flatten(0, 1).t(), hidden.flatten(0, 1))


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--repeats", type=int, default=40)
    repeats = parser.parse_args().repeats
    torch.set_num_threads(1)
    keep_freed_memory()
    batch_first = nn.LSTM(EMBEDDED, HIDDEN, batch_first=True)
    time_first = nn.LSTM(EMBEDDED, HIDDEN)
    x = torch.randn(BATCH, STEPS, EMBEDDED)
    symbols, labels = torch.randint(0, 80, (BATCH, STEPS)), torch.randint(0, 80, (BATCH,))
    states, gates = torch.randn(STEPS, BATCH, HIDDEN), torch.randn(STEPS, BATCH, GATES)
    ways: dict[str, Callable[[], object]] = {
        "bare step": partial(step, NETWORKS["char-lstm"].build(), symbols, labels),
        "its LSTM": partial(layer, batch_first, x),
        "time first": partial(layer, time_first, x.transpose(0, 1).contiguous()),
        "torch's own kernels": partial(layer, batch_first, x, native=True),
        "bfloat16": partial(layer, batch_first, x, bf16=True),
        "products alone": partial(products, torch.randn(GATES, HIDDEN), states, gates),
        "one large product": partial(torch.mm, torch.randn(1024, 600), torch.randn(600, 1024)),
    }
    taken: dict[str, list[float]] = {way: [] for way in ways}
    for repeat in range(repeats + 2):
        for way, run in ways.items():
            begun = process_time()
            run()
            if repeat > 1:
                taken[way].append(1000 * (process_time() - begun))
    print(machine())
    print(heading("", "ms", "quartiles", "GFLOP/s"))
    for way, seconds in taken.items():
        low, middle, high = statistics.quantiles(seconds, n=4)
        rate = f"{FLOP / middle / 1e6:.0f}"
        print(line([way, f"{middle:.3g}", f"{low:.3g} to {high:.3g}", rate]))


if __name__ == "__main__":
    main()
