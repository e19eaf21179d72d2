"""FedMA: permuted copies match back, growth, bytes, refused models."""

from __future__ import annotations

import pickle
from dataclasses import replace

import numpy as np
import pytest
import torch
from safetensors.torch import load_file
from torch import nn

import raysim
from raysim.api.method import Round, ServerState
from raysim.api.rules import Batch, Reduced, Trained, View
from raysim.api.scoring import CLASSIFICATION
from raysim.methods.fedma.method import FedMa, mean_by_class, samples_by_class
from raysim.numbers.seeds import stream
from raysim.training.network import Network
from tests.steps import run_round
from tests.tasks import UNEQUAL, make_settings, make_task

NAME = "fedma"


class LastState(nn.Module):
    """An LSTM that gives its last hidden state [B, H]."""

    def __init__(self, inputs: int, width: int, **options: int) -> None:
        super().__init__()
        self.lstm = nn.LSTM(inputs, width, batch_first=True, **options)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.lstm(x)[0][:, -1]


class Chain(nn.Module):
    """A network of three stages."""

    def __init__(self, features: nn.Module, hidden: nn.Module, head: nn.Module) -> None:
        super().__init__()
        self.features, self.hidden, self.head = features, hidden, head

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.head(self.hidden(self.features(x)))


def mlp() -> Chain:
    return Chain(
        nn.Sequential(nn.Flatten(), nn.Linear(12, 8), nn.ReLU()),
        nn.Sequential(nn.Linear(8, 7), nn.ReLU()),
        nn.Linear(7, 3),
    )


def cnn() -> Chain:
    return Chain(
        nn.Sequential(
            *(nn.Unflatten(1, (1, 8, 8)), nn.Conv2d(1, 6, 3), nn.MaxPool2d(2), nn.ReLU()),
            *(nn.Conv2d(6, 5, 2, bias=False), nn.ReLU()),
        ),
        nn.Sequential(nn.Flatten(), nn.Linear(5 * 4, 9), nn.ReLU(), nn.Dropout(0.2)),
        nn.Linear(9, 3),
    )


def lstm() -> Chain:
    return Chain(nn.Embedding(10, 5), LastState(5, 6), nn.Linear(6, 3))


MODELS = {"mlp": mlp, "cnn": cnn, "lstm": lstm}


def inputs(kind, count, key=0):
    generator = stream(0, "inputs", key)
    if kind == "lstm":
        return generator.integers(0, 10, size=(count, 7))
    return generator.normal(size=(count, 64 if kind == "cnn" else 12)).astype(np.float32)


def task_of(kind, sizes):
    def samples(count, key):
        x = inputs(kind, count, key)
        return x, (x[:, :5].sum(1) * 3 % 3).astype(np.int64)

    clients = [samples(size, key) for key, size in enumerate(sizes)]
    return raysim.Task(model=MODELS[kind], clients=clients, test=samples(50, 99))


def permuted(kind, tensors, generator):
    """Return the same function with the neurons of every hidden layer in another order."""
    t = {name: tensor.clone() for name, tensor in tensors.items()}

    def order(count):
        return torch.from_numpy(generator.permutation(count))

    if kind == "mlp":
        first, second = order(8), order(7)
        t["features.1.weight"], t["features.1.bias"] = (
            t["features.1.weight"][first],
            t["features.1.bias"][first],
        )
        t["hidden.0.weight"] = t["hidden.0.weight"][second][:, first]
        t["hidden.0.bias"] = t["hidden.0.bias"][second]
        t["head.weight"] = t["head.weight"][:, second]
    if kind == "cnn":
        first, second, third = order(6), order(5), order(9)
        t["features.1.weight"], t["features.1.bias"] = (
            t["features.1.weight"][first],
            t["features.1.bias"][first],
        )
        t["features.4.weight"] = t["features.4.weight"][second][:, first]
        maps = t["hidden.1.weight"].view(9, 5, 4)
        t["hidden.1.weight"] = maps[third][:, second].reshape(9, 20)
        t["hidden.1.bias"] = t["hidden.1.bias"][third]
        t["head.weight"] = t["head.weight"][:, third]
    if kind == "lstm":
        first, second = order(5), order(6)
        gates = torch.cat([gate * 6 + second for gate in range(4)])
        t["features.weight"] = t["features.weight"][:, first]
        t["hidden.lstm.weight_ih_l0"] = t["hidden.lstm.weight_ih_l0"][gates][:, first]
        t["hidden.lstm.weight_hh_l0"] = t["hidden.lstm.weight_hh_l0"][gates][:, second]
        for name in ("hidden.lstm.bias_ih_l0", "hidden.lstm.bias_hh_l0"):
            t[name] = t[name][gates]
        t["head.weight"] = t["head.weight"][:, second]
    return t


class Untrained:
    """Runs passes over clients whose training does nothing but permute their first network."""

    def __init__(self, kind, clients):
        self.kind, self.clients, self.state, self.passes = kind, clients, {}, 0

    def __call__(self, work):
        generator = np.random.default_rng(self.passes)
        rows = {}
        for client in work.clients:
            rules = pickle.loads(pickle.dumps(work.rules))  # noqa: S301 - as it travels
            personal, state = work.personal.get(client, {}), self.state.get(client, {})
            start = rules.start(work.broadcast, state, personal)
            tensors = start if self.passes else permuted(self.kind, start, generator)
            view = View(tensors, [], start, work.broadcast, state, personal, None, None, None)
            data = Batch(torch.ones(6), torch.tensor([0, 1, 2, 0, 1, 2]))
            upload = rules.finish(view, Trained(1, 0.1, {}, data))
            rows[client] = upload.rows
            self.state[client] = {**state, **upload.state, **upload.round_state}
        self.passes += 1
        return Reduced(tuple(work.clients), {}, rows, {})


def round_of(number, cohort, network):
    return Round(
        number=number,
        cohort=cohort,
        clients=len(cohort),
        epochs=1,
        lr=0.1,
        lr_at=lambda number: 0.1,
        weighting="examples",
        network=network,
        steps=None,
        sample=None,
        generator=None,
        note=print,
    )


def function(method, build, tensors, x):
    network = Network(method.network(build()))
    network.load(tensors)
    network.eval()
    with torch.no_grad():
        return network(torch.from_numpy(x)).logits


@pytest.mark.parametrize("clients", [1, 2, 5])
@pytest.mark.parametrize("kind", MODELS)
def test_permuted_copies_match_back(kind, clients):
    torch.manual_seed(1)
    method, x = FedMa(), inputs(kind, 40)
    built = MODELS[kind]()
    state = method.init(method.network(built))
    before = {name: tensor.shape for name, tensor in state.groups["model"].items()}
    run = Untrained(kind, clients)
    now = round_of(0, tuple(range(clients)), built)
    after, metrics = run_round(method.round(now, state), run)
    assert run.passes == {"mlp": 3, "cnn": 4, "lstm": 3}[kind]
    deployed = method.deployed(after)
    assert {name: tensor.shape for name, tensor in deployed.items()} == before
    with torch.no_grad():
        expected = built.eval()(torch.from_numpy(x))
    assert (function(method, MODELS[kind], deployed, x) - expected).abs().max() < 1e-5
    assert set(metrics) == {f"width_{n}" for n in range(1, run.passes)}
    # The next round starts, at every client, from its own order of the same function.
    work = first_pass(method, built, after, now.cohort)
    assert not work.personal
    for client in now.cohort:
        start = work.rules.start(work.broadcast, run.state[client], {})
        assert (function(method, MODELS[kind], start, x) - expected).abs().max() < 1e-5


def first_pass(method, network, state, cohort):
    """The first pass of the next round."""
    return next(method.round(round_of(1, cohort, network), state))


def test_posterior_average_shrinks_towards_the_prior():
    """With s = 1/4 and s0 = 4, an atom of two equal members is s * 2v / (s0 + 2s) = v / 9."""
    torch.manual_seed(1)
    method = FedMa(average="posterior", sigma=2.0, sigma0=0.5)
    network = mlp()
    state = method.init(network)
    after, _ = run_round(method.round(round_of(0, (0, 1), network), state), Untrained("mlp", 2))
    name = "features.1.weight"
    before, now = (s.groups["model"][name] for s in (state, after))
    assert sorted(now.sum(1).tolist()) == pytest.approx(
        sorted((before.sum(1) / 9).tolist()), abs=1e-7
    )


@pytest.mark.parametrize(
    ("samples", "uniform", "expected"),
    [
        ([[3, 1], [1, 1], [0, 2]], False, [(3 * 1 + 5) / 4, (2 + 6 + 2 * 10) / 4]),
        ([[3, 1], [1, 1], [0, 2]], True, [5, 6]),
        ([[3, 0], [1, 0], [0, 0]], False, [(3 * 1 + 5) / 4, (3 * 2 + 6) / 4]),
    ],
    ids=["by class", "uniform", "a class of nobody: by all samples"],
)
def test_rows_of_the_last_layer_are_averaged_by_class(samples, uniform, expected):
    weights = torch.tensor([[[1.0], [2.0]], [[5.0], [6.0]], [[9.0], [10.0]]])
    clients = [
        {"layer": {"w": w, "b": w[:, 0]}, "classes": {"samples": torch.tensor(n)}}
        for w, n in zip(weights, samples, strict=True)
    ]
    means = mean_by_class(clients, uniform)
    assert means["w"][:, 0].tolist() == means["b"].tolist() == pytest.approx(expected)


@pytest.mark.parametrize(
    ("classes", "scoring", "expected"),
    [
        (3, CLASSIFICATION, [2, 1, 0]),
        (1, CLASSIFICATION, [3]),
        (3, raysim.Scoring(lambda outputs, y: y), [3, 3, 3]),
    ],
    ids=["classes", "one logit", "no classification"],
)
def test_a_client_counts_its_samples_of_each_class(classes, scoring, expected):
    data = Batch(torch.ones(3), torch.tensor([0, 1, 0]), scoring=scoring)
    assert samples_by_class(data, classes).tolist() == expected


def test_clients_that_are_dropped_in_mid_pass_leave_their_atoms():
    """An atom that is left by all keeps its value."""
    torch.manual_seed(1)
    method, network, inner = FedMa(gamma=1e30, max_width=4.0), mlp(), Untrained("mlp", 3)
    state = method.init(network)

    def losing(work):
        reduced = inner(work)
        kept = tuple(client for client in reduced.clients if client != 2 or inner.passes < 2)
        return replace(reduced, clients=kept)

    whole, _ = run_round(method.round(round_of(0, (0, 1, 2), network), state), Untrained("mlp", 3))
    after, _ = run_round(method.round(round_of(0, (0, 1, 2), network), state), losing)
    name = "features.1.weight"
    assert torch.equal(after.groups["model"][name], whole.groups["model"][name])
    before, left = (groups["members"]["0"] for groups in (whole.groups, after.groups))
    assert before.sum() == 3 * 8 and left.sum() == 2 * 8 and len(left) == len(before)
    assert (before - left).max() == 1 and (left == 0).any()
    assert after.groups["recent"]["clients"].tolist() == [0, 1]


def run(out, kind, sizes=(20, 9, 1, 14), **overrides):
    defaults = {"method.name": NAME, "rounds": 3, "fraction": 1.0, "local.epochs": 1}
    return raysim.run(make_settings(out, **defaults | overrides), task_of(kind, sizes))


@pytest.mark.parametrize("kind", MODELS)
def test_layers_grow_up_to_the_limit(tmp_path, kind):
    """A readiness to make atoms that no gain outweighs: every layer reaches its limit."""
    result = run(tmp_path, kind, **{"method.gamma": 1e30, "method.max_width": 1.5})
    layers = {"mlp": (8, 7), "cnn": (6, 5, 9), "lstm": (5, 6)}[kind]
    for number, width in enumerate(layers, 1):
        assert result.metrics[f"width_{number}"].to_pylist() == [int(1.5 * width)] * 3
    saved = load_file(result.run_dir / "model.safetensors")
    assert all(torch.equal(saved[name], result.params[name]) for name in saved)
    x, y = task_of(kind, (1,)).test
    logits = function(FedMa(), MODELS[kind], saved, x)
    accuracy = float((logits.argmax(1).numpy() == y).mean())
    assert result.summary["final_accuracy"] == pytest.approx(accuracy)


@pytest.mark.parametrize("kind", MODELS)
def test_no_growth_where_the_limit_is_the_first_width(tmp_path, kind):
    """Clients of 1 and of B+1 samples; up and down travels every layer once."""
    result = run(tmp_path, kind, **{"method.gamma": 1e30, "method.max_width": 1.0})
    assert all(tensor.isfinite().all() for tensor in result.params.values())
    network = MODELS[kind]()
    size = 4 * 4 * sum(p.numel() for p in network.parameters())  # four clients, float32
    head = 4 * 4 * sum(p.numel() for p in network.head.parameters())
    atoms = 4 * 4 * sum({"mlp": (8, 7), "cnn": (6, 5, 9), "lstm": (5, 6)}[kind])
    counts = 4 * 4 * 3  # four clients, an int32 for each of three classes
    assert result.metrics["bytes_up"].to_pylist() == [size + counts] * 3
    assert result.metrics["bytes_down"].to_pylist() == [
        size + atoms + (size - head) + atoms,  # the whole model, then the matched layers
        *[head + (size - head) + atoms] * 2,  # the last layer, then the matched layers
    ]


def test_between_rounds_a_client_keeps_its_atoms_alone(tmp_path):
    run(tmp_path, "mlp", rounds=1)
    for client in range(4):
        (file,) = (tmp_path / f"clients/00000/{client:08d}").iterdir()
        assert file.name == "0_2.safetensors"
        kept = load_file(file)
        assert set(kept) == {"atoms/0", "atoms/1"}
        method, network = FedMa(), MODELS["mlp"]()
        size = sum(tensor.nbytes for tensor in kept.values())
        assert size == method.client_bytes(method.init(network))


def test_clients_that_missed_a_round_start_from_the_most_popular_atoms():
    torch.manual_seed(1)
    method = FedMa()
    members = {"0": torch.tensor([1, 3, 1, 3, 3, 2, 1, 3, 3, 3]), "1": torch.ones(7).long()}
    wide = method.init(mlp()).groups["model"] | {
        "features.1.weight": torch.randn(10, 12),
        "features.1.bias": torch.randn(10),
        "hidden.0.weight": torch.randn(7, 10),
    }
    groups = {"model": wide, "members": members, "recent": {"clients": torch.tensor([4])}}
    work = first_pass(method, mlp(), ServerState(groups), (4, 9))
    assert set(work.personal) == {9}
    start = work.rules.start(work.broadcast, {}, work.personal[9])
    chosen = [0, 1, 3, 4, 5, 7, 8, 9]
    assert torch.equal(start["features.1.weight"], wide["features.1.weight"][chosen])
    assert torch.equal(start["hidden.0.weight"], wide["hidden.0.weight"][:, chosen])
    assert work.bytes_down(4) == 4 * (3 * 7 + 3)
    assert work.bytes_down(9) == sum(4 * tensor.numel() for tensor in wide.values())


def test_a_sampled_cohort_learns(tmp_path):
    overrides = {"method.name": NAME, "rounds": 6, "fraction": 0.5, "local.epochs": 3}
    result = raysim.run(make_settings(tmp_path, **overrides), make_task(UNEQUAL))
    assert result.summary["final_accuracy"] > 0.7


def test_a_layer_that_is_not_finite_stops_the_run(tmp_path):
    with pytest.raises(raysim.RaysimError, match=r"update is not finite .*smaller local\.lr"):
        run(tmp_path, "mlp", **{"local.lr": 3e38})


def staged(*hidden, features=None, head=None):
    return lambda: Chain(
        features or nn.Linear(12, 8), nn.Sequential(*hidden), head or nn.Linear(8, 3)
    )


@pytest.mark.parametrize(
    ("model", "message"),
    [
        (staged(nn.BatchNorm1d(8)), r"hidden\.0 \(BatchNorm1d\) cannot be matched"),
        (staged(features=nn.Identity()), r"at least 2 weight layers; this one has 1"),
        (staged(nn.GRU(8, 8)), r"hidden\.0 \(GRU\) cannot be matched"),
        (staged(nn.Conv1d(8, 8, 1)), r"hidden\.0 \(Conv1d\) cannot be matched"),
        (staged(nn.Conv2d(8, 8, 1)), r"hidden\.0 \(Conv2d\) cannot follow layer features \(Linear"),
        (staged(nn.Linear(9, 8)), r"hidden\.0 \(Linear\) has 9 inputs.*features.*has 8 outputs"),
        (staged(nn.Linear(16, 8)), r"hidden\.0 \(Linear\) has 16 inputs"),
        (
            staged(features=nn.Conv2d(2, 8, 1, groups=2)),
            r"features \(Conv2d\) has groups=2; must be 1",
        ),
        (
            staged(LastState(5, 8, num_layers=2), features=nn.Embedding(9, 5)),
            r"hidden\.0\.lstm \(LSTM\) must have one layer",
        ),
        (staged(nn.LSTM(8, 8)), r"hidden\.0 \(LSTM\) cannot follow layer features \(Linear"),
        (staged(head=nn.Embedding(8, 3)), r"the last layer, head \(Embedding\), must be"),
    ],
)
def test_refused_models(tmp_path, model, message):
    settings = make_settings(tmp_path / "run", **{"method.name": NAME})
    with pytest.raises(raysim.SettingsError, match=rf"method\.name=fedma: .*{message}"):
        raysim.run(settings, make_task((5, 5), model))
    assert not (tmp_path / "run/metrics.parquet").exists()


@pytest.mark.parametrize(
    ("setting", "value", "allowed"),
    [
        ("sigma", 0, "greater than 0"),
        ("sigma0", -1, "greater than 0"),
        ("gamma", 0, "greater than 0"),
        ("sweeps", -1, "greater than or equal to 0"),
        ("max_width", 0.9, "greater than or equal to 1"),
        ("average", "median", "'mean' or 'posterior'"),
    ],
)
def test_bad_settings(tmp_path, setting, value, allowed):
    with pytest.raises(raysim.SettingsError, match=rf"method\.{setting}=.*{allowed}"):
        make_settings(tmp_path, **{"method.name": NAME, f"method.{setting}": value})
