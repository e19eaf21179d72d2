"""Local training of one client, against NumPy or a plain PyTorch network of its own."""

from __future__ import annotations

import copy
from functools import partial
from itertools import pairwise

import numpy as np
import pytest
import torch
import torch.nn.functional as F
from hypothesis import given
from hypothesis import strategies as st
from torch import nn

from raysim.api.rules import Batch, Batching, LocalValues, Rules, Transform, Upload
from raysim.config import LocalSettings
from raysim.numbers.seeds import torch_generator
from raysim.training.job import ClientJob, batch_bounds
from raysim.training.network import Network
from raysim.training.sequential import SequentialTrainer

INPUTS, CLASSES = 6, 3


class Net(nn.Module):
    """Three stages with BatchNorm and dropout where asked for."""

    def __init__(self, norm=False, dropout=0.0, width=8):
        super().__init__()
        self.features = nn.Sequential(nn.Linear(INPUTS, width), nn.ReLU())
        between = [nn.BatchNorm1d(width)] if norm else []
        self.hidden = nn.Sequential(*between, nn.Dropout(dropout))
        self.head = nn.Linear(width, CLASSES)

    def forward(self, x):
        return self.head(self.hidden(self.features(x)))


def build(seed=0, **options):
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(seed)
        return Net(**options)


def samples(n=20):
    generator = np.random.default_rng(5)
    x = generator.normal(size=(n, INPUTS)).astype(np.float32)
    return Batch(torch.from_numpy(x), torch.from_numpy(generator.integers(0, CLASSES, n)))


def train(
    net,
    rules=None,
    data=None,
    *,
    lr=0.1,
    epochs=2,
    trainable=None,
    draws=1,
    augment=None,
    **options,
):
    """Train a network in place as one client; return its upload and log."""
    precision = options.pop("precision", "fp32")
    trainer = SequentialTrainer(
        Network(net), LocalSettings(**{"batch_size": 4} | options), precision
    )
    job = ClientJob(
        rules=rules or Rules(),
        epochs=epochs,
        lr=lr,
        trainable=trainable,
        data=data or samples(),
        broadcast={"model": {n: t.detach().clone() for n, t in net.state_dict().items()}},
        state={},
        personal={},
        augment=augment or (lambda x, generator: x),
        values=LocalValues(trainer.local.temperature),
        batches=partial(np.random.default_rng, draws),
        torch_seed=draws,
        generator=partial(torch_generator, draws),
    )
    return trainer.run(job)


def snapshot(net):
    return {name: tensor.clone() for name, tensor in net.state_dict().items()}


def same(first, second):
    return [name for name in first if torch.equal(first[name], second[name])]


def other_tensors(net):
    """Tensors of a network's shapes with values of their own."""
    return snapshot(build(seed=99, norm=any("running" in name for name in net.state_dict())))


@given(st.integers(1, 300), st.integers(1, 60), st.booleans())
def test_batches_cover_all_samples_once(n, size, join):
    bounds = batch_bounds(n, Batching(size), join)
    assert bounds[0][0] == 0 and bounds[-1][1] == n
    assert all(stop == start for (_, stop), (start, _) in pairwise(bounds))
    lengths = [stop - start for start, stop in bounds]
    assert lengths[:-1] == [size] * (len(lengths) - 1)
    assert 1 <= lengths[-1] <= size + join
    if join and n > 1 and size > 1:
        assert min(lengths) > 1


@pytest.mark.parametrize(
    ("n", "size", "join", "expected"),
    [
        (9, 4, False, [(0, 4), (4, 8), (8, 9)]),
        (9, 4, True, [(0, 4), (4, 9)]),
        (10, 4, True, [(0, 4), (4, 8), (8, 10)]),
        (1, 4, True, [(0, 1)]),
        (4, 4, True, [(0, 4)]),
    ],
)
def test_batches_by_hand(n, size, join, expected):
    assert batch_bounds(n, Batching(size), join) == expected


def test_a_trailing_sample_trains_with_batchnorm():
    _, log = train(build(norm=True), data=samples(9), epochs=1)
    assert log.steps == 2 and np.isfinite(log.train_loss)
    assert train(build(), data=samples(9), epochs=1)[1].steps == 3


def test_every_epoch_sees_every_sample_once_in_another_order():
    seen = []

    def watch(view, outputs, batch):
        seen.append(Batch(batch.x.clone(), batch.y.clone()))
        return batch.loss(outputs.logits)

    data = samples(10)
    train(build(), Rules(criterion=watch), data, epochs=2)
    assert [len(batch.y) for batch in seen] == [4, 4, 2] * 2
    epochs = [torch.cat([batch.x for batch in part]) for part in (seen[:3], seen[3:])]
    orders = [[int((data.x == row).all(1).nonzero()) for row in epoch] for epoch in epochs]
    assert [sorted(order) for order in orders] == [list(range(10))] * 2
    assert orders[0] != orders[1]
    for part, order in zip((seen[:3], seen[3:]), orders, strict=True):
        assert torch.equal(torch.cat([batch.y for batch in part]), data.y[order])


def test_only_what_is_trainable_changes():
    net = build(norm=True)
    before = snapshot(net)
    train(net, trainable=frozenset({"head.weight"}))
    assert set(before) - set(same(before, snapshot(net))) == {"head.weight"}


def test_statistics_of_frozen_batchnorm_stay_and_of_trained_batchnorm_move():
    statistics = {f"hidden.0.{n}" for n in ("running_mean", "running_var", "num_batches_tracked")}
    for trainable, kept in [("head.bias", statistics), ("hidden.0.weight", set())]:
        net = build(norm=True)
        before = snapshot(net)
        train(net, trainable=frozenset({trainable}), data=samples(), epochs=2)
        assert statistics & set(same(before, snapshot(net))) == kept
    assert int(net.hidden[0].num_batches_tracked) == 10


def test_frozen_modules_run_in_evaluation_mode_and_the_next_client_trains_all():
    network = Network(build(norm=True, dropout=0.5))
    network.train_only(frozenset({"head.weight"}))
    modes = {name: module.training for name, module in network.module.named_modules()}
    frozen = {"features.0", "hidden.0"}
    assert {name for name, training in modes.items() if not training} == frozen
    network.train_only(None)
    assert all(module.training for module in network.modules())


def test_the_same_job_gives_the_same_bits_whatever_was_drawn_before():
    nets = [build(dropout=0.5) for _ in range(3)]
    for net, draws in zip(nets, (1, 1, 2), strict=True):
        train(net, draws=draws)
        torch.rand(7)
    first, second, third = map(snapshot, nets)
    assert same(first, second) == list(first)
    assert same(first, third) == []


def test_global_random_state_is_left_alone():
    torch.manual_seed(3)
    before = torch.get_rng_state()
    train(build(dropout=0.5), Rules(transforms=(Transform("ask", _ask_for_gradients),)))
    assert torch.equal(torch.get_rng_state(), before)


def _ask_for_gradients(view, gradients, batch, state):
    view.gradient(view.start, batch)
    return gradients, state


def test_at_evaluates_any_tensors_and_leaves_the_network_alone():
    net = build(norm=True, dropout=0.5)
    tensors, x, found = other_tensors(net), samples(7).x, []
    for name in ("hidden.0.running_mean", "hidden.0.running_var"):
        tensors[name] = torch.linspace(0.5, 2, 8)

    def finish(view, trained):
        before, modes = snapshot(net), [module.training for module in net.modules()]
        found.append(view.at(tensors, x))
        found.append(view.at(view.params, x))
        assert same(before, snapshot(net)) == list(before)
        assert modes == [module.training for module in net.modules()]
        return Upload()

    train(net, Rules(finish=finish))
    for outputs, state in zip(found, (tensors, snapshot(net)), strict=True):
        with torch.no_grad():
            features = F.relu(F.linear(x, state["features.0.weight"], state["features.0.bias"]))
            mean, variance = state["hidden.0.running_mean"], state["hidden.0.running_var"]
            normed = (features - mean) / (variance + 1e-5).sqrt()
            hidden = normed * state["hidden.0.weight"] + state["hidden.0.bias"]
            logits = F.linear(hidden, state["head.weight"], state["head.bias"])
        for got, expected in zip(outputs, (features, hidden, logits), strict=True):
            assert torch.allclose(got, expected, atol=1e-6) and not got.requires_grad


@pytest.mark.parametrize("norm", [False, True])
def test_gradient_at_the_same_tensors_is_the_gradient_of_the_step(norm):
    """With the dropout masks of the step in progress, and BatchNorm's buffers left alone."""
    differences = []

    def compare(view, gradients, batch, state):
        before = {name: tensor.detach().clone() for name, tensor in view.params.items()}
        again = view.gradient(before, batch)
        assert same(before, {n: t.detach() for n, t in view.params.items()}) == list(before)
        view.gradient(before, Batch(torch.cat([batch.x] * 2), torch.cat([batch.y] * 2)))
        differences.extend(float((again[n] - g).abs().max()) for n, g in gradients.items())
        return gradients, state

    options = {"weight_decay": 0.1, "temperature": 2.0, "momentum": 0.5}
    net, undisturbed = (build(norm=norm, dropout=0.5) for _ in range(2))
    train(net, Rules(transforms=(Transform("compare", compare),)), **options)
    assert len(differences) >= 10 * 4 and max(differences) < 1e-6
    train(undisturbed, **options)
    assert same(snapshot(net), snapshot(undisturbed)) == list(snapshot(net))


def test_gradient_elsewhere_is_that_of_a_network_there():
    net = build(norm=True)
    tensors, data, found = other_tensors(net), samples(8), {}

    def finish(view, trained):
        found.update(view.gradient(tensors, trained.data))
        return Upload()

    train(net, Rules(finish=finish), data, epochs=0, weight_decay=0.5, temperature=2.0)
    there = copy.deepcopy(net)
    there.load_state_dict(tensors)
    loss = F.cross_entropy(there.eval()(data.x) / 2, data.y)
    names, parameters = zip(*there.named_parameters(), strict=True)
    for name, p, g in zip(names, parameters, torch.autograd.grad(loss, parameters), strict=True):
        assert torch.allclose(found[name], g + 0.5 * p.detach(), atol=1e-6)


@pytest.mark.parametrize("in_step", [False, True])
def test_gradient_along_a_vector_is_the_product_of_the_hessian_with_it(in_step):
    """Of a network without BatchNorm, which is in another mode in a step."""
    net, data, found = build(), samples(8), {}
    vector, tensors = snapshot(build(seed=3)), other_tensors(net)

    def ask(view, *given):
        found.update(view.gradient(tensors, given[-1], along=vector))

    def update(view, gradients, batch, state):
        ask(view, batch)
        return gradients, state

    def finish(view, trained):
        ask(view, trained.data)
        return Upload()

    rules = Rules(transforms=(Transform("ask", update),)) if in_step else Rules(finish=finish)
    epochs = int(in_step)
    train(net, rules, data, epochs=epochs, weight_decay=0.5, temperature=2.0, batch_size="full")
    names = [*tensors]

    def loss(*points):
        there = dict(zip(names, points, strict=True))
        return F.cross_entropy(torch.func.functional_call(net, there, data.x) / 2, data.y)

    points, along = ([each[name] for name in names] for each in (tensors, vector))
    _, products = torch.autograd.functional.hvp(loss, tuple(points), tuple(along))
    for name, product, v in zip(names, products, along, strict=True):
        assert torch.allclose(found[name], product + 0.5 * v, atol=1e-6)
        assert product.abs().max() > 1e-4


def test_nobody_trains_in_no_epochs():
    net = build(norm=True)
    before = snapshot(net)
    upload, log = train(net, epochs=0)
    assert log.steps == 0 and np.isnan(log.train_loss) and np.isnan(log.objective)
    assert same(before, snapshot(net)) == same(before, upload.sums["model"]) == list(before)


def test_bf16_trains_in_fp32_tensors():
    data = samples(64)
    net = build()
    _, first = train(net, data=data, epochs=1, precision="bf16")
    _, last = train(net, data=data, lr=0.5, epochs=40, precision="bf16")
    assert last.train_loss < 0.8 * first.train_loss
    assert {tensor.dtype for tensor in net.state_dict().values()} == {torch.float32}
    reference = build()
    train(reference, data=data, epochs=1)
    half = build()
    train(half, data=data, epochs=1, precision="bf16")
    pairs = zip(half.parameters(), reference.parameters(), strict=True)
    assert 0 < max(float((a - b).detach().abs().max()) for a, b in pairs) < 0.02


def cross_entropies(net, data, temperature=1.0):
    """The loss of every sample, in NumPy."""
    w1, b1, w2, b2 = (p.detach().numpy().astype(np.float64) for p in net.parameters())
    logits = (np.maximum(data.x.numpy() @ w1.T + b1, 0) @ w2.T + b2) / temperature
    logits -= logits.max(1, keepdims=True)
    return np.log(np.exp(logits).sum(1)) - logits[np.arange(len(data.y)), data.y.numpy()]


@pytest.mark.parametrize("temperature", [1.0, 0.5])
@pytest.mark.parametrize("penalty", [None, 3.0])
def test_losses_are_means_over_examples(temperature, penalty):
    """With lr=0 they are plain means over the samples, though the last batch is smaller."""
    net, data = build(), samples(11)
    rules = Rules(
        penalties=(lambda view, outputs, batch: torch.tensor(penalty),) if penalty else ()
    )
    _, log = train(net, rules, data, lr=0.0, epochs=3, temperature=temperature)
    assert log.steps == 9
    assert log.train_loss == pytest.approx(cross_entropies(net, data).mean(), abs=1e-6)
    expected = cross_entropies(net, data, temperature).mean() + (penalty or 0)
    assert log.objective == pytest.approx(expected, abs=1e-6)


def test_losses_are_means_over_steps_before_each_of_them():
    net, data = build(), samples(11)
    once = build()
    train(once, data=data, epochs=1, batch_size="full")
    _, log = train(net, data=data, epochs=2, batch_size="full")
    expected = (cross_entropies(build(), data).mean() + cross_entropies(once, data).mean()) / 2
    assert log.train_loss == pytest.approx(expected, abs=1e-6)


def test_loading_takes_new_shapes():
    net = build(norm=True)
    network, wide = Network(net), build(seed=1, norm=True, width=12)
    network.load(snapshot(wide))
    assert same(network.tensors(), snapshot(wide)) == list(network.tensors())
    assert net.hidden[0].running_mean.shape == (12,)
    x = samples(5).x
    assert torch.equal(network.eval()(x).logits, wide.eval()(x))


def test_a_parameter_that_is_not_trained_is_not_trained_in_another_shape():
    net = build()
    net.features[0].requires_grad_(False)
    Network(net).load(snapshot(build(width=12)))
    assert [p.requires_grad for p in net.parameters()] == [False, False, True, True]


def test_loading_copies():
    net, given = build(), other_tensors(build())
    Network(net).load(given)
    with torch.no_grad():
        net.head.weight.add_(1)
    assert torch.equal(given["head.weight"] + 1, net.head.weight)


def test_inputs_are_altered_anew_for_every_epoch():
    """One call an epoch on all inputs, with draws of the client's own; the data stay."""
    given, seen = [], []

    def augment(x, generator):
        given.append(x.clone())
        return x + torch.rand(len(x), 1, generator=generator)

    def watch(view, outputs, batch):
        seen.append(batch.x.clone())
        return batch.loss(outputs.logits)

    data = samples(20)
    train(build(), Rules(criterion=watch), data, augment=augment, epochs=2)
    assert len(given) == 2 and all(torch.equal(x, data.x) for x in given)
    generator = torch.Generator().manual_seed(1)
    for epoch in range(2):
        expected = data.x + torch.rand(20, 1, generator=generator)
        found = torch.cat(seen[5 * epoch : 5 * epoch + 5])
        order = found.sum(1).argsort()
        assert torch.allclose(found[order], expected[expected.sum(1).argsort()])
