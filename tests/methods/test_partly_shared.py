"""Methods of which a part of the model stays on the clients, against NumPy.

Clients are unequal, and half of them take part in a round.
"""

from __future__ import annotations

import re
from types import SimpleNamespace

import numpy as np
import pytest
import torch
from torch import nn

import raysim
from raysim.federation.task import from_task
from raysim.methods.fedbn import FedBn
from raysim.methods.fedrep import FedRep
from raysim.testing.tasks import SmallNet
from tests.methods import common
from tests.methods.test_oracle import LR, NAMES, assert_close
from tests.methods.test_transforms import EPOCHS, EVERYTHING, local_training, run_half
from tests.tasks import EQUAL, make_settings, make_task

BODY, HEAD = (0, 1), (2, 3)
ALL = (*BODY, *HEAD)
CASES = {
    "fedper": ({}, HEAD, [(ALL, EPOCHS)]),
    "fedper-biases": ({"method.own": "*.bias"}, (1, 3), [(ALL, EPOCHS)]),
    "lg_fedavg": ({}, BODY, [(ALL, EPOCHS)]),
    "local": ({}, ALL, [(ALL, EPOCHS)]),
    "fedrep": ({"method.body_epochs": 2}, HEAD, [(HEAD, 4), (BODY, 2)]),
    "fedbabu": ({}, HEAD, [(BODY, EPOCHS)]),
}
"""Settings, numbers of the own tensors, and phases: numbers of the trained tensors, epochs."""


def rounds(w, clients, cohorts, local, own, phases):
    """The last global model, and what clients keep."""
    states = {}
    for number, cohort in enumerate(cohorts):
        lr, none = LR * local.get("local.lr_decay", 1.0) ** number, [0.0] * len(w)
        sizes = [len(clients[k][1]) for k in cohort]
        ends = []
        for k in cohort:
            mine = [states[k][i] if k in states and i in own else t for i, t in enumerate(w)]
            for trained, epochs in phases:
                mine = local_training(
                    mine, clients[k], lr, none, local, 0.0, epochs=epochs, trained=trained
                )
            states[k] = mine
            ends.append(mine)
        means = [np.average(parts, axis=0, weights=sizes) for parts in zip(*ends, strict=True)]
        w = [t if i in own else mean for i, (t, mean) in enumerate(zip(w, means, strict=True))]
    return w, states


@pytest.mark.parametrize(
    ("local", "stacked"), [({}, 0), (EVERYTHING, 2)], ids=["sgd", "everything-stacked"]
)
@pytest.mark.parametrize("case", CASES)
def test_rounds(tmp_path, case, local, stacked):
    options, own, phases = CASES[case]
    name = {"method.name": case.partition("-")[0], "engine.vectorize": stacked}
    result, w, clients, cohorts = run_half(tmp_path, {**name, **options, **local})
    expected, kept = rounds(w, clients, cohorts, local, own, phases)
    assert_close(result.params, expected)
    sent = 4 * sum(t.size for i, t in enumerate(w) if i not in own)
    for way in ("bytes_up", "bytes_down"):
        assert result.metrics[way].to_pylist() == [len(cohort) * sent for cohort in cohorts]
    states = common.newest_states(result.run_dir)
    if case == "fedbabu":
        assert not states
        return
    assert states.keys() == kept.keys() and sum(map(len, cohorts)) > len(kept)
    for client, state in states.items():
        assert {*state} == {f"own/{NAMES[i]}" for i in own}
        for i in own:
            found = state[f"own/{NAMES[i]}"].numpy()
            np.testing.assert_allclose(found, kept[client][i], rtol=0, atol=2e-6)


class Shortcut(SmallNet):
    """SmallNet with layers of BatchNorm, of which none is called so; one is frozen."""

    def __init__(self):
        super().__init__()
        self.features = nn.Sequential(nn.Flatten(), nn.BatchNorm1d(12, affine=False))
        self.hidden = nn.Sequential(nn.Linear(12, 16), Downsample(), nn.ReLU(), nn.LayerNorm(16))
        self.head = nn.Sequential(nn.Linear(16, 3), nn.BatchNorm1d(3).requires_grad_(False))


class Downsample(nn.BatchNorm1d):
    """A layer that is found by its type alone."""

    def __init__(self):
        super().__init__(16)


def test_fedbn_keeps_every_tensor_of_batchnorm_and_no_other(tmp_path):
    """Buffers too; frozen parameters and their layers' statistics are no client's own."""
    settings = make_settings(tmp_path / "run", **{"method.name": "fedbn", "rounds": 3})
    result = raysim.run(settings, make_task(EQUAL, Shortcut))
    buffers = ("running_mean", "running_var", "num_batches_tracked")
    expected = {f"features.1.{n}" for n in buffers}
    expected |= {f"hidden.1.{n}" for n in (*buffers, "weight", "bias")}
    states = common.newest_states(result.run_dir)
    first, network = result.params, Shortcut()
    for state in states.values():
        assert {*state} == {f"own/{name}" for name in expected}
        assert not torch.equal(state["own/hidden.1.running_mean"], first["hidden.1.running_mean"])
    for name in expected:  # the global model's are the common start
        assert torch.equal(first[name], network.state_dict()[name]), name
    travels = {n: p for n, p in network.named_parameters() if n not in expected}
    size = 4 * sum(p.numel() for p in travels.values() if p.requires_grad)
    assert result.metrics["bytes_up"].to_pylist() == [size * 4] * 3


def test_a_client_that_never_took_part_has_the_common_start(tmp_path):
    """It deploys the newest shared tensors with the first own ones; others, with theirs."""
    network = common.Normed()
    method = FedBn()
    before = method.init(network)
    model = {name: t + 1 for name, t in before.groups["model"].items()}
    now = SimpleNamespace(cohort=(0, 1))
    reduced = SimpleNamespace(means={"model": {"head.weight": model["head.weight"]}})
    after = method.server_update(now, before, reduced)
    work = method.deployment(now, after)
    kept = {n: t + 7 for n, t in method.client_init(after)["own"].items()}
    assert not work.epochs and work.broadcast["model"].keys() == model.keys() - kept.keys()
    for own in ({}, kept):
        state = {"own": own} if own else method.client_init(after)
        found = work.rules.start(work.broadcast, state, {})
        assert torch.equal(found["head.weight"], model["head.weight"])
        for name, tensor in method.client_init(before)["own"].items():
            assert torch.equal(found[name], tensor + 7 if own else tensor)


@pytest.mark.parametrize(
    ("method", "options", "message"),
    [
        ("fedper", {"own": "heads"}, r"method\.own=heads: the model has no 'heads'; allowed are"),
        (
            "lg_fedavg",
            {"shared": ["head", "*.gain"]},
            r"method\.shared=head,\*\.gain: .*'\*\.gain'",
        ),
        ("fedrep", {"own": "all"}, r"method\.own=all: must leave parameters to both parts"),
        ("fedrep", {"own": None}, r"method\.own=none: must leave parameters to both parts"),
        ("fedrep", {"own": "[]"}, r"method\.own=none: must leave parameters to both parts"),
        ("fedrep", {"own": []}, r"method\.own=none: must leave parameters to both parts"),
        ("fedbabu", {"own": "hidden,head"}, r"method\.own=hidden,head: must leave parameters"),
        ("fedper", {"own": 3}, r"method\.own=3: "),
    ],
)
def test_parts_that_the_model_lacks_are_refused(tmp_path, method, options, message):
    given = {f"method.{key}": value for key, value in options.items()}
    common.assert_refused(tmp_path, {"method.name": method, **given}, message)


def test_fedrep_refuses_local_steps(tmp_path):
    given = {"method.name": "fedrep", "local.steps": 3, "local.epochs": 1}
    common.assert_refused(tmp_path, given, r"local\.steps=3: does not go with method\.name=fedrep")


def test_fedrep_trains_the_body_under_the_heads_that_were_trained():
    """A client that was dropped in the first pass is not asked for a body in the second."""
    method = FedRep()
    now = SimpleNamespace(cohort=(0, 1, 2), epochs=7, lr=0.1)
    passes = method.round(now, method.init(SmallNet()))
    heads = next(passes)
    bodies = passes.send(SimpleNamespace(clients=(0, 2)))
    assert (heads.clients, bodies.clients) == ((0, 1, 2), (0, 2))
    assert (heads.epochs, bodies.epochs) == (4, 1) and bodies.bytes_down(0) == 0


CHAINED = {
    "fedprox": {"fedper": {}, "fedprox": {"mu": 0.5}},
    "fedlc": {"fedlc": {}, "fedper": {}},
    "fedmmd": {"fedbn": {}, "fedmmd": {}},
}


@pytest.mark.parametrize("methods", CHAINED)
def test_chained_methods_share_as_much(tmp_path, methods):
    """Alone and chained, sequential and stacked: the same tensors stay, and none of them moves."""
    states, sent = [], []
    first = from_task(make_task(EQUAL, common.Normed)).network(0).state_dict()
    for stacked in (0, 3):
        options = {"method.methods": CHAINED[methods], "engine.vectorize": stacked}
        settings = make_settings(tmp_path / str(stacked), **{"method.name": "chain", **options})
        result = raysim.run(settings, make_task(EQUAL, common.Normed))
        own = next(iter(common.newest_states(result.run_dir).values()))
        states.append(common.newest_states(result.run_dir))
        sent.append(result.metrics["bytes_up"].to_pylist())
        for name in (key.removeprefix("own/") for key in own):
            assert torch.equal(result.params[name], first[name])
    (alone,) = {"fedper", "fedbn"} & CHAINED[methods].keys()
    settings = make_settings(tmp_path / "alone", **{"method.name": alone})
    plain = raysim.run(settings, make_task(EQUAL, common.Normed))
    assert sent == [plain.metrics["bytes_up"].to_pylist()] * 2
    kept = common.newest_states(plain.run_dir)
    assert states[0].keys() == states[1].keys() == kept.keys()
    for client, state in states[0].items():
        assert state.keys() == kept[client].keys()
        for name, tensor in state.items():
            assert torch.allclose(tensor.float(), states[1][client][name].float(), atol=1e-5), name
            assert "num" in name or not torch.equal(tensor, kept[client][name])


@pytest.mark.parametrize("other", ["scaffold", "feddyn"])
def test_a_chain_refuses_other_groups_of_private_tensors(tmp_path, other):
    given = {"method.name": "chain", "method.methods": {"fedper": {}, other: {}}}
    message = f"method.methods: {other} cannot be chained with fedper, which does not send head"
    common.assert_refused(tmp_path, given, message)


class FrozenHead(SmallNet):
    def __init__(self):
        super().__init__()
        self.head.requires_grad_(False)


class TiedHead(SmallNet):
    def __init__(self):
        super().__init__()
        self.hidden = nn.Sequential()
        self.features = nn.Linear(12, 3)
        self.head = nn.Sequential(nn.Linear(3, 12), nn.Linear(12, 3))
        self.head[1].weight, self.head[1].bias = self.features.weight, self.features.bias


class FrozenTie(TiedHead):
    def __init__(self):
        super().__init__()
        self.features.requires_grad_(False)


@pytest.mark.parametrize(
    ("network", "own", "says"),
    [
        (FrozenHead, "head", "'head' is frozen in the model, so that all clients have the same"),
        (
            FrozenTie,
            "head.1",
            "'head.1' is features.weight by another name (tied weights), which is frozen in the",
        ),
        (
            TiedHead,
            "head.1",
            "'head.1' is features.weight by another name (tied weights); choose features.weight,",
        ),
        (
            TiedHead,
            "hidden",
            "the model has no tensors in 'hidden'; allowed are none, all, its modules (features, h",
        ),
    ],
)
def test_a_part_without_tensors_for_clients_is_refused(tmp_path, network, own, says):
    settings = make_settings(tmp_path / "run", **{"method.name": "fedper", "method.own": own})
    with pytest.raises(raysim.SettingsError, match=re.escape(f"method.own={own}: {says}")):
        raysim.run(settings, make_task(EQUAL, network))
