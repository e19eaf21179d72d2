"""Chain: settings, against NumPy, and against single methods and subclasses that do the same."""

from __future__ import annotations

import json
from types import SimpleNamespace
from typing import ClassVar

import pytest
import torch

import raysim
from raysim.api.chain import first, only
from raysim.api.rules import CHANGE
from raysim.channel.gaussian import Gaussian
from raysim.config import parse
from raysim.methods.chain import Chain
from raysim.methods.fedavg import FedAvg
from raysim.methods.fedprox import FedProx
from raysim.testing.tasks import SmallNet
from tests.methods.test_oracle import NAMES, assert_close, run
from tests.methods.test_transforms import EVERYTHING, METHODS, MU, oracle, run_half
from tests.tasks import UNEQUAL, make_settings, make_task, model_of

CHAIN = {"method.name": "chain"}
PROX = {"method.methods.fedprox.mu": MU}
SCAFFOLD = {"method.methods.scaffold.lr_global": 1}


@pytest.mark.parametrize("stacked", [0, 2])
def test_fedprox_and_scaffold_and_temperature(tmp_path, stacked):
    both = {**CHAIN, **PROX, **SCAFFOLD, **EVERYTHING, "engine.vectorize": stacked}
    result, w, clients, cohorts = run_half(tmp_path, both)
    assert_close(result.params, oracle(w, clients, cohorts, EVERYTHING, mu=MU, variates=True))
    assert result.metrics["c_norm"].to_pylist()[-1] > 0


def test_the_same_bytes_as_a_subclass_that_chains_the_rules(tmp_path):
    for name, changes in (("one", METHODS["both"]), ("two", {**CHAIN, **PROX, **SCAFFOLD})):
        run_half(tmp_path / name, changes)
    assert model_of(tmp_path / "one/run") == model_of(tmp_path / "two/run")


ALONE = {
    "fedprox": {"mu": MU},
    "scaffold": {"lr_global": 0.5},
    "momentum": {"gamma": 0.5},
    "feddyn": {"alpha": 0.3},
    "fednova": {"max_epochs": 3},
}


@pytest.mark.parametrize("name", ALONE)
def test_one_method_alone_is_that_method(tmp_path, name):
    task = make_task(UNEQUAL)
    single = {"method.name": name, **{f"method.{k}": v for k, v in ALONE[name].items()}}
    chained = {**CHAIN, **{f"method.methods.{name}.{k}": v for k, v in ALONE[name].items()}}
    runs = [
        raysim.run(make_settings(tmp_path / str(number), **changes), task)
        for number, changes in enumerate((single, chained))
    ]
    assert model_of(runs[0].run_dir) == model_of(runs[1].run_dir)
    tables = [
        run.metrics.drop_columns([n for n in run.metrics.column_names if n.endswith("seconds")])
        for run in runs
    ]
    assert tables[0].equals(tables[1])


def test_no_method_is_fedavg(tmp_path):
    for name in ("fedavg", "chain"):
        raysim.run(make_settings(tmp_path / name, **{"method.name": name}), make_task(UNEQUAL))
    assert model_of(tmp_path / "fedavg") == model_of(tmp_path / "chain")


class SendsChange(FedAvg):
    """FedAvg of changes, which moves the model before the round."""

    bases: ClassVar = {"change": CHANGE}

    def rules(self):
        return raysim.Rules(finish=lambda view, trained: raysim.Upload())

    def server_update(self, now, state, reduced):
        return state


@pytest.mark.parametrize("last", ["fednova", f"{__name__}:SendsChange"])
@pytest.mark.parametrize("other", ["fedasync", "scaffold", "feddyn"])
@pytest.mark.parametrize("between", [(), ("fedmax",)])
def test_no_method_drops_the_model_of_one_before_it(other, between, last):
    message = (
        f"^method.methods: {other} cannot stand before {last}, which moves the model before the"
        f" round and would drop the model of {other}; put {last} before {other}$"
    )
    with pytest.raises(raysim.SettingsError, match=message):
        Chain(methods={name: {} for name in (other, *between, last)})
    put = (*between, last, other)
    assert [*Chain(methods={name: {} for name in put}).methods] == [*put]


@pytest.mark.parametrize("alpha", [0.1, 1.0])
def test_fedasync_mixes_in_what_fednova_makes(tmp_path, alpha):
    """FedNova's model of one client that is not stale is the client's."""
    own, ends = {"fedasync": {"alpha": alpha, "concurrency": 1}}, []
    for name, methods in (("both", {"fednova": {}, **own}), ("alone", own)):
        result, *_ = run(tmp_path / name, rounds=4, **CHAIN, **{"method.methods": methods})
        ends.append(result.params)
    assert_close(ends[0], [ends[1][name].numpy() for name in NAMES])


class Rated(FedAvg):
    """FedAvg with a rate of its server, whose update takes the means of all that it is given."""

    server_rate: ClassVar = "eta"
    eta: float = 1.0

    def server_update(self, now, state, reduced):
        return super().server_update(now, state, reduced)


class Doubting(Rated):
    """FedAvg with a group of its own, which keeps what it has in the first round."""

    server_rate: ClassVar = ""
    bases: ClassVar = {"model": "model", "seen": CHANGE}

    def init(self, network):
        return super().init(network).replace(seen={"seen": torch.zeros(1)})

    def rules(self):
        return raysim.Rules(finish=self._finish)

    def _finish(self, view, trained):
        return raysim.Upload(sums={"model": view.params, "seen": {"seen": torch.ones(1)}})

    def server_update(self, now, state, reduced):
        return state if not now.number else super().server_update(now, state, reduced)


@pytest.mark.parametrize("number", [0, 1])
@pytest.mark.parametrize("names", [("own",), ("own", "scaffold"), ("scaffold", "own")], ids=str)
def test_each_method_makes_the_next_state_of_its_groups_alone(names, number):
    """One may leave all as it is, or take the mean of every group that it is given."""
    chained = Chain(methods={name_of(Doubting) if n == "own" else n: {} for n in names})
    state = chained.init(SmallNet())
    model, seen = state.groups["model"], number * 5.0
    c = {name: torch.ones_like(tensor) for name, tensor in state.groups.get("c", {}).items()}
    means = {"model": {n: t + 1 for n, t in model.items()}, "seen": {"seen": torch.tensor([5.0])}}
    reduced = raysim.Reduced((0, 1), {**means, **({"c": c} if c else {})}, {}, {})
    now = SimpleNamespace(number=number, clients=4, server_lr=1.0)
    after = chained.server_update(now, state, reduced).groups
    torch.testing.assert_close(after["model"], {n: t + number for n, t in model.items()})
    assert after["seen"] == {"seen": seen}
    assert all((tensor == 0.5).all() for tensor in after.get("c", {}).values())


class Uniform(FedAvg):
    """FedAvg that deploys another model, and needs stages."""

    weighting = "uniform"
    staged = True

    def deployed(self, state):
        return {name: 2 * tensor for name, tensor in state.groups["model"].items()}

    def deployment(self, now, state):
        return raysim.Pass(now.cohort, {})


class Claiming(FedAvg):
    """FedAvg with a claim of privacy."""

    @property
    def privacy(self):
        return Gaussian().privacy


class Weighted(FedAvg):
    """FedAvg whose mean is by examples."""

    weighting = "examples"


class Other(Uniform):
    """A second method with hooks of its own."""


class SecondC(FedAvg):
    """FedAvg with a group that has the name of SCAFFOLD's."""

    def init(self, network):
        return super().init(network).replace(c={"c": torch.zeros(1)})


class Averaged(FedAvg):
    """FedAvg that needs another optimizer than SCAFFOLD, and deploys what its own pass makes."""

    needs_local: ClassVar = {"optimizer": "adam"}

    def deployment_after(self, now, state):
        return [raysim.Pass(now.cohort, self.broadcast(state))]


class RoundOfItsOwn(FedAvg):
    """FedAvg with a round of its own."""

    def round(self, now, state):
        yield from ()
        return state, {}


def name_of(kind):
    return f"{__name__}:{kind.__name__}"


def test_a_method_that_has_other_bits_raises_the_revision(monkeypatch):
    both, revisions = Chain(methods={"scaffold": {}, "fedprox": {}}), []
    for revision in (1, 3):
        monkeypatch.setattr(FedProx, "revision", revision)
        revisions.append(both.revision)
    assert revisions == [1, 3]


JOINED = {name for name, join in FedAvg._joined.items() if join is first}


@pytest.mark.parametrize("name", sorted(JOINED - {"weighting", "server_lr"}))
def test_a_chain_states_what_a_method_does(monkeypatch, name):
    """Whatever it is, and whichever of them does."""
    monkeypatch.setattr(FedProx, name, "said")
    for others in ({}, {"scaffold": {}}):
        assert getattr(Chain(methods={**others, "fedprox": {}}), name) == "said"
        assert getattr(Chain(methods=others), name) == getattr(FedAvg(), name)


def test_nothing_that_a_method_states_is_dropped_by_a_chain():
    """It is joined, or the method is refused; others are of a chain's own code."""
    stated = {
        name
        for kind in (raysim.Method, FedAvg)
        for name in vars(kind)
        if isinstance(vars(kind)[name], property) or name in kind.__annotations__
    }
    stated |= {"revision", "columns"}  # as every component
    refused = {"privacy", "selection", "server_rule", "pooled"}
    own = {"server_rate", "sending", "bases", "compares", "needs_pulls"}
    joined = {name for name, join in FedAvg._joined.items() if join is not only}
    assert {n for n in stated if n[0] != "_"} == {*joined, *refused, *own}


def test_round_state_is_of_all_methods(monkeypatch):
    monkeypatch.setattr(FedProx, "round_state_bytes", lambda self, state: 5)
    chained = Chain(methods={"fedprox": {}, "scaffold": {}})
    assert chained.round_state_bytes(raysim.ServerState({})) == 5


def test_hooks_come_from_the_method_that_has_them():
    chained = Chain(methods={"fedprox": {}, name_of(Uniform): {}})
    assert chained.staged and not Chain(methods={"fedprox": {}}).staged
    assert [c.deploys_client_models for c in (chained, Chain(methods={"fedprox": {}}))] == [
        True,
        False,
    ]
    work = chained.deployment(SimpleNamespace(cohort=(3,)), raysim.ServerState({}))
    assert work == raysim.Pass((3,), {})
    assert chained.deployed(raysim.ServerState({"model": {"w": 3}})) == {"w": 6}


def test_what_a_method_deploys_after_training_is_not_that_of_a_chain():
    for names, passes in ((("fedprox",), 1), (("fedprox", name_of(Averaged)), 0)):
        chained = Chain(methods={name: {} for name in names})
        now = SimpleNamespace(cohort=(1,), epochs=1, lr=0.1)
        assert len(chained.deployment_after(now, chained.init(SmallNet())) or ()) == passes


def test_methods_with_groups_of_the_same_name_are_refused(tmp_path):
    message = "^method.methods: two methods each have 'c' in their server state$"
    methods = {"method.methods": {"scaffold": {}, name_of(SecondC): {}}}
    settings = make_settings(tmp_path / "run", **CHAIN, **methods)
    with pytest.raises(raysim.SettingsError, match=message):
        raysim.run(settings, make_task((5, 6)))
    assert not (tmp_path / "run").exists()


MIXED = "method.methods"
REFUSED = {
    "value": ({f"{MIXED}.fedprox.mu": -1}, f"{MIXED}.fedprox.mu=-1: must be greater than or equal"),
    "type": ({f"{MIXED}.fedprox.mu": "x"}, f'{MIXED}.fedprox.mu="x": must be a valid number'),
    "field": (
        {f"{MIXED}.fedprox.mus": 1},
        f"{MIXED}.fedprox.mus: no such setting; did you mean '{MIXED}.fedprox.mu'",
    ),
    "name": ({f"{MIXED}.fedproxx": {}}, f"{MIXED}.fedproxx: .*did you mean 'fedprox'"),
    "start": (
        {f"{MIXED}.local": {}, f"{MIXED}.fedper": {}},
        "^method.methods: local and fedper each set the start of local training; ",
    ),
    "claim": ({MIXED: {name_of(Claiming): {}}}, "Claiming: cannot be chained: it claims privacy,"),
    "round": ({f"{MIXED}.fsvrg": {}}, f"{MIXED}.fsvrg: cannot be chained"),
    "own round": ({MIXED: {name_of(RoundOfItsOwn): {}}}, "RoundOfItsOwn: cannot be chained"),
    "chain": ({f"{MIXED}.chain": {}}, f"{MIXED}.chain: cannot be chained"),
    "no settings": ({f"{MIXED}.fedprox": 3}, f"{MIXED}.fedprox=3: must be its settings; {{}} for"),
    "no mapping": ({MIXED: ["fedprox"]}, f"{MIXED}=.*must map each method to its settings"),
    "server rule": (
        {f"{MIXED}.fedadam": {}},
        f"{MIXED}.fedadam: cannot be chained: .*; set server.name=adam in its place$",
    ),
    "pooled": ({f"{MIXED}.centralized": {}}, f"{MIXED}.centralized: .*: it has no clients$"),
    "rates": (
        {MIXED: {"scaffold": {}, name_of(Rated): {}}},
        f"{MIXED}: scaffold and .*Rated each have a learning rate of the server$",
    ),
    "hooks": ({MIXED: {name_of(Uniform): {}, name_of(Other): {}}}, "each set their own deployed"),
    "needs": (
        {MIXED: {"scaffold": {}, name_of(Averaged): {}}},
        "scaffold needs local.optimizer=sgd, .*Averaged needs local.optimizer=adam; leave one of",
    ),
    "weighting": (
        {MIXED: {name_of(Uniform): {}, name_of(Weighted): {}}},
        "two methods each set the weighting",
    ),
    "rules": (
        {MIXED: {"fedprox": {}, "raysim.methods.fedprox:FedProx": {}}},
        f"{MIXED}: rules: transforms and companions must have different names",
    ),
}


@pytest.mark.parametrize("case", REFUSED)
def test_bad_settings_are_refused_in_one_line(case):
    overrides, message = REFUSED[case]
    with pytest.raises(raysim.SettingsError, match=message) as caught:
        raysim.load_config("mnist-fedavg", {**CHAIN, **overrides})
    assert str(caught.value).startswith("method.methods")


def test_settings_round_trip_in_their_order():
    overrides = {**CHAIN, **SCAFFOLD, f"{MIXED}.momentum": {}, **PROX}
    settings = raysim.load_config("mnist-fedavg", overrides)
    assert list(settings.method.methods) == ["scaffold", "momentum", "fedprox"]
    assert settings.method.methods["fedprox"] == FedProx(mu=MU)
    again = parse(json.loads(json.dumps(settings.to_dict())))
    assert again == settings and list(again.method.methods) == list(settings.method.methods)
    changed = settings.override({f"{MIXED}.fedprox.mu": 2})
    assert changed.method.methods["fedprox"].mu == 2 and len(changed.method.methods) == 3
    assert settings.override({"method.name": "fedprox"}).method == FedProx()


def test_overrides_apply_in_any_order():
    """A field may stand before the name of its component, or before its group."""
    overrides = {f"{MIXED}.fedprox.mu": 0.5, f"{MIXED}.scaffold": {}, "method.name": "chain"}
    methods = raysim.load_config("mnist-fedavg", overrides).method.methods
    assert list(methods) == ["fedprox", "scaffold"] and methods["fedprox"].mu == 0.5
    overrides = {
        f"{MIXED}.fedprox.mu": 0.5,
        MIXED: {"fedprox": {"mu": 1}},
        "method": {"name": "chain", "methods": {}},
    }
    assert raysim.load_config("mnist-fedavg", overrides).method.methods["fedprox"].mu == 0.5
