"""Jobs of the GPU benchmark, the most useful first."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path

from tests.benchmarks.gpu import (
    actors,
    bits,
    cell,
    cuda_tests,
    environment,
    evaluation,
    faults,
    memory,
    profiles,
    unequal,
)
from tests.benchmarks.gpu.apart import Job
from tests.benchmarks.gpu.peer import PATIENCE_SECONDS, Pfl
from tests.benchmarks.gpu.results import Emit
from tests.benchmarks.gpu.speed import compare
from tests.benchmarks.gpu.work import FULL, TINY, System, inline_systems

Run = Callable[[Emit], None]
NETWORKS = ("mnist-cnn-128", "flexchill-cnn", "2nn", "cifar-cnn-5", "resnet18")
DEVICE_PARTS = (
    *("environment", "bits", "actors", "profile", "faults", "evaluation", "unequal"),
    "new-methods",
)
"""Parts of a page that a device lent for 15 minutes fills."""
PARTS = ("tests", "speed", "cell", "memory", "bf16", *DEVICE_PARTS, "full-tests")
"""Of what is measured; `plan` has their order."""
NEW_METHODS = (
    *("afl", "apfl", "centralized", "dp_ftrl", "drfa", "fedala", "fedbabu", "fedbn", "feddbe"),
    *("fedlc", "fedper", "fedproto", "fedrep", "fedrod", "lg_fedavg", "local", "moon"),
    *("per_fedavg", "pfedme", "powersgd", "qffl", "term"),
)
"""Methods that no device has trained yet."""
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
    yield from minutes_of_a_device(choice, device)
    if "full-tests" in choice.parts:  # no other test on a device compares all methods
        yield tests_of(choice, "full-tests", "cuda and full", 600)


def tests_of(
    choice: Choice, part: str, marks: str, limit: float, methods: Sequence[str] = ()
) -> Job:
    """Return the job of tests with these marks, of some methods or of all."""
    log = choice.out / f"{part}.log"
    run = partial(cuda_tests.run, chosen=marks, log=log, names=methods)
    return Job(f"{part}: {marks}", part, run, limit)


def first_look(choice: Choice, network: str) -> Job:
    """Return a job of a few systems and seconds, which shows whether anything works."""
    sizes = TINY if choice.tiny else FULL
    stack = System("raysim", stack=sizes.stacks[-1] if choice.tiny else 32, graphs=True)
    run = partial(
        compare,
        network=network,
        sizes=sizes,
        systems=[System("raysim", graphs=True), stack, System("bare")],
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
    return Job(f"{network}, {precision}", part, run, 300)


def inline(choice: Choice, pfl: Pfl, device: bool, *, bf16: bool) -> list[System]:
    """Return the systems without Ray: raysim inline, bare loops, and pfl where it is wanted."""
    sizes = TINY if choice.tiny else FULL
    systems = [*inline_systems(sizes, bf16=bf16), System("bare", bf16=bf16)]
    if device:
        systems.append(System("bare, CUDA graph", graphs=True, bf16=bf16))
    processes = sizes.processes if pfl.wanted else ()
    return systems + [System("pfl", workers=count, bf16=bf16) for count in processes]


def minutes_of_a_device(choice: Choice, device: bool) -> Iterator[Job]:
    """Yield the jobs of `DEVICE_PARTS`; their limits are 14 minutes in all."""
    tiny = choice.tiny
    found = [Job("environment", "environment", partial(environment.measure, tiny=tiny), 30)]
    for network in bits.NETWORKS[:1] if tiny else bits.NETWORKS:
        run: Run = partial(bits.measure, network=network)
        found.append(Job(f"{network}, bits", "bits", run, 27))
    found.append(Job("deterministic", "bits", partial(bits.measure_modes, tiny=tiny), 22))
    for network, stack in actors.CASES[:1] if tiny else actors.CASES:
        run = partial(actors.measure, network=network, stack=stack, tiny=tiny)
        found.append(Job(f"{network}, stack {stack}, actors", "actors", run, 76))
    if device:
        found.append(Job("short memory", "faults", faults.measure_memory, 50))
    found += [
        Job("profile", "profile", partial(profiles.measure, tiny=tiny), 62),
        Job("a killed actor", "faults", faults.measure_killed, 50),
        Job("evaluation", "evaluation", partial(evaluation.measure, tiny=tiny), 30),
        Job("unequal clients", "unequal", partial(unequal.measure, tiny=tiny), 50),
        tests_of(choice, "new-methods", "cuda", 210, NEW_METHODS),
    ]
    slower = 1 if device else 4  # a CPU
    chosen = (job for job in found if job.part in choice.parts)
    return (replace(job, limit=slower * job.limit) for job in chosen)
