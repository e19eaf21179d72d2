"""FSVRG against NumPy, and its correction step by step: masks, statistics, bytes."""

from __future__ import annotations

from dataclasses import replace
from functools import partial

import numpy as np
import pytest
import torch
import torch.nn.functional as F

import raysim
from raysim.api.rules import Transform
from raysim.config import LocalSettings
from raysim.driver.rounds.method_rounds import opened_pass
from raysim.federation.input_pipeline import InputPipeline
from raysim.methods.fsvrg import Fsvrg
from raysim.numbers.seeds import stream, torch_generator
from raysim.testing.tasks import SmallNet
from raysim.training.job import ClientJob
from raysim.training.network import Network
from raysim.training.sequential import SequentialTrainer
from tests.methods import common
from tests.methods.test_oracle import (
    EPOCHS,
    LR,
    NAMES,
    ROUNDS,
    SIZES,
    assert_close,
    fedavg,
    gradient,
    run,
    start_of,
)
from tests.steps import run_round
from tests.tasks import Notes, make_settings, make_task
from tests.training.test_sequential import build, samples, snapshot

NAME = {"method.name": "fsvrg"}
UNUSED = 'method.step="scaled": local.lr is not used'
CONSTANT = {**NAME, "method.step": "constant"}


def weighted(parts, weights):
    return [
        sum(weight * part for weight, part in zip(weights, parts_of, strict=True))
        for parts_of in zip(*parts, strict=True)
    ]


def fsvrg(w, clients, by_client):
    """Full-batch rounds; the full gradient weighs by examples, the average by `by_client`."""
    sizes = np.array([len(y) for _, y in clients])
    for _ in range(ROUNDS):
        anchors = [gradient(w, x, y) for x, y in clients]
        full = weighted(anchors, sizes / sizes.sum())
        locals_ = []
        for (x, y), anchor in zip(clients, anchors, strict=True):
            local = w
            for _ in range(EPOCHS):
                here = gradient(local, x, y)
                local = [
                    p - LR * (g - a + f)
                    for p, g, a, f in zip(local, here, anchor, full, strict=True)
                ]
            locals_.append(local)
        w = weighted(locals_, by_client)
    return w


@pytest.mark.parametrize("weighting", ["examples", "uniform"])
def test_two_rounds(tmp_path, weighting):
    result, w, clients = run(tmp_path, **CONSTANT, weighting=weighting)
    by_client = [n / sum(SIZES) if weighting == "examples" else 1 / len(SIZES) for n in SIZES]
    expected = fsvrg(w, clients, by_client)
    assert_close(result.params, expected)
    without = fedavg(w, clients)
    assert np.abs(expected[0] - without[0]).max() > 1e-3


def test_first_step_of_one_client_is_the_full_gradient_step(tmp_path):
    """With batches of 56 and 1 sample: both steps by hand, the first along the full gradient."""
    task = make_task((57,))
    overrides = {"rounds": 1, "fraction": 1.0, "local.epochs": 1, "local.batch_size": 56}
    result = raysim.run(make_settings(tmp_path, **CONSTANT, **overrides), task)
    x, y = task.clients[0]
    w = start_of(task)
    full = gradient(w, x.astype(np.float64), y)
    once = [p - 0.1 * g for p, g in zip(w, full, strict=True)]
    last = stream(0, "batches", 0, 1, 0).permutation(57)[56:]  # round 0, pass 1, client 0
    row, label = x[last].astype(np.float64), y[last]
    here, there = gradient(once, row, label), gradient(w, row, label)
    twice = [p - 0.1 * (g - a + f) for p, g, a, f in zip(once, here, there, full, strict=True)]
    assert_close(result.params, twice)


@pytest.mark.parametrize("norm", [False, True])
def test_every_step_at_w_is_along_the_full_gradient(norm):
    """Where w_k = w the two batch gradients are the same bits, so the masks were the same."""
    net = build(norm=norm, dropout=0.5)
    before, (directions, gradients) = snapshot(net), ([], [])
    rules = Fsvrg().rules()
    full = {name: torch.full_like(p, 0.25) for name, p in net.named_parameters()}

    def watch(view, found, batch, state):
        direction, state = rules.transforms[0].update(view, found, batch, state)
        directions.append(direction)
        gradients.append(found)
        return direction, state

    train(
        net,
        replace(rules, transforms=(Transform("watch", watch),)),
        {"model": before, "full": full},
        epochs=3,
    )
    assert len(directions) == 15
    for direction in directions:
        assert all(torch.equal(direction[name], full[name]) for name in full)
    spread = torch.stack([g["head.weight"] for g in gradients]).std(0)
    assert spread.max() > 1e-2  # the batches and masks did differ


class Dropped(SmallNet):
    """SmallNet with dropout before its last layer."""

    def __init__(self):
        super().__init__()
        self.hidden.append(torch.nn.Dropout(0.5))


@pytest.mark.parametrize("together", [0, 4])
def test_one_full_batch_step_is_the_same_for_all_clients(tmp_path, together):
    """It is along the full gradient, whatever the masks, if both batch gradients have the same.

    So the weights of the mean do not matter.
    """
    overrides = {"rounds": 1, "fraction": 1.0, "local.epochs": 1, "local.batch_size": "full"}
    overrides |= {**CONSTANT, "engine.vectorize": together}
    params = []
    for weighting in ("examples", "uniform"):
        notes = Notes()
        settings = make_settings(tmp_path / weighting, weighting=weighting, **overrides)
        params.append(raysim.run(settings, make_task(SIZES, Dropped), notes).params)
        assert not notes.notes
    for name, tensor in params[0].items():
        assert torch.allclose(tensor, params[1][name], rtol=0, atol=1e-7), name


def train(net, rules, broadcast, epochs):
    trainer = SequentialTrainer(Network(net), LocalSettings(batch_size=4), "fp32")
    generator = np.random.default_rng(1)
    data = samples(20)
    augment = InputPipeline().augment
    return trainer.run(
        ClientJob(
            rules=rules,
            epochs=epochs,
            lr=0.0,
            trainable=None,
            data=data,
            broadcast=broadcast,
            state={},
            personal={},
            augment=augment,
            batches=lambda: generator,
            torch_seed=1,
            generator=partial(torch_generator, 1),
        )
    )


@pytest.mark.parametrize("norm", [False, True])
def test_first_pass_sends_the_gradient_of_all_samples(norm):
    """In evaluation mode: no dropout, BatchNorm with the statistics that it has."""
    net = build(norm=norm, dropout=0.5)
    passes, notes = [], []

    def run_pass(work):
        passes.append(work)
        upload, _ = train(net, work.rules, work.broadcast, work.epochs)
        return raysim.Reduced((0,), upload.sums, {}, {})

    state = raysim.ServerState({"model": snapshot(net)})
    before = snapshot(net)
    now = raysim.Round(
        number=0,
        cohort=(2,),
        clients=5,
        epochs=1,
        lr=0.1,
        lr_at=lambda number: 0.1,
        weighting="examples",
        network=net,
        steps=lambda client: 4,
        sample=lambda *keys: (2,),
        generator=lambda purpose: torch.Generator(),
        note=notes.append,
    )
    run_round(Fsvrg(h=0.6).round(now, state), run_pass)
    first, second = passes
    assert list(first.clients) == [0, 1, 2, 3, 4] and first.weighting == "examples"
    assert second.clients == (2,) and second.weighting is None
    assert opened_pass(second, now).lr_of(2) == pytest.approx(0.6 / 4) and notes == [UNUSED]
    data, names = samples(20), [name for name, _ in net.named_parameters()]
    there = build(norm=norm)
    there.load_state_dict(before)
    loss = F.cross_entropy(there.eval()(data.x), data.y)
    for name, g in zip(names, torch.autograd.grad(loss, there.parameters()), strict=True):
        assert torch.allclose(second.broadcast["full"][name], g, atol=1e-6)


def test_all_clients_send_a_gradient_and_the_cohort_a_model(tmp_path):
    result, w, _ = run(tmp_path, **NAME, fraction=0.5)
    size, cohort = 4 * sum(p.size for p in w), 2
    assert result.metrics["bytes_up"].to_pylist() == [(len(SIZES) + cohort) * size] * ROUNDS
    assert result.metrics["bytes_down"].to_pylist() == [(len(SIZES) + cohort) * size] * ROUNDS
    assert result.metrics["clients"].to_pylist() == [cohort] * ROUNDS
    assert set(result.params) == set(NAMES)


def test_tiny_clients(tmp_path):
    common.assert_trains_tiny_clients(tmp_path, NAME)


def test_scaled_steps_say_once_that_lr_is_not_used(tmp_path):
    notes = Notes()
    settings = make_settings(tmp_path, **NAME, rounds=2, fraction=1.0)
    raysim.run(settings, make_task((9, 3)), notes)
    assert notes.notes.count(UNUSED) == 1


@pytest.mark.parametrize(
    ("overrides", "message"),
    [
        ({"method.mu": 1}, "method.mu: no such setting"),
        ({"method.h": 0}, "method.h=0: must be greater than 0"),
        ({"method.step": "x"}, "method.step=\"x\": must be 'scaled' or 'constant'"),
        ({"local.momentum": 0.9}, r"local\.momentum=0.9: does not go with method\.name=fsvrg"),
        ({"local.lr_min": 0.01}, r"local\.lr_min=0.01: does not go with method\.name=fsvrg"),
    ],
)
def test_bad_settings(tmp_path, overrides, message):
    common.assert_refused(tmp_path, NAME | overrides, message)
