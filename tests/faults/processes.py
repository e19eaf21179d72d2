"""Runs in processes of their own, and clusters of several nodes on this machine."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Iterable, Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from tempfile import TemporaryFile
from threading import Condition, Thread
from time import sleep
from typing import Any
from unittest import mock

from ray.cluster_utils import Cluster

QUICK_CHECKS = {
    "health_check_initial_delay_ms": 1000,
    "health_check_period_ms": 500,
}
"""Ray notices after 3 seconds, not after 15, that a node has ended; a slow one has its time."""

PATIENT = {"RAY_raylet_start_wait_time_s": "120"}
"""A busy machine may take longer than 30 seconds to start a node."""


class Run:
    """A run of `tests.faults.child`; see there for the moments and the orders.

    Attributes:
        folder: The run directory.
        rounds: Rounds that were committed.
        notes: Its notes.
        events: Events that tests observe: actors renewed, items taken back, doubles that acted.
    """

    def __init__(
        self,
        folder: Path,
        sizes: tuple[int, ...],
        moments: Iterable[str] = (),
        *,
        address: str | None = None,
        width: int = 16,
        orders: Path | None = None,
        program: tuple[str, str] = ("-m", "tests.faults.child"),
        **overrides: Any,
    ) -> None:
        texts = [f"{key}={value}" for key, value in overrides.items()]
        command = [sys.executable, *program, str(folder), str(orders or "")]
        command += [",".join(map(str, sizes)), str(width), ",".join(moments), *texts]
        self._start(folder, command, address, orders)

    def _start(
        self, folder: Path, command: list[str], address: str | None, orders: Path | None = None
    ) -> None:
        """Start the process, and read what it says."""
        self.folder, self._orders = folder, orders
        self.rounds: list[int] = []
        self.notes: list[str] = []
        self.events: list[str] = []
        environment = {**os.environ, **({"RAY_ADDRESS": address} if address else {})}
        self._errors = TemporaryFile("w+")  # noqa: SIM115 - `close` does
        self.process = subprocess.Popen(
            command,
            env=environment,
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=self._errors,
            text=True,
        )
        self._said, self._ended = Condition(), False
        self._reached: list[str] = []
        self._reader = Thread(target=self._read, daemon=True)
        self._reader.start()

    def __enter__(self) -> Run:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def until(self, moment: str) -> None:
        """Wait until the run holds still at a moment."""
        assert self.reaches(moment), f"it ended before {moment}: {self.errors()}"

    def reaches(self, moment: str | None) -> bool:
        """Wait for a moment; return whether the run came to it, and did not end before."""
        if moment and moment.endswith(".held"):
            while not self._ended and self.held is None:
                sleep(0.02)
            return self.held is not None
        with self._said:
            self._said.wait_for(lambda: moment in self._reached or self._ended)
        return moment in self._reached

    @property
    def held(self) -> int | None:
        """Process of the worker that holds still in the middle of a client, if one does."""
        found = next(self._orders.glob("held.*"), None) if self._orders else None
        return int(found.suffix[1:]) if found else None

    def go(self) -> None:
        """Let it go on, if it has not been killed."""
        assert self.process.stdin
        if self._orders and self.held:
            (self._orders / f"held.{self.held}").unlink()
            return
        with suppress(BrokenPipeError):
            self.process.stdin.write("\n")
            self.process.stdin.flush()

    def release(self) -> None:
        """Let it go on, and through all further moments."""
        assert self.process.stdin
        self.process.stdin.close()

    def _read(self) -> None:
        """Read what the run says until its end."""
        assert self.process.stdout
        for line in self.process.stdout:
            with self._said:
                self._hear(line.strip())
                self._said.notify_all()
        with self._said:
            self._ended = True
            self._said.notify_all()

    def _hear(self, line: str) -> None:
        """Take in a line that the run says."""
        kinds: dict[str, list[Any]] = {
            "round": self.rounds,
            "note": self.notes,
            "event": self.events,
            "at": self._reached,
        }
        kind, _, text = line.partition(" ")
        kinds.get(kind, []).append(int(text) if kind == "round" else text)

    def end(self) -> tuple[int, str]:
        """Wait for its end; return the exit code and the last line of its errors."""
        self.reaches(None)
        return self.process.wait(), (self.errors().splitlines() or [""])[-1]

    def errors(self) -> str:
        """Return what it has written to standard error."""
        self._errors.seek(0)
        return self._errors.read()

    def kill(self) -> None:
        """End it with SIGKILL, if it has not ended."""
        self.process.kill()
        self.process.wait()

    def close(self) -> None:
        """End it, and close what leads to it."""
        self.kill()
        self._reader.join()
        for stream in (self.process.stdin, self.process.stdout, self._errors):
            assert stream
            with suppress(BrokenPipeError):
                stream.close()

    def actors(self) -> list[dict[str, Any]]:
        """Return where its actors ran when the last round was committed."""
        return json.loads((self.folder / "environment.json").read_text())["actors"]


@contextmanager
def cluster(nodes: int, store: int = 150 * 2**20, cores: int = 1, **head: Any) -> Iterator[Cluster]:
    """Start a head without cores and some nodes with them; nobody else joins it by chance.

    Args:
        nodes: Their number.
        store: Bytes of the object store of each.
        cores: Cores of each node.
        head: Further arguments of the head.
    """
    each = {"object_store_memory": store}
    arguments = {"num_cpus": 0, "include_dashboard": False, "_system_config": QUICK_CHECKS, **head}
    with mock.patch.dict(os.environ, PATIENT):
        with mock.patch("ray._private.utils.write_ray_address"):
            found = Cluster(initialize_head=True, head_node_args=arguments | each)
        try:
            for _ in range(nodes):
                found.add_node(num_cpus=cores, **each)
            yield found
        finally:
            found.shutdown()
