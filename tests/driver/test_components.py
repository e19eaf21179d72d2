"""The contract of what surrounds a method, over the registries: a new component gets it free."""

from __future__ import annotations

import inspect
from typing import Any

import pytest

from raysim.aggregation import AGGREGATIONS
from raysim.api.components import Registry
from raysim.attack import ATTACKS
from raysim.channel import STAGES
from raysim.cli.pages import allowed
from raysim.selection import SELECTIONS
from raysim.server import SERVER_RULES
from raysim.temperature import TEMPERATURES
from raysim.testing import ComponentContract
from tests.methods.test_contract import in_full

OWN: dict[str, dict[str, Any]] = {
    "clip": {"channel.clip.norm": 0.5},
    "error_feedback": {
        "channel": {"error_feedback": {}, "topk": {"fraction": 0.1}, "qsgd": {"unbiased": False}}
    },
    "gaussian": {
        **{"channel.gaussian.clip": 2.0, "channel.gaussian.noise": 0.1},
        **{"aggregation.weighting": "fixed", "method.name": "fedavg"},
    },
    "multi_krum": {"aggregation.name": "multi_krum", "aggregation.byzantine": 0},
    "randk": {"channel.randk.fraction": 0.5},
    "plateau": {"temperature.name": "plateau", "temperature.patience": 0, "local.lr": 0.5},
    "schedule": {
        "temperature.name": "schedule",
        "temperature.rounds": [2, 3],
        "temperature.values": [0.5, 2.0],
    },
}
"""Settings of components whose defaults change nothing here, or ask for more clients."""


ON_DRIVER = ("poisson", "reshuffled", "uniform", "weighted", "constant", "schedule")
"""Selections and temperatures that keep nothing and ask no worker: on actors in `tests.full`."""


class RegisteredContract(ComponentContract):
    """The contract of a registered component: the user's, and its page."""

    registry: Registry[Any]
    name: str

    def test_its_page_says_what_a_user_must_know(self):
        check_page(self.registry, self.name)

    @pytest.mark.usefixtures("resident_actors")
    def test_same_bits_and_figures_on_two_actors(self, tmp_path):
        super().test_same_bits_and_figures_on_two_actors(tmp_path)


def check_page(registry: Registry[Any], name: str) -> None:
    """Check that a component's class says when it helps, and its fields what they are."""
    kind = registry.get(name)
    assert (inspect.getdoc(kind) or "").count("\n") > 1
    for key, field in kind.model_fields.items():
        assert allowed(field) and field.description, key


def contract(registry: Registry[Any], name: str, settings: dict[str, Any]) -> type:
    """Return the contract of a component."""
    title = f"Test{registry.kind.title()}{name.title().replace('_', '')}"
    body = {"registry": registry, "name": name, "settings": OWN.get(name, settings)}
    body["unsupported"] = frozenset({"odd"} if name == "gaussian" else ())
    if name in ON_DRIVER:
        test = "test_same_bits_and_figures_on_two_actors"
        body[test] = in_full(getattr(RegisteredContract, test))
    return type(title, (RegisteredContract,), {**body, "__module__": __name__})


KINDS = ("mean", "median", "multi_krum", "centred_clipping")
"""Aggregations, one of each kind: one without updates, one of blocks, one that measures, one that
keeps its last aggregate; the others go the same ways, and are tested against NumPy."""
OF_STAGES = ("clip", "error_feedback", "gaussian", "randk")
"""Stages, one of each kind: one that keeps nothing, one with a state at the client, one with a part
at the server, one that draws; the others go the same ways, and have their oracles."""
CONTRACTS = [
    *(contract(SELECTIONS, name, {"selection.name": name}) for name in SELECTIONS),
    *(contract(STAGES, name, {f"channel.{name}": {}}) for name in OF_STAGES),
    *(contract(AGGREGATIONS, name, {"aggregation.name": name}) for name in KINDS),
    *(contract(TEMPERATURES, name, {"temperature.name": name}) for name in TEMPERATURES),
    contract(SERVER_RULES, "yogi", {"server.name": "yogi"}),
]
globals().update({each.__name__: each for each in CONTRACTS})


def test_every_component_has_its_contract():
    others = [(AGGREGATIONS, name) for name in AGGREGATIONS if name not in KINDS]
    others += [(STAGES, name) for name in STAGES if name not in OF_STAGES]
    others += [(SERVER_RULES, name) for name in SERVER_RULES if name != "yogi"]
    every = [*SELECTIONS, *STAGES, *AGGREGATIONS, *TEMPERATURES, *SERVER_RULES]
    assert len(CONTRACTS) == len(every) - len(others) == 21
    for registry, name in others:
        check_page(registry, name)
    for name in ATTACKS:  # in runs: test_attacks.py
        check_page(ATTACKS, name)
