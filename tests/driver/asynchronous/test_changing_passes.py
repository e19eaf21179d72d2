"""Passes of a user's own method that change with the round in what cannot be compared."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest

import raysim
from raysim.clock.devices import Devices
from raysim.methods.fedbuff import FedBuff
from tests.driver.asynchronous.draws import clocks_of
from tests.driver.asynchronous.test_rounds import BUFFERED, SIZES, rows_of
from tests.driver.asynchronous.test_times import times_of
from tests.tasks import StopAfter, make_settings, make_task, model_of


class Heavier(FedBuff):
    """Rounds from the fourth on send a gigabyte, so that devices would take longer."""

    def training_pass(self, now, state):
        amount = 10**9 if now.number >= 3 else 10
        return replace(super().training_pass(now, state), bytes_down=lambda client: amount)


class Growing(FedBuff):
    """Later rounds send more of the change, by a closure."""

    def training_pass(self, now, state):
        work, factor = super().training_pass(now, state), 1.0 + now.number

        def finish(view, trained):
            upload = work.rules.finish(view, trained)
            for change in upload.sums["change"].values():
                change.mul_(factor)
            return upload

        return replace(work, rules=replace(work.rules, finish=finish))


@pytest.mark.parametrize("method", [Heavier, Growing])
@pytest.mark.parametrize("stop", [2, 5])
def test_a_resumed_run_has_the_times_and_rules_of_the_first_round(tmp_path, method, stop):
    task = make_task(SIZES)
    own = {**BUFFERED, "method.name": f"{__name__}:{method.__name__}", "clock.name": "devices"}
    raysim.run(make_settings(tmp_path / "straight", **own), task)
    with pytest.raises(KeyboardInterrupt):
        raysim.run(make_settings(tmp_path / "broken", **own), task, StopAfter(stop))
    raysim.resume(tmp_path / "broken", task)
    assert model_of(tmp_path / "broken") == model_of(tmp_path / "straight")
    assert rows_of(tmp_path / "broken") == rows_of(tmp_path / "straight")


def test_a_fleet_of_which_some_are_away_for_years_goes_on_with_the_first_who_is_there():
    """Of 20 clients that are on for an hour in eleven years, one comes within the first."""
    fleet = Devices(on_hours=1.0, off_hours=1e5).fleet(20, 0)
    times = times_of(fleet, np.full(20, 5_000_000))
    (clock,) = clocks_of(times, 0, 1)
    everyone = np.arange(20)
    first = clock.wake(0, ())
    assert first is not None and fleet.available(everyone, first).any()
    with pytest.raises(raysim.RunError, match="is not available for"):
        fleet.next_available(everyone, 1)
