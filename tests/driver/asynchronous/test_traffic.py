"""Bytes of asynchronous rounds whose clients drop out, worked out by hand."""

from __future__ import annotations

from collections.abc import Sequence
from functools import partial

import numpy as np
import pyarrow.parquet as pq
import pytest

import raysim
from raysim.api.method import Asynchrony
from raysim.clock.devices import Devices
from raysim.clock.fleet import Fleet
from raysim.driver.asynchronous.arrivals import Clock, Queue
from raysim.driver.asynchronous.draws import always
from raysim.driver.asynchronous.plan import Plan
from tests.driver.asynchronous.draws import uniform_draws
from tests.driver.clock.test_costs import MODEL, SPEEDS, STEP
from tests.tasks import UNEQUAL, make_settings, make_task

UP, DOWN, LATENCY, EPOCHS, ROUNDS = 2e3, 4e3, 0.5, 4, 40
"""Bytes a second, seconds, local epochs, versions."""
METHODS = {
    "fedbuff": ({"method.buffer": 2, "method.max_staleness": 1}, Asynchrony(2, 4, 1)),
    "fedat": ({"method.tiers": 2}, Asynchrony(None, 4, tiers=2)),
}


def table() -> str:
    """Return the table of the devices; receiving, steps and sending take about as long."""
    rows = [f"{c},{speed},{UP},{DOWN},{LATENCY},3,1e-6" for c, speed in enumerate(SPEEDS)]
    return "\n".join(["client,speed,up,down,latency,watts,joules_per_byte", *rows])


def steps(client: int) -> float:
    """Return the seconds of a client's steps."""
    return EPOCHS * UNEQUAL[client] * STEP / SPEEDS[client]


def by_hand(client: int, ticks: int) -> tuple[float, float]:
    """Return what a client has sent and received after so many microseconds of its work."""
    seconds = ticks / 1e6 - LATENCY / 2
    received = min(max(seconds * DOWN, 0), MODEL)
    seconds -= MODEL / DOWN + steps(client)
    return min(max(seconds * UP, 0), MODEL), received


def flown(fleet: Fleet, ticks: Sequence[int], client: int, tick: int) -> tuple[int, bool]:
    """Return when a client ends that starts at a tick, and whether it has dropped out."""
    share = fleet.dropouts([client], tick)[0]
    return tick + int(np.ceil(ticks[client] * min(share, 1.0))), share < 1


@pytest.mark.parametrize("name", METHODS)
def test_who_drops_out_has_sent_and_received_what_it_had_time_for(tmp_path, name):
    (tmp_path / "devices.csv").write_text(table())
    own, asynchrony = METHODS[name]
    fleet = {"table": str(tmp_path / "devices.csv"), "dropout": 0.5}
    options = {
        **{"method.name": name, "method.concurrency": 4, **own, "rounds": ROUNDS},
        **{"local.epochs": EPOCHS, "clock.name": "devices"},
        **{f"clock.{key}": value for key, value in fleet.items()},
    }
    result = raysim.run(make_settings(tmp_path / "run", **options), make_task(UNEQUAL))
    rows = pq.read_table(tmp_path / "run" / "clients.parquet").to_pylist()
    seconds = [LATENCY + MODEL / DOWN + steps(client) + MODEL / UP for client in range(6)]
    found = {row["client"]: row["virtual_seconds"] for row in rows}
    assert [found[client] for client in range(6)] == pytest.approx(seconds)
    ticks = [round(1e6 * found[client]) for client in range(6)]  # exactly: draws depend on them
    tiers = np.array_split(np.argsort(ticks), asynchrony.tiers)
    fly = partial(flown, Devices(**fleet).fleet(6, 0), ticks)
    clocks = [
        Clock(uniform_draws(0, np.sort(tier), always), fly, lambda t, b: None) for tier in tiers
    ]
    plan = Plan(asynchrony, clocks, Queue(), ROUNDS)
    sent, received, parts = [], [], set()
    for number in range(ROUNDS):
        planned = plan.round(number)
        ended, begun = (
            [by_hand(f.client, fly(f.client, f.start)[0] - f.start) for f in flights if f.lost]
            for flights in (planned.dropped, planned.started)
        )
        late = sum(not flight.lost for flight in planned.dropped)
        sent.append((len(planned.arrived) + late) * MODEL + sum(up for up, _ in ended))
        received.append(MODEL * (len(planned.started) - len(begun)) + sum(d for _, d in begun))
        parts |= {(up > 0, up < MODEL, down > 0, down < MODEL) for up, down in begun}
    assert (True, True, True, False) in parts  # lost while it sends
    assert (False, True, True, True) in parts  # lost while it receives
    assert result.metrics["bytes_up"].to_pylist() == pytest.approx(sent, abs=1)
    assert result.metrics["bytes_down"].to_pylist() == pytest.approx(received, abs=1)
