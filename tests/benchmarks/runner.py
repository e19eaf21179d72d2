"""Running systems in processes of their own, one round of each in turn.

All systems of a case are up at once and wait; in each sweep every one trains a round, alone, so a
drift of the machine's speed meets all of them, and a ratio is one of rounds that were neighbours. A
system on Ray is suspended while it waits: Ray's daemons, and Flower's search for messages, took 5%
of a core each, which would count against the others.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from pathlib import Path
from time import perf_counter, sleep
from typing import Any, Protocol

import psutil

from tests.benchmarks.peers.work import Case

ROOT = Path(__file__).parents[2]
WARM_UP = 2
"""Sweeps at first that do not count: processes start, data is read, memory is claimed."""
FEWEST = 2
"""Sweeps that are made however long they take."""
ON_RAY = ("raysim", "flower")
SETTLING_SECONDS = 0.2
"""For what a system catches up with after it was suspended."""
CLOSING_SECONDS = 60
"""For a system to end when it is told that no more rounds are wanted."""
ENDING_SECONDS = 5
"""For its processes to end after it; those that are left are killed."""


class SystemFailedError(Exception):
    """A system ended or failed before its round was over."""


class Trains(Protocol):
    """What takes turns."""

    def round(self) -> float:
        """Train a round; return its seconds."""
        ...


def command_of(system: str, python: Path, processes: int | None = None) -> list[str]:
    """Return the command that starts a system, without its arguments.

    Args:
        system: Its name.
        python: The Python of its environment.
        processes: Processes of pfl; None is one a core.
    """
    torchrun = ["torch.distributed.run", "--standalone", "--nnodes=1"]
    count = f"--nproc-per-node={processes or os.cpu_count()}"
    launcher = [*torchrun, count, "-m"] if system == "pfl" else []
    return [str(python), "-m", *launcher, "tests.benchmarks.peers", system]


def process_environment(python: str = "", *, gpu: bool = False) -> dict[str, str]:
    """Return the environment variables of all systems: one thread a process, nobody is niced.

    On the CPU no GPU is seen. On a GPU, float32 is float32 for all, as it is for raysim. Another
    Python than this one has an environment of its own: it is not shown our packages.
    """
    inherited = {name: value for name, value in os.environ.items() if name != "RAY_ADDRESS"}
    device = {"NVIDIA_TF32_OVERRIDE": "0"} if gpu else {"CUDA_VISIBLE_DEVICES": ""}
    ours = inherited.get("PYTHONPATH") if python == sys.executable else None
    return {
        **inherited,
        "PYTHONPATH": os.pathsep.join([str(ROOT), *filter(None, [ours])]),
        "OMP_NUM_THREADS": "1",
        "RAY_worker_niceness": "0",  # 15 by default: any other load would count against Ray
        "RAY_USAGE_STATS_ENABLED": "0",
        "FLWR_TELEMETRY_ENABLED": "0",
        **device,
    }


class Runner:
    """A system in a process of its own, which trains a round whenever it is told to.

    Args:
        title: Names the system in messages.
        command: From `command_of`.
        case: The work.
        folder: The case's data; the system's own output goes to a file there, named `title`.
        settings: The system's own settings.
        suspended: Whether it is suspended, with all of its processes, while it waits.
        gpu: Whether it sees the machine's GPUs.
    """

    def __init__(
        self,
        title: str,
        command: Sequence[str],
        case: Case,
        folder: Path,
        settings: Mapping[str, Any],
        suspended: bool = False,
        gpu: bool = False,
    ) -> None:
        self.title, self._log = title, folder / f"{title}.log"
        self._suspended = suspended
        self._family: set[psutil.Process] = set()
        with self._log.open("wb") as log:
            self._process = subprocess.Popen(
                [*command, case.to_json(), str(folder), json.dumps(settings)],
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                stderr=log,
                text=True,
                cwd=ROOT,
                env=process_environment(command[0], gpu=gpu),
            )

    def round(self) -> float:
        """Train a round; return its seconds.

        Raises:
            SystemFailedError: the system ended; the message holds the end of what it printed.
        """
        assert self._process.stdin and self._process.stdout
        self._wake()
        try:
            self._process.stdin.write("\n")
            self._process.stdin.flush()
        except BrokenPipeError:
            raise SystemFailedError(self._last_words()) from None
        answer = self._process.stdout.readline()
        if not answer:
            raise SystemFailedError(self._last_words())
        self._check_health()
        if self._suspended:
            self._each(psutil.Process.suspend)
        return float(json.loads(answer))

    def _check_health(self) -> None:
        """Note the system's processes; those of one that has ended are found no more."""
        with suppress(psutil.NoSuchProcess):
            process = psutil.Process(self._process.pid)
            self._family |= {process, *process.children(recursive=True)}

    def _wake(self) -> None:
        if self._suspended and self._family:
            self._each(psutil.Process.resume)
            sleep(SETTLING_SECONDS)

    def _each(self, act: Callable[[psutil.Process], None]) -> None:
        for process in self._family:
            with suppress(psutil.NoSuchProcess):
                act(process)

    def memory(self) -> int:
        """Return the proportional memory of the system's processes, after a round, in bytes."""
        found = 0
        for process in self._family:
            with suppress(psutil.Error):  # it has ended
                found += process.memory_full_info().pss
        return found

    def close(self) -> None:
        """End the system, and whatever it leaves behind, also where this is interrupted."""
        assert self._process.stdin and self._process.stdout
        self._wake()
        self._check_health()
        with suppress(BrokenPipeError):
            self._process.stdin.close()
        try:
            with suppress(subprocess.TimeoutExpired):
                self._process.wait(CLOSING_SECONDS)
                psutil.wait_procs(self._family, ENDING_SECONDS)
        finally:
            self._each(psutil.Process.kill)
            self._process.wait()
            self._process.stdout.close()

    def _last_words(self) -> str:
        lines = self._log.read_text(errors="replace").strip().splitlines()
        return "\n".join([f"{self.title} ended before its round was over:", *lines[-15:]])


def take_turns(
    runners: Mapping[str, Trains],
    rounds: int,
    limit_seconds: float,
    on_sweep: Callable[[dict[str, list[float]]], None] = lambda seconds: None,
) -> dict[str, list[float]]:
    """Have all systems train a round, one after another, again and again.

    Args:
        runners: The systems.
        rounds: Sweeps that count, at most.
        limit_seconds: Time after which no further sweep is begun, warm-up included, once there
            are two that count.
        on_sweep: Called after each sweep that counts, with what would be returned then.

    Returns:
        Per system the seconds of its rounds, in the order of the sweeps; none for a system that
        failed, with a note on standard error.
    """
    seconds: dict[str, list[float]] = {name: [] for name in runners}
    working = list(runners)

    def counted() -> dict[str, list[float]]:
        return {name: seconds[name][WARM_UP:] if name in working else [] for name in runners}

    begun = perf_counter()
    for sweep in range(WARM_UP + rounds):
        late = perf_counter() - begun > limit_seconds
        if sweep >= WARM_UP + FEWEST and late:
            break
        start = sweep % max(len(working), 1)
        for name in [*working[start:], *working[:start]]:  # so that nobody is always the first
            try:
                seconds[name].append(runners[name].round())
            except SystemFailedError as failure:
                print(failure, file=sys.stderr, flush=True)
                working.remove(name)
        if sweep >= WARM_UP:
            on_sweep(counted())
    return counted()
