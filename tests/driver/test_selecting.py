"""Selections in runs: what they know, what they may return, and what a resumed run selects."""

from __future__ import annotations

import shutil
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any, ClassVar

import numpy as np
import pyarrow.parquet as pq
import pytest

import raysim
from tests.tasks import StopAfter, make_settings, make_task, model_of

SIZES = (1, 3, 600, 17, 80, 250)
HERE = "tests.driver.test_selecting"


class Neediest(raysim.Selection):
    """Selects the clients with the largest last loss, unseen ones first."""

    def select(self, sampling: raysim.Sampling) -> list[int]:
        losses = np.nan_to_num(sampling.losses, nan=np.inf)
        return np.argsort(-losses, kind="stable")[: sampling.wanted].tolist()


class Oldest(raysim.Selection):
    """Selects who has waited longest; counts in a state of its own, and in what clients report."""

    def init(self, clients: int) -> dict[str, Any]:
        return {"times": np.zeros(clients), "rounds": 0, "seen": np.zeros(clients)}

    def select(self, sampling: raysim.Sampling) -> list[int]:
        assert (sampling.times == sampling.state["times"]).all()
        assert int(sampling.state["rounds"]) == sampling.number
        return np.argsort(sampling.last_round, kind="stable")[::-1][-sampling.wanted :].tolist()

    def report(self, view: raysim.View, trained: raysim.Trained) -> dict[str, float]:
        return {"twice_the_samples": 2.0 * len(trained.samples.y)}

    def update(self, now, selected, results):
        assert sorted(selected) == results.clients.tolist()
        times, seen = now.state["times"].copy(), now.state["seen"].copy()
        times[results.clients] += 1
        seen[results.clients] = results.reports["twice_the_samples"]
        state = {"times": times, "rounds": now.state["rounds"] + 1, "seen": seen}
        return state, {"most_seen": float(seen.max()), "last_loss": float(results.losses[-1])}


class Told(raysim.Selection):
    """Selects what a test tells it."""

    told: ClassVar[Callable[[raysim.Sampling], Any]]

    def select(self, sampling: raysim.Sampling) -> Sequence[int]:
        return type(self).told(sampling)


class Hopeful(Neediest):
    """Says that it needs no results, which it reads."""

    plans_ahead: ClassVar[bool] = True


def cohorts(path: Path) -> list[list[int]]:
    rows = pq.read_table(path / "clients.parquet").to_pylist()
    last = max(row["round"] for row in rows)
    return [[row["client"] for row in rows if row["round"] == n] for n in range(1, last + 1)]


LONG = {"rounds": 5, "fraction": 0.5}


def run(path: Path, selection: str, **more: Any) -> raysim.Result:
    settings = make_settings(path, **LONG | {"selection.name": selection} | more)
    return raysim.run(settings, make_task(SIZES))


RESUMED = [f"{HERE}:Neediest", f"{HERE}:Oldest"]
RESUMED += ["oort", "poisson", "power_of_choice", "reshuffled", "round_robin", "weighted"]


@pytest.mark.parametrize("selection", RESUMED)
def test_a_resumed_run_selects_the_same_clients(tmp_path, selection):
    run(tmp_path / "whole", selection)
    own = LONG | {"selection.name": selection, "checkpoint_every": 1}
    with pytest.raises(KeyboardInterrupt):
        raysim.run(make_settings(tmp_path / "cut", **own), make_task(SIZES), StopAfter(4))
    shutil.rmtree(tmp_path / "cut/checkpoints/round_000004")  # as if killed before it was written
    raysim.resume(tmp_path / "cut", make_task(SIZES))
    assert cohorts(tmp_path / "cut") == cohorts(tmp_path / "whole")
    assert model_of(tmp_path / "cut") == model_of(tmp_path / "whole")


def test_losses_lead_to_the_next_cohort(tmp_path):
    """Unseen clients come first; the largest is soon the least needy."""
    run(tmp_path, f"{HERE}:Neediest")
    found = cohorts(tmp_path)
    assert found[:2] == [[0, 1, 2], [3, 4, 5]] and len({*map(tuple, found)}) > 2


def test_clients_report_and_the_selection_has_state_and_metrics(tmp_path):
    """In each round it checks what it is given; all have taken part after the second."""
    result = run(tmp_path, f"{HERE}:Oldest")
    rows = pq.read_table(tmp_path / "clients.parquet").to_pylist()
    assert all(row["twice_the_samples"] == 2 * SIZES[row["client"]] for row in rows)
    assert result.metrics["most_seen"].to_pylist()[1:] == [1200.0] * 4
    last = max((row for row in rows if row["round"] == 5), key=lambda row: row["client"])
    assert result.metrics["last_loss"][-1].as_py() == last["train_loss"]
    assert {row["client"] for row in rows if row["round"] <= 2} == {*range(6)}


BAD = {
    "twice": ([1, 2, 1], "must be distinct clients from 0 to 5; got [1, 2, 1]"),
    "no client": ([0, 6], "must be distinct clients from 0 to 5; got [0, 6]"),
    "negative": ([-1, 3], "must be distinct clients from 0 to 5; got [-1, 3]"),
    "none": ([], "must be at least one client; got []"),
}


@pytest.mark.parametrize("case", BAD)
def test_a_bad_selection_stops_before_anything_starts(tmp_path, monkeypatch, case):
    chosen, message = BAD[case]
    monkeypatch.setattr(Told, "told", lambda now: chosen, raising=False)
    with pytest.raises(raysim.SettingsError) as caught:
        run(tmp_path / "run", f"{HERE}:Told")
    told = f"selection.name={HERE}:Told: the clients that it selects for round 1 {message}"
    assert str(caught.value) == told
    assert not (tmp_path / "run").exists()


def test_what_is_no_list_of_clients_is_refused(tmp_path, monkeypatch):
    monkeypatch.setattr(Told, "told", lambda now: 3, raising=False)
    with pytest.raises(raysim.SettingsError, match="Told: select returned 3; must return a list"):
        run(tmp_path / "run", f"{HERE}:Told")


def test_clients_that_are_away_are_refused_where_nobody_waits_for_them(tmp_path, monkeypatch):
    """Client 2 comes at noon; a server that waits for all waits for it."""
    rows = [f"{client},{43200 if client == 2 else 0},86400" for client in range(6)]
    (tmp_path / "windows.csv").write_text("\n".join(["client,start,end", *rows]))
    monkeypatch.setattr(Told, "told", lambda now: [1, 2], raising=False)
    clock = {"clock.name": "devices", "clock.windows": str(tmp_path / "windows.csv")}
    late = {"clock.policy": "deadline", "clock.deadline": 1e5}
    with pytest.raises(raysim.SettingsError, match="must be available; client 2 is away"):
        run(tmp_path / "run", f"{HERE}:Told", **clock, **late)
    result = run(tmp_path / "run", f"{HERE}:Told", **clock, rounds=1)
    assert result.metrics["virtual_seconds"][0].as_py() > 43200


def test_a_selection_that_reads_results_is_refused_in_asynchronous_rounds(tmp_path):
    more = {"method.name": "fedbuff", "method.buffer": 2, "fraction": 0.7}
    with pytest.raises(raysim.SettingsError, match="must leave `plans_ahead` False"):
        run(tmp_path / "a", f"{HERE}:Hopeful", **more)
    with pytest.raises(raysim.SettingsError, match="Neediest: does not go with"):
        run(tmp_path / "b", f"{HERE}:Neediest", **more)
    result = run(tmp_path / "c", "weighted", **more)
    assert result.metrics["clients"].to_pylist() == [2] * 5


ASYNCHRONOUS = {
    "busy": (lambda now: [*now.busy, *range(now.clients)][: now.wanted], "that are not busy; got"),
    "too many": (lambda now: now.candidates.tolist(), "must be at most 2 clients; got"),
    "nobody": (lambda now: [], "selects no client that may start"),
}


class Ahead(Told):
    """Goes with asynchronous rounds."""

    plans_ahead: ClassVar[bool] = True


@pytest.mark.parametrize("case", ASYNCHRONOUS)
def test_a_bad_selection_of_asynchronous_rounds_is_refused(tmp_path, monkeypatch, case):
    choose, message = ASYNCHRONOUS[case]
    monkeypatch.setattr(Told, "told", choose, raising=False)
    more = {"method.name": "fedbuff", "method.buffer": 1, "fraction": 0.3}
    with pytest.raises(raysim.SettingsError, match=message):
        run(tmp_path / "run", f"{HERE}:Ahead", **more)


class Writing(raysim.Selection):
    """Writes into the state that it is given."""

    def init(self, clients: int) -> dict[str, Any]:
        return {"next": np.zeros(1)}

    def select(self, sampling: raysim.Sampling) -> list[int]:
        sampling.state["next"][0] += 1
        return [0]


class TextKept(Writing):
    """Returns a state that is no array of numbers."""

    def select(self, sampling: raysim.Sampling) -> list[int]:
        return [0]

    def update(self, now, selected, results):
        return {"next": "first"}, {}


def test_the_state_of_a_selection_is_neither_written_nor_words(tmp_path):
    with pytest.raises(raysim.SettingsError, match=r"Writing: select failed: ValueError: .*read-"):
        run(tmp_path / "a", f"{HERE}:Writing")
    with pytest.raises(raysim.SettingsError, match=r"TextKept: update returned .* arrays of"):
        run(tmp_path / "b", f"{HERE}:TextKept")


def test_all_of_a_poisson_cohort_count_under_over_selection(tmp_path):
    policy = {"clock.policy": "over_selection", "clock.extra": 1, "clock.name": "devices"}
    plain = run(tmp_path / "wait", "poisson", fraction=0.4, rounds=8)
    over = run(tmp_path / "over", "poisson", fraction=0.4, rounds=8, **policy)
    assert plain.metrics["clients"].to_pylist() == over.metrics["clients"].to_pylist()
    assert max(plain.metrics["clients"].to_pylist()) > 2


def test_a_round_without_clients_keeps_the_state_and_takes_no_time(tmp_path):
    """Poisson's cohorts of six clients with C = 0.2 are empty in a quarter of the rounds."""
    clock = {"clock.name": "devices", "fraction": 0.2, "rounds": 12, "evaluation.every": 1}
    result = run(tmp_path, "poisson", **clock)
    rows = result.metrics.to_pylist()
    empty = [number for number, row in enumerate(rows) if row["clients"] == 0]
    assert 1 <= len(empty) <= 8 and len({row["clients"] for row in rows}) > 2
    for number in empty:
        assert rows[number]["virtual_seconds"] == 0 and rows[number]["train_loss"] is None
        if number:
            assert rows[number]["test_loss"] == rows[number - 1]["test_loss"]
