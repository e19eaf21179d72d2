"""The contract of methods, run over the whole registry: a new method gets it free.

The quick part runs with the other tests: each method trains an MLP and one more family of models,
these in turn; methods that take FedAvg's round and state as they are run neither on actors, nor
resumed, nor with clients without tests. The rest, and the whole matrix (every model family on one
and two actors, and resumed) is `python -m tests.full`.
"""

from __future__ import annotations

import inspect
from collections.abc import Callable, Iterator
from functools import wraps
from pathlib import Path
from typing import Any

import pytest

import raysim
from raysim.api.method import METHODS
from raysim.cli.pages import allowed
from raysim.methods.fedavg import FedAvg
from raysim.testing import MethodContract
from raysim.testing.tasks import FAMILIES, SIZES
from tests.adapters import task_for

SETTINGS: dict[str, dict[str, Any]] = {
    "chain": {"method.methods.fedprox.mu": 0.1, "method.methods.scaffold.lr_global": 0.9},
    # With these, clients keep more than a model; what they deploy is among the compared figures.
    "apfl": {"method.adaptive": True, "evaluation.train_set": True},
    "fedala": {"method.max_epochs": 12, "evaluation.train_set": True},
    "fedmax": {"method.beta": 10},
    "divide_and_conquer": {"method.split": 1},
    "dp_ftrl": {"aggregation.weighting": "fixed", "method.noise": 0.02},
    "fedat": {"method.tiers": 2},
    "fedfusion": {"method.operator": "single"},
    "flexlora": {"method.ranks": [2, 4, 1]},
    "flora": {"method.ranks": [2, 4, 1]},
    "hetlora": {"method.ranks": [4, 2], "method.gamma": 0.6},
}
"""Settings of a method where its defaults are made for larger models, or test less."""

VARIANTS: dict[str, tuple[str, str, dict[str, Any]]] = {
    # Devices so alike that tiers arrive in turn, so that the model moves from the second round on.
    "fedat-in-turn": ("fedat", "mlp", {"clock.name": "devices", "clock.spread": 0.01}),
    "feddbe-pulled": ("feddbe", "residual", {"method.kappa": 20, "method.momentum": 0.5}),
    "fedfusion-conv": (
        "fedfusion",
        "cnn",
        {"method.operator": "conv", "method.conv_start": "torch"},
    ),
    "fedfusion-multi": ("fedfusion", "residual", {"method.operator": "multi"}),
    "flexlora-qr": ("flexlora", "cnn", {"method.way": "qr"}),
    "fedma-growing": ("fedma", "cnn", {"method.gamma": 1e30}),
    "fedproto-nearest": (
        "fedproto",
        "residual",
        {"method.predict": "prototype", "method.weights": "samples", "local.epochs": 2},
    ),
    "mifl-previous": ("mifl", "mlp", {"method.mi_reference": "previous"}),
    "mifl-delivery": (
        "mifl",
        "mlp",
        {"method.lam": 0.3, "method.collect": "all", "method.delivery": "own"},
    ),
    "mifl-update-alone": ("mifl", "mlp", {"method.aggregation": False}),
    "mifl-aggregation-alone": ("mifl", "mlp", {"method.update": False}),
    "divide-and-conquer-auto": (
        "divide_and_conquer",
        "mlp",
        {"method.split": "auto", "method.prepass": 2, "method.probe": 1, "method.min_rise": 0},
    ),
    "divide-and-conquer-moving": (
        "divide_and_conquer",
        "cnn",
        {"method.split": 1, "method.move_every": 1, "method.min_spread": 0.0, "rounds": 6},
    ),
}
"""Methods under other settings than those above: method, model family, settings."""

UNSUPPORTED = {
    *(("dp_ftrl", "residual"), ("fedma", "residual")),
    *(("divide_and_conquer", "odd"), ("dp_ftrl", "odd"), ("fedma", "odd")),
    *(("fedex_lora", "odd"), ("flora", "odd")),
}
"""Methods and model families that do not go together; the method says so before round 1."""

MODELS_SENT = {"chain": 2, "scaffold": 2, "momentum": 2}
"""Models that a client receives and sends in a round, where it is not one."""
COUNTED_APART = {
    *("divide_and_conquer", "fedfusion", "fedma", "fednova", "fsvrg", "mifl"),
    *("fedasync", "fedat", "fedbuff"),
    *("centralized", "fedbabu", "fedbn", "fedper", "fedrep", "lg_fedavg", "local"),
    *("feddbe", "fedproto", "fedrod", "powersgd"),
    *("afl", "drfa", "qffl", "term"),
    *("feddpa", "fedex_lora", "flexlora", "flora", "hetlora", "rolora"),
}
"""Methods that send parts of a model, more to some, or to others than those who answer in a round:
their own tests count the bytes."""


TURNS = {
    "cnn": "test_trains_a_cnn",
    "residual": "test_trains_a_residual_network",
    "lstm": "test_trains_an_lstm",
}
"""Tests of the families of which each method has one in the quick part."""
CHOSEN = {"fedbn": "residual"}
"""Methods whose family is not by turns."""
OWN = ("round", "training_pass", "init", "client_init", "asynchrony")
"""What a method overrides whose rounds or states are not FedAvg's."""
AS_FEDAVG = (
    *("test_same_bits_and_figures_on_two_actors", "test_resumed_run_has_the_same_bits"),
    "test_clients_may_have_no_tests_and_nothing_held_out",
)


def left_to_full(method: str) -> Iterator[str]:
    """Yield the tests of a method's contract that `tests.full` alone runs."""
    if method not in METHODS:  # a user's own
        return
    kind, families = METHODS.get(method), [*TURNS]
    family = CHOSEN.get(method, families[[*METHODS].index(method) % len(families)])
    yield from (test for other, test in TURNS.items() if other != family)
    own = any(getattr(kind, name) is not getattr(FedAvg, name) for name in OWN)
    if not own and method != "fedavg":
        yield from AS_FEDAVG


def in_full(test: Callable[..., None]) -> Callable[..., None]:
    """Return a test that is marked `full`, of a class of which it is no part."""

    @pytest.mark.full
    @wraps(test)
    def marked(*given: Any, **named: Any) -> None:
        test(*given, **named)

    return marked


class RegisteredContract(MethodContract):
    """The contract of a registered method: the user's, its page, and the whole matrix."""

    def task(self, family: str, sizes: tuple[int, ...] = SIZES) -> raysim.Task:
        return task_for(self.method, super().task(family, sizes))

    def test_its_page_says_what_a_user_must_know(self):
        kind = METHODS.get(self.method)
        about = (inspect.getdoc(kind) or "").lower()
        assert "help" in about and ("cost" in about or "against fedavg" in about)
        assert "Source: " in (inspect.getdoc(inspect.getmodule(kind)) or "")
        for name, field in kind.model_fields.items():
            assert allowed(field) and field.description, name

    @pytest.mark.usefixtures("resident_actors")
    def test_same_bits_and_figures_on_two_actors(self, tmp_path):
        super().test_same_bits_and_figures_on_two_actors(tmp_path)

    @pytest.mark.full
    @pytest.mark.usefixtures("resident_actors")
    @pytest.mark.parametrize("family", FAMILIES)
    @pytest.mark.parametrize("actors", [1, 2])
    def test_full_same_bits_on_actors(self, tmp_path, family, actors):
        if family not in self.unsupported:
            self.assert_same_on_actors(tmp_path, family, actors, {})

    @pytest.mark.full
    @pytest.mark.parametrize("family", FAMILIES)
    def test_full_resume(self, tmp_path, family):
        if family not in self.unsupported:
            self.assert_resumes(tmp_path, family, {})


def contract_of(method: str) -> type[MethodContract]:
    """Return the contract of a registered method."""
    return type(
        f"Test_{method}",
        (RegisteredContract,),
        {
            "__module__": __name__,
            "method": method,
            "settings": SETTINGS.get(method, {}),
            "unsupported": frozenset(f for name, f in UNSUPPORTED if name == method),
            "models_sent": None if method in COUNTED_APART else MODELS_SENT.get(method, 1),
            **{name: in_full(getattr(RegisteredContract, name)) for name in left_to_full(method)},
        },
    )


CONTRACTS = {method: contract_of(method) for method in METHODS}
globals().update({contract.__name__: contract for contract in CONTRACTS.values()})


def settings_for(method: str, out: Path, **overrides: Any) -> raysim.Settings:
    return contract_of(method)().settings_for(out, overrides)


ODD: dict[str, tuple[str, dict[str, Any]]] = {
    "means over tensors": ("fedprox", {"method.reduction": "mean"}),
    "clipped gradients": ("fedavg", {"local.clip_norm": 0.5, "local.momentum": 0.5}),
    "clipped gradients of a stack": ("fedavg", {"local.clip_norm": 0.5, "engine.vectorize": 3}),
}


@pytest.mark.parametrize("case", ODD)
def test_odd_tensors_are_trained_under_other_settings(tmp_path, case):
    method, overrides = ODD[case]
    CONTRACTS[method]().assert_finite(tmp_path / "run", "odd", overrides)


@pytest.mark.parametrize("variant", VARIANTS)
def test_resumed_variant_has_the_same_bits(tmp_path, variant):
    method, family, overrides = VARIANTS[variant]
    CONTRACTS[method]().assert_resumes(tmp_path, family, overrides)


@pytest.mark.full
@pytest.mark.parametrize("variant", VARIANTS)
def test_full_variant_has_the_same_bits_on_actors(tmp_path, resident_actors, variant):
    method, family, overrides = VARIANTS[variant]
    CONTRACTS[method]().assert_same_on_actors(tmp_path, family, 2, overrides)
