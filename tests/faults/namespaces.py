"""Nodes in networks of their own, which can be cut off: `python -m tests.faults.namespaces` is one.

Usage: python -m tests.faults.namespaces GCS_ADDRESS NODE_ADDRESS, in a network namespace.
"""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager, suppress
from random import randrange

from ray._private.node import Node
from ray._private.parameter import RayParams

MEMORY = 150 * 2**20


class Network:
    """A bridge of this machine, to which nodes in networks of their own are connected."""

    def __init__(self) -> None:
        self.subnet = f"10.213.{randrange(256)}"
        self.head = f"{self.subnet}.1"
        self._name = f"rs{os.getpid() % 10**6}"
        self._open = ExitStack()
        self._add(["link", "add", self._name, "type", "bridge"], ["link", "del", self._name])
        _ip("addr", "add", f"{self.head}/24", "dev", self._name)
        _ip("link", "set", self._name, "up")

    def __enter__(self) -> Network:
        return self

    def __exit__(self, *_: object) -> None:
        self._open.close()

    def add_node(self, number: int, gcs_address: str) -> str:
        """Start a node of one core in a network of its own; return its address.

        Nodes are started one after another: two at once would take the same names for their files.
        """
        name, address = f"{self._name}n{number}", f"{self.subnet}.{number + 1}"
        self._add(["netns", "add", name], ["netns", "del", name])
        ends = [name, "type", "veth", "peer", "name", "eth0", "netns", name]
        self._add(["link", "add", *ends], ["link", "del", name])
        _ip("link", "set", name, "master", self._name, "up")
        _ip("-n", name, "addr", "add", f"{address}/24", "dev", "eth0")
        for device in ("eth0", "lo"):
            _ip("-n", name, "link", "set", device, "up")
        node = [sys.executable, "-m", "tests.faults.namespaces", gcs_address, address]
        self._open.callback(_end_all, name)
        process = subprocess.Popen(
            ["ip", "netns", "exec", name, *node], stdout=subprocess.PIPE, text=True
        )
        self._open.enter_context(process)
        self._open.callback(process.terminate)
        assert process.stdout and process.stdout.readline() == "up\n", "the node did not start"
        return address

    def cut(self, number: int) -> None:
        """Cut a node off: what is sent to it, or by it, is lost."""
        _ip("link", "set", f"{self._name}n{number}", "down")

    def _add(self, add: list[str], remove: list[str]) -> None:
        _ip(*add)
        self._open.callback(_ip, *remove)


@contextmanager
def network() -> Iterator[Network]:
    """Make a network.

    Raises:
        PermissionError: this machine permits none, or has no `ip`.
    """
    try:
        found = Network()
    except (FileNotFoundError, subprocess.CalledProcessError) as error:
        raise PermissionError(f"this machine permits no network namespaces: {error}") from error
    with found:
        yield found


def _ip(*arguments: str) -> str:
    done = subprocess.run(["ip", *arguments], check=True, capture_output=True, text=True)
    return done.stdout


def _end_all(namespace: str) -> None:
    """End what a node has left behind: a network is there as long as anyone is in it."""
    for pid in _ip("netns", "pids", namespace).split():
        with suppress(ProcessLookupError):
            os.kill(int(pid), signal.SIGKILL)


def main() -> None:
    gcs_address, address = sys.argv[1:]
    parameters = RayParams(
        gcs_address=gcs_address,
        redis_address=gcs_address,
        node_ip_address=address,
        num_cpus=1,
        num_gpus=0,
        object_store_memory=MEMORY,
        min_worker_port=0,
        max_worker_port=0,
        node_manager_port=0,
        include_log_monitor=False,
    )
    node = Node(parameters, head=False, shutdown_at_exit=False, spawn_reaper=True)
    signal.signal(signal.SIGTERM, lambda *_: sys.exit())
    print("up", flush=True)
    try:
        signal.pause()
    finally:
        node.kill_all_processes(check_alive=False, allow_graceful=False)


if __name__ == "__main__":
    main()
