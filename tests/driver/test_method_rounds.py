"""Rounds as generators: what a method's `round` may yield, return and catch, and is refused."""

from __future__ import annotations

import re
from dataclasses import replace
from typing import Any

import pytest
import torch
from pydantic import PrivateAttr

import raysim
from raysim.methods.fedavg import FedAvg
from raysim.numbers.tensors import CPU
from raysim.storage.client_states import ClientStates
from tests.tasks import EQUAL, StopAfter, make_settings, make_task

FORM = (
    "; must yield each pass, `reduced = yield Pass(...)`, and return the next ServerState and a"
    " dict of metrics"
)
seen: list[Any] = []


class Plain(FedAvg):
    """FedAvg whose round is a function."""

    def round(self, now, state):
        return state, {}


class YieldsWords(FedAvg):
    """FedAvg that yields what is no pass."""

    def round(self, now, state):
        try:
            yield "clients"
        finally:
            seen.append("closed")


class ReturnsWords(FedAvg):
    """FedAvg that returns what is no state."""

    def round(self, now, state):
        yield self.training_pass(now, state)
        return "state"


class Fails(FedAvg):
    """FedAvg that fails between two passes."""

    def round(self, now, state):
        yield self.training_pass(now, state)
        raise KeyError("weights")


class Counts(FedAvg):
    """FedAvg that keeps a number for itself."""

    def round(self, now, state):
        self._count = 1
        return (yield from super().round(now, state))


class Private(FedAvg):
    """FedAvg with a private attribute."""

    _seen: list[int] = PrivateAttr(default_factory=list)


class History(FedAvg):
    """FedAvg with an attribute that is no setting."""

    def __init__(self, **fields):
        super().__init__(**fields)
        self.history = []


class Forgets(FedAvg):
    """FedAvg that takes a pass for its result."""

    def round(self, now, state):
        yield self.training_pass(now, state)
        return self.server_update(now, state, self.training_pass(now, state)), {}


class ForgetsFrom(FedAvg):
    """FedAvg that takes a generator for what it returns."""

    def round(self, now, state):
        reduced = yield self.training_pass(now, self.before_training(now, state))
        return self.server_update(now, state, reduced), {}


class Unpacks(FedAvg):
    """FedAvg that unpacks the generator of its base."""

    def round(self, now, state):
        after, metrics = super().round(now, state)
        return after, metrics


class UnpacksLate(FedAvg):
    """The same, in a generator, behind a pass."""

    def round(self, now, state):
        yield self.training_pass(now, state)
        after, metrics = super().round(now, state)
        return after, metrics


class UnpacksOwn(FedAvg):
    """FedAvg that unpacks a generator of its own, which fails."""

    def round(self, now, state):
        yield self.training_pass(now, state)
        share, scale = self.shares()
        return state.replace(), {"share": share / scale}

    def shares(self):
        yield 1.0
        raise ValueError("of its own")


class HandsOn(FedAvg):
    """FedAvg that returns the generator of its base beside metrics."""

    def round(self, now, state):
        return super().round(now, state), {}


class HandsOnLate(FedAvg):
    """The same, in a generator."""

    def round(self, now, state):
        yield self.training_pass(now, state)
        return super().round(now, state), {}


class Takes(FedAvg):
    """FedAvg that takes the generator of its base for the state."""

    def round(self, now, state):
        after = super().round(now, state)
        return after.replace(), {}


class YieldsIt(FedAvg):
    """FedAvg that yields the generator of its base."""

    def round(self, now, state):
        return (yield super().round(now, state))


TAKEN = "{.*}; write `state, metrics = yield from super().round(now, state)`, which yields"


@pytest.mark.parametrize(
    ("kind", "message"),
    [
        (Unpacks, f"round takes a generator for what it returns (line {TAKEN}"),
        (UnpacksLate, f"round takes a generator for what it returns (line {TAKEN}"),
        (UnpacksOwn, "round failed: ValueError: of its own (test_method_rounds.py, line"),
        (HandsOn, f"round returned (<generator {TAKEN}"),
        (HandsOnLate, f"round returned (<generator {TAKEN}"),
        (YieldsIt, f"round yielded <generator {TAKEN}"),
        (Takes, "round failed: AttributeError: {.*}yielded by it: state = yield from"),
        (Plain, f"round returned (ServerState(groups={{{{.*}}}}{{.*}}{FORM}"),
        (YieldsWords, f"round yielded 'clients'{FORM}"),
        (ReturnsWords, "round returned 'state'; must return the next ServerState and a dict of"),
        (Fails, "round failed: KeyError: 'weights' (test_method_rounds.py, line"),
        (Counts, "sets _count, which a resumed run would lose: what lasts belongs in ServerState"),
        (History, "sets history, which a resumed run would lose: what lasts belongs in Server"),
        (Forgets, "round failed: AttributeError: {.*}; a pass has a result where it is yielded"),
        (ForgetsFrom, "round failed: AttributeError: {.*}(test_method_rounds.py, line {.*}yield f"),
        (Private, "has _seen, which a resumed run would lose: what lasts belongs in ServerState"),
    ],
    ids=lambda given: getattr(given, "__name__", ""),
)
def test_what_no_round_may_do_is_one_line(tmp_path, kind, message):
    seen.clear()
    name = f"{__name__}:{kind.__name__}"
    with pytest.raises(raysim.SettingsError) as caught:
        raysim.run(make_settings(tmp_path, **{"method.name": name}), make_task(EQUAL))
    text = str(caught.value)
    expected = map(re.escape, f"method.name={name}: {message}".split("{.*}"))
    assert re.match(".*".join(expected), text) and "\n" not in text
    assert {*seen} == ({"closed"} if kind is YieldsWords else set())


def flat(state, means):
    return {name: tensor.flatten() for name, tensor in means.items()}


def without_a_bias(state, means):
    return {name: tensor for name, tensor in means.items() if name != "head.bias"}


def with_one_more(state, means):
    return {**means, "extra": means["head.bias"]}


def uncast(state, means):
    return {name: tensor + state[name].double() for name, tensor in means.items()}


def whole(state, means):
    return {name: tensor.long() for name, tensor in means.items()}


def arrays(state, means):
    return {name: tensor.numpy() for name, tensor in means.items()}


def sparse(state, means):
    return {name: tensor.to_sparse() for name, tensor in means.items()}


def nested(state, means):
    whole = [torch.ones(2), torch.ones(3)]
    return {**means, "head.bias": torch.nested.nested_tensor(whole, layout=torch.jagged)}


def meta(state, means):
    return {name: tensor.to("meta") for name, tensor in means.items()}


def divided(state, means):
    return {name: tensor / 0 for name, tensor in means.items()}


def into_the_given(state, means):
    for name, tensor in means.items():
        state[name].copy_(tensor)
    return means


def by_numpy(state, means):
    for name, tensor in means.items():
        state[name].numpy()[...] = tensor.numpy()
    return means


def into_the_mapping(state, means):
    state.update(means)
    return means


class Returns(FedAvg):
    """FedAvg whose server makes a model of its own."""

    made: str = "flat"

    def server_update(self, now, state, reduced):
        if self.made in ("slash", "nan"):
            groups = {**state.groups, **({"a/b": {}} if self.made == "slash" else {})}
            return raysim.ServerState(groups, {"sum": float("nan")})
        model = globals()[self.made](state.groups["model"], reduced.means["model"])
        return state.replace(model=model)


class OwnRound(Returns):
    """The same in a round of its own."""

    def round(self, now, state):
        reduced = yield self.training_pass(now, state)
        return self.server_update(now, state, reduced), {}


STATES = {
    "flat": "'model/head.weight' of the shape [48]; must be of [3, 16], unless the class states",
    "without_a_bias": "no tensor 'model/head.bias'",
    "with_one_more": "a tensor 'model/extra', which the model lacks",
    "uncast": "'model/head.bias' in float64; must be in float32: tensor.to(torch.float32)",
    "whole": "'model/head.bias' in int64; must be in float32",
    "arrays": "'model/{.*}' of the type ndarray; must be a torch.Tensor",
    "sparse": "'model/{.*}' as a tensor that is sparse_coo; must be a dense one",
    "nested": "'model/head.bias' as a tensor that is nested; must be a dense one",
    "meta": "'model/{.*}' on the device meta, without values; must have some",
    "divided": "a value that is not finite (tensor model/",
    "slash": "a group 'a/b'; must have a name, without '/'",
    "nan": "info that JSON cannot hold",
    "into_the_given": "round changes the state that it is given in place (model/",
    "by_numpy": "round changes the state that it is given in place (model/",
    "into_the_mapping": "round changes the state that it is given in place (model/",
}


@pytest.mark.parametrize(
    ("kind", "made"),
    [(kind, made) for kind in ("Returns", "OwnRound") for made in STATES],
)
def test_a_state_that_cannot_be_gone_on_with_is_one_line(tmp_path, kind, made):
    """A round keeps the shapes of the model, unless its method says that it changes them."""
    name, function = f"{__name__}:{kind}", "round" if kind == "OwnRound" else "server_update"
    settings = make_settings(tmp_path, **{"method.name": name, "method.made": made})
    with pytest.raises(raysim.RaysimError) as caught:
        raysim.run(settings, make_task(EQUAL))
    says = STATES[made].split("{.*}")
    line = f"method.name={name}: {function} returned {'a state with ' * (made != 'divided')}"
    line = f"method.name={name}: " if "given in place" in STATES[made] else line
    assert re.match(re.escape(line) + ".*".join(map(re.escape, says)), str(caught.value))


@pytest.mark.parametrize("method", ["LateInPlace", "LateInMemory"])
def test_a_state_changed_in_place_is_not_checkpointed(method, tmp_path):
    """What the second round has changed is no state of the first, with which others could go on."""
    name = {"method.name": f"{__name__}:{method}", "checkpoint_every": 9}
    heard = Heard()
    with pytest.raises(raysim.SettingsError, match="changes the state that it is given in place"):
        raysim.run(make_settings(tmp_path, rounds=3, **name), make_task(EQUAL), heard)
    assert not [*(tmp_path / "checkpoints").glob("round_*")]
    assert any("the last rounds are not checkpointed" in each for each in heard.notes)


class Heard(raysim.Listener):
    """Listener that keeps the notes."""

    def __init__(self) -> None:
        self.notes: list[str] = []

    def note(self, text):
        self.notes.append(text)


class LateInPlace(FedAvg):
    """FedAvg that changes the given state in its second round."""

    def server_update(self, now, state, reduced):
        if now.number:
            state.groups["model"]["head.bias"].zero_()
        return super().server_update(now, state, reduced)


class LateInMemory(FedAvg):
    """The same through NumPy, which leaves torch's versions as they are."""

    def server_update(self, now, state, reduced):
        if now.number:
            state.groups["model"]["head.bias"].numpy()[:] = 0
        return super().server_update(now, state, reduced)


class Catches(FedAvg):
    """FedAvg that trains the clients one by one, and goes on without those that fail."""

    def round(self, now, state):
        means = []
        for client in now.cohort:
            own = {client: {"odd": {"n": torch.ones(1)}}} if client % 2 else {}
            work = replace(self.training_pass(now, state), clients=[client], personal=own)
            try:
                reduced = yield work
            except raysim.RunError as error:
                seen.append(str(error))
            else:
                means.append(reduced.means["model"])
        mean = {name: sum(each[name] for each in means) / len(means) for name in means[0]}
        return state.replace(model=mean), {"failed": now.clients - len(means)}

    def rules(self):
        return raysim.Rules(start=fail_at_odd)


class Retries(FedAvg):
    """FedAvg whose first pass in each round fails, and is followed by one of other tensors."""

    def client_init(self, state):
        return {"own": {"n": torch.zeros(1)}}

    def round(self, now, state):
        model = state.groups["model"]
        for value, fails in ((3.0, True), (7.0, False)):
            groups = {"model": {name: t * 0 + value for name, t in model.items()}}
            finish = fail_but_first if fails else count_up
            rules = raysim.Rules(finish=finish)
            try:
                reduced = yield raysim.Pass(now.cohort, groups, rules)
            except raysim.RunError:
                assert fails
        return state.replace(model=reduced.means["model"]), {}


def fail_but_first(view, trained):
    if view.client:
        raise ValueError("not the first")
    return raysim.Upload(sums={"model": view.params}, state={"own": {"n": torch.ones(1) * 100}})


def count_up(view, trained):
    own = {"own": {"n": view.state["own"]["n"] + 1}}
    return raysim.Upload(sums={"model": view.params}, state=own)


@pytest.mark.parametrize("vectorize", [0, 3])
def test_a_pass_after_one_that_failed_has_tensors_and_states_of_its_own(tmp_path, vectorize):
    options = {"rounds": 3, "fraction": 1.0, "engine.vectorize": vectorize}
    settings = make_settings(tmp_path, **options, **{"method.name": f"{__name__}:Retries"})
    result = raysim.run(settings, make_task(EQUAL))
    assert all(bool((tensor == 7).all()) for tensor in result.params.values())
    states = ClientStates(tmp_path / "clients")
    for client in range(len(EQUAL)):
        (newest, *_) = sorted(states.versions(client), reverse=True)
        assert states.read(client, newest, CPU)["own"]["n"] == 3
        assert {version.pass_number for version in states.versions(client)} == {1}


def fail_at_odd(broadcast, state, personal):
    if personal:
        raise ValueError("odd")
    return broadcast["model"]


def test_an_error_of_a_pass_is_raised_where_it_was_yielded(tmp_path):
    seen.clear()
    settings = make_settings(
        tmp_path,
        rounds=1,
        fraction=1.0,
        **{"method.name": f"{__name__}:Catches"},
    )
    result = raysim.run(settings, make_task(EQUAL))
    own = [text for text in seen if "in a rehearsal" not in text]
    assert [text.partition(" (")[0] for text in own] == [
        f"client {client}: failed twice in round 1: ValueError: odd" for client in (1, 3, 5)
    ]
    assert result.metrics["failed"].to_pylist() == [3]


class Cleans(FedAvg):
    """FedAvg that says how each of its rounds ended."""

    def round(self, now, state):
        try:
            result = yield from super().round(now, state)
        except BaseException as error:
            seen.append(type(error).__name__)
            raise
        seen.append("returned")
        return result


class Stops(raysim.Listener):
    """Listener that interrupts the second round as it trains."""

    def __init__(self) -> None:
        self._rounds = 0

    def progress(self, done: int, clients: int) -> None:
        self._rounds += done == clients
        if self._rounds == 2:
            raise KeyboardInterrupt


def test_an_interruption_is_raised_where_the_pass_was_yielded(tmp_path):
    seen.clear()
    settings = make_settings(tmp_path, **{"method.name": f"{__name__}:Cleans"})
    with pytest.raises(KeyboardInterrupt):
        raysim.run(settings, make_task(EQUAL), Stops())
    in_rounds = [end for end in seen if end != "GeneratorExit"]  # checks take the first pass alone
    assert in_rounds == ["returned", "returned", "KeyboardInterrupt"]  # the rehearsal's comes first


class Orders(FedAvg):
    """FedAvg that notes in which order the tensors of its state come."""

    def server_update(self, now, state, reduced):
        seen.append([*state.groups["model"]])
        return super().server_update(now, state, reduced)

    def metrics(self, state):
        seen.append([*state.groups["model"]])
        return {}


class OrdersToo(raysim.ServerRule):
    """The same of what a rule of the server is given."""

    keeps = ("m",)

    def step(self, params, mean, kept):
        seen.extend([*tensors] for tensors in (params, mean, kept["m"]))
        return mean, kept


def test_a_state_has_one_order_whether_its_run_was_resumed_or_not(tmp_path):
    """Sums in that order have the same last bits."""
    own = {"method.name": f"{__name__}:Orders", "server.name": f"{__name__}:OrdersToo"}
    seen.clear()
    with pytest.raises(KeyboardInterrupt):
        raysim.run(make_settings(tmp_path / "run", **own), make_task(EQUAL), StopAfter(2))
    raysim.resume(tmp_path / "run", make_task(EQUAL))
    assert all(names == sorted(names) for names in seen) and len(seen) == 5 * 4
