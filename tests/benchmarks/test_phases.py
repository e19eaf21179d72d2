"""Shares of a round's time: most of it is training, and every phase has its share."""

from __future__ import annotations

import pytest

from tests.benchmarks.peers.work import Case
from tests.benchmarks.phases import shares

pytestmark = pytest.mark.ci


def test_a_round_in_one_process_is_mostly_training():
    case = Case("2nn", clients=4, samples=100, cohort=2)
    seconds, found = shares(case, 2, **{"engine.backend": "inline"})
    workers = {name: share for name, share in found.items() if name.startswith("worker_")}
    assert found["worker_training_seconds"] == max(workers.values()) > 0.2
    assert all(share > 0 for share in workers.values()) and len(workers) == 5
    assert seconds > 0 and 0 < found["driver_reduction_seconds"] < 1
