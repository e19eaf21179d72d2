"""Divide and conquer against NumPy: alternation, frozen groups, bytes, the automatic split."""

from __future__ import annotations

from functools import partial
from itertools import pairwise

import numpy as np
import pytest
import torch
from torch import nn

import raysim
from raysim.federation.task import from_task
from raysim.methods import divide_and_conquer
from raysim.methods.divide_and_conquer import largest_rise
from raysim.numbers.layers import weight_layers
from raysim.numbers.seeds import sample_cohort, stream
from raysim.testing.tasks import SmallNet
from tests.methods.reference import Reference
from tests.methods.test_oracle import assert_close, start_of
from tests.tasks import UNEQUAL, Notes, make_settings, make_task

NAME = "divide_and_conquer"
SIZES = (3, 40, 17, 8)
LR = 0.3


class ThreeLayers(nn.Module):
    """A chain of three fully connected layers, one a stage; scales its initial weights."""

    scales = (1.0, 1.0, 1.0)

    def __init__(self) -> None:
        super().__init__()
        self.head = nn.Linear(8, 3)  # defined first: forward order is that of the stages
        self.features = nn.Sequential(nn.Flatten(), nn.Linear(12, 10), nn.ReLU())
        self.hidden = nn.Sequential(nn.Linear(10, 8), nn.ReLU())
        with torch.no_grad():
            for layer, scale in zip(self.linear(), self.scales, strict=True):
                layer.weight.mul_(scale)

    def linear(self) -> list[nn.Linear]:
        return [self.features[1], self.hidden[0], self.head]

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.head(self.hidden(self.features(x)))


class RisingLate(ThreeLayers):
    scales = (4.0, 4.0, 0.1)


class RisingEarly(ThreeLayers):
    scales = (6.0, 0.1, 0.1)


class Normalised(ThreeLayers):
    """With BatchNorm after the first two layers, and dropout."""

    def __init__(self) -> None:
        super().__init__()
        self.features.append(nn.BatchNorm1d(10))
        self.hidden.append(nn.BatchNorm1d(8)).append(nn.Dropout(0.3))


LAYERS = ("features.1", "hidden.0", "head")
NAMES = [f"{layer}.{kind}" for layer in LAYERS for kind in ("weight", "bias")]


def options(out, **overrides):
    defaults = {"rounds": 2, "fraction": 1.0, "local.batch_size": "full", "local.lr": LR}
    if "method.name" not in overrides:
        defaults |= {"method.name": NAME, "method.split": 1}
    return make_settings(out, **defaults | {"local.epochs": 3} | overrides)


def run(out, model=ThreeLayers, sizes=SIZES, **overrides):
    return raysim.run(options(out, **overrides), make_task(sizes, model))


def initial(model=ThreeLayers):
    network = from_task(make_task(SIZES, model)).network(0)
    return {name: tensor.clone() for name, tensor in network.state_dict().items()}


def divergence(models, kind="cosine"):
    """The mean W_d of each layer: of the models after the first one, against it."""
    found = []
    for layer in range(len(LAYERS)):
        w = [model[2 * layer].ravel() for model in models]
        norm = np.linalg.norm(w[0])
        if kind == "norm":
            found.append(np.mean([np.linalg.norm(w[0] - t) / norm for t in w[1:]]))
            continue
        found.append(np.mean([(1 - w[0] @ t / norm / np.linalg.norm(t)) / norm for t in w[1:]]))
    return np.array(found)


def oracle(reference, split, epochs, factor, start=None, passes=0):
    """Rounds in NumPy from the weights `start`; the first round had `passes` before."""
    w = start or reference.start
    for number, cohort in enumerate(reference.cohorts):
        work = {"index": 0 if number else passes, "trained": range(2 * split)}
        if number % 2:
            lr = reference.lr(number) * factor
            work |= {"trained": range(2 * split, 6), "epochs": epochs, "lr": lr}
        w = reference.mean(cohort, [reference.train(w, number, k, **work) for k in cohort])
    return w


def reference_of(tmp_path, **overrides):
    first = partial(start_of, names=NAMES)
    overrides = {"method.name": NAME, **overrides}
    return Reference(tmp_path, overrides, model=ThreeLayers, first=first)


@pytest.mark.parametrize(("split", "epochs", "factor"), [(1, 4, 0.5), (2, 1, 0.1), (1, 3, 1.5)])
def test_rounds_equal_numpy(tmp_path, split, epochs, factor):
    reference = reference_of(
        tmp_path,
        **{
            "method.split": split,
            "method.finetune_epochs": epochs,
            "method.finetune_lr_factor": factor,
        },
    )
    assert_close(reference.result.params, oracle(reference, split, epochs, factor), NAMES)
    assert reference.result.metrics["phase"].to_pylist() == [0, 1, 0, 1]
    assert reference.result.metrics["split"].to_pylist() == [split] * 4


@pytest.mark.parametrize(("goes_on", "kind"), [(False, "norm"), (True, "cosine")])
def test_rounds_after_a_prepass_equal_numpy(tmp_path, goes_on, kind):
    """Its passes have cohorts of their own, and a decay of the learning rate of their own."""
    options = {"method.continue_from_prepass": goes_on, "method.divergence": kind}
    reference = reference_of(tmp_path, **AUTO | options)
    assert len({*map(tuple, reference.passes[0].values())}) > 2
    models = [reference.start]
    for step in range(4):
        cohort, work = reference.passes[0][step], {"index": step, "lr": reference.lr(step)}
        trained = [reference.train(models[-1], 0, k, **work) for k in cohort]
        models.append(reference.mean(cohort, trained))
    mean = divergence(models[2:], kind)
    split = int(np.argmax(mean[1:] / mean[:-1])) + 1
    start = models[-1] if goes_on else reference.start
    expected = oracle(reference, split, 4, 0.5, start, passes=4)
    assert_close(reference.result.params, expected, NAMES)
    row = reference.result.metrics.to_pylist()[0]
    assert [row[f"divergence_{i}"] for i in (1, 2, 3)] == pytest.approx(mean, rel=1e-4)


class FrozenFirst(ThreeLayers):
    """The first of three layers is frozen."""

    def __init__(self) -> None:
        super().__init__()
        self.features.requires_grad_(False)


def test_layers_of_the_base_are_not_split(tmp_path):
    chosen = make_settings(tmp_path / "run", rounds=2, **{"method.name": NAME})
    rows = raysim.run(chosen, make_task(SIZES, FrozenFirst)).metrics.to_pylist()
    assert rows[0]["split"] == 1  # the only one between two layers


def test_the_frozen_group_is_left_alone_bit_for_bit(tmp_path):
    """Its BatchNorm statistics too, although clients disagree about them."""
    overrides = {"method.split": 1, "local.batch_size": 8}
    after = [initial(Normalised)] + [
        run(tmp_path / str(n), Normalised, **overrides, rounds=n).params for n in (1, 2, 3)
    ]
    early = {name for name in after[0] if name.startswith("features")}
    assert {"features.3.running_var", "features.3.num_batches_tracked"} <= early
    for number, (before, now) in enumerate(pairwise(after)):
        changed = {name for name in before if not torch.equal(before[name], now[name])}
        assert changed == (early if number % 2 == 0 else set(before) - early), number


def tensor_bytes(tensors, prefix=""):
    return sum(t.numel() * t.element_size() for n, t in tensors.items() if n.startswith(prefix))


def test_two_rounds_carry_one_model_each_way(tmp_path):
    result = run(tmp_path, Normalised, rounds=6)
    model = len(SIZES) * tensor_bytes(initial(Normalised))
    early = len(SIZES) * tensor_bytes(initial(Normalised), "features")
    assert result.metrics["bytes_up"].to_pylist() == [early, model - early] * 3
    # A client first receives everything, then what the round before averaged.
    assert result.metrics["bytes_down"].to_pylist() == [model] + [early, model - early] * 2 + [
        early
    ]


def test_a_client_that_missed_a_round_receives_everything(tmp_path):
    rounds, clients = 8, len(UNEQUAL)
    result = run(tmp_path, sizes=UNEQUAL, rounds=rounds, fraction=0.5)
    model, early = tensor_bytes(initial()), tensor_bytes(initial(), "features")
    received = {}  # per client, the versions of the two groups that it holds
    versions, expected = [0, 0], []
    for number in range(rounds):
        cohort = sample_cohort(stream(0, "cohort", number), clients, 3)
        down = 0
        for client in cohort:
            holds = received.get(client, [-1, -1])
            sizes = (early, model - early)
            down += sum(s for s, h, v in zip(sizes, holds, versions, strict=True) if h != v)
            received[client] = list(versions)
        versions[number % 2] = number + 1
        expected.append(down)
    assert result.metrics["bytes_down"].to_pylist() == expected
    assert len(set(expected)) > 2


class FourLayers(nn.Module):
    """A chain of four fully connected layers."""

    def __init__(self) -> None:
        super().__init__()
        self.features = nn.Sequential(nn.Flatten(), nn.Linear(12, 10), nn.ReLU())
        self.hidden = nn.Sequential(nn.Linear(10, 8), nn.ReLU(), nn.Linear(8, 6), nn.ReLU())
        self.head = nn.Linear(6, 3)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.head(self.hidden(self.features(x)))


FOUR = [
    f"{layer}.{kind}"
    for layer in ("features.1", "hidden.0", "hidden.2", "head")
    for kind in ("weight", "bias")
]
MOVING = {"method.split": 2, "method.move_every": 1, "method.min_spread": 0.0, "rounds": 14}


def right_of(w, x, y):
    """The number of samples that a chain of layers classifies right."""
    for weight, bias in zip(w[:-2:2], w[1:-2:2], strict=True):
        x = np.maximum(x @ weight.T + bias, 0)
    return int(((x @ w[-2].T + w[-1]).argmax(1) == y).sum())


def spread_of(accuracies, first):
    """Half the difference of the groups' mean gains, from the accuracies before rounds."""
    gains = np.diff(accuracies)
    of_tuning = (np.arange(len(gains)) + first) % 2 == 1
    return (gains[of_tuning].mean() - gains[~of_tuning].mean()) / 2


def moving_oracle(reference, split, every, least):
    """Rounds in NumPy whose split follows the accuracies that their cohorts report.

    Bytes down are those of the layers that have changed since a client last received them. Returns
    the weights; by round the split, accuracy, spread or None, and bytes down and up; and whether a
    client that missed a round lacked less than all.
    """
    w, accuracies, rows = reference.start, [], []
    sizes = [w[2 * i].size * 4 + w[2 * i + 1].size * 4 for i in range(4)]
    changed, received, late = [0] * 4, {}, False
    for number, cohort in enumerate(reference.cohorts):
        samples = [reference.clients[k] for k in cohort]
        right = sum(right_of(w, x, y) for x, y in samples)
        accuracies.append(right / sum(len(y) for _, y in samples))
        down = 0
        for client in cohort:
            last = received.get(client, -1)
            missing = [i for i in range(4) if last < changed[i]]
            down += sum(sizes[i] for i in missing)
            late |= last < number - 1 and len(missing) < 4
            received[client] = number
        layers = range(split, 4) if number % 2 else range(split)
        work = {"trained": [2 * i + j for i in layers for j in (0, 1)]}
        if number % 2:
            work |= {"epochs": 4, "lr": reference.lr(number) * 0.5}
        w = reference.mean(cohort, [reference.train(w, number, k, **work) for k in cohort])
        for layer in layers:
            changed[layer] = number + 1
        spread, moved = None, split
        if len(accuracies) == 2 * every + 1:
            spread = spread_of(accuracies, number - 2 * every)
            moved = min(max(split - int(np.sign(spread) * (abs(spread) > least)), 1), 3)
            accuracies = accuracies[-1:]
        up = len(cohort) * (sum(sizes[i] for i in layers) + 4)
        rows.append((split, right / sum(len(y) for _, y in samples), spread, down, up))
        if moved != split:
            split, accuracies = moved, []
    return w, rows, late


@pytest.mark.parametrize(
    ("every", "least", "splits"), [(1, 0.0, {1, 2, 3}), (1, 0.05, {2, 3}), (2, 0.02, {2, 3})]
)
def test_a_moving_split_equals_numpy(tmp_path, every, least, splits):
    overrides = {"method.name": NAME, "method.move_every": every, "method.min_spread": least}
    overrides["local.lr"] = 0.5  # so that clients predict more than one class
    first = partial(start_of, names=FOUR)
    reference = Reference(tmp_path, MOVING | overrides, model=FourLayers, first=first)
    w, rows, late = moving_oracle(reference, 2, every, least)
    assert_close(reference.result.params, w, FOUR)
    names = ("split", "received_accuracy", "spread", "bytes_down", "bytes_up")
    found = reference.result.metrics.select(names).to_pylist()
    assert [tuple(row.values()) for row in found] == [
        (split, pytest.approx(accuracy), spread and pytest.approx(spread, abs=1e-9), *more)
        for split, accuracy, spread, *more in rows
    ]
    assert {row[0] for row in rows} == splits
    assert late == (least == 0.05)  # a layer is moved between two rounds that train the others


class StopAfterThree(raysim.Listener):
    def round_done(self, row):
        if row["round"] == 3:
            raise KeyboardInterrupt


def test_gains_are_those_of_rounds_in_a_row(tmp_path):
    """A round without clients trains nothing: the gains around it are of no group."""
    some = {"selection.name": "poisson", "fraction": 0.25, "rounds": 40, "method.min_spread": 1.0}
    result = run(tmp_path / "run", **MOVING | some)
    accuracies, expected, kinds = [], [], set()
    for number, row in enumerate(result.metrics.to_pylist()):
        accuracies = [*accuracies, row["received_accuracy"]] if row["clients"] else []
        expected.append(None)
        if len(accuracies) == 3:
            expected[-1] = pytest.approx(spread_of(accuracies, number - 2), abs=1e-9)
            accuracies = accuracies[-1:]
        kinds.add((row["clients"] > 0, expected[-1] is None))
    assert result.metrics["spread"].to_pylist() == expected
    assert len(kinds) == 3


@pytest.mark.parametrize(
    "more", [{"rounds": 4}, MOVING | {"fraction": 0.6, "method.move_every": 2}]
)
def test_a_resumed_run_has_the_same_bytes(tmp_path, more):
    """Also where it stops between the rounds by which its split is moved."""
    task = make_task(SIZES, FourLayers)
    whole = raysim.run(options(tmp_path / "whole", **more), task)
    with pytest.raises(KeyboardInterrupt):
        raysim.run(options(tmp_path / "parts", **more), task, StopAfterThree())
    resumed = raysim.resume(tmp_path / "parts", task)
    names = [n for n in whole.metrics.column_names if not n.endswith("seconds")]
    assert resumed.metrics.select(names).equals(whole.metrics.select(names))
    files = [tmp_path / name / "model.safetensors" for name in ("whole", "parts")]
    assert files[0].read_bytes() == files[1].read_bytes()
    assert len({*whole.metrics["split"].to_pylist()}) == (2 if "method.move_every" in more else 1)


def spread_out(outputs, targets):
    return (outputs.sum(1) - targets).square()


def test_a_moving_split_needs_an_accuracy(tmp_path):
    task = make_task(SIZES, ThreeLayers)
    task = raysim.Task(task.model, task.clients, task.test, raysim.Scoring(spread_out, {}))
    message = r"method\.move_every=1: the task is no classification"
    with pytest.raises(raysim.SettingsError, match=message):
        raysim.run(options(tmp_path, **{"method.move_every": 1}), task)


def test_a_run_from_before_splits_could_move_goes_on_with_the_same_bytes(tmp_path, monkeypatch):
    whole = run(tmp_path / "whole", sizes=UNEQUAL, rounds=8, fraction=0.5)
    after = divide_and_conquer._lacking_after

    def without(*given):
        return {"clients": after(*given)["clients"]}

    monkeypatch.setattr(divide_and_conquer, "_lacking_after", without)
    before = run(tmp_path / "before", sizes=UNEQUAL, rounds=8, fraction=0.5)
    assert before.metrics["bytes_down"].equals(whole.metrics["bytes_down"])


AUTO = {"method.split": "auto", "method.prepass": 2, "method.probe": 2, "method.min_rise": 0.0}


@pytest.mark.parametrize(("model", "split"), [(RisingLate, 2), (RisingEarly, 1)])
def test_automatic_split(tmp_path, model, split):
    """W_d from the models of a FedAvg run; training then starts from the initial model."""
    plain = {"method.name": "fedavg"}
    after = [run(tmp_path / f"{n}", model, rounds=n, **plain).params for n in (2, 3, 4)]
    mean = divergence([[w[name].numpy().astype(np.float64) for name in NAMES] for w in after])
    assert np.argmax(mean[1:] / mean[:-1]) + 1 == split
    overrides = AUTO | {"method.min_rise": 1.0}
    result = run(tmp_path / "auto", model, **overrides)
    first, second = result.metrics.to_pylist()
    for i, value in enumerate(mean, 1):
        assert first[f"divergence_{i}"] == pytest.approx(value, rel=1e-4)
        assert second[f"divergence_{i}"] is None
    assert (first["split"], second["split"]) == (split, split)
    sent = 4 * len(SIZES) * tensor_bytes(result.params)
    assert (first["prepass_bytes_up"], first["prepass_bytes_down"]) == (sent, sent)
    assert second["prepass_bytes_up"] is None
    fixed = run(tmp_path / "fixed", model, **{"method.split": split})
    assert all(torch.equal(result.params[n], fixed.params[n]) for n in fixed.params)
    assert result.summary["bytes_up"] == fixed.summary["bytes_up"] + sent
    assert result.summary["bytes_down"] == fixed.summary["bytes_down"] + sent


def test_training_may_go_on_from_the_prepass_model(tmp_path):
    overrides = AUTO | {"method.continue_from_prepass": True}
    result = run(tmp_path / "auto", rounds=1, **overrides)
    split = result.metrics["split"].to_pylist()[-1]
    start = run(tmp_path / "fedavg", rounds=4, **{"method.name": "fedavg"})
    late = [name for name in NAMES if NAMES.index(name) >= 2 * split]
    assert all(torch.equal(result.params[name], start.params[name]) for name in late)
    assert not torch.equal(result.params[NAMES[0]], start.params[NAMES[0]])


def test_without_a_rise_the_last_layer_is_fine_tuned_and_a_note_says_so(tmp_path):
    tell = Notes()
    settings = options(tmp_path, **AUTO | {"method.min_rise": 1e9})
    result = raysim.run(settings, make_task(SIZES, RisingEarly), tell)
    assert result.metrics["split"].to_pylist()[-1] == 2
    (note,) = tell.notes
    assert "layers 1 to 3" in note and "shows no split" in note and "min_rise is 1e+09" in note


def test_the_prepass_decays_its_learning_rate_from_its_own_start(tmp_path):
    """A pre-pass is a FedAvg run like any other; training then starts its own decay."""
    overrides = AUTO | {"local.lr_decay": 0.5, "rounds": 2}
    auto = run(tmp_path / "auto", **overrides | {"method.continue_from_prepass": True})
    plain = run(tmp_path / "plain", **{"method.name": "fedavg", "local.lr_decay": 0.5, "rounds": 4})
    losses = plain.metrics["train_loss"].to_numpy()
    assert auto.metrics["prepass_train_loss"].to_pylist()[0] == pytest.approx(losses.mean())
    assert auto.metrics["lr"].to_pylist() == [LR, LR * 0.5]


@pytest.mark.parametrize(
    ("divergence", "split", "rise"),
    [
        ([1.0, 2.0], 1, 1.0),
        ([1.0, 2.0, 6.0, 7.0], 2, 2.0),
        ([3.0, 3.0, 3.0], 1, 0.0),
        ([4.0, 2.0, 1.5], 2, -0.25),
        ([0.0, 0.0, 1.0, 9.0], 2, np.inf),
    ],
)
def test_largest_rise(divergence, split, rise):
    assert largest_rise(divergence) == (split, rise)


def test_layers_are_in_forward_order():
    layers = weight_layers(Normalised())
    assert [layer.path for layer in layers] == list(LAYERS)
    assert layers[0].weights == ("features.1.weight",)
    assert layers[0].others == ["features.3"]
    assert set(layers[0].parameters) == {
        f"features.{i}.{k}" for i in (1, 3) for k in ("weight", "bias")
    }
    assert "features.3.running_mean" in layers[0].buffers
    first = SmallNet()
    first.features = nn.BatchNorm1d(12)
    assert weight_layers(first)[0].others == ["features"]


def test_clients_of_one_sample_and_of_one_more_than_a_batch(tmp_path):
    overrides = {"local.batch_size": 8, "rounds": 4}
    result = run(tmp_path, ThreeLayers, (1, 9, 1, 30), **overrides)
    assert all(tensor.isfinite().all() for tensor in result.params.values())


class Stray(ThreeLayers):
    def __init__(self) -> None:
        super().__init__()
        self.extra = nn.Parameter(torch.zeros(1))


class Tied(ThreeLayers):
    def __init__(self) -> None:
        super().__init__()
        self.hidden.append(nn.Linear(8, 8)).append(nn.Linear(8, 8))
        self.hidden[3].weight = self.hidden[2].weight


class OneLayer(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.features, self.hidden, self.head = nn.Flatten(), nn.Identity(), nn.Linear(12, 3)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.head(self.hidden(self.features(x)))


@pytest.mark.parametrize(
    ("model", "overrides", "message"),
    [
        (ThreeLayers, {"method.split": 3}, r"method\.split=3: must be 1 to 2, or auto"),
        (ThreeLayers, {"method.split": 0}, r"method\.split=0: .*greater than or equal to 1"),
        (OneLayer, {"method.split": "auto"}, r"method\.name=.*at least 2 weight layers.*has 1"),
        (Stray, {}, r"method\.name=.*extra does not"),
        (Tied, {}, r"method\.name=.*hidden\.3\.weight does not"),
        (ThreeLayers, {"method.prepass": 0}, r"method\.prepass=0: .*greater"),
        (ThreeLayers, {"method.probe": 0}, r"method\.probe=0: .*greater"),
        (ThreeLayers, {"method.finetune_epochs": 0}, r"method\.finetune_epochs=0: .*greater"),
        (ThreeLayers, {"method.finetune_lr_factor": 0}, r"finetune_lr_factor=0: .*greater than 0"),
        (nn.Linear, {}, r"lacks features, hidden, head"),
    ],
)
def test_bad_settings_stop_before_the_first_round(tmp_path, model, overrides, message):
    build = (lambda: nn.Linear(12, 3)) if model is nn.Linear else model
    with pytest.raises(raysim.SettingsError, match=message):
        run(tmp_path / "run", build, **overrides)
    assert not (tmp_path / "run/metrics.parquet").exists()
