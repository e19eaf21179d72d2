"""Handles of actors: which call is overdue, against a Ray that starts no process; lost errors."""

from __future__ import annotations

import logging
from types import SimpleNamespace
from typing import Any

import pytest
import ray

from raysim.execution.module_path import with_driver_path
from raysim.execution.pool import actor
from raysim.execution.pool.actor import SILENT_SECONDS, ActorHandle
from tests.execution.pool.fake_ray import FakeReference


class FakeRay:
    """Fake of Ray and of an actor, whose answers come when that is said.

    Attributes:
        now: The clock.
        answered: References that are ready.
        asked: References of calls, in order.
    """

    def __init__(self) -> None:
        self.now, self.answered, self.asked = 0.0, set[int](), list[int]()

    def make(self) -> Any:
        remote = SimpleNamespace(remote=self._asked)
        return SimpleNamespace(location=remote, start=remote, call=remote, answer=remote)

    def _asked(self, *_: Any) -> int:
        self.asked.append(FakeReference(len(self.asked)))
        return self.asked[-1]

    def wait(self, references: list[int], timeout: float) -> tuple[list[int], list[int]]:
        return [each for each in references if each in self.answered], []

    def kill(self, _: Any) -> None:
        pass


@pytest.fixture
def fake(monkeypatch: pytest.MonkeyPatch) -> FakeRay:
    fake = FakeRay()
    monkeypatch.setattr(actor, "ray", fake)
    monkeypatch.setattr(actor, "perf_counter", lambda: fake.now)
    return fake


def at_work(fake: FakeRay, width: int) -> ActorHandle:
    """Return an actor that has started and has a call of two clients."""
    handle = ActorHandle(fake.make, [], width)
    start(handle)
    return handle


def start(handle: ActorHandle) -> None:
    for outcome in ({"node": "a"}, {"device": "cpu"}):
        handle.returned()
        handle.note_start(outcome)
    handle.call("train", [((0,), [(1,), (2,)])], False)


def test_a_call_is_overdue_after_the_limit_for_each_of_its_clients(fake: FakeRay) -> None:
    handle = at_work(fake, 1)
    fake.now = 20.0
    assert not handle.overdue(10.0)
    fake.now = 20.1
    assert handle.overdue(10.0) == "no answer within engine.client_timeout=10 s a client"
    fake.answered = {fake.asked[-1]}  # the driver has not read it yet
    assert not handle.overdue(10.0)


@pytest.mark.parametrize("limit", [0.1, 2 * SILENT_SECONDS])
def test_a_foreman_is_overdue_where_it_does_not_answer(fake: FakeRay, limit: float) -> None:
    """Its workers may take any time: it watches them itself."""
    handle, patience = at_work(fake, 2), max(limit, SILENT_SECONDS)
    for _ in range(3):
        fake.now += 10 * patience
        assert not handle.overdue(limit)
        fake.answered = {*fake.asked[3:]}  # what it was asked last, not the call
    assert len(fake.asked) == 6
    fake.answered.remove(fake.asked[-1])
    fake.now += patience
    assert not handle.overdue(limit)
    fake.now += 0.1
    assert handle.overdue(limit) == f"no answer for {patience:g} s"
    handle.renew()
    start(handle)  # another process, which was asked nothing yet
    assert not handle.overdue(limit)


class BrokenActor:
    """Actor of a broken device, which fails at every call."""

    def start(self, *_: Any) -> None:
        raise RuntimeError("an illegal memory access")

    location = call = start


def test_errors_of_an_actor_that_is_replaced_are_not_printed(
    shared_ray: None, caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Ray prints an error that nobody reads when its last reference is deleted."""
    monkeypatch.setattr(logging.getLogger("ray"), "propagate", True)
    failing: Any = ray.remote(num_cpus=0)(with_driver_path(BrokenActor))
    handle = ActorHandle(failing.remote, [])
    handle.call("train", [], False)
    ray.wait([handle.calls[-1][0]], timeout=60)  # it counts as read, others do not
    handle.renew()
    handle.close()
    handle.calls.clear()
    assert "illegal memory access" not in caplog.text
