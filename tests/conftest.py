"""Fixtures that all tests share: one Ray instance and its actors.

Ray and torch are imported late: the process that starts pytest-xdist's needs neither.
"""

from __future__ import annotations

import gc
import os
import re
import signal
from collections.abc import Iterator
from contextlib import suppress
from functools import lru_cache
from itertools import chain, count
from pathlib import Path
from typing import Any

import pytest

# Ray's workers have a niceness of 15 by default: beside another busy process they would starve.
os.environ.setdefault("RAY_worker_niceness", "0")
# Metrics are exported every 10 seconds by default, for which their test would wait.
os.environ.setdefault("RAY_metrics_report_interval_ms", "1000")


def pytest_configure() -> None:
    """Set up signals and Hypothesis, and collect no garbage until tests are collected.

    A shell's background jobs ignore Ctrl-C, and so would the processes that tests start. No test
    has a deadline: a busy machine may take any time. Examples are the same in each run of the
    tests; `--hypothesis-profile default` draws new ones.
    """
    import hypothesis  # not for the processes that import this module

    signal.signal(signal.SIGINT, signal.default_int_handler)
    hypothesis.settings.register_profile("tests", deadline=None, derandomize=True)
    hypothesis.settings.load_profile("tests")
    gc.disable()


def pytest_runtest_setup(item: pytest.Item) -> None:
    """Skip tests that need a CUDA device where there is none."""
    if item.get_closest_marker("cuda"):
        import torch

        if not torch.cuda.is_available():
            pytest.skip("needs a CUDA device")


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Put tests first that use the same actors, then those that start their own.

    One process of pytest-xdist then has nearly all of them: the others start no Ray, and actors
    are not ended between two tests that could share them.
    """
    fixtures = ("resident_actors", "shared_ray")

    def place(item: pytest.Item) -> int:
        names = getattr(item, "fixturenames", ())
        return next((n for n, fixture in enumerate(fixtures) if fixture in names), len(fixtures))

    items.sort(key=place)


def pytest_collection_finish() -> None:
    """Collect garbage from here on, seldom, and look at nothing again that imports have made.

    That took a quarter of the time in which tests are collected, and a tenth of that of tests.
    """
    gc.freeze()
    gc.set_threshold(50_000)
    gc.enable()


@pytest.fixture(scope="session", autouse=True)
def one_thread() -> None:
    """Have torch compute as actors with one CPU do."""
    import torch

    torch.set_num_threads(1)


@pytest.fixture(scope="session", autouse=True)
def no_waiting_for_the_disk() -> Iterator[None]:
    """Force nothing to disk: tests kill processes, never the machine."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(os, "fsync", lambda descriptor: None)
        yield


@pytest.fixture(scope="session", autouse=True)
def built_commands() -> Iterator[None]:
    """Build the command of typer's functions once, not for every command that a test types."""
    import typer

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(typer.main, "get_command", lru_cache(typer.main.get_command))
        yield


@pytest.fixture(autouse=True)
def no_passwords(monkeypatch: pytest.MonkeyPatch) -> None:
    """Forget the passwords that earlier tests gave, which are masked in every message."""
    monkeypatch.setattr("raysim.errors._READ", set())


FOLDERS = count()


@pytest.fixture
def tmp_path(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Return a new folder; pytest's own numbers it by reading the names of all tests' folders."""
    name = re.sub(r"\W", "_", request.node.name)[:30]
    return tmp_path_factory.mktemp(f"{name}{next(FOLDERS)}", numbered=False)


class ActorStock:
    """Actors that a run or a study has left, for the next one that asks Ray for the same.

    Starting one takes seconds, most of them for its imports; a worker is built anew for every run.
    """

    KINDS = ("ClientActor", "SlotActor")

    def __init__(self) -> None:
        self._idle: dict[str, list[Any]] = {}
        self._lent: dict[Any, str] = {}

    def lend(self, monkeypatch: pytest.MonkeyPatch) -> None:
        """Lend actors wherever one is started, and take them back where one is ended."""
        import ray
        from ray.actor import ActorClass

        start, kill = ActorClass._remote, ray.kill

        def lending(cls: Any, args: Any = None, kwargs: Any = None, **options: Any) -> Any:
            kind = cls.__ray_metadata__.class_name
            if kind.rpartition(".")[2] not in self.KINDS:
                return start(cls, args, kwargs, **options)
            key = repr((kind, args, kwargs, options))
            if not self._idle.get(key):
                self.clear()  # others hold the resources
            idle = self._idle.get(key)
            handle = idle.pop() if idle else start(cls, args, kwargs, **options)
            self._lent[handle] = key
            return handle

        def ending(handle: Any, **options: Any) -> None:
            key = self._lent.pop(handle, None)
            if key is not None and answers(handle):
                self._idle.setdefault(key, []).append(handle)
            else:
                kill(handle, **options)

        monkeypatch.setattr(ActorClass, "_remote", lending)
        monkeypatch.setattr(ray, "kill", ending)

    def clear(self) -> None:
        """End the actors that nobody uses, for tests that start their own or count resources."""
        import ray

        for handle in chain.from_iterable(self._idle.values()):
            ray.kill(handle)
        self._idle.clear()


def answers(handle: Any) -> bool:
    """Return whether an actor is alive and has nothing else to do."""
    import ray
    from ray.exceptions import RayError

    with suppress(RayError):
        ready = handle.__ray_ready__.remote()
        return bool(ray.wait([ready], timeout=5)[0]) and ray.get(ready)
    return False


@pytest.fixture(scope="session")
def actor_stock() -> Iterator[ActorStock]:
    """Start one Ray instance with two declared GPUs for all tests of a process."""
    import ray

    os.environ["RAY_ACCEL_ENV_VAR_OVERRIDE_ON_ZERO"] = "0"
    ray.init("local", num_cpus=2, num_gpus=2, include_dashboard=False, log_to_driver=False)
    yield ActorStock()
    ray.shutdown()


@pytest.fixture
def shared_ray(actor_stock: ActorStock) -> None:
    """Ray with nothing on it: every run starts actors of its own."""
    actor_stock.clear()


@pytest.fixture
def resident_actors(actor_stock: ActorStock, monkeypatch: pytest.MonkeyPatch) -> None:
    """Ray on which a run takes over the processes of the one before."""
    actor_stock.lend(monkeypatch)
