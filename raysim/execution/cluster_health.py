"""Health of the Ray cluster: its head, this node, and the alive nodes."""

from __future__ import annotations

import socket
from time import perf_counter
from typing import Any

import grpc
import ray
from ray._private.grpc_utils import init_grpc_channel
from ray._private.state import state
from ray.actor import ActorHandle

from raysim.errors import MachineError
from raysim.execution.resources import ACCELERATOR, Node

HEAD_SECONDS = 30.0
"""Seconds without answer of the head after which a run stops; after 60, Ray ends the process."""
CONNECT_SECONDS = 2.0
TOKEN_WANTED = (grpc.StatusCode.UNAUTHENTICATED, grpc.StatusCode.PERMISSION_DENIED)
"""Answers of a head to a missing or wrong token."""


def check_reachable(address: str, seconds: float) -> None:
    """Check that host:port accepts connections; Ray itself would try for minutes.

    Raises:
        OSError: host:port does not accept connections.
    """
    host, _, port = address.rpartition(":")
    if host and port.isdigit():
        socket.create_connection((host, int(port)), timeout=seconds).close()


def check_head(address: str, seconds: float) -> None:
    """Check that the head of a Ray cluster answers at host:port, as `check_reachable`.

    Raises:
        OSError: no head answers.
    """
    check_reachable(address, seconds)
    options = [("grpc.enable_http_proxy", 0)]  # as Ray's own connections
    with init_grpc_channel(address, options) as channel:
        call = channel.unary_unary("/ray.rpc.NodeInfoGcsService/CheckAlive")
        try:
            call(b"", timeout=seconds)
        except grpc.RpcError as error:
            if error.code() in TOKEN_WANTED:  # Ray itself raises this error, with advice
                return
            problem = "but not the head of a Ray cluster"
            if error.code() == grpc.StatusCode.DEADLINE_EXCEEDED:  # no head, or a busy one
                problem = f"but does not answer as the head of a Ray cluster within {seconds:g} s"
            raise OSError(f"a server is there, {problem}") from error


def alive_node_ids() -> set[str]:
    """Return the ids of the alive nodes; Ray must be running."""
    nodes = ray.nodes()  # type: ignore[no-untyped-call]
    return {node["NodeID"] for node in nodes if node["Alive"]}


def draining_node_ids() -> set[str]:
    """Return the ids of the nodes that Ray drains, for example before a preemption."""
    return {*state.get_draining_nodes()}


def alive_nodes() -> list[Node]:
    """Return the alive nodes without drained ones; Ray must be running."""
    draining = draining_node_ids()
    return [
        _declared(node)
        for node in ray.nodes()  # type: ignore[no-untyped-call]
        if node["Alive"] and node["NodeID"] not in draining
    ]


def _declared(node: dict[str, Any]) -> Node:
    resources = node["Resources"]
    accelerators = {
        name.removeprefix(ACCELERATOR) for name in resources if name.startswith(ACCELERATOR)
    }
    return Node(
        resources.get("CPU", 0),
        resources.get("GPU", 0),
        node["NodeID"],
        frozenset(accelerators),
        node.get("Labels", {}),
    )


class NodeLostError(MachineError):
    """Error of a process on a node that has left the cluster; other nodes may continue."""


class _IdleConnection:
    """Idle TCP connection, which closes when the raylet exits."""

    def __init__(self, host: str, port: int) -> None:
        self._address = (host, port)
        self._open()

    def alive(self) -> bool:
        """Return whether the raylet runs; it may also close an idle connection."""
        try:
            if self._socket.recv(4096):
                return True
        except BlockingIOError:
            return True
        except OSError:
            pass
        self.close()
        try:
            self._open()
        except OSError:
            return False
        return True

    def close(self) -> None:
        """Close the connection."""
        self._socket.close()

    def _open(self) -> None:
        self._socket = socket.create_connection(self._address, CONNECT_SECONDS)
        self._socket.setblocking(False)


class ClusterHealth:
    """Watch that notices when the driver's node has lost the cluster."""

    def __init__(self) -> None:
        context = ray.get_runtime_context()
        self._head: str = context.gcs_address
        self._node = context.get_node_id()
        nodes = ray.nodes()  # type: ignore[no-untyped-call]
        this_node = next(node for node in nodes if node["NodeID"] == self._node)
        self._connection = _IdleConnection(
            this_node["NodeManagerAddress"], this_node["NodeManagerPort"]
        )
        self._heard = perf_counter()

    def close(self) -> None:
        """Stop watching."""
        self._connection.close()

    def check_store(self) -> None:
        """Check that Ray still runs on this machine, before its object store is used.

        Otherwise Ray ends the process that uses the store, without a message.

        Raises:
            NodeLostError: Ray has ended on this machine.
        """
        if not self._connection.alive():
            raise NodeLostError(
                f"Ray has ended on this machine, a node of the cluster {self._head}: it was stopped"
                " or killed"
            )

    def check(self) -> bool:
        """Return whether the head answers.

        Raises:
            NodeLostError: the head has not answered for too long, or this node has left the
                cluster.
        """
        try:
            check_reachable(self._head, CONNECT_SECONDS)
        except OSError as error:
            if perf_counter() - self._heard < HEAD_SECONDS:
                return False
            raise NodeLostError(
                f"the head of the Ray cluster, {self._head}, does not answer: {error}"
            ) from error
        self._heard = perf_counter()
        if self._node not in alive_node_ids():
            raise NodeLostError(
                f"this machine is no node of the Ray cluster {self._head} any more: Ray was"
                " stopped or started again"
            )
        return True

    def has_process(self, actor: ActorHandle[Any]) -> bool:
        """Return whether the cluster has had room for an actor, which may still be starting."""
        told = state.actor_table(actor._actor_id.hex(), None, None)
        return bool(told.get("Pid"))

    def silent(self) -> bool:
        """Return whether the head does not answer, so that a call that waits for it would hang."""
        try:
            return not self.check()
        except NodeLostError:
            return True

    def lost(self, node: str | None) -> bool:
        """Return whether a node is known to be lost."""
        return node is not None and self.check() and node not in alive_node_ids()
