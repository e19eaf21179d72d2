"""A Ray cluster of one head with token authentication, as an administrator would start it.

It declares a GPU, which need not be there; or nothing but cores, beside an autoscaler that starts
nodes on this machine.
"""

from __future__ import annotations

import os
import secrets
import shutil
import signal
import socket
import subprocess
import sys
import tempfile
import time
import urllib.error
import urllib.request
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import psutil
import yaml
from ray.autoscaler._private.fake_multi_node.node_provider import (
    FAKE_HEAD_NODE_ID,
    FAKE_HEAD_NODE_TYPE,
    FakeMultiNodeProvider,
)

SCRIPTS = Path(sys.executable).parent
PATIENCE_SECONDS = 300
STARTS = 3
"""Ray gives up where a node is not there within 30 s, which a busy machine may not manage."""


@dataclass(frozen=True)
class Head:
    """A running head.

    Attributes:
        url: Of its dashboard.
        gcs: The address at which nodes and drivers join.
        folder: Ray's own folder; its path is short, as sockets lie in it.
        environment: Variables of a user who may use it.
    """

    url: str
    gcs: str
    folder: Path
    environment: dict[str, str]

    def packed(self, *parts: str) -> set[str]:
        """Return the names in the folders that jobs unpacked."""
        unpacked = (self.folder / "session_latest/runtime_resources").glob("/".join(parts))
        return {path.name for path in unpacked}


def free_port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return int(probe.getsockname()[1])


def environment(token: Path) -> dict[str, str]:
    """Return this process's variables without Ray's, and with a token."""
    kept = {name: value for name, value in os.environ.items() if not name.startswith("RAY_")}
    return {
        **kept,
        "PATH": f"{SCRIPTS}:{os.environ['PATH']}",
        "RAY_AUTH_MODE": "token",
        "RAY_AUTH_TOKEN_PATH": str(token),
    }


AUTOSCALER = {
    "RAY_FAKE_CLUSTER": "1",
    "AUTOSCALER_UPDATE_INTERVAL_S": "1",
    "RAY_OVERRIDE_NODE_ID_FOR_TESTING": FAKE_HEAD_NODE_ID,
    "RAY_worker_niceness": "0",  # else workers starve beside a busy process
}
"""Variables of a head whose autoscaler starts nodes on this machine."""
VERSION_2 = {
    "RAY_enable_autoscaler_v2": "1",
    "RAY_CLOUD_INSTANCE_ID": FAKE_HEAD_NODE_ID,
    "RAY_NODE_TYPE_NAME": FAKE_HEAD_NODE_TYPE,
}
"""Further ones where this is version 2 of Ray's autoscaler, which `ray up` and KubeRay start."""


def autoscaling(gcs: str, cores: int, workers: Mapping[str, Any]) -> dict[str, Any]:
    """Return the configuration of an autoscaler: cores of the head, and its type of workers."""
    commands = ("initialization", "setup", "head_setup", "worker_setup")
    commands += ("head_start_ray", "worker_start_ray")
    return {
        "cluster_name": "raysim",
        "max_workers": workers["max_workers"],
        "idle_timeout_minutes": 0.2,
        "provider": {
            "type": "external",  # `fake_multinode` itself wants a file that the wheel lacks
            "module": f"{FakeMultiNodeProvider.__module__}.{FakeMultiNodeProvider.__name__}",
            "gcs_address": gcs,
            "use_node_id_as_ip": True,
            "disable_node_updaters": True,
            "disable_launch_config_check": True,
            "launch_multiple": True,
            "foreground_node_launch": True,
            "worker_liveness_check": False,
        },
        "auth": {},
        "docker": {},
        "file_mounts": {},
        "cluster_synced_files": [],
        "available_node_types": {
            FAKE_HEAD_NODE_TYPE: {
                "resources": {"CPU": cores},
                "node_config": {},
                "max_workers": 0,
            },
            "workers": {"node_config": {}, **workers},
        },
        "head_node_type": FAKE_HEAD_NODE_TYPE,
        **{f"{kind}_commands": [] for kind in commands},
    }


@contextmanager
def started(
    folder: Path,
    cores: int = 2,
    gpus: int = 1,
    workers: Mapping[str, Any] | None = None,
    version: int = 1,
) -> Iterator[Head]:
    """Start a head and stop it; its token is a file in `folder`.

    Args:
        folder: Files of the head are written there.
        cores: Cores that it declares.
        gpus: GPUs that it declares.
        workers: Type of the nodes that an autoscaler starts; without, there is none.
        version: Version of the autoscaler, 1 or 2.
    """
    token = folder / "token"
    token.write_text(secrets.token_hex(32))
    kinds = "port", "dashboard-port", "dashboard-agent-listen-port", "ray-client-server-port"
    ports = {f"--{kind}": free_port() for kind in kinds}
    ray_folder = Path(tempfile.mkdtemp(prefix="raysim-", dir="/tmp"))
    command = [str(SCRIPTS / "ray"), "start", "--head", "--block", "--node-ip-address=127.0.0.1"]
    command += ["--dashboard-host=127.0.0.1", f"--temp-dir={ray_folder}"]
    command += [f"--num-cpus={cores}", f"--num-gpus={gpus}", "--disable-usage-stats"]
    command += [f"{name}={port}" for name, port in ports.items()]
    head = Head(
        f"http://127.0.0.1:{ports['--dashboard-port']}",
        f"127.0.0.1:{ports['--port']}",
        ray_folder,
        environment(token),
    )
    variables = head.environment
    if workers is not None:
        config = folder / "autoscaling.yaml"
        config.write_text(yaml.safe_dump(autoscaling(head.gcs, cores, workers)))
        command.append(f"--autoscaling-config={config}")
        variables = variables | AUTOSCALER | (VERSION_2 if version == 2 else {})
    for _ in range(STARTS):
        with (folder / "head.log").open("w") as log:
            process = subprocess.Popen(
                command, env=variables, stdout=log, stderr=log, start_new_session=True
            )
        if is_up(head.url, process, folder / "head.log"):
            break
        stop(process, ray_folder)
    try:
        assert process.poll() is None, (folder / "head.log").read_text()
        yield head
    finally:
        stop(process, ray_folder)
        shutil.rmtree(ray_folder, ignore_errors=True)


def is_up(url: str, process: subprocess.Popen[bytes], log: Path) -> bool:
    """Wait until Ray says so and the dashboard asks for a token; False if Ray gave up."""
    deadline = time.monotonic() + PATIENCE_SECONDS
    while time.monotonic() < deadline and process.poll() is None:
        time.sleep(0.5)
        if "Ray runtime started" not in log.read_text():
            continue
        try:
            urllib.request.urlopen(f"{url}/api/version", timeout=5)  # noqa: S310
        except urllib.error.HTTPError as error:
            assert error.code == 401
            return True
        except OSError:
            continue
    return False


def stop(process: subprocess.Popen[bytes], ray_folder: Path) -> None:
    """Stop the head that was started, and whatever of it is left."""
    process.send_signal(signal.SIGTERM)
    try:
        process.wait(30)
    except subprocess.TimeoutExpired:
        process.kill()
    for each in psutil.process_iter(["cmdline"]):
        if any(str(ray_folder) in word for word in each.info["cmdline"] or ()):
            each.kill()


def read_until(process: subprocess.Popen[str], text: str) -> str:
    """Read what a process prints up to a line that has a text in it."""
    said = ""
    for line in process.stdout:
        said += line
        if text in line:
            return said
    raise AssertionError(f"it ended without {text!r}:\n{said}")
