"""Partitions of a user's own that draw other samples than they say: one line names the client."""

from __future__ import annotations

from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import raysim
from raysim.samples.client_indices import DrawnIndices, ListedIndices
from raysim.samples.data import CheckedIndices
from tests.tasks import make_settings

CLIENTS, SIZE, N = 9, 6, 4000
WRONG = {
    "fewer": (lambda good: good[:4], "4 samples are drawn; `sizes` says 6"),
    "more": (lambda good: np.append(good, 7), "7 samples are drawn; `sizes` says 6"),
    "none": (lambda good: good[:0], "0 samples are drawn; `sizes` says 6"),
    "beyond": (lambda good: good + N, r"sample 400\d; the data has samples 0 to 3999"),
    "below": (lambda good: good - N, "sample -3996; the data has samples 0 to 3999"),
    "fractions": (lambda good: good + 0.5, r"client 4: sample 4.5 is no whole number"),
    "flags": (lambda good: good > 6, r"samples bool\[6\]; must be whole numbers"),
    "columns": (lambda good: good[:, None], r"samples int64\[6, 1\]; must be whole numbers"),
    "words": (lambda good: good.astype(str), r"samples <U.*\[6\]; must be whole numbers"),
    "nothing": (lambda good: None, r"samples object\[\]; must be whole numbers"),
    "an error": (lambda good: {}["no"], "its samples cannot be drawn: KeyError: 'no'"),
}
LISTED = {
    "fractions": ([0.0, 1.5], r"client 3: sample 1.5 is no whole number"),
    "beyond": ([3, N], "split returned sample 4000; the data has samples 0 to 3999"),
    "empty": ([], "client 3 has no samples"),
    "not a number": ([3.0, np.nan], r"client 3: sample nan is no whole number"),
    "infinite": ([3.0, -np.inf], r"client 3: sample -inf is no whole number"),
    "flags": ([True, False], r"client 3: samples bool\[2\]; must be whole numbers"),
    "columns": ([[1], [2]], r"client 3: samples int64\[2, 1\]; must be whole numbers"),
    "words": (["1", "2"], r"client 3: samples <U1\[2\]; must be whole numbers"),
}


def draw(case: str, wrong: int, client: int) -> Any:
    good = np.arange(client, client + SIZE)
    return WRONG[case][0](good) if client == wrong else good


class Drawn(raysim.Partition):
    """Gives one client wrong samples."""

    case: str = "fewer"
    wrong: int = 4

    def split(self, data: Any, clients: int, seed: int) -> DrawnIndices:
        return DrawnIndices(clients, SIZE, partial(draw, self.case, self.wrong))


class Listed(raysim.Partition):
    """Lists the samples of all clients, those of client 3 wrong."""

    case: str = "fractions"

    def split(self, data: Any, clients: int, seed: int) -> ListedIndices:
        own = [np.arange(client, client + SIZE) for client in range(clients)]
        own[3] = np.array(LISTED[self.case][0])
        return ListedIndices.of(own)


class Moody(raysim.Partition):
    """Draws other samples whenever it is asked."""

    def split(self, data: Any, clients: int, seed: int) -> DrawnIndices:
        generator = np.random.default_rng(seed)
        return DrawnIndices(clients, SIZE, lambda client: generator.integers(0, N, SIZE))


class Lists(raysim.Partition):
    """Draws plain lists, of a client twice the same sample."""

    def split(self, data: Any, clients: int, seed: int) -> DrawnIndices:
        return DrawnIndices(clients, 2, lambda client: [client, client])


@pytest.fixture(autouse=True)
def data_root(tmp_path_factory, monkeypatch):
    monkeypatch.setenv("RAYSIM_DATA", str(tmp_path_factory.mktemp("data")))


def settings_of(folder: Path, partition: str, **options: Any) -> raysim.Settings:
    parts = {"dataset.name": "tests.blobs:Blobs", "partition.name": f"{__name__}:{partition}"}
    parts |= {"model.name": "tests.blobs:Linear", "clients": CLIENTS, "rounds": 2}
    return make_settings(folder, **{**parts, **options})


def refused(settings: raysim.Settings, message: str) -> str:
    with pytest.raises(raysim.RaysimError, match=message) as caught:
        raysim.run(settings)
    assert "\n" not in str(caught.value)
    return str(caught.value)


@pytest.mark.parametrize("limit", [None, 3])
@pytest.mark.parametrize("case", WRONG)
def test_wrong_samples_of_a_client_are_named_before_anything_starts(tmp_path, case, limit):
    options = {"partition.case": case, "partition.limit": limit}
    line = refused(settings_of(tmp_path / "run", "Drawn", **options), WRONG[case][1])
    assert "partition.name=" in line and "Drawn: client 4: " in line
    assert not (tmp_path / "run").exists()


@pytest.mark.parametrize("case", ["fewer", "beyond"])
def test_of_many_clients_at_the_client(tmp_path, monkeypatch, case):
    """Of a million not all are drawn beforehand."""
    monkeypatch.setattr("raysim.driver.start.identity.SAMPLED_CLIENTS", 3)
    options = {"partition.case": case, "partition.wrong": 5, "fraction": 1.0}
    line = refused(settings_of(tmp_path / "run", "Drawn", **options), WRONG[case][1])
    assert "client 5: failed twice in round 1: " in line
    kept = settings_of(tmp_path / "kept", "Drawn", **options, on_client_error="drop")
    assert raysim.run(kept).metrics["clients_dropped"].to_pylist() == [1, 1]


@pytest.mark.parametrize("given", [[3, 1], [3.0, 1.0], np.array([3, 1], np.uint8)])
def test_whole_numbers_of_any_type_are_one_rule(given):
    listed = ListedIndices.of([given])
    drawn = CheckedIndices(DrawnIndices(1, 2, lambda client: given), 4, "partition")
    assert listed[0].tolist() == drawn[0].tolist() == [3, 1]
    assert listed[0].dtype == drawn[0].dtype == np.int64


def test_lists_of_lists_name_the_client():
    with pytest.raises(raysim.RaysimError, match=r"^client 1: samples list: "):
        ListedIndices.of_some([[], [[1], [2, 3]]])


@pytest.mark.parametrize("case", LISTED)
def test_wrong_lists_are_refused(tmp_path, case):
    refused(settings_of(tmp_path / "run", "Listed", **{"partition.case": case}), LISTED[case][1])


def test_samples_that_are_drawn_anew_whenever_they_are_asked_for_are_refused(tmp_path):
    refused(settings_of(tmp_path / "run", "Moody"), "other samples of client 0 when it is asked")


def test_lists_and_samples_that_come_twice_are_taken(tmp_path):
    result = raysim.run(settings_of(tmp_path / "run", "Lists", fraction=1.0))
    assert result.metrics["clients"].to_pylist() == [CLIENTS] * 2
