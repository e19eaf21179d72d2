"""Faults of the drill: how each strikes a run that holds still, and how its effect is seen."""

from __future__ import annotations

import os
import random
import resource
import signal
from collections.abc import Callable, Iterator
from contextlib import suppress
from pathlib import Path
from time import monotonic, sleep
from typing import Any

import psutil

from raysim.process import exits
from tests.faults import disks
from tests.faults.crowd import crowded
from tests.faults.damages import DAMAGES
from tests.faults.drill import SETTINGS, Fault, Stage
from tests.faults.processes import Run

LIMIT_BYTES = 2**20
"""Memory that a worker may take beyond what it has."""
MEMORY = Path("/sys/fs/cgroup/memory")
"""Control groups of memory, where this machine has them in their first version."""


def held(run: Run) -> int:
    """Return the process of the worker that is in the middle of a client."""
    assert run.held, "no worker is held"
    return run.held


def send_to_actor(number: int) -> Callable[[Stage, Run], None]:
    def strike(stage: Stage, run: Run) -> None:
        stage.evidence.append(f"renewed {held(run)}")
        os.kill(held(run), number)

    return strike


def renewed(stage: Stage, run: Run) -> bool:
    """Return whether the actor that was struck was renewed, and its items were taken back."""
    if not stage.evidence or stage.evidence[-1] not in run.events:
        return False
    later = run.events[run.events.index(stage.evidence[-1]) :]
    taken = [event for event in later if event.startswith("taken back ")]
    return any(not event.startswith("taken back 0 ") for event in taken)


def break_device(stage: Stage, run: Run) -> None:
    """Have every call of a worker fail from now on."""
    stage.evidence.append(f"renewed {held(run)}")
    (stage.orders / f"broken.{held(run)}").touch()


def was_renewed(stage: Stage, run: Run) -> bool:
    return bool(stage.evidence) and stage.evidence[-1] in run.events


def starve_actors(stage: Stage, run: Run) -> None:
    """Leave the actors no memory to allocate; what they need may lie free in their heaps."""
    for actor in run.actors():
        with suppress(ProcessLookupError, FileNotFoundError):
            pages = int(Path(f"/proc/{actor['pid']}/statm").read_text().split()[0])
            used = pages * resource.getpagesize()
            resource.prlimit(actor["pid"], resource.RLIMIT_AS, (used, used))
            stage.evidence.append(f"renewed {actor['pid']}")


def ran_out_of_memory(stage: Stage, run: Run) -> bool:
    """Return whether clients failed for want of memory, or an actor was renewed."""
    errors = run.folder / "errors.log"
    failed = errors.exists() and "memory" in errors.read_text().lower()
    return bool(stage.evidence) and (failed or not {*stage.evidence}.isdisjoint(run.events))


def limit_memory(stage: Stage, run: Run) -> None:
    """Have the system end a worker that takes more memory, as in a container."""
    group = MEMORY / f"raysim-{os.getpid()}-{monotonic():.0f}"
    group.mkdir()
    (group / "cgroup.procs").write_text(str(held(run)))
    (group / "memory.limit_in_bytes").write_text(str(LIMIT_BYTES))
    stage.evidence.append(f"renewed {held(run)}")
    stage.guests.callback(group.rmdir)


def kill_node(stage: Stage, run: Run) -> None:
    """End the node of the worker that is in the middle of a client."""
    stage.evidence.append(f"renewed {held(run)}")
    raylet = psutil.Process(held(run)).parent()
    assert raylet
    nodes = stage.nodes.worker_nodes
    struck = next(
        node for node in nodes if node.all_processes["raylet"][0].process.pid == raylet.pid
    )
    stage.evidence.insert(0, struck.node_id)
    stage.nodes.remove_node(struck, allow_graceful=False)


def node_left(stage: Stage, run: Run) -> bool:
    """Return whether a node is not alive any more, and its actor was renewed."""
    if not stage.evidence:
        return False
    table = stage.nodes.global_state.node_table()
    dead = {node["NodeID"] for node in table if not node["Alive"]}
    return stage.evidence[0] in dead and renewed(stage, run)


def fill_stores(stage: Stage, run: Run) -> None:
    stage.guests.enter_context(crowded(stage.nodes.address))
    stage.evidence.append("full")  # `crowded` has held all their bytes


def sent_signals(*numbers: int, slow: float = 0.0, pause: float = 0.0) -> Any:
    """Return a strike that sends signals to the driver, on a disk that may be slow."""

    def strike(stage: Stage, run: Run) -> None:
        if slow:
            (stage.orders / "slow").write_text(str(slow))
        for at, number in enumerate(numbers):
            sleep(pause if at else 0)
            process = psutil.Process(run.process.pid)
            if process.status() != psutil.STATUS_ZOMBIE:
                process.send_signal(number)
                stage.evidence.append(signal.Signals(number).name)

    return strike


def saw(*evidence: str) -> Callable[[Stage, Run], bool]:
    """Return an effect: strikes, and the run's events, have these things."""
    return lambda stage, run: {*evidence} <= {*stage.evidence, *run.events}


def end_orders(stage: Stage) -> None:
    for order in ("slow", "renaming", "clock"):
        (stage.orders / order).unlink(missing_ok=True)


def order(name: str, seconds: float) -> Callable[[Stage, Run], None]:
    """Return a strike by one of the doubles."""
    return lambda stage, run: (stage.orders / name).write_text(str(seconds)) and None


def kill_head(stage: Stage, run: Run) -> None:
    for name in ("gcs_server", "raylet"):
        stage.nodes.head_node.all_processes[name][0].process.kill()
    stage.evidence.append("killed")


def fill_disk(stage: Stage, run: Run) -> None:
    disks.fill(stage.disk)
    stage.evidence.append("full")


def seal_disk(stage: Stage, run: Run) -> None:
    """Have the run end, and find its disk read-only."""
    run.kill()
    for _ in range(60):  # until the actors have closed their files
        sleep(0.5)
        if not disks.mount("-o", "remount,ro", str(stage.disk)):
            break
    with stage.run() as refused:
        code, words = refused.end()
        assert code and "Read-only" in words, words
    stage.evidence.append("refused")


def open_disk(stage: Stage) -> None:
    assert not disks.mount("-o", "remount,rw", str(stage.disk))


def start_second(stage: Stage, run: Run) -> None:
    """Start another driver on the same run."""
    with stage.run() as second:
        code, words = second.end()
        assert code and "another process is writing to it" in words, words
    stage.evidence.append("refused")


def kill_driver(stage: Stage, run: Run) -> None:
    run.kill()
    stage.evidence.append("killed")


def kill_and_damage(name: str, damage: str) -> Callable[[Stage, Run], None]:
    """Return a strike that kills the driver and, if there is a checkpoint, damages a file."""

    def strike(stage: Stage, run: Run) -> None:
        kill_driver(stage, run)
        if any(run.folder.glob("checkpoints/round_*")):
            DAMAGES[damage](run.folder / name)
            stage.evidence.append(content(run.folder / name))

    return strike


def mended(name: str) -> Callable[[Stage, Run], bool]:
    """Return an effect: the driver was killed, and a file that was damaged is another one."""
    return lambda stage, run: (
        "killed" in stage.evidence and content(run.folder / name) not in stage.evidence
    )


def content(path: Path) -> str:
    return path.read_bytes().hex() if path.is_file() else "no file"


def kill_and_rename(stage: Stage, run: Run) -> None:
    """Have the run resume on a disk that renames deleted files that are open."""
    kill_driver(stage, run)
    (stage.orders / "renaming").touch()


KILLED = -signal.SIGKILL
ENDED_BY_RAY = 1
FAULTS = (
    Fault("actor killed", send_to_actor(signal.SIGKILL), renewed, at="held"),
    Fault("actor hangs", send_to_actor(signal.SIGSTOP), renewed, at="held"),
    Fault(
        "actors out of memory", starve_actors, ran_out_of_memory, says="", at="held", may_go_on=True
    ),
    Fault("memory limit", limit_memory, renewed, at="held"),
    Fault("device broken", break_device, was_renewed, at="held"),
    Fault(
        "node killed",
        kill_node,
        node_left,
        lambda stage: stage.nodes.add_node(num_cpus=1) and None,
        at="held",
    ),
    Fault("object stores full", fill_stores, saw("full"), lambda stage: stage.guests.close()),
    Fault("second driver", start_second, saw("refused")),
    Fault("disk slow", order("slow", 0.05), saw("disk slow"), end_orders),
    Fault("clock set back", order("clock", -1e6), saw("clock stepped"), end_orders),
    Fault("driver killed", kill_driver, saw("killed"), codes=(KILLED,), says=""),
    Fault(
        "file damaged",
        kill_and_damage("config.json", "truncated"),
        mended("config.json"),
        codes=(KILLED,),
        says="",
    ),
    Fault(
        "file lost",
        kill_and_damage("metrics.parquet", "deleted"),
        mended("metrics.parquet"),
        codes=(KILLED,),
        says="",
    ),
    Fault("disk renames", kill_and_rename, saw("killed"), end_orders, codes=(KILLED,), says=""),
    Fault(
        "preempted", sent_signals(signal.SIGTERM), saw("SIGTERM"), codes=(143,), says="", keeps=True
    ),
    Fault("hung up", sent_signals(signal.SIGHUP), saw("SIGHUP"), codes=(129,), says="", keeps=True),
    Fault(
        "second Ctrl-C",
        sent_signals(signal.SIGINT, signal.SIGINT, slow=0.3, pause=1.3),
        lambda stage, run: stage.evidence == ["SIGINT", "SIGINT"],
        end_orders,
        codes=(130,),
        says="",
        keeps=True,
    ),
    # Which the driver misses first, the head or its own machine's Ray, is chance; so is whether Ray
    # ends it, as it asks the object store in that moment.
    Fault(
        "head restarted",
        kill_head,
        saw("killed"),
        Stage.start_cluster,
        says="then call: raysim.resume(",
        codes=(exits.FAULT, ENDED_BY_RAY),
    ),
    Fault(
        "disk full",
        fill_disk,
        saw("full"),
        lambda stage: disks.empty(stage.disk),
        says="No space left on device",
        codes=(exits.FAULT,),
    ),
    Fault("output read-only", seal_disk, saw("refused"), open_disk, codes=(KILLED,), says=""),
)


def schedules(seed: int, count: int) -> Iterator[list[tuple[Fault, int]]]:
    """Draw schedules: which faults strike, and in which rounds.

    The first ones have each fault once, so that every fault is tried.
    """
    draw = random.Random(seed)
    first = draw.sample(FAULTS, len(FAULTS))
    for number in range(count):
        rounds = sorted(draw.sample(range(2, SETTINGS["rounds"] + 1), draw.randint(1, 3)))
        faults = draw.choices(FAULTS, k=len(rounds))
        if number < len(first):
            faults[0] = first[number]
        yield list(zip(faults, rounds, strict=True))
