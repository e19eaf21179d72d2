"""Asynchronous methods of a user's own, from public names alone, held to the contract."""

from __future__ import annotations

import pytest

import raysim
from raysim.methods.fedavg import FedAvg
from raysim.testing import MethodContract
from tests.methods.test_asynchronous import SIZES
from tests.tasks import make_settings, make_task


class Streaming(FedAvg):
    """FedAvg that goes on with every two models that arrive, and halves the step for late ones."""

    patience: int = 2

    def asynchrony(self, size):
        return raysim.Asynchrony(buffer=2, concurrency=size, max_staleness=self.patience)

    def server_update(self, now, state, reduced):
        late = any(reduced.staleness.values())
        old, new = state.groups["model"], reduced.means["model"]
        halfway = {n: ((old[n] + new[n]) / 2).to(new[n].dtype) for n in new}
        return state.replace(model=halfway if late else new)


class Halves(FedAvg):
    """FedAvg of the slow and of the fast clients, each in rounds of their own."""

    columns = (raysim.Column("tiers_seen"),)

    def asynchrony(self, size):
        return raysim.Asynchrony(None, size, tiers=2)

    def metrics(self, state):
        return {"tiers_seen": state.info.get("seen", 0)}

    def server_update(self, now, state, reduced):
        seen = int(state.info.get("seen", 0)) | 1 << reduced.tiers[reduced.clients[0]]
        return raysim.ServerState({"model": reduced.means["model"]}, {"seen": seen})


class Contract(MethodContract):
    """The contract, on the Ray and the actors of the tests."""

    @pytest.mark.usefixtures("resident_actors")
    def test_same_bits_and_figures_on_two_actors(self, tmp_path):
        super().test_same_bits_and_figures_on_two_actors(tmp_path)


class TestStreaming(Contract):
    method = f"{__name__}:Streaming"
    models_sent = None


class TestHalves(Contract):
    method = f"{__name__}:Halves"
    models_sent = None


def run(folder, method, **overrides):
    settings = {"method.name": f"{__name__}:{method}", "rounds": 10, **overrides}
    return raysim.run(make_settings(folder, **settings), make_task(SIZES))


def test_the_server_sees_how_stale_updates_are_and_of_which_tier(tmp_path):
    found = run(tmp_path / "streaming", "Streaming")
    assert {*found.metrics["staleness_max"].to_pylist()} == {0, 1, 2}
    found = run(tmp_path / "halves", "Halves")
    assert found.metrics["tiers_seen"].to_pylist()[-1] == 0b11


class Numbers(FedAvg):
    """FedAvg that is asynchronous with these numbers."""

    buffer: int = 1
    concurrency: int = 4
    tiers: int = 1

    def asynchrony(self, size):
        return raysim.Asynchrony(self.buffer, self.concurrency, tiers=self.tiers)


@pytest.mark.parametrize("name", ["buffer", "concurrency", "tiers"])
def test_numbers_below_1_are_refused_before_anything_starts(tmp_path, name):
    with pytest.raises(raysim.SettingsError, match=f"^method.{name}=0: must be from 1 to the"):
        run(tmp_path / "run", "Numbers", **{f"method.{name}": 0})
    assert not (tmp_path / "run").exists()


def test_a_number_that_is_no_setting_is_named_as_the_methods(tmp_path):
    expected = "Streaming: its buffer=2: must be from 1 to the concurrency, 1$"
    with pytest.raises(raysim.SettingsError, match=expected):
        run(tmp_path / "run", "Streaming", fraction=0.1)
