"""DP-FTRL against NumPy, with the tree's draws; its noise by exact variances; its accounting."""

from __future__ import annotations

import json
import math
from itertools import chain

import dp_accounting
import numpy as np
import pyarrow.parquet as pq
import pytest
import torch
from dp_accounting.rdp import RdpAccountant
from safetensors.numpy import load_file
from torch import nn

import raysim
from raysim.api.method import Round
from raysim.api.privacy import NoiseTree, PrivacyClaim
from raysim.driver.privacy.accounting import Accounting, Cohorts
from raysim.methods.dp_ftrl import DpFtrl
from raysim.methods.noise_tree import completed, next_prefix, noise_of
from raysim.numbers.seeds import torch_generator
from raysim.testing.tasks import SmallNet
from tests.methods.reference import SIZES, Reference
from tests.methods.test_oracle import NAMES, assert_close
from tests.tasks import Notes, StopAfter, make_settings, make_task, model_of

CLIP, MOMENTUM, STEP = 0.4, 0.6, 0.7
OWN = {
    **{"method.name": "dp_ftrl", "method.clip": CLIP, "method.momentum": MOMENTUM},
    **{"method.lr_server": STEP, "aggregation.weighting": "fixed", "rounds": 7},
}
CASES = {
    "efficient": {"fraction": 0.3, "method.noise": 0.8},  # m = 2, C*K = 1.5: M = m
    "plain": {"fraction": 0.2, "method.noise": 0.8, "method.efficient": False},
    "restarted": {"fraction": 0.2, "method.noise": 0.8, "method.restart": 3},
    "completed": {
        **{"fraction": 0.2, "method.noise": 0.8, "method.restart": 3},
        **{"method.completion": True, "engine.vectorize": 3},
    },
    "plain-completed": {
        **{"fraction": 0.2, "method.noise": 0.8, "method.restart": 3},
        **{"method.completion": True, "method.efficient": False},
    },
    "without noise": {"fraction": 0.4, "method.noise": 0.0, "weighting": "examples"},
}


class Tree:
    """A tree by its definition: a draw of each node (height, index from 1), and sums of them."""

    def __init__(self, size, efficient):
        self.size, self.efficient, self.leaves, self.own = size, efficient, 0, {}
        self.virtual = {}

    def draw(self, generator):
        one, other = torch.randn(2, self.size, generator=generator).numpy().astype(np.float64)
        return (one + other) / math.sqrt(2)

    def add(self, generator):
        self.leaves += 1
        height = 0
        while self.leaves % 2**height == 0:
            self.own[height, self.leaves >> height] = self.draw(generator)
            height += 1

    def complete(self, generator):
        """Blocks of leaves without clients, each as large as the prefix allows, are one draw."""
        while self.leaves & (self.leaves - 1):
            block = (self.leaves & -self.leaves).bit_length() - 1
            self.leaves += 2**block
            values = math.sqrt(2 - 2.0**-block) * self.draw(generator)
            self.virtual[block, self.leaves >> block] = values
            height = block + 1
            while self.leaves % 2**height == 0:
                self.own[height, self.leaves >> height] = self.draw(generator)
                height += 1

    def value(self, height, index):
        if (height, index) in self.virtual:
            return self.virtual[height, index]
        if not self.efficient or not height:
            return self.own[height, index]
        children = self.value(height - 1, 2 * index - 1) + self.value(height - 1, 2 * index)
        return self.own[height, index] + children / 2

    def noise(self):
        total, before = np.zeros(self.size), 0
        for height in reversed(range(self.leaves.bit_length())):
            if self.leaves >> height & 1:
                before += 2**height
                weight = 2 - 2.0**-height if self.efficient else 1.0
                total = total + self.value(height, before >> height) / weight
        return total


def flat(w):
    """The weights as one vector, in the order of their names."""
    named = dict(zip(NAMES, w, strict=True))
    return np.concatenate([named[name].ravel() for name in sorted(named)])


def shaped(vector, w):
    named, found = dict(zip(NAMES, w, strict=True)), {}
    for name in sorted(named):
        found[name], vector = np.split(vector, [named[name].size])
    return [found[name].reshape(named[name].shape) for name in NAMES]


def dp_ftrl(reference, fraction, noise, restart=None, efficient=True, completion=False):
    expected = max(round(fraction * len(SIZES)), 1)
    length = restart or len(SIZES) // expected
    size, w = flat(reference.start).size, reference.start
    for number, cohort in enumerate(reference.cohorts):
        if number % length == 0:
            first, s, v, tree = flat(w), np.zeros(size), np.zeros(size), Tree(size, efficient)
        for client in cohort:
            change = flat(reference.train(w, number, client)) - flat(w)
            s = s + change * min(1, CLIP / np.linalg.norm(change)) / expected
        n = np.zeros(size)
        if noise:
            generator = torch_generator(0, "server/tree", number)
            tree.add(generator)
            if completion and number % length == length - 1:
                tree.complete(generator)
            n = noise * CLIP / expected * tree.noise()
        v = MOMENTUM * v + s + n
        w = shaped(first + STEP * v, w)
    return w


@pytest.mark.parametrize("case", CASES)
def test_rounds(tmp_path, case):
    """At partial participation, unequal clients, local momentum and decays: clips bind, or not."""
    reference = Reference(tmp_path, OWN | CASES[case])
    own = {
        key.removeprefix("method."): value
        for key, value in CASES[case].items()
        if key.startswith("method.") or key == "fraction"
    }
    assert_close(reference.result.params, dp_ftrl(reference, **own))
    rows = pq.read_table(reference.result.run_dir / "clients.parquet").to_pylist()
    assert min(r["norm_to_clip"] for r in rows) < CLIP < max(r["norm_to_clip"] for r in rows)


def test_a_tree_whose_last_round_is_lost_ends(tmp_path):
    """Its clients may take part in the next one: sums and nodes are those of its rounds alone."""
    network = SmallNet()
    method = DpFtrl(clip=1.0, noise=1.0, restart=3)
    state, sent = (
        method.init(network),
        {n: torch.ones_like(p) for n, p in network.named_parameters()},
    )
    for number in (0, 1, 3):
        now = Round(
            *(number, (0,), 6, 1, 0.1, lambda number: 0.1, "uniform", network, len, lambda: (0,)),
            *(lambda purpose, seed=number: torch.Generator().manual_seed(seed), print),
            size=2,
            expected=2.0,
        )
        reduced = raysim.Reduced((0,), {"change": sent}, {}, {})
        before, state = state, method.server_update(now, state, reduced)
    assert {*before.groups["tree"]} == {"1"} and {*state.groups["tree"]} == {"0"}
    assert float(state.groups["ftrl"]["s"][0]) == 1
    model = before.groups["model"]
    first = torch.cat([model[name].reshape(-1) for name in sorted(model)])
    assert torch.equal(state.groups["ftrl"]["w_0"], first.double())


def test_without_momentum_noise_and_a_clip_that_binds_it_is_fedavg(tmp_path):
    plain = {"fraction": 0.4, "local.momentum": 0.5, "rounds": 5, "method.name": "fedavg"}
    plain |= {"selection.name": "reshuffled", "weighting": "uniform"}
    more = {"method.name": "dp_ftrl", "method.noise": 0.0, "method.momentum": 0.0}
    more |= {"method.clip": 1e6}
    runs = [
        raysim.run(make_settings(tmp_path / str(n), **plain | each), make_task(SIZES))
        for n, each in enumerate(({}, more))
    ]
    for name, found in runs[0].params.items():
        assert torch.allclose(found, runs[1].params[name], rtol=1e-6, atol=1e-6), name


class OneHot:
    """Draws whose sum shows the coefficient of each."""

    def __init__(self, most):
        self.drawn, self.most = -1, most

    def __call__(self):
        self.drawn += 1
        return torch.eye(self.most, dtype=torch.float64)[self.drawn]


@pytest.mark.parametrize("efficient", [False, True])
def test_variances_of_prefixes(efficient):
    """Of each node 1 / (2 - 2^-h), or 1; of a completed tree, that of its root."""
    draws, nodes = OneHot(300), {}
    for rounds in range(1, 35):
        nodes = next_prefix(nodes, draws, efficient)
        whole = completed(nodes, draws, efficient)
        for found, leaves in ((nodes, rounds), (whole, 1 << (rounds - 1).bit_length())):
            heights = [h for h in range(10) if leaves >> h & 1]
            expected = sum(1 / (2 - 2.0**-h) if efficient else 1 for h in heights)
            assert float((noise_of(found, efficient) ** 2).sum()) == pytest.approx(expected)


def most_nodes(steps, leaves):
    """The most nodes of a tree of so many steps that hold one of its leaves, by enumeration."""
    nodes = [
        range(first, first + 2**height)
        for height in range(12)
        for first in range(0, steps, 2**height)
        if first + 2**height <= steps
    ]
    return max(sum(leaf in node for node in nodes) for leaf in range(leaves))


@pytest.mark.parametrize("completion", [False, True])
@pytest.mark.parametrize("length", [1, 3, 4, 6])
def test_epsilon_is_that_of_the_squared_sensitivity(length, completion):
    """Of the library's event, and of one Gaussian mechanism whose noise is that much less."""
    noise, delta, spent = 3.0, 1e-5, [0.0]
    claim = PrivacyClaim(noise, None, delta, "rdp", tree=NoiseTree(length, completion))
    cohorts = Cohorts("once", 10, 60, claim.tree)
    for rounds in range(1, 3 * length):
        ended, last = divmod(rounds, length)
        whole = 1 << (length - 1).bit_length() if completion else length
        squared = ended * most_nodes(whole, length) + (most_nodes(last, last) if last else 0)
        gaussian = RdpAccountant().compose(dp_accounting.GaussianDpEvent(noise / squared**0.5))
        trees = [
            dp_accounting.SingleEpochTreeAggregationDpEvent(noise, steps)
            for steps in [whole] * ended + [last] * (last > 0)
        ]
        special = dp_accounting.NeighboringRelation.REPLACE_SPECIAL
        library = RdpAccountant(neighboring_relation=special)
        library.compose(dp_accounting.ComposedDpEvent(trees))
        found = Accounting(claim, cohorts, noise).epsilon(rounds)
        assert found == pytest.approx(gaussian.get_epsilon(delta), rel=1e-12)
        assert found == pytest.approx(library.get_epsilon(delta), rel=1e-12)
        assert found >= spent[-1]
        spent.append(found)
    assert Accounting(claim, cohorts, noise).epsilon(0) == 0


RUN = {**OWN, "fraction": 0.34, "method.noise": 2.0, "method.completion": True}
SIX = (2, 3, 60, 17, 40, 30)


def cohorts_of(run_dir):
    rows = pq.read_table(run_dir / "clients.parquet").to_pylist()
    last = max(row["round"] for row in rows)
    return [[row["client"] for row in rows if row["round"] == n] for n in range(1, last + 1)]


def test_a_killed_run_has_the_noise_and_epsilon_of_a_whole_one(tmp_path):
    """Killed within the second tree; its nodes are in the checkpoint, and none is drawn twice."""
    more, task = {"checkpoint_every": 1}, make_task(SIX)
    whole = raysim.run(make_settings(tmp_path / "whole", **RUN, **more), task)
    with pytest.raises(KeyboardInterrupt):
        raysim.run(make_settings(tmp_path / "killed", **RUN, **more), task, StopAfter(5))
    killed = raysim.resume(tmp_path / "killed", task)
    assert model_of(tmp_path / "killed") == model_of(tmp_path / "whole")
    assert killed.metrics["epsilon"].equals(whole.metrics["epsilon"])
    assert cohorts_of(tmp_path / "killed") == cohorts_of(tmp_path / "whole")
    states = [
        load_file(max((tmp_path / run).glob("checkpoints/*/state.safetensors")))
        for run in ("whole", "killed")
    ]
    assert {*states[0]} >= {"ftrl/s", "tree/0"}
    assert all(states[0][name].tobytes() == found.tobytes() for name, found in states[1].items())


def test_it_brings_its_selection_and_says_what_it_has_spent(tmp_path):
    notes = Notes()
    result = raysim.run(make_settings(tmp_path / "run", **RUN), make_task(SIX), notes)
    recorded = json.loads((tmp_path / "run/config.json").read_text())["selection"]
    assert recorded == {"name": "reshuffled", "rounds": None}
    found = cohorts_of(tmp_path / "run")
    for first in (0, 3):  # trees of 3 rounds: each of 6 clients once
        assert sorted(chain(*found[first : first + 3])) == [*range(6)]
    words = (
        "RDP, zero out one client, delta=1e-05; completed trees of 3 rounds, each client once in"
        " one, 2 of 6 a round, noise 2.0"
    )
    assert result.summary["privacy"] == words
    last = result.summary["epsilon"]
    assert notes.notes[0] == f"privacy: epsilon {last:.4g} after 7 rounds ({words})"
    spent = result.metrics["epsilon"].to_pylist()
    assert spent == sorted(spent) and spent[-1] == last


def test_a_run_keeps_to_its_epsilon(tmp_path):
    """With a noise it ends before; without, the least noise keeps to it for that many rounds."""
    spent = Accounting(
        PrivacyClaim(2.0, None, 1e-5, "rdp"), Cohorts("once", 2, 6, NoiseTree(None, False)), 2.0
    )
    limit = (spent.epsilon(2) + spent.epsilon(4)) / 2
    limited = {**RUN, "method.completion": False, "method.epsilon": limit}
    result = raysim.run(make_settings(tmp_path / "run", **limited), make_task(SIX))
    assert result.metrics["epsilon"].to_pylist() == [spent.epsilon(n) for n in (1, 2, 3)]
    assert result.summary["stopped_by"] == "epsilon"
    chosen = {**RUN, "method.noise": None, "method.epsilon": 3.0, "rounds": 2}
    result = raysim.run(make_settings(tmp_path / "chosen", **chosen), make_task(SIX))
    assert 2.99 < result.summary["epsilon"] <= 3
    noise = float(result.summary["privacy"].rpartition(" ")[2])
    again = {**RUN, "method.noise": noise, "rounds": 2}
    raysim.run(make_settings(tmp_path / "again", **again), make_task(SIX))
    assert model_of(tmp_path / "again") == model_of(tmp_path / "chosen")
    with pytest.raises(raysim.RunError, match=r"rounds=3: must be 2 with method.epsilon without"):
        raysim.resume(tmp_path / "chosen", make_task(SIX), overrides={"rounds": 3})


def test_another_method_does_not_keep_its_selection(tmp_path):
    settings = make_settings(tmp_path, **RUN, **{"method.restart": 3})
    assert settings.override({"method.restart": 2}).selection.rounds == 2
    other = settings.override({"method.name": "fedavg"})
    assert other.selection == make_settings(tmp_path).selection


class Normalised(SmallNet):
    """With BatchNorm, whose counter is in whole numbers."""

    def __init__(self):
        super().__init__()
        self.hidden = nn.Sequential(self.hidden, nn.BatchNorm1d(16))


REFUSED = {
    "method.name=dp_ftrl: restart=4: must be at most 3, as each client": {"method.restart": 4},
    "selection.name=reshuffled: rounds=4: must be at most 3, as each client": {
        **{"method.restart": 4, "method.noise": 0},
    },
    "method.name=dp_ftrl: delta=0.5: must be at most 1/K": {"method.delta": 0.5},
    "method.epsilon=2.0: needs noise above 0": {"method.noise": 0, "method.epsilon": 2.0},
    "method.methods.dp_ftrl: cannot be chained: it claims privacy": {
        **{"method.name": "chain", "method.methods": {"dp_ftrl": {}}, "method.clip": None},
    },
}


@pytest.mark.parametrize("message", REFUSED)
def test_what_is_not_accounted_is_refused_before_anything_starts(tmp_path, message):
    given = {**RUN, **REFUSED[message]}
    if given["method.name"] != "dp_ftrl":
        own = ("clip", "noise", "momentum", "lr_server", "completion")
        given = {
            key: value for key, value in given.items() if key not in {f"method.{n}" for n in own}
        }
    with pytest.raises(raysim.SettingsError) as caught:
        raysim.run(make_settings(tmp_path / "run", **given), make_task(SIX))
    assert str(caught.value).startswith(message)
    assert not (tmp_path / "run").exists()


def test_batch_norm_is_refused(tmp_path):
    with pytest.raises(raysim.SettingsError, match=r"'hidden.1.num_batches_tracked' holds whole"):
        raysim.run(make_settings(tmp_path / "run", **RUN), make_task(SIX, Normalised))
