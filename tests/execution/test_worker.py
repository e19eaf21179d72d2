"""A worker's report that stacks fail in a row, as its process may be the cause; its memory."""

from __future__ import annotations

import gc
import weakref
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
from torch import nn

from raysim.execution.messages import Failure, WorkerResult
from raysim.execution.worker import Worker, WorkerSpec
from raysim.federation.base_files import HeldBase
from raysim.federation.task import from_task
from raysim.storage.trace import Stopwatch
from tests.tasks import EQUAL, make_settings, make_task


class FakeWorker(Worker):
    """Worker at which the stacks of odd clients fail."""

    def __init__(self) -> None:
        self.watch, self._name = Stopwatch(False), "here 1"
        self._results, self._failed_in_row = {"train": WorkerResult(self._name)}, set()
        jobs: Any = SimpleNamespace(open=lambda message: None)
        self._jobs, self._base = jobs, HeldBase.of(nn.Identity())

    def _train_stack(self, message: Any, stack: tuple[int, ...]) -> None:
        if stack[0] % 2:
            self._results["train"].failures.append(Failure(stack[0], "", "", stack))


@pytest.mark.parametrize(
    ("clients", "failing"),
    [([], False), ([2, 1], False), ([1, 3], True), ([1, 1], False), ([1, 3, 2], False)],
)
def test_different_stacks_that_fail_in_a_row_are_reported(clients, failing):
    worker: Any = FakeWorker()
    worker.train(None, [(client,) for client in clients])
    assert worker.take("train").failing is failing


def test_what_failed_before_is_remembered_after_handing_over():
    worker: Any = FakeWorker()
    for client, failing in ((1, False), (3, True), (5, True), (2, False)):
        worker.train(None, [(client,)])
        assert worker.take("train").failing is failing


def test_what_is_held_of_an_evaluation_stays_where_clients_are_handed_over():
    worker: Any = FakeWorker()
    worker._results["evaluate"] = WorkerResult("here 1", scores={(0, 0): (1.0, np.zeros(2))})
    worker.train(None, [(1,)])
    assert worker.take("train").scores == {}
    assert worker.take("evaluate").scores.keys() == {(0, 0)}


def test_a_worker_keeps_no_tensors_of_the_federation(tmp_path):
    """Its network has them, in memory that processes share: else each would have them once more."""
    federation = from_task(make_task(EQUAL))
    left = weakref.ref(federation)
    worker = Worker(WorkerSpec(make_settings(tmp_path), federation, tmp_path, tmp_path))
    del federation
    gc.collect()
    assert worker and not left()
