"""Recorded steps of methods that change the objective: the same bits, and what is not recorded."""

from __future__ import annotations

import copy
from functools import partial
from itertools import repeat

import pytest
import torch
from torch import Tensor, nn

import raysim
from raysim.api.rules import Rules, Transform
from raysim.methods.activation_l2 import ActivationL2
from raysim.methods.fedavg import FedAvg
from raysim.methods.fedmax import FedMax
from raysim.methods.fedmmd import FedMmd
from raysim.methods.fedprox import FedProx
from raysim.methods.mifl import Mifl
from raysim.methods.two_stream_l2 import TwoStreamL2
from raysim.training.rule_keys import key_of_function, key_of_rules
from tests.training.test_recorded_steps import (
    CLASSES,
    assert_same_bits,
    clients,
    found,
    plain,
    soon,
    train,
    trainer_of,
)

__all__ = ["soon"]  # a fixture that all tests here use
METHODS = {
    "fedmax": FedMax(beta=10.0),
    "fedmax-q_u": FedMax(beta=10.0, direction="q_u"),
    "activation_l2": ActivationL2(beta=0.1),
    "activation_l2-samples": ActivationL2(beta=0.1, per_sample=True),
    "fedmmd": FedMmd(lam=2.0),
    "fedmmd-adaptive": FedMmd(lam=2.0, kernel="adaptive"),
    "two_stream_l2": TwoStreamL2(lam=0.5),
    "two_stream_l2-weights": TwoStreamL2(lam=0.5, space="weights"),
    "mifl": Mifl(),
    "fedprox": FedProx(mu=0.5),
    "fedprox-mean": FedProx(mu=0.5, reduction="mean"),
}
SIZES = (23, 9, 23, 23)


class Staged(nn.Module):
    def __init__(self, dropout=0.3):
        super().__init__()
        self.features = nn.Sequential(nn.Linear(12, 8), nn.BatchNorm1d(8), nn.Dropout(dropout))
        self.hidden = nn.Sequential(nn.ReLU(), nn.Linear(8, 6), nn.ReLU())
        self.head = nn.Linear(6, CLASSES)

    def forward(self, x):
        return self.head(self.hidden(self.features(x)))


def staged():
    torch.manual_seed(0)
    return Staged()


def finished_as_fedavg(rules):
    """The same rules of steps, with FedAvg's upload."""
    return Rules(criterion=rules.criterion, penalties=rules.penalties, transforms=rules.transforms)


def own_models(module):
    """States of clients: none, and another model of the client's own for each that follows."""
    yield {}
    for seed in range(1, len(SIZES)):
        own = copy.deepcopy(module)
        with torch.no_grad():
            for p in own.parameters():
                p.add_(torch.randn(p.shape, generator=torch.Generator().manual_seed(seed)))
        tensors = {n: p.detach() for n, p in own.named_parameters()} | dict(own.named_buffers())
        yield {"model": tensors}


@pytest.mark.parametrize("local", [{}, {"temperature": 0.5, "momentum": 0.9}], ids=["", "hot"])
@pytest.mark.parametrize("method", METHODS)
def test_recorded_steps_of_methods_have_the_bits_of_the_steps(method, local):
    module, rules = staged(), finished_as_fedavg(METHODS[method].rules())
    states = list(own_models(module) if method == "mifl" else repeat({}, len(SIZES)))
    scripted, stepped = trainer_of(module, **local), plain(trainer_of(module, **local))
    data = list(clients("dense", SIZES))
    results = train(scripted, data, rules, states=states)
    assert all(found(scripted)) and len(found(scripted)) >= 2
    assert_same_bits(results, train(stepped, data, rules, states=states))


def test_scripts_are_of_the_settings_of_a_method():
    module, data = staged(), list(clients("dense", SIZES))
    scripted, stepped = trainer_of(module), plain(trainer_of(module))
    for beta in (1.0, 100.0, 1.0):
        rules = FedMax(beta=beta).rules()
        assert_same_bits(train(scripted, data, rules), train(stepped, data, rules))
    assert len(scripted.recorded._kinds) == 2 and all(found(scripted))


def start_from_either(broadcast, state, personal):
    return state["model"] if state["own"]["start"] else broadcast["model"]


def distances(view, outputs, batch):
    """Not the same where a client starts from the broadcast model and where from its own."""
    broadcast, moved = view.broadcast["model"], [view.params[n] - view.start[n] for n in NAMES]
    pairs = zip(NAMES, moved, strict=True)
    squares = [(view.start[n] - broadcast[n]).square().sum() * m.sum() for n, m in pairs]
    return torch.stack(squares).sum()


NAMES = ("features.0.weight", "hidden.1.weight", "head.weight")


def test_scripts_are_of_tensors_that_are_the_same_in_two_groups():
    """Clients start from the broadcast model or from their own; both are always there."""
    module, data = staged(), list(clients("dense", SIZES))
    own = next(state["model"] for state in own_models(module) if state)
    rules = Rules(start=start_from_either, penalties=(distances,))
    scripted, stepped = trainer_of(module), plain(trainer_of(module))
    states = [{"model": own, "own": {"start": torch.tensor(k % 2)}} for k in range(len(SIZES))]
    results = train(scripted, data, rules, states=states)
    assert_same_bits(results, train(stepped, data, rules, states=states))
    assert all(found(scripted)) and len(scripted.recorded._kinds) == 2


class Mine(FedAvg):
    """A user's method whose penalty reads what no script can follow."""

    def penalty(self, view, outputs, batch):
        return outputs.logits.square().mean() if view.gradient else outputs.logits.sum()


def scaled_loss(factor, view, outputs, batch):
    return factor * batch.loss(outputs.logits)


class Holder:
    def penalty(self, view, outputs, batch):
        return outputs.logits.square().mean()


def local_penalty():
    return lambda view, outputs, batch: outputs.logits.square().mean()


@pytest.mark.parametrize(
    "penalty",
    [
        *(lambda view, outputs, batch: outputs.logits.mean(), local_penalty(), Holder().penalty),
        *(partial(scaled_loss, torch.ones(())), partial(local_penalty()), Mine().penalty),
    ],
)
def test_what_a_script_cannot_follow_is_not_recorded(penalty):
    module, rules, data = staged(), Rules(penalties=(penalty,)), list(clients("dense"))
    scripted, stepped = trainer_of(module), plain(trainer_of(module))
    assert_same_bits(train(scripted, data, rules), train(stepped, data, rules))
    assert not any(found(scripted))


def test_partials_of_constants_are_recorded():
    module, data = staged(), list(clients("dense"))
    scripted, stepped = trainer_of(module), plain(trainer_of(module))
    for factor in (2.0, 3.0, 2.0):
        rules = Rules(criterion=partial(scaled_loss, factor))
        assert_same_bits(train(scripted, data, rules), train(stepped, data, rules))
    assert len(scripted.recorded._kinds) == 2 and all(found(scripted))


def test_keys():
    first, second = FedMax(beta=2.0), FedMax(beta=2.0)
    assert key_of_rules(first.rules()) == key_of_rules(second.rules())
    assert key_of_rules(first.rules()) != key_of_rules(FedMax(beta=3.0).rules())
    assert key_of_rules(first.rules()) != key_of_rules(Rules())
    assert key_of_rules(Rules(criterion=distances)) != key_of_rules(Rules(penalties=(distances,)))
    later, sooner = (Transform("t", distances, after_momentum=after) for after in (True, False))
    assert key_of_rules(Rules(), [later]) != key_of_rules(Rules(), [sooner])
    assert key_of_function(distances) == (__name__, "distances")
    assert key_of_function(partial(scaled_loss, 1)) != key_of_function(partial(scaled_loss, 1.0))
    given = [key_of_function(partial(scaled_loss, each)) for each in (distances, scaled_loss)]
    assert None not in given and given[0] != given[1]
    several = [key_of_function(partial(scaled_loss, (each, None, 2))) for each in (distances, len)]
    assert several[0] not in (None, given[0]) and several[1] is None
    assert key_of_function(Tensor.add) is None and key_of_function(raysim.Rules) is None
