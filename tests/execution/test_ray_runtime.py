"""A Ray of our own: its listeners, its token, and its folder."""

from __future__ import annotations

import os
import shutil
import socket
import subprocess
import sys
import tempfile
import threading
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack, contextmanager, suppress
from pathlib import Path
from time import monotonic
from types import SimpleNamespace
from typing import Any, cast

import grpc
import pytest
import torch

import raysim
from raysim import Settings
from raysim.config import EngineSettings
from raysim.errors import MachineError, RunError, SettingsError
from raysim.execution import ray_runtime
from raysim.storage.trace import Stopwatch
from tests.tasks import Notes, make_settings, make_task

REPORT = """
import os, sys, grpc, psutil, ray
from raysim.config import EngineSettings
from raysim.execution.ray_runtime import ray_runtime

os.environ["RAY_AUTH_MODE"] = "disabled"
os.environ["RAY_AUTH_TOKEN"] = "of-a-cluster"
with ray_runtime(EngineSettings()):
    token = os.environ["RAY_AUTH_TOKEN"]
    pid = ray.get(ray.remote(lambda: os.getpid()).remote())
    processes = [psutil.Process(), *psutil.Process().children(recursive=True)]
    assert pid in [process.pid for process in processes]
    for process in processes:
        print("process", *" ".join(process.cmdline()).split())
        for connection in process.net_connections("inet"):
            if connection.status == psutil.CONN_LISTEN:
                print(*connection.laddr)
    print(oct(os.stat(sys.argv[1] + "/" + os.listdir(sys.argv[1])[0]).st_mode & 0o777))
    with grpc.insecure_channel(ray.get_runtime_context().gcs_address) as channel:
        call = channel.unary_unary("/ray.rpc.NodeInfoGcsService/GetAllNodeInfo")
        for offered in (token, token[::-1], ""):
            try:
                call(b"", timeout=60, metadata=(("authorization", "Bearer " + offered),))
                print("answered")
            except grpc.RpcError as error:
                print(error.code().name)
assert os.environ["RAY_AUTH_TOKEN"] == "of-a-cluster"
assert os.environ["RAY_AUTH_MODE"] == "disabled"
_, left = psutil.wait_procs(processes[1:], timeout=10)
print(len(left), os.listdir(sys.argv[1]))
"""


@pytest.fixture
def folder() -> Iterator[Path]:
    """A folder for temporary files, with a short path, as sockets lie in it."""
    path = Path(tempfile.mkdtemp(prefix="r", dir="/tmp"))
    yield path
    shutil.rmtree(path)


@pytest.mark.ci
def test_only_its_own_processes_reach_it_and_nothing_is_left(folder):
    """One start for all of it, as a start takes seconds."""
    environment = {n: v for n, v in os.environ.items() if not n.startswith(("RAY_A", "RAY_T"))}
    done = subprocess.run(
        [sys.executable, "-c", REPORT, str(folder)],
        env={**environment, "TMPDIR": str(folder)},
        capture_output=True,
        text=True,
        check=False,
        timeout=300,
    )
    assert done.returncode == 0, done.stderr
    *found, mode, known, guessed, none, left = done.stdout.splitlines()
    processes = [text for text in found if text.startswith("process ")]
    listening = [text for text in found if text not in processes]
    assert any("gcs_server" in text for text in processes)
    for left_out in ("monitor.py", "log_monitor.py", "dashboard.py"):
        assert not any(f"/{left_out}" in text for text in processes), left_out
    assert len(listening) > 5
    hosts = {line.split()[0].removeprefix("::ffff:") for line in listening}
    assert hosts <= {"127.0.0.1", "::1"}
    assert mode == "0o700"  # the folder; the token itself is in no file
    assert (known, guessed, none) == ("answered", "UNAUTHENTICATED", "UNAUTHENTICATED")
    assert left == "0 []"


@pytest.mark.parametrize("joined", [False, True])
def test_a_driver_outside_the_cluster_is_refused(tmp_path, monkeypatch, joined):
    """Ray Client's server accepts connections: that it can be reached says nothing."""
    with socket.create_server(("127.0.0.1", 0)) as server:
        address = f"ray://127.0.0.1:{server.getsockname()[1]}"
        monkeypatch.setenv("RAY_ADDRESS", address)
        monkeypatch.setattr(ray_runtime.client, "is_connected", lambda: joined)
        monkeypatch.setattr(ray_runtime.ray, "is_initialized", lambda: joined)
        monkeypatch.setattr(ray_runtime.ray, "init", pytest.fail)
        setting = "ray.init" if joined else f"RAY_ADDRESS={address}"
        with (
            pytest.raises(RunError, match=rf"^{setting}: Ray Client \(ray://\) is not allowed: "),
            ray_runtime.ray_runtime(EngineSettings(backend="ray")),
        ):
            pytest.fail("it began")


REFUSAL = b"HTTP/1.1 400 Bad Request\r\nContent-Length: 0\r\n\r\n"
NO_HEAD = "a server is there, but not the head of a Ray cluster"
UNANSWERED = "a server is there, but does not answer as the head of a Ray cluster within 2 s"


@contextmanager
def server(answer: bytes | None) -> Iterator[int]:
    """Listen on all interfaces, say the answer to each connection, if any; yield the port."""
    with socket.create_server(("", 0)) as listener:

        def serve() -> None:
            with ExitStack() as held, suppress(OSError):
                while True:
                    connection = held.enter_context(listener.accept()[0])
                    if answer:
                        connection.sendall(answer)
                        connection.close()

        thread = threading.Thread(target=serve)
        thread.start()
        yield listener.getsockname()[1]
        listener.shutdown(socket.SHUT_RDWR)
        thread.join()


@pytest.mark.parametrize("answer", [None, b"", REFUSAL, "grpc"])
def test_an_address_of_no_ray_is_refused_in_time(monkeypatch, answer):
    """Ray itself would try for minutes, and end the process."""
    monkeypatch.setattr(ray_runtime, "CONNECT_SECONDS", 2.0)
    monkeypatch.setattr(ray_runtime.ray, "is_initialized", lambda: False)
    monkeypatch.setattr(ray_runtime.ray, "init", pytest.fail)
    with ExitStack() as ends:
        if answer == "grpc":  # as Ray Client's server, which has other calls
            other = grpc.server(ThreadPoolExecutor(1))
            port = other.add_insecure_port("0.0.0.0:0")
            other.start()
            ends.callback(other.stop, None)
        elif answer is None:  # nothing listens any more
            with server(b"") as port:
                pass
        else:
            port = ends.enter_context(server(answer))
        monkeypatch.setenv("RAY_ADDRESS", f"127.0.0.1:{port}")
        said = {None: "Connection refused", b"": UNANSWERED}.get(answer, NO_HEAD)
        begun = monotonic()
        with (
            pytest.raises(RunError, match=rf"^RAY_ADDRESS=127.0.0.1:{port}: .*{said}$"),
            ray_runtime.ray_runtime(EngineSettings(backend="ray")),
        ):
            pytest.fail("it began")
        assert monotonic() - begun < 30


LOST = """
import psutil
from raysim.config import EngineSettings
from raysim.execution.ray_runtime import ray_runtime

with ray_runtime(EngineSettings()) as if_killed:
    import ray
    if_killed("type: raysim resume mine")
    raylet = next(p for p in psutil.Process().children() if p.name() == "raylet")
    raylet.kill()
    raylet.wait()
    ray.put(bytes(10**6))
"""


@pytest.mark.full
def test_a_driver_that_ray_ends_leaves_a_line():
    environment = {n: v for n, v in os.environ.items() if not n.startswith(("RAY_A", "RAY_T"))}
    command = [sys.executable, "-c", LOST]
    done = subprocess.run(command, env=environment, capture_output=True, text=True, check=False)
    (line,) = done.stderr.splitlines()
    assert line.startswith("raysim: ") and line.endswith("then type: raysim resume mine")
    assert done.returncode == 1


STOPPED = """
from raysim.config import EngineSettings
from raysim.execution.ray_runtime import ray_runtime

with ray_runtime(EngineSettings()):
    import psutil, ray
    ray.get(ray.remote(lambda: 1).remote())
    raylet = next(p for p in psutil.Process().children() if p.name() == "raylet")
    raylet.suspend()
"""


@pytest.mark.full
def test_a_stopped_raylet_does_not_keep_a_driver_that_ends(folder):
    """Ray waits for ever for its answer."""
    environment = {n: v for n, v in os.environ.items() if not n.startswith(("RAY_A", "RAY_T"))}
    done = subprocess.run(
        [sys.executable, "-c", STOPPED],
        env={**environment, "TMPDIR": str(folder)},
        capture_output=True,
        text=True,
        check=False,
        timeout=240,
    )
    assert (done.returncode, done.stdout) == (0, "")
    assert not [*folder.iterdir()]


HANGING = """
import time
from raysim.config import EngineSettings
from raysim.process.exits import Interrupted
from raysim.execution import ray_runtime

ray_runtime.check_head = ray_runtime._init = lambda *_, **__: None
ray_runtime.ray.shutdown = lambda: time.sleep(100)
ray_runtime.END_SECONDS = 1.0
with ray_runtime.ray_runtime(EngineSettings()) as if_killed:
    if_killed("type: raysim resume mine")
    raise Interrupted(15)
"""


def test_a_cluster_that_does_not_let_go_ends_the_driver():
    """As one whose raylet is stopped on this machine."""
    done = subprocess.run(
        [sys.executable, "-c", HANGING],
        env={**os.environ, "RAY_ADDRESS": "127.0.0.1:6379"},
        capture_output=True,
        text=True,
        check=False,
        timeout=60,
    )
    (line,) = done.stderr.splitlines()
    assert done.returncode == 143
    assert line.startswith("raysim: ") and line.endswith("then type: raysim resume mine")


SILENT = """
import time
from raysim.config import EngineSettings
from raysim.execution.ray_runtime import ray_runtime

with ray_runtime(EngineSettings()):
    import psutil
    next(p for p in psutil.Process().children() if p.name() == "raylet").kill()
    time.sleep(10)
    print("the line that says what to do")
"""


@pytest.mark.full
def test_ray_says_nothing_of_a_killed_raylet_after_our_line(folder):
    environment = {n: v for n, v in os.environ.items() if not n.startswith(("RAY_A", "RAY_T"))}
    done = subprocess.run(
        [sys.executable, "-c", SILENT],
        env={**environment, "TMPDIR": str(folder)},
        capture_output=True,
        text=True,
        check=False,
        timeout=240,
    )
    assert (done.stdout, done.stderr) == ("the line that says what to do\n", "")


def test_our_own_ray_has_the_cores_of_this_process(folder, monkeypatch):
    asked: dict[str, Any] = {}
    monkeypatch.setattr(ray_runtime, "_init", lambda **given: asked.update(given))
    monkeypatch.setenv("SLURM_CPUS_PER_TASK", "1")
    ray_runtime._start(folder)
    assert asked["num_cpus"] == 1


def test_a_pool_that_cannot_start_gives_back_the_nodes(tmp_path, monkeypatch, shared_ray):
    closed: list[bool] = []
    demand = SimpleNamespace(close=lambda: closed.append(True))
    monkeypatch.setattr(ray_runtime, "plan_pool", lambda *_: (None, demand))

    def refuse(*_: Any) -> Any:
        raise MachineError("the cluster is gone")

    monkeypatch.setattr(ray_runtime, "ActorPool", refuse)
    spec: Any = SimpleNamespace(settings=make_settings(tmp_path, **{"engine.backend": "ray"}))
    with pytest.raises(MachineError, match="the cluster is gone"):
        ray_runtime.open_executor(spec, Stopwatch(False), print)
    assert closed == [True]


def notes_of(settings: Settings) -> list[str]:
    """Return the lines that a run shows and a study repeats, of `engine.gpus_per_actor`."""
    notes = Notes()
    raysim.run(settings, make_task((20, 30)), notes)
    return [note for note in notes.notes if note.startswith("engine.gpus_per_actor=0")]


def test_a_run_says_that_it_leaves_gpus_unused(tmp_path, resident_actors):
    (line,) = notes_of(make_settings(tmp_path / "1", rounds=1, **{"engine.backend": "ray"}))
    assert line == (
        "engine.gpus_per_actor=0: training on the CPU, and leaving GPUs unused: 2;"
        " engine.gpus_per_actor=1 uses one for each actor, slot or inline run"
    )
    asked = {"engine.backend": "ray", "engine.gpus_per_actor": 1.0}
    assert notes_of(make_settings(tmp_path / "2", rounds=1, **asked)) == []


@pytest.mark.parametrize(("gpus", "usable", "lines"), [(0, False, 0), (3, True, 1), (3, False, 0)])
def test_an_inline_run_says_that_it_leaves_gpus_unused(tmp_path, monkeypatch, gpus, usable, lines):
    monkeypatch.setattr(torch.cuda, "device_count", lambda: gpus)
    monkeypatch.setattr(torch.cuda, "is_available", lambda: usable)
    monkeypatch.setattr(torch.cuda, "get_device_name", "GPU {}".format)
    monkeypatch.setattr(ray_runtime, "InlineExecutor", lambda spec: spec)
    notes, spec = Notes(), cast("Any", SimpleNamespace(settings=make_settings(tmp_path)))
    assert ray_runtime.open_executor(spec, Stopwatch(False), notes.note) is spec
    assert [f"unused: {gpus};" in line for line in notes.notes] == [True] * lines


def test_an_inline_run_is_refused_a_gpu_that_torch_cannot_use(tmp_path, monkeypatch):
    monkeypatch.setattr(torch.cuda, "device_count", lambda: 1)
    monkeypatch.setattr(torch.cuda, "is_available", lambda: False)
    settings = make_settings(tmp_path, **{"engine.gpus_per_actor": 0.5})
    spec = cast("Any", SimpleNamespace(settings=settings))
    line = (
        r"^engine\.gpus_per_actor=0\.5: must be 0, as this machine has no GPU that torch can use$"
    )
    with pytest.raises(SettingsError, match=line):
        ray_runtime.open_executor(spec, Stopwatch(False), pytest.fail)


@pytest.mark.parametrize("backend", ["inline", "ray"])
@pytest.mark.parametrize(("module", "whose"), [("backends.mps", "Apple"), ("xpu", "Intel")])
def test_gpus_of_other_makers_are_refused_by_name(tmp_path, monkeypatch, backend, module, whose):
    monkeypatch.setattr(f"torch.{module}.is_available", lambda: True)
    asked = {"engine.gpus_per_actor": 1.0, "engine.backend": backend}
    spec = cast("Any", SimpleNamespace(settings=make_settings(tmp_path, **asked)))
    with pytest.raises(SettingsError, match=rf"must be 0, as {whose}'s GPUs are not supported"):
        ray_runtime.open_executor(spec, Stopwatch(False), pytest.fail)
