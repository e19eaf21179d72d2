"""What rules, stages and attacks are given: changes in place stop the run, and name who did it."""

from __future__ import annotations

from typing import Any

import pytest
import torch

import raysim
from raysim.methods.fedavg import FedAvg
from raysim.testing import MethodContract
from tests.tasks import EQUAL, make_settings, make_task


def _zeroed(tensors: Any) -> None:
    with torch.no_grad():
        tensors["head.bias"].zero_()


def _penalty(view: Any, outputs: Any, batch: Any) -> Any:
    _zeroed(view.start)
    return outputs.logits.sum() * 0


def _finish(view: Any, trained: Any) -> Any:
    _zeroed(view.broadcast["model"])
    return raysim.Upload(sums={"model": view.params})


def _finish_state(view: Any, trained: Any) -> Any:
    _zeroed(view.state["own"])
    return raysim.Upload(sums={"model": view.params})


class Penalty(FedAvg):
    """FedAvg whose penalty changes the start."""

    def rules(self):
        return raysim.Rules(penalties=(_penalty,))


class Finish(FedAvg):
    """FedAvg whose clients change what they were sent."""

    def rules(self):
        return raysim.Rules(finish=_finish)


class OwnState(FedAvg):
    """FedAvg whose clients change the state with which all of them begin."""

    def client_init(self, state):
        return {"own": {n: t.clone() for n, t in state.groups["model"].items()}}

    def rules(self):
        return raysim.Rules(finish=_finish_state)


class Deployed(FedAvg):
    """FedAvg that deploys a model that it makes in place."""

    def deployed(self, state):
        _zeroed(state.groups["model"])
        return state.groups["model"]


class Asked(FedAvg):
    """FedAvg whose clients deploy what changes the state."""

    def deployment(self, now, state):
        _zeroed(state.groups["model"])


class Stage(raysim.Stage):
    """Stage that changes what clients were sent."""

    def send(self, view, upload):
        _zeroed(view.broadcast["model"])
        return upload


class Attack(raysim.Attack):
    """Attack that changes what clients were sent."""

    def send(self, view, upload, clients):
        _zeroed(view.broadcast["model"])
        return upload


BOTH = "changes view.start and view.broadcast in place"
CASES = {
    "Penalty": ({"method.name": "Penalty"}, f"a rule of local training {BOTH}"),
    "Finish": ({"method.name": "Finish"}, f"finish {BOTH}"),
    "Finish, dropped": ({"method.name": "Finish", "on_client_error": "drop"}, f"finish {BOTH}"),
    "Finish, stacked": ({"method.name": "Finish", "engine.vectorize": 3}, f"finish {BOTH}"),
    "OwnState": ({"method.name": "OwnState"}, "finish changes view.state in place"),
    "Deployed": ({"method.name": "Deployed"}, "deployed changes the state in place"),
    "Asked": (
        {"method.name": "Asked", "evaluation.clients": True},
        "a function that is asked of a state (deployment, client_init) changes the state in place",
    ),
    "Stage": ({"channel": "Stage"}, f"send {BOTH}"),
    "Attack": ({"attack.name": "Attack", "attack.fraction": 0.5}, f"send {BOTH}"),
}


@pytest.mark.parametrize("case", CASES)
def test_changes_in_place_stop_the_run(tmp_path, case):
    """They stop it whatever is done with clients that fail: others would read them."""
    given, says = CASES[case]
    key, kind = next(iter(given.items()))
    named = f"{__name__}:{kind}"
    own = {**given, key: {named: {}} if key == "channel" else named}
    options = {"rounds": 2, "fraction": 1.0, **own}
    with pytest.raises(raysim.SettingsError) as caught:
        raysim.run(make_settings(tmp_path, **options), make_task(EQUAL))
    who = f"channel.{named}" if key == "channel" else f"{key}={named}"
    assert str(caught.value).startswith(f"{who}: {says}; change a copy, tensor.clone()")


def _through_data(view: Any, trained: Any) -> Any:
    view.broadcast["model"]["head.bias"].data.zero_()
    return raysim.Upload(sums={"model": view.params})


class ThroughData(FedAvg):
    """FedAvg whose clients change what they were sent without a version."""

    def rules(self):
        return raysim.Rules(finish=_through_data)


def test_the_contract_compares_bytes(tmp_path):
    contract = MethodContract()
    contract.method = f"{__name__}:ThroughData"  # type: ignore[misc]
    said = r"clients \[0, .* change in place the tensors that clients receive"
    with pytest.raises(AssertionError, match=said):
        contract.test_loss_falls_on_separable_data(tmp_path)
