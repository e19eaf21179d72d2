"""Fleets: profiles, costs and drop-outs, by hand and against tables."""

from __future__ import annotations

import tracemalloc
from pathlib import Path
from time import process_time

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from hypothesis import given
from hypothesis import strategies as st

from raysim.clock.devices import Devices
from raysim.clock.fleet import Fleet
from raysim.clock.profiles import KINDS
from raysim.errors import DataError, SettingsError

TABLE = """client,speed,up,down,latency,watts,joules_per_byte,dropout
1,2e9,1e6,4e6,0.5,4,1e-6,0.999999
0,1e9,2e6,8e6,0.25,2,2e-6,0
"""


def written(folder: Path, text: str = TABLE) -> str:
    path = folder / "devices.csv"
    path.write_text(text)
    return str(path)


def fleet_of(folder: Path, text: str = TABLE, clients: int = 2) -> Fleet:
    return Devices(table=written(folder, text)).fleet(clients, 0)


def test_a_dropout_of_1_is_refused():
    with pytest.raises(ValueError, match="less than 1"):
        Devices(dropout=1.0)
    Devices(dropout=0.999999)


def test_the_cost_of_work_by_hand(tmp_path):
    """Client 0: 3 + 1 + 0.5 + 0.25 s and 2*3 + 2e-6*6e6 J; client 1 likewise."""
    fleet = fleet_of(tmp_path)
    work = ([0, 1], 3e9, 2e6, 4e6)
    assert fleet.ticks(*work).tolist() == [4_750_000, 5_000_000]
    assert fleet.joules(*work).tolist() == pytest.approx([18.0, 12.0])
    assert fleet.ticks([1, 0], [1e9, 3e9], 0, [0, 8e6]).tolist() == [1_000_000, 4_250_000]


def test_a_part_of_a_tick_is_a_tick(tmp_path):
    fleet = fleet_of(tmp_path, TABLE.replace("0.25", "0"))
    assert fleet.ticks([0], 1, 0, 0).tolist() == [1]


def test_parquet_in_any_order_and_columns_that_are_lacking(tmp_path):
    path = tmp_path / "devices.parquet"
    pq.write_table(pa.table({"client": [2, 0, 1, 9], "speed": [3.0, 1.0, 2.0, 9.0]}), path)
    clock = Devices(table=str(path), kind="iot")
    found = clock.fleet(3, 5).profiles([0, 1, 2])
    drawn = Devices(kind="iot").fleet(3, 5).profiles([0, 1, 2])
    assert found.speed.tolist() == [1, 2, 3]
    assert found.up.tolist() == drawn.up.tolist()


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        (TABLE.replace("2e9", "0"), "speed of client 1 is 0; must be finite and above 0"),
        (TABLE.replace("1e6", "-1"), "up of client 1 is -1; must be finite and above 0"),
        (TABLE.replace("0.25", "-1"), "latency of client 0 is -1; must be finite and 0 or more"),
        (TABLE.replace("0.999999", "1"), "dropout of client 1 is 1; must be from 0 to below 1"),
        (TABLE.replace("1,2e9", "1,nan"), "speed of client 1 is nan"),
        (TABLE.replace("1,2e9", "2,2e9"), "client 1 is missing (1 of 2 are)"),
        (TABLE.replace("1,2e9", "0,2e9"), "client 1 is missing"),
        (TABLE + "0,1e9,2e6,8e6,0.25,2,2e-6,0\n", "client 0 is there twice"),
        (TABLE.replace("speed", "sped"), "unknown column 'sped'; allowed are client, speed, down"),
        (TABLE.replace("2e9", "fast"), "column 'speed' must hold numbers"),
        (TABLE.replace("client", "id"), "must have a column `client`"),
        (TABLE + "0.5,1e9,2e6,8e6,0.25,2,2e-6,0\n", "row 3: client is 0.5; must be a whole"),
        (TABLE + "-1,1e9,2e6,8e6,0.25,2,2e-6,0\n", "row 3: client is -1; must be a whole"),
        (TABLE + ",1e9,2e6,8e6,0.25,2,2e-6,0\n", "row 3: client is empty; must be a whole"),
        (TABLE + "inf,1e9,2e6,8e6,0.25,2,2e-6,0\n", "row 3: client is inf; must be a whole"),
        ("client,speed,speed\n0,1e9,1e9\n1,1e9,1e9\n", "column 'speed' is there twice"),
        ("client,client\n0,1\n1,0\n", "column 'client' is there twice"),
        (TABLE.replace("2e9", "inf"), "speed of client 1 is inf; must be finite and above 0"),
        (TABLE.splitlines()[0] + "\n", "must have a column `client`, and a row per client"),
        ("", "cannot be read as a table"),
    ],
)
def test_a_bad_table_is_refused_in_one_line(tmp_path, text, expected):
    with pytest.raises(DataError) as caught:
        fleet_of(tmp_path, text)
    assert expected in str(caught.value) and str(caught.value).startswith("clock.table=")


def test_a_table_that_is_not_there():
    with pytest.raises(DataError, match=r"clock\.table=/nowhere\.csv: there is no such file"):
        Devices(table="/nowhere.csv").fleet(2, 0)


def test_work_that_takes_ages_is_refused(tmp_path):
    with pytest.raises(SettingsError, match="clock: client 1 would need 1e\\+13 seconds"):
        fleet_of(tmp_path, TABLE.replace("2e9", "1e-13")).ticks([0, 1], 1.0, 0, 0)
    with pytest.raises(SettingsError, match="clock: client 1 would need inf seconds"):
        fleet_of(tmp_path, TABLE.replace("2e9", "1e-320")).ticks([0, 1], 1.0, 0, 0)


@pytest.mark.parametrize("kind", [*KINDS])
def test_drawn_profiles_have_the_median_and_sigma_of_their_kind(kind):
    found = Devices(kind=kind, spread=2.0).fleet(100_000, 3).profiles(np.arange(100_000))
    for name, (median, sigma) in KINDS[kind].items():
        logs = np.log(getattr(found, name))
        assert np.mean(logs) == pytest.approx(np.log(median), abs=0.02)
        assert np.std(logs) == pytest.approx(2 * sigma, rel=0.02)
    pairs = np.corrcoef([np.log(values) for values in found])
    assert np.abs(pairs - np.eye(len(pairs))).max() < 0.02


def test_without_spread_all_devices_are_equal():
    found = Devices(spread=0.0).fleet(10, 3).profiles(np.arange(10))
    assert {name: {*getattr(found, name).tolist()} for name in found._fields} == {
        name: {median} for name, (median, _) in KINDS["phones"].items()
    }


@given(st.lists(st.integers(0, 10**9), min_size=1, max_size=8), st.integers(0, 2**63 - 1))
def test_a_draw_depends_on_seed_and_client_alone(clients, seed):
    fleet = Devices(dropout=0.5).fleet(10**9, seed)
    together = fleet.profiles(clients)
    alone = [fleet.profiles([client]) for client in clients]
    for name in together._fields:
        assert getattr(together, name).tolist() == [float(getattr(p, name)[0]) for p in alone]
    drops = fleet.dropouts(clients, 7)
    assert drops.tolist() == [float(fleet.dropouts([client], 7)[0]) for client in clients]
    assert (
        Devices().fleet(10**9, seed ^ 1).profiles(clients).speed.tolist() != together.speed.tolist()
    )


def test_drop_outs_come_as_often_as_asked_and_anywhere_in_the_work():
    fleet, clients = Devices(dropout=0.3).fleet(50_000, 1), np.arange(50_000)
    found = fleet.dropouts(clients, 4)
    dropped = np.isfinite(found)
    assert dropped.mean() == pytest.approx(0.3, abs=0.01)
    assert found[dropped].mean() == pytest.approx(0.5, abs=0.01)
    assert found[dropped].min() > 0 and found[dropped].max() < 1
    assert (np.isfinite(fleet.dropouts(clients, 5)) != dropped).mean() > 0.3  # another round
    assert not np.isfinite(Devices().fleet(10, 1).dropouts(clients[:10], 4)).any()


def test_a_table_gives_drop_out_rates(tmp_path):
    assert np.isfinite(fleet_of(tmp_path).dropouts([0, 1], 3)).tolist() == [False, True]


def test_a_million_clients_open_in_a_second_and_100_mb():
    clients = np.arange(10**6)
    tracemalloc.start()
    try:
        begun = process_time()
        fleet = Devices(on_hours=4.0).fleet(10**6, 0)
        profiles = fleet.profiles(clients)
        seconds, peak = process_time() - begun, tracemalloc.get_traced_memory()[1]
        assert len(profiles.speed) == 10**6
        assert seconds < 1
        assert peak < 100e6
        begun = process_time()
        share = fleet.available(clients, 10**11).mean()
        assert process_time() - begun < 2  # a loop over clients takes a minute
        assert share == pytest.approx(4 / 12, abs=0.002)
    finally:
        tracemalloc.stop()
