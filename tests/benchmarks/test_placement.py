"""The simulated pools of the scale benchmarks."""

from __future__ import annotations

import pytest

from tests.benchmarks.scaling import placement as part
from tests.benchmarks.scaling.output import Options
from tests.benchmarks.scaling.simulation import DriverCosts, Population

FREE = DriverCosts(send=0, receive=0, merge=0, latency=0, call=0, pack=0)


@pytest.mark.usefixtures("shared_ray")
def test_all_cases_have_a_line(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(part, "WORKERS", (8,))
    monkeypatch.setattr(part, "COHORTS", (40,))
    lines = list(part.placement(Options(rounds=1, out=None, tiny=True)))
    rows = [each for each in lines if "| 8 | 40 |" in each]
    assert len(rows) == len(part.CASES)
    assert all(row.count("|") == len(part.NAMES) + 1 for row in rows)


def test_actors_are_busy_where_messages_cost_nothing() -> None:
    played = Population(workers=8, cohort=2000, mean=1, sigma=0).rounds(4, FREE)[2:]
    for each in played:
        assert each.bound <= each.round.seconds < 1.05 * each.bound
    assert all(0.95 < share <= 1 for share in part.busy_shares(played, workers=8))
