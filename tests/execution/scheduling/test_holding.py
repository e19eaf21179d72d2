"""Holding time of sums, by hand."""

from __future__ import annotations

import pytest

from raysim.execution.scheduling.holding import hold_seconds


@pytest.mark.parametrize(
    ("cost", "workers", "seconds"),
    [
        (0.002, 4, 10.0),  # the 2NN
        (0.5, 1, 25.0),  # a fiftieth of a worker's time
        (0.07, 32, 11.2),  # a fifth of the foreman's: 32 sums of 0.07 s
    ],
)
def test_handing_over_costs_little(cost, workers, seconds):
    assert hold_seconds(cost, workers) == pytest.approx(seconds)
