"""Counts of raysim's steps, clients and rounds, and of the bare loops, on the device of CPU memory.

They are differences of rounds of few clients and steps. `python -m tests.benchmarks.gpu.counts`
prints those that `model` needs of the code that RESULTS-GPU.md has measured, for counted.toml: it
is to be run where the page is measured anew.
"""

from __future__ import annotations

import tempfile
import tomllib
from collections import Counter, defaultdict
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from typing import Any
from unittest import mock

import torch

import raysim
from raysim.training import sequential
from raysim.training.stacked import cuda_graphs
from tests.benchmarks.gpu import work
from tests.benchmarks.gpu.costs import CostedDevice, Kernel
from tests.benchmarks.gpu.python_calls import PythonCalls
from tests.benchmarks.gpu.systems import BareGraph, BareLoop
from tests.benchmarks.gpu.work import FULL, System
from tests.benchmarks.peers.work import Case

TABLE = Path(__file__).with_name("counted.toml")
NETWORKS = ("2nn", "mnist-cnn-128", "resnet18")
"""Networks of the table."""
KINDS = ("launches", "syncs", "to the device", "to the host")
SMALL = 2**15
"""Bytes of kernels that take the time of a launch in any stack."""
FEW = 2
"""Clients, and steps of each, of the smallest round that is counted."""
ROUNDS = 4, 5
"""Rounds that are counted: all that repeats is recorded; the last round, after them, evaluates.

Of the two, that with fewer calls of Python counts: about once a second there is a report of more.
"""


@dataclass(frozen=True)
class Part:
    """What a part of a round asks of host and device.

    Attributes:
        calls: Launches, waits and copies; a replay is one, a copy that is waited for is two.
        python: Calls of functions in Python.
        copied: Bytes copied to the device and from it.
        kernels: How often each kernel runs, those of replayed graphs among them.
    """

    calls: float
    python: float
    copied: float
    kernels: Mapping[Kernel, float]

    def __add__(self, other: Part) -> Part:
        kernels = Counter(self.kernels)
        kernels.update(other.kernels)
        kept = {kernel: number for kernel, number in kernels.items() if number}
        numbers = zip(self._numbers, other._numbers, strict=True)
        return Part(*(mine + its for mine, its in numbers), kernels=kept)

    def __sub__(self, other: Part) -> Part:
        return self + other * -1

    def __mul__(self, factor: float) -> Part:
        kernels = {kernel: number * factor for kernel, number in self.kernels.items()}
        return Part(*(number * factor for number in self._numbers), kernels=kernels)

    @property
    def _numbers(self) -> tuple[float, float, float]:
        return self.calls, self.python, self.copied


@dataclass(frozen=True)
class Counts:
    """Counts of a system on a network.

    Attributes:
        step: A step of one client alone, or of `stack` clients at once.
        client: A client, beside its steps.
        round: A round, beside its clients.
        stack: Clients of a step, 0 where they are trained alone.
    """

    step: Part
    client: Part
    round: Part
    stack: int = 0


class Watch(raysim.Listener):
    """Keeps what host and device have done at the end of each round."""

    def __init__(self, gpu: CostedDevice, python: PythonCalls) -> None:
        self._gpu, self._python, self.notes = gpu, python, list[str]()
        self.totals: list[Part] = []

    def round_done(self, row: Mapping[str, Any]) -> None:
        self.totals.append(total(self._gpu, self._python))

    def note(self, text: str) -> None:
        self.notes.append(text)


def total(gpu: CostedDevice, python: PythonCalls) -> Part:
    """Return all that host and device have done so far."""
    counts = gpu.counts
    copied = counts["bytes to the device"] + counts["bytes to the host"]
    return Part(sum(counts[kind] for kind in KINDS), python.count, copied, gpu.kernels)


def count(system: System, network: str, batch: int) -> Counts:
    """Count a system of raysim; `system.stack` says only whether clients are stacked.

    No steps share a launch; see `with_steps_joined`.
    """
    stack = FEW if system.stack > 1 else 0
    with mock.patch.object(sequential, "JOINED", ()):
        (step, rest), (_, more) = (parts(system, network, batch, each) for each in (FEW, FEW + 1))
    client = more - rest
    return Counts(step * (1 if stack else 1 / FEW), client, rest - client * FEW, stack)


def with_steps_joined(counts: Counts, network: str, batch: int, steps: int) -> Counts:
    """Return counts of recorded clients alone with the steps of a client of so many.

    Several steps of a client share a launch, so a step is not the same for any number of them.
    """
    few, more = (
        one_round(System("raysim", graphs=True), network, batch, clients, steps)
        for clients in (FEW, FEW + 1)
    )
    return replace(counts, step=(more - few - counts.client) * (1 / steps))


def parts(system: System, network: str, batch: int, clients: int) -> tuple[Part, Part]:
    """Return a step of all clients of a round, and the rest of the round."""
    few, more = (one_round(system, network, batch, clients, steps) for steps in (FEW, 2 * FEW))
    step = (more - few) * (1 / FEW)
    return step, few - step * FEW


def one_round(system: System, network: str, batch: int, clients: int, steps: int) -> Part:
    """Return what a round of a run asks of host and device."""
    at_once = clients if system.stack > 1 else 1
    case = Case(network, clients, batch * steps, clients, batch, lr=work.LR)
    own = replace(system, stack=at_once).overrides(case, device=True) | {"rounds": ROUNDS[-1] + 1}
    with tempfile.TemporaryDirectory() as out, recording_soon(), CostedDevice() as gpu:
        settings = raysim.load_config("mnist-fedavg", {**own, "out": f"{out}/run"})
        with (python := PythonCalls()).counting():
            raysim.run(settings, listener=(watch := Watch(gpu, python)))
    if gpu.counts["replays"] == 0 and system.graphs:
        raise RuntimeError(f"{network}: no step was recorded: {'; '.join(watch.notes)}")
    rounds = (watch.totals[number - 1] - watch.totals[number - 2] for number in ROUNDS)
    return min(rounds, key=lambda part: part.python)


@contextmanager
def recording_soon() -> Iterator[None]:
    """Have steps recorded that are repeated once."""
    before = cuda_graphs.MIN_REPLAYS
    with mock.patch.object(work, "REPLAYS", 1):
        yield
    cuda_graphs.MIN_REPLAYS = before


def count_bare(network: str, batch: int, *, graphs: bool) -> Counts:
    """Count a bare loop, whose rounds have nothing beside their clients."""
    with CostedDevice() as gpu:
        totals = []
        for steps in (FEW, 2 * FEW):
            case = Case(network, 1, batch * steps, 1, batch, lr=work.LR)
            loop = (BareGraph if graphs else BareLoop)(case, torch.device("cuda", 0), bf16=False)
            loop.round()  # a first one imports modules
            before = total(gpu, python := PythonCalls())
            with python.counting():
                loop.round()
            totals.append(total(gpu, python) - before)
    few, more = totals
    step = (more - few) * (1 / FEW)
    return Counts(step, few - step * FEW, Part(0, 0, 0, {}))


WAYS = {
    "bare": partial(count_bare, graphs=False),
    "bare graph": partial(count_bare, graphs=True),
    "alone": partial(count, System("raysim")),
    "recorded": partial(count, System("raysim", graphs=True)),
    "stack": partial(count, System("raysim", stack=FEW)),
    "graphs": partial(count, System("raysim", stack=FEW, graphs=True)),
}
"""Ways of training: a bare loop, its step as a CUDA graph; raysim's clients alone, their steps as
graphs; raysim's stacks, their steps as graphs."""


def condensed(kernels: Mapping[Kernel, float]) -> Iterator[str]:
    """Yield [how often, kind, launches, bytes, FLOP] of kernels of about as many bytes together."""
    groups: dict[Any, list[float]] = defaultdict(lambda: [0.0, 0.0, 0.0])
    for kernel, number in kernels.items():
        size = int(max(kernel.bytes, SMALL)).bit_length() // 3
        group = groups[kernel.kind, size, number > 0]
        for position, value in enumerate((kernel.launches, kernel.bytes, kernel.flop)):
            group[position] += abs(number) * value
    for (kind, _, more), values in sorted(groups.items()):
        numbers = ", ".join(f"{value:.4g}" for value in values)
        yield f'[{1 if more else -1}, "{kind}", {numbers}]'


def written(network: str, way: str, counts: Counts) -> str:
    """Return counts as a table of TOML."""
    lines = [f'["{network}"."{way}"]', f"stack = {counts.stack}"]
    for name in ("step", "client", "round"):
        part: Part = getattr(counts, name)
        kernels = ", ".join(condensed(part.kernels))
        lines += [f"{name}.calls = {part.calls:g}", f"{name}.python = {part.python:g}"]
        lines += [f"{name}.copied = {part.copied:g}"]
        lines += [f"{name}.kernels = [{kernels}]"]
    return "\n".join(lines) + "\n"


def read(path: Path = TABLE) -> dict[tuple[str, str], Counts]:
    """Return the counts in a file, by network and way."""
    return {
        (network, way): Counts(
            *(_part(**own[name]) for name in ("step", "client", "round")), stack=own["stack"]
        )
        for network, ways in tomllib.loads(path.read_text()).items()
        for way, own in ways.items()
    }


def _part(calls: float, python: float, copied: float, kernels: list[list[Any]]) -> Part:
    found: Counter[Kernel] = Counter()
    for number, *own in kernels:
        found[Kernel(*own)] += number
    return Part(calls, python, copied, found)


if __name__ == "__main__":
    for network in NETWORKS:
        for way, counting in WAYS.items():
            print(written(network, way, counting(network, FULL.batch)), flush=True)
