"""Jobs of the GPU benchmark, the most useful first."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from functools import partial
from itertools import islice
from pathlib import Path

from tests.benchmarks.gpu import cell, cuda_tests, memory
from tests.benchmarks.gpu.apart import Job
from tests.benchmarks.gpu.peer import PATIENCE_SECONDS, Pfl
from tests.benchmarks.gpu.speed import compare
from tests.benchmarks.gpu.work import FULL, TINY, System, actor_systems, inline_systems

NETWORKS = ("mnist-cnn-128", "flexchill-cnn", "2nn", "cifar-cnn-5", "resnet18")
PARTS = ("tests", "speed", "cell", "memory", "bf16", "actors", "full-tests")
"""Of what is measured; `plan` has their order."""
LOOK_SECONDS = 5.0
"""The same of the first comparison, by which there are figures before the tests have run."""
SWEEP_SECONDS = 20.0
"""Seconds of a comparison after which no further sweep begins, once two count."""


@dataclass(frozen=True)
class Choice:
    """What is to be measured.

    Attributes:
        parts: Some of `PARTS`.
        networks: Some of `NETWORKS`.
        tiny: Whether to show only that everything works.
        out: Folder of the results.
    """

    parts: Sequence[str]
    networks: Sequence[str]
    tiny: bool
    out: Path


def plan(choice: Choice, pfl: Pfl, device: bool) -> Iterator[Job]:
    """Yield the jobs, the most useful first.

    Args:
        choice: What is to be measured.
        pfl: Its environment, which may be ready later than the first jobs.
        device: Whether there is a CUDA device.
    """
    first, *others = choice.networks
    if "speed" in choice.parts:
        yield first_look(choice, first)
    if "tests" in choice.parts:
        yield tests_of(choice, "tests", "cuda and not full", 180)
    if "speed" in choice.parts:
        yield comparison(choice, "speed", first, inline(choice, pfl, device, bf16=False), pfl, 0)
    if "cell" in choice.parts:
        seconds = 0 if choice.tiny else SWEEP_SECONDS
        run = partial(cell.measure, seconds=seconds, tiny=choice.tiny)
        yield Job("fedmax-cifar10-noniid", "cell", run, 240)
    for network in others if "speed" in choice.parts else ():
        yield comparison(choice, "speed", network, inline(choice, pfl, device, bf16=False), pfl)
    if "memory" in choice.parts:
        sizes = TINY if choice.tiny else FULL
        run = partial(memory.measure, networks=choice.networks, sizes=sizes)
        yield Job("memory", "memory", run, 180)
    for network in choice.networks if "bf16" in choice.parts else ():
        yield comparison(choice, "bf16", network, inline(choice, pfl, device, bf16=True), pfl)
    actors = with_actors(choice, pfl) if "actors" in choice.parts else iter(())
    yield from islice(actors, 1)
    if "full-tests" in choice.parts:  # no other test on a device compares all methods
        yield tests_of(choice, "full-tests", "cuda and full", 600)
    yield from actors


def tests_of(choice: Choice, part: str, marks: str, limit: float) -> Job:
    log = choice.out / f"{part}.log"
    return Job(f"{part}: {marks}", part, partial(cuda_tests.run, chosen=marks, log=log), limit)


def first_look(choice: Choice, network: str) -> Job:
    """Return a job of a few systems and seconds, which shows whether anything works."""
    sizes = TINY if choice.tiny else FULL
    stack = System("raysim", stack=sizes.stacks[-1] if choice.tiny else 32, graphs=True)
    run = partial(
        compare,
        network=network,
        sizes=sizes,
        systems=[System("raysim"), stack, System("bare")],
        seconds=0 if choice.tiny else LOOK_SECONDS,
        pfl="",
    )
    return Job(f"{network}, fp32, a first look", "speed", run, 90)


def comparison(
    choice: Choice,
    part: str,
    network: str,
    systems: Sequence[System],
    pfl: Pfl,
    patience: float = PATIENCE_SECONDS,
    more: str = "",
) -> Job:
    """Return the job that compares systems on a network.

    Where pfl is among them, it waits so many seconds for its environment.
    """
    with_pfl = any(system.name == "pfl" for system in systems)
    run = partial(
        compare,
        network=network,
        sizes=TINY if choice.tiny else FULL,
        systems=systems,
        seconds=0 if choice.tiny else SWEEP_SECONDS,
        pfl=pfl.python(patience) if with_pfl else "",
        no_pfl=pfl.reason,
    )
    precision = "bf16" if systems[0].bf16 else "fp32"
    return Job(f"{network}, {precision}{more}", part, run, 300)


def inline(choice: Choice, pfl: Pfl, device: bool, *, bf16: bool) -> list[System]:
    """Return the systems without Ray: raysim inline, bare loops, and pfl where it is wanted."""
    sizes = TINY if choice.tiny else FULL
    systems = [*inline_systems(sizes, bf16=bf16), System("bare", bf16=bf16)]
    if device:
        systems.append(System("bare, CUDA graph", graphs=True, bf16=bf16))
    processes = sizes.processes if pfl.wanted else ()
    return systems + [System("pfl", workers=count, bf16=bf16) for count in processes]


def with_actors(choice: Choice, pfl: Pfl) -> Iterator[Job]:
    """Yield comparisons of four actors with one process: a chosen few first, then the rest.

    A bare loop is beside them, so that its rounds are neighbours of theirs; pfl is left out.
    """
    sizes = TINY if choice.tiny else FULL
    for rest in (False, True):
        for bf16 in (False, True):
            references = [
                each
                for each in inline_systems(sizes, bf16=bf16)
                if each.stack == 1 or (each.graphs and each.stack == sizes.stacks[-1])
            ]
            actors = actor_systems(sizes, bf16=bf16, rest=rest)
            for network in choice.networks if actors else ():
                more = ", four actors, the rest" if rest else ", four actors"
                systems = [*references, *actors, System("bare", bf16=bf16)]
                yield comparison(choice, "actors", network, systems, pfl, more=more)
