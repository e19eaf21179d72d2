"""The contract of what surrounds a method, over the registries: a new component gets it free."""

from __future__ import annotations

import inspect
from typing import Any

import pytest

from raysim.aggregation import AGGREGATIONS
from raysim.channel import STAGES
from raysim.cli.pages import allowed
from raysim.core.components import Registry
from raysim.selection import SELECTIONS
from raysim.temperature import TEMPERATURES
from raysim.testing import ComponentContract

OWN: dict[str, dict[str, Any]] = {
    "clip": {"channel.clip.norm": 0.5},
    "plateau": {"temperature.name": "plateau", "temperature.patience": 0, "local.lr": 0.5},
    "schedule": {
        "temperature.name": "schedule",
        "temperature.rounds": [2, 3],
        "temperature.values": [0.5, 2.0],
    },
}
"""Settings of components whose defaults change nothing here."""


class RegisteredContract(ComponentContract):
    """The contract of a registered component: the user's, and its page."""

    registry: Registry[Any]
    name: str

    def test_its_page_says_what_a_user_must_know(self):
        kind = self.registry.get(self.name)
        assert (inspect.getdoc(kind) or "").count("\n") > 1
        for name, field in kind.model_fields.items():
            assert allowed(field) and field.description, name

    @pytest.mark.usefixtures("resident_actors")
    def test_same_bits_and_figures_on_two_actors(self, tmp_path):
        super().test_same_bits_and_figures_on_two_actors(tmp_path)


def contract(registry: Registry[Any], name: str, settings: dict[str, Any]) -> type:
    """Return the contract of a component."""
    title = f"Test{registry.kind.title()}{name.title().replace('_', '')}"
    body = {"registry": registry, "name": name, "settings": OWN.get(name, settings)}
    return type(title, (RegisteredContract,), {**body, "__module__": __name__})


CONTRACTS = [
    *(contract(SELECTIONS, name, {"selection.name": name}) for name in SELECTIONS),
    *(contract(STAGES, name, {f"channel.{name}": {}}) for name in STAGES),
    *(contract(AGGREGATIONS, name, {"aggregation.name": name}) for name in AGGREGATIONS),
    *(contract(TEMPERATURES, name, {"temperature.name": name}) for name in TEMPERATURES),
]
globals().update({each.__name__: each for each in CONTRACTS})


def test_every_component_has_its_contract():
    assert len(CONTRACTS) == len([*SELECTIONS, *STAGES, *AGGREGATIONS, *TEMPERATURES]) == 14
