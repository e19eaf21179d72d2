"""FedProto against NumPy: prototypes of classes, and models of each client's own."""

from __future__ import annotations

from types import SimpleNamespace

import numpy as np
import pytest
import torch

import raysim
from raysim.methods.fedproto import FedProto
from raysim.testing.tasks import SmallNet
from tests.methods import common
from tests.methods.common import outputs, pull_back
from tests.methods.reference import BATCH, EPOCHS, SIZES, Reference, T
from tests.methods.test_fedrod import derivative
from tests.methods.test_oracle import assert_close
from tests.tasks import UNEQUAL, make_settings, make_task

LAM = 0.6
NAMES = ("hidden.0.weight", "hidden.0.bias", "head.layer.weight", "head.layer.bias")


class Slope:
    """The gradient of a client's objective, which gathers the features of each class.

    Attributes:
        means: Prototypes by class.
        found: Features by class.
    """

    def __init__(self, means, per_epoch, gather):
        self.means, self.per_epoch, self.gather = means, per_epoch, gather
        self.steps, self.found = 0, {}

    def __call__(self, w, x, y):
        if self.gather == "last_epoch" and self.steps % self.per_epoch == 0:
            self.found = {}
        self.steps += 1
        hidden, logits = outputs(w, x)
        for row, label in zip(hidden, y, strict=True):
            self.found.setdefault(int(label), []).append(row)
        apart = np.array([h - self.means.get(int(c), h) for h, c in zip(hidden, y, strict=True)])
        pull = LAM * 2 * apart / apart.size
        return pull_back(w, x, d_hidden=pull, d_logits=derivative(logits / T, y))


CASES = {
    "defaults": {},
    "samples": {"method.weights": "samples", "local.drop_last": True},
    "all-epochs": {"method.gather": "all_epochs"},
}


@pytest.mark.parametrize("stacked", [0, 2])
@pytest.mark.parametrize("case", CASES)
def test_rounds(tmp_path, case, stacked):
    given = {"method.name": "fedproto", "method.lam": LAM, **CASES[case]}
    run = Reference(tmp_path, {**given, "engine.vectorize": stacked, "evaluation.holdout": 0.2})
    drops = "local.drop_last" in given
    if drops:
        run.batches = batches_without_last(run)
    own, means = {}, {}
    for number, cohort in enumerate(run.cohorts):
        sent = {}
        for k in cohort:
            n = run.sizes[k]
            per_epoch = max(n // BATCH, 1) if drops else -(-n // BATCH)
            slope = Slope(means, per_epoch, given.get("method.gather", "last_epoch"))
            own[k] = run.train(own.get(k, run.start), number, k, slope)
            for label, rows in slope.found.items():
                sent.setdefault(label, []).append((np.mean(rows, 0), len(rows)))
        by_samples = given.get("method.weights") == "samples"
        means = means | {
            label: np.average([m for m, _ in each], 0, [n if by_samples else 1 for _, n in each])
            for label, each in sent.items()
        }
    states, params = common.newest_states(run.result.run_dir), run.result.params
    assert states.keys() == own.keys()
    for k, model in own.items():
        assert states[k].keys() == {f"own/{name}" for name in NAMES}
        assert_close(states[k], model, [f"own/{name}" for name in NAMES])
    assert params["head.known"].tolist() == [1, 1, 1]
    assert_close(
        {"means": params["head.means"]}, [np.array([means[c] for c in range(3)])], ["means"]
    )
    assert_close(params, run.start, NAMES)


def batches_without_last(run):
    """The batches of a run that leaves out an incomplete last one."""
    whole = run.batches

    def batches(number, index, client, epochs):
        n = run.sizes[client]
        return (b for b in whole(number, index, client, epochs) if len(b) == BATCH or n < BATCH)

    return batches


@pytest.mark.parametrize("local", [{}, {"local.momentum": 0.5, "local.epochs": 3}])
def test_without_strength_clients_train_alone(tmp_path, local):
    alone = {"method.name": "local"}
    proto = {"method.name": "fedproto", "method.lam": 0}
    states = []
    for number, given in enumerate((alone, proto)):
        settings = make_settings(tmp_path / str(number), **given, **local)
        states.append(common.newest_states(raysim.run(settings, make_task(UNEQUAL)).run_dir))
    assert states[0].keys() == states[1].keys()
    for k, state in states[0].items():
        for name, tensor in state.items():
            found = states[1][k][name.replace("head.", "head.layer.")]
            assert torch.equal(found, tensor), (k, name)


def deployed(method, network, means, known, own):
    """The network that a client with samples of the classes `own` deploys."""
    server = method.init(network)
    prototypes = {"head.means": means, "head.known": known}
    server = server.replace(prototypes=prototypes)
    work = method.deployment(SimpleNamespace(cohort=(0,)), server)
    assert not work.epochs and work.broadcast == {"prototypes": prototypes}
    samples = SimpleNamespace(y=torch.tensor(own))
    state = method.client_init(server) | work.rules.from_samples(work.broadcast, samples)
    network.load_state_dict(work.rules.start(work.broadcast, state, {}))
    return network.eval()


@pytest.mark.parametrize("classes", ["own", "all"])
def test_the_nearest_prototype_decides(classes):
    """Of a client without samples of class 0; class 3 has no prototype."""
    torch.manual_seed(0)
    method = FedProto(predict="prototype", classes=classes)
    network, x = method.network(SmallNet(classes=4)), 60 * torch.randn(40, 12)
    means, known = 30 * torch.randn(4, 16), torch.tensor([1.0, 1, 1, 0])
    found = deployed(method, network, means, known, [1, 2, 2, 3])(x)
    z = network.hidden(x).detach().numpy()
    allowed = [1, 2] if classes == "own" else [0, 1, 2]
    distances = np.square(z[:, None] - means.numpy()).mean(-1)
    assert distances.min() > 100  # the distance of classes without a prototype, in the code
    nearest = np.array(allowed)[distances[:, allowed].argmin(1)]
    assert found.argmax(1).tolist() == nearest.tolist() and len({*nearest}) > 1
    np.testing.assert_allclose(found[:, allowed].detach(), -distances[:, allowed], rtol=1e-4)


def test_the_head_decides_before_there_are_prototypes_and_by_default():
    means, none = torch.randn(3, 16), torch.zeros(3)
    for method, known in ((FedProto(predict="prototype"), none), (FedProto(), torch.ones(3))):
        network, x = method.network(SmallNet()), torch.randn(7, 12)
        found = deployed(method, network, means, known, [0, 1, 2])(x)
        assert torch.equal(found, network.head.layer(network.hidden(x)))


def test_one_logit_is_that_of_the_second_class():
    method = FedProto(predict="prototype", classes="all")
    network, x = method.network(SmallNet(classes=1)), torch.randn(7, 12)
    means = torch.randn(2, 16)
    found = deployed(method, network, means, torch.ones(2), [0])(x)
    apart = (network.hidden(x)[:, None] - means).square().mean(-1)
    assert torch.allclose(found, apart[:, :1] - apart[:, 1:])


def test_only_prototypes_travel(tmp_path):
    """C x F numbers and one more for each class, both ways."""
    given = {"method.name": "fedproto", "fraction": 0.4, "rounds": 2}
    metrics = raysim.run(make_settings(tmp_path / "run", **given), make_task(SIZES)).metrics
    for way in ("bytes_up", "bytes_down"):
        assert metrics[way].to_pylist() == [2 * 4 * (3 * 16 + 3)] * 2


def test_a_class_that_no_client_of_a_round_has_keeps_its_prototype():
    method = FedProto()
    state = method.init(method.network(SmallNet()))
    ones = torch.ones(3, 16)
    sent = {"head.means": ones, "head.known": torch.tensor([0.5, 0, 1])}
    for factor in (1, 2):
        known = sent["head.known"] if factor == 1 else torch.tensor([0.0, 0, 1])
        means = {"head.means": factor * sent["head.means"] * known[:, None], "head.known": known}
        state = method.server_update(None, state, raysim.Reduced((), {"prototypes": means}, {}, {}))
    found = state.groups["prototypes"]
    assert found["head.known"].tolist() == [1, 0, 1]
    assert found["head.means"][:, 0].tolist() == [1, 0, 2]
    assert EPOCHS > 1  # so that the epochs of test_rounds differ
