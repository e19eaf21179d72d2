"""Estimate of a card's time from counts: `python -m tests.benchmarks.gpu.model [--networks ...]`.

Where there is no GPU, a round's seconds are estimated: a kernel takes the longest of its launch, of
its bytes at the card's bandwidth, and of its FLOP at the rate of its kind; to the sum of all comes
the host's time for its calls of the device and of functions in Python. The card is an H200, the
host the one of RESULTS-GPU.md. The constants below are fitted to its rows in fp32, which were
measured at the commit at which `counted.toml` was counted; the model gives each within 30%, as a
test compares.

The command counts the steps, clients and rounds of the code as it is on the device of CPU memory
(tests/cuda), in some minutes, and prints what the same constants make of them, beside the goals.

What it cannot know: a change of the time of a call. A call of the device costs what it did in the
stacked steps and clients that were measured; "at best" is what it costs in a bare loop of PyTorch,
while the card computes. An LSTM's kernels are the CPU's, which are more than cuDNN's. bf16 is not
estimated: the CPU's autocast leaves the convolutions of stacks in fp32.
"""

from __future__ import annotations

import argparse
import re
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

from tests.benchmarks.gpu.costs import Kernel
from tests.benchmarks.gpu.counts import WAYS, Counts, Part, with_steps_joined
from tests.benchmarks.gpu.work import FULL
from tests.benchmarks.report import heading, line

KERNEL_SECONDS, CONVOLUTION_SECONDS = 3e-6, 20e-6
"""Least time of a kernel, and of one of a convolution: deterministic ones fill little of a card."""
BANDWIDTH = 4.3e12
"""Bytes that the card's memory moves a second."""
COPIES = 1e10
"""Bytes that are copied between host and device a second; assumed."""
FLOP_RATES = {
    "product": 33.5e12,  # half of the card's peak in fp32
    "convolution": 13e12,
    "convolution of small maps": 13e12,
    "grouped convolution": 13e12,
    "grouped convolution of small maps": 2e12,
    "other": float("inf"),
}


@dataclass(frozen=True)
class Host:
    """Time of the host in a way of training.

    Attributes:
        step: Seconds of a step that is not recorded, beside its calls: autograd's threads.
        call: Seconds of a call of the device in a step.
        beside: Seconds of a call of the device beside steps.
        hidden: Whether a step takes the longer of host and card, not both.
    """

    step: float
    call: float
    beside: float
    hidden: bool = False


BARE_STEP, BARE_CALL = 1.4e-3, 22e-6
VMAP_STEP, VMAP_CALL = 1.6e-3, 26e-6
CALL = 51e-6
"""Seconds of a call in raysim's Python, around recorded steps and beside steps."""
PYTHON_CALL = 0.35e-6
"""Seconds of a call of a function in Python, with what is done between two of them.

Not fitted, as the measured rows do not tell it from other constants: on one core of a server
a client of a stack took 425 us for 965 calls, those of the device's operations among them.
"""
HOSTS = {
    "bare": Host(BARE_STEP, BARE_CALL, BARE_CALL, hidden=True),
    "bare graph": Host(0, BARE_CALL, BARE_CALL, hidden=True),
    "alone": Host(BARE_STEP, BARE_CALL, CALL, hidden=True),
    "recorded": Host(0, CALL, CALL),
    "stack": Host(VMAP_STEP, VMAP_CALL, CALL),
    "graphs": Host(0, CALL, CALL),
}
"""By way of training, see `counts.WAYS`; no clients alone with recorded steps were measured."""
AT_BEST = HOSTS["bare graph"]

PAGE = Path(__file__).parents[1] / "RESULTS-GPU.md"
SECTION = re.compile(r"^### (\S+), fp32$(.*?)^(?=###? )", re.MULTILINE | re.DOTALL)
ROW = re.compile(r"^\| (raysim|bare|bare, CUDA graph) \| 1 \| (\d+) \| (\S+) \| (\S+) \(", re.M)
BARE = {"bare": "bare", "bare, CUDA graph": "bare graph"}
OURS = {
    (True, False): "alone",
    (True, True): "recorded",
    (False, False): "stack",
    (False, True): "graphs",
}
"""Ways of training of the page's rows: of raysim's by whether alone, and with graphs."""
PARTS_OF_THE_GRAPH = {30: "0.68 of the bare graph", 60: "0.8 of the bare graph"}
"""Goals of clients alone, by their steps."""
JOINED = ("2nn", "mnist-cnn-128")
"""Networks whose clients alone are counted with as many steps; of others it takes too long."""
STACKS = {
    "2nn": {32: "-", 128: "100,000 steps/s"},
    "mnist-cnn-128": {32: "-", 128: "16,000, later 20,000 steps/s"},
    "resnet18": {8: "-", 32: "3,500 steps/s"},
}
"""Goals of stacks, by their clients."""
NETWORKS = (*STACKS, "char-lstm")
"""Networks that can be counted; by default those with stacks."""


def kernel_seconds(kernel: Kernel, scale: float = 1.0) -> float:
    """Return the seconds of a kernel on so many times as much data."""
    least = CONVOLUTION_SECONDS if "convolution" in kernel.kind else KERNEL_SECONDS
    moved, computed = kernel.bytes / BANDWIDTH, kernel.flop / FLOP_RATES[kernel.kind]
    return max(kernel.launches * least, scale * moved, scale * computed)


def device_seconds(part: Part, scale: float = 1.0) -> float:
    """Return the seconds of all kernels of a part, and of its copies."""
    kernels = (number * kernel_seconds(each, scale) for each, number in part.kernels.items())
    return sum(kernels) + part.copied / COPIES


def round_seconds(counts: Counts, host: Host, clients: int, steps: int) -> float:
    """Return the seconds of a round of so many clients of so many steps."""
    scale = clients / counts.stack if counts.stack else 1.0
    on_host = host.step + counts.step.calls * host.call + counts.step.python * PYTHON_CALL
    on_device = device_seconds(counts.step, scale)
    step = max(on_host, on_device) if host.hidden else on_host + on_device
    rest = counts.client * clients + counts.round
    taken = steps if counts.stack else steps * clients
    beside = rest.calls * host.beside + rest.python * PYTHON_CALL + device_seconds(rest)
    return taken * step + beside


def steps_a_second(counts: Counts, host: Host, clients: int, steps: int) -> float:
    """Return the local steps a second in such rounds."""
    return clients * steps / round_seconds(counts, host, clients, steps)


def measured() -> dict[tuple[str, str, int], float]:
    """Return the measured local steps a second, by network, way and clients of a round."""
    found = {}
    for network, table in SECTION.findall(PAGE.read_text()):
        for name, stack, graphs, rate in ROW.findall(table):
            way = BARE.get(name) or OURS[stack == "1", graphs == "yes"]
            found[network, way, FULL.alone if stack == "1" else int(stack)] = float(rate)
    return found


def rows(network: str) -> Iterator[str]:
    """Yield the lines of a network: clients alone, then stacks."""
    counted = {way: WAYS[way](network, FULL.batch) for way in ("bare graph", "recorded")}
    for steps, goal in PARTS_OF_THE_GRAPH.items():
        base = steps_a_second(counted["bare graph"], HOSTS["bare graph"], FULL.alone, steps)
        counts = counted["recorded"]
        if network in JOINED:
            counts = with_steps_joined(counts, network, FULL.batch, steps)
        yield row(network, "recorded", counts, FULL.alone, steps, goal, base)
    if network in STACKS:
        stacked = WAYS["graphs"](network, FULL.batch)
        for clients, goal in STACKS[network].items():
            yield row(network, "graphs", stacked, clients, FULL.steps, goal)


def row(
    network: str, way: str, counts: Counts, clients: int, steps: int, goal: str, base: float = 0
) -> str:
    """Return the line of a round: its counts, and steps a second, or their part of a base."""
    parts = counts.step, counts.client, counts.round
    calls = [f"{part.calls:.3g} + {part.python:.0f}" for part in parts]
    found = [steps_a_second(counts, host, clients, steps) for host in (HOSTS[way], AT_BEST)]
    shown = [f"{each / base:.2f}" if base else f"{each:,.0f}" for each in found]
    cells = [network, clients if counts.stack else "alone", steps, *calls]
    return line([*cells, *shown, goal])


def main(arguments: Sequence[str] | None = None) -> None:
    """Print the table of the code as it is."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("--networks", nargs="+", choices=NETWORKS, default=[*STACKS])
    options = parser.parse_args(arguments)
    calls = ("calls of a step", "of a client", "of a round")
    print(heading("network", "stack", "steps", *calls, "estimated", "at best", "goal"))
    for network in options.networks:
        for each in rows(network):
            print(each, flush=True)


if __name__ == "__main__":
    main()
