"""Runs with a virtual clock: the same bits where they must be, lost rounds, resumed runs."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pyarrow.parquet as pq
import pytest

import raysim
from raysim.config import parse_override
from raysim.testing.tasks import small_task
from tests.driver.clock.test_costs import MODEL, SPEEDS, STEP, devices
from tests.tasks import (
    EQUAL,
    UNEQUAL,
    Notes,
    StopAfter,
    in_turn,
    make_settings,
    make_task,
    model_of,
)

CLOCK = {"clock.name": "devices"}
MANY = (12,) * 30


def run(path: Path, sizes: tuple[int, ...] = UNEQUAL, **overrides: Any) -> raysim.Result:
    return raysim.run(make_settings(path, **overrides), make_task(sizes))


def columns(result: raysim.Result, *names: str) -> list[tuple[Any, ...]]:
    return list(zip(*(result.metrics[name].to_pylist() for name in names), strict=True))


@pytest.mark.parametrize("method", ["fedavg", "scaffold", "fsvrg", "mifl", "fedma", "ditto"])
def test_the_clock_changes_no_bit_of_a_run_that_waits(tmp_path, method):
    """With devices that differ and are away for hours."""
    chosen = {"method.name": method, "rounds": 3, "local.momentum": 0.0}
    run(tmp_path / "none", **chosen)
    away = {**CLOCK, "clock.on_hours": 0.5, "clock.off_hours": 3.0}
    timed = run(tmp_path / "timed", **chosen, **away)
    assert model_of(tmp_path / "none") == model_of(tmp_path / "timed")
    assert all(seconds > 0 for seconds in timed.metrics["virtual_seconds"].to_pylist())
    assert max(timed.metrics["virtual_seconds"].to_pylist()) > 600  # it waited for one


POLICIES = [
    {"clock.policy": "deadline", "clock.deadline": 1e6},
    {"clock.policy": "partial", "clock.deadline": 1e6},
    {"clock.policy": "over_selection", "clock.extra": 2},
]


@pytest.mark.parametrize(
    ("method", "policy"),
    in_turn(["fedavg", "scaffold", "fsvrg", "mifl", "ditto", "fednova"], POLICIES),
)
def test_policies_have_the_bits_of_waiting_where_nothing_differs(tmp_path, method, policy):
    chosen = {"method.name": method, "rounds": 3, "fraction": 0.5, "clock.spread": 0.0}
    chosen |= {"local.epochs": 1, "checkpoint_every": 9}
    run(tmp_path / "wait", EQUAL, **CLOCK, **chosen)
    other = run(tmp_path / "other", EQUAL, **CLOCK, **chosen, **policy)
    assert model_of(tmp_path / "wait") == model_of(tmp_path / "other")
    assert other.metrics["clients"].to_pylist() == [3, 3, 3]


def test_no_clock_no_columns(tmp_path):
    result = run(tmp_path, rounds=1)
    assert not [name for name in result.metrics.column_names if "virtual" in name]
    assert "virtual_seconds" not in pq.read_table(tmp_path / "clients.parquet").column_names


def test_over_selection_takes_the_first_and_is_faster(tmp_path):
    chosen = {**CLOCK, "rounds": 4, "fraction": 0.3}
    waited = run(tmp_path / "wait", MANY, **chosen)
    more = {"clock.policy": "over_selection", "clock.extra": 6}
    first = run(tmp_path / "first", MANY, **chosen, **more)
    assert columns(first, "clients", "lost_clients") == [(9, 6)] * 4
    rows = pq.read_table(tmp_path / "first" / "clients.parquet").to_pylist()
    drawn = {c: {r["client"] for r in rows if r["round"] == c} for c in (1, 2, 3, 4)}
    assert all(len(clients) == 9 for clients in drawn.values())
    assert sum(first.metrics["virtual_seconds"].to_pylist()) < sum(
        waited.metrics["virtual_seconds"].to_pylist()
    )


def test_a_client_lost_in_both_passes_is_one_lost_client(tmp_path):
    """Of six on equal devices the three drawn on top are lost, from Ditto's second pass too."""
    chosen = {"method.name": "ditto", "rounds": 2, "fraction": 0.5, "clock.spread": 0.0}
    more = {"clock.policy": "over_selection", "clock.extra": 3}
    result = run(tmp_path, EQUAL, **CLOCK, **chosen, **more)
    assert columns(result, "clients", "lost_clients") == [(3, 3)] * 2


def test_late_clients_do_not_count_and_the_round_ends_at_the_deadline(tmp_path):
    waited = run(tmp_path / "wait", rounds=3, **CLOCK)
    rows = pq.read_table(tmp_path / "wait" / "clients.parquet").to_pylist()
    seconds = sorted(row["virtual_seconds"] for row in rows if row["round"] == 1)
    deadline = (seconds[1] + seconds[2]) / 2
    timed = {"clock.policy": "deadline", "clock.deadline": deadline}
    result = run(tmp_path / "timed", rounds=1, **CLOCK, **timed)
    assert columns(result, "clients", "lost_clients") == [(2, len(seconds) - 2)]
    assert result.metrics["virtual_seconds"][0].as_py() == pytest.approx(deadline, abs=1e-6)
    assert waited.metrics["clients"].to_pylist()[0] == len(seconds)


def test_partial_work_is_as_many_epochs_as_end_before_the_deadline(tmp_path):
    """Client 2 of 96 samples takes 0.203 s an epoch: 13 of 20 end in 3 s less 0.25 s latency."""
    chosen = {"rounds": 1, "local.epochs": 20, "fraction": 1.0, **devices(tmp_path)}
    timed = {"clock.policy": "partial", "clock.deadline": 3.0}
    result = run(tmp_path / "run", **chosen, **timed)
    rows = pq.read_table(tmp_path / "run" / "clients.parquet").to_pylist()
    network = 0.25 + MODEL / 1e6 + MODEL / 2e6
    fits = [int((3 - network) // (n * STEP / s)) for n, s in zip(UNEQUAL, SPEEDS, strict=True)]
    assert fits[2] == 13
    assert [row["steps"] for row in rows] == [
        min(fit, 20) * -(-n // 8) for fit, n in zip(fits, UNEQUAL, strict=True)
    ]
    longest = max(row["virtual_seconds"] for row in rows)
    assert 2.5 < longest <= 3
    assert columns(result, "virtual_seconds", "lost_clients") == [(longest, 0)]


def test_a_lost_round_takes_its_time_and_leaves_the_model(tmp_path):
    notes = Notes()
    settings = make_settings(tmp_path, rounds=2, **{**CLOCK, "clock.dropout": 0.999999})
    result = raysim.run(settings, make_task(UNEQUAL), notes)
    assert columns(result, "clients", "lost_clients") == [(0, 4)] * 2
    assert all(seconds > 0 for seconds in result.metrics["virtual_seconds"].to_pylist())
    assert all(joules > 0 for joules in result.metrics["virtual_joules"].to_pylist())
    assert "round 1: no client's result arrives" in notes.notes
    assert len({*result.metrics["test_loss"].to_pylist()}) == 1
    assert columns(result, "train_loss", "objective") == [(None, None)] * 2


WINDOWS = "client,start,end\n0,500,600\n1,500,600\n2,100,200\n3,100,200\n4,100,200\n5,100,140\n"


def test_the_cohort_is_drawn_from_those_who_are_there_and_time_goes_on_to_them(tmp_path):
    path = tmp_path / "windows.csv"
    path.write_text(WINDOWS)
    here = {"clock.windows": str(path), "clock.policy": "deadline", "clock.deadline": 50.0}
    result = run(tmp_path / "run", rounds=8, fraction=0.5, **CLOCK, **here)
    rows = pq.read_table(tmp_path / "run" / "clients.parquet").to_pylist()
    for row in rows:
        start = row["virtual_start"] % 86400
        lines = [line.split(",") for line in WINDOWS.split()[1:]]
        begin, end = next((float(b), float(e)) for c, b, e in lines if int(c) == row["client"])
        assert begin <= start < end
    assert rows[0]["virtual_start"] == 100  # nobody is there at first
    assert result.metrics["virtual_seconds"][0].as_py() > 100
    assert {*result.metrics["clients"].to_pylist()} == {3}
    assert {row["client"] for row in rows} <= {2, 3, 4, 5}


def test_all_that_are_there_are_drawn_alike(tmp_path):
    """Of 30 clients the even ones are there; each is drawn about as often."""
    lines = [f"{c},0,86400" if c % 2 == 0 else f"{c},86399,86400" for c in range(30)]
    path = tmp_path / "windows.csv"
    path.write_text("client,start,end\n" + "\n".join(lines))
    here = {"clock.windows": str(path), "clock.policy": "deadline", "clock.deadline": 50.0}
    seldom = {"checkpoint_every": 200, "evaluation.every": 200, "local.epochs": 1}
    run(tmp_path / "run", (2,) * 30, rounds=150, fraction=0.1, **CLOCK, **here, **seldom)
    drawn = pq.read_table(tmp_path / "run" / "clients.parquet")["client"].to_numpy()
    counts = np.bincount(drawn, minlength=30)
    assert counts[1::2].sum() == 0
    assert counts.sum() == 450 and counts[::2].min() > 12 and counts[::2].max() < 50


def test_who_works_in_vain_spends_energy_until_the_server_goes_on(tmp_path):
    """Of 3 s, client 2 needs 0.25 s latency, and 20 * 160 * STEP / 5e5 s of computing."""
    chosen = {"rounds": 1, "local.epochs": 20, "fraction": 1.0, **devices(tmp_path)}
    late = {"clock.policy": "deadline", "clock.deadline": 3.0}
    result = run(tmp_path / "run", **chosen, **late)
    joules, lost = 0.0, 0
    for n, speed in zip(UNEQUAL, SPEEDS, strict=True):
        compute = 20 * n * STEP / speed
        seconds = compute + 0.25 + MODEL / 1e6 + MODEL / 2e6
        joules += min(3 / seconds, 1) * (3 * compute + 1e-6 * 2 * MODEL)
        lost += seconds > 3
    assert columns(result, "lost_clients") == [(lost,)] and lost > 0
    sent = ((6 - lost) * MODEL, 6 * MODEL)  # who is late has received the model
    assert columns(result, "bytes_up", "bytes_down") == [sent]
    assert result.metrics["virtual_joules"][0].as_py() == pytest.approx(joules, rel=1e-5)


def test_other_clients_drop_out_every_round(tmp_path):
    run(tmp_path, rounds=4, fraction=1.0, **CLOCK, **{"clock.dropout": 0.5})
    rows = pq.read_table(tmp_path / "clients.parquet").to_pylist()
    found = {frozenset(r["client"] for r in rows if r["round"] == n) for n in (1, 2, 3, 4)}
    assert len(found) > 2


@pytest.mark.parametrize("family", ["lstm", "cnn", "residual"])
def test_recurrent_and_convolutional_layers_are_counted(tmp_path, family):
    """A step costs two to three forward passes; torch's fused LSTM would count as nothing."""
    forward = {
        "lstm": 5 * 2 * (4 + 6) * 24 + 2 * 6 * 3,
        "cnn": 2 * 36 * 9 * 4 + 2 * 9 * 36 * 6 + 2 * 54 * 8 + 2 * 8 * 3,
        "residual": 2 * 36 * 9 * 4 + 2 * 36 * 36 * 4 + 2 * 36 * 8 + 2 * 8 * 3,
    }[family]
    chosen = {"rounds": 1, "local.epochs": 1, "fraction": 1.0, **devices(tmp_path)}
    task = small_task(family)
    raysim.run(make_settings(tmp_path / "run", **chosen), task)
    rows = pq.read_table(tmp_path / "run" / "clients.parquet").to_pylist()
    one = 4 * sum(tensor.numel() for tensor in task.model().state_dict().values())
    assert len(rows) == 6
    for row in rows:
        compute = row["virtual_seconds"] - 0.25 - one / 1e6 - one / 2e6
        passes = compute * SPEEDS[row["client"]] / row["samples"] / forward
        assert 2 <= passes <= 3


MIXED = {
    **CLOCK,
    "method.name": "scaffold",
    "clock.policy": "partial",
    "clock.deadline": 0.4,
    "clock.dropout": 0.2,
    "clock.on_hours": 2.0,
    "clock.kind": "iot",
}


def test_a_stopped_run_goes_on_to_the_same_bytes_and_columns(tmp_path):
    whole = run(tmp_path / "whole", **MIXED)
    with pytest.raises(KeyboardInterrupt):
        raysim.run(make_settings(tmp_path / "part", **MIXED), make_task(UNEQUAL), StopAfter(2))
    resumed = raysim.resume(tmp_path / "part", make_task(UNEQUAL))
    assert model_of(tmp_path / "whole") == model_of(tmp_path / "part")
    names = ("virtual_seconds", "virtual_joules", "lost_clients", "clients", "test_loss")
    assert columns(whole, *names) == columns(resumed, *names)
    assert sum(whole.metrics["lost_clients"].to_pylist()) > 0
    first, second = (
        pq.read_table(tmp_path / name / "clients.parquet").drop(["seconds"]).to_pylist()
        for name in ("whole", "part")
    )
    assert first == second


def test_another_table_is_refused_on_resume(tmp_path):
    path = tmp_path / "devices.csv"
    path.write_text("client,speed\n" + "\n".join(f"{c},1e9" for c in range(6)))
    chosen = {**CLOCK, "clock.table": str(path)}
    with pytest.raises(KeyboardInterrupt):
        raysim.run(make_settings(tmp_path / "run", **chosen), make_task(UNEQUAL), StopAfter(2))
    path.write_text(path.read_text().replace("1e9", "2e9", 1))
    with pytest.raises(raysim.RunError, match=r"file of clock\.table was"):
        raysim.resume(tmp_path / "run", make_task(UNEQUAL))


@pytest.mark.parametrize(
    ("overrides", "expected"),
    [
        ({"clock.policy": "deadline"}, "clock.deadline=none: must be a number of seconds"),
        ({"clock.deadline": 3.0}, "clock.deadline=3: must be none with clock.policy=wait"),
        ({"clock.policy": "over_selection"}, "clock.extra=0: must be at least 1"),
        ({"clock.extra": 3}, "clock.extra=3: must be 0 with clock.policy=wait"),
        ({"clock.spread": -1.0}, "clock.spread=-1"),
        ({"clock.kind": "cars"}, "clock.kind="),
    ],
)
def test_settings_that_do_not_go_together(tmp_path, overrides, expected):
    with pytest.raises(raysim.SettingsError) as caught:
        make_settings(tmp_path, **CLOCK, **overrides)
    assert expected in str(caught.value)


def test_none_is_the_name_of_no_clock(tmp_path):
    key, value = parse_override("clock.name=none")
    timed = make_settings(tmp_path, **CLOCK, **{"clock.kind": "iot"})
    assert timed.override({key: value}).to_dict()["clock"] == {"name": "none"}
    assert make_settings(tmp_path).to_dict()["clock"] == {"name": "none"}


def test_more_clients_than_there_are_are_refused(tmp_path):
    more = {"clock.policy": "over_selection", "clock.extra": 3}
    with pytest.raises(raysim.SettingsError, match=r"clock\.extra=3: with 4 clients a round, must"):
        run(tmp_path, **CLOCK, **more)
    assert not (tmp_path / "config.json").exists()
