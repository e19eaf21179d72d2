"""How long workers hold their sums, by what reading and adding up takes."""

from __future__ import annotations

from functools import partial
from types import SimpleNamespace
from typing import Any

import pytest

from raysim.execution.base import Call
from raysim.execution.messages import Directions, WorkerResult
from raysim.execution.pool import actors, foreman, ray_pool
from tests.execution.pool.fake_ray import A, B, mapped, pool_on


def test_how_long_sums_are_held_follows_what_reading_and_adding_up_takes(
    tmp_path, fake_ray, monkeypatch
):
    """They are held for fifty times as long; evaluations, whose results are small, count apart."""
    clock, told, put, get = [0.0], [], fake_ray.put, fake_ray.get
    reading = {"seconds": 0.0}

    def slow_get(reference: int) -> Any:
        clock[0] += reading["seconds"]
        return get(reference)

    monkeypatch.setattr(ray_pool, "perf_counter", lambda: clock[0])
    monkeypatch.setattr(actors, "perf_counter", lambda: clock[0])
    monkeypatch.setattr(fake_ray, "put", lambda value: (told.append(value), put(value))[1])
    monkeypatch.setattr(fake_ray, "get", slow_get)
    pool = pool_on(tmp_path, *[{A: 2, B: 2}] * 99)
    pool.describe()
    calls: list[tuple[Call, float, float]] = [
        ("train", 1.0, 0.5),
        ("evaluate", 0.0, 0.0),
        ("train", 1.0, 0.5),
    ]
    for call, reading["seconds"], adding in calls:
        for _ in mapped(pool, call, None, {(0,): 1.0}):
            clock[0] += adding
    held = [value.hold_seconds for value in told if isinstance(value, Directions)]
    assert held == pytest.approx([10.0, 10.0, 75.0])


def test_an_evaluation_does_not_change_how_long_a_foreman_s_workers_hold_sums(monkeypatch):
    clock = [0.0]
    monkeypatch.setattr(foreman, "perf_counter", lambda: clock[0])
    found: Any = foreman.Foreman(A, 4, 1.0, 0.0)
    found._actors = SimpleNamespace(renew_failing=lambda failed_at: {})
    monkeypatch.setattr(foreman.ray, "get", lambda reference: Directions({}, {}, 10.0))
    held = []
    calls: list[tuple[Call, float]] = [("train", 1.5), ("evaluate", 0.0), ("train", 1.5)]
    for call, seconds in calls:
        found._directed(call, call)
        held.append(found._backlogs[call].hold_seconds)
        adding = partial(lambda each, *_: clock.append(clock.pop() + each), seconds / 3)
        monkeypatch.setattr(foreman, "merge_sums", adding)
        found._works[call].reading = seconds * 2 / 3
        found._works[call].results.append(WorkerResult("here 1"))
        found._collect(call)
    assert held == pytest.approx([10.0, 10.0, 75.0])
