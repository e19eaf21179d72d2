"""The base of a network: frozen tensors are in no model that travels, and stay as they are."""

from __future__ import annotations

import copy
import multiprocessing
import os
import shutil
from collections.abc import Callable, Collection
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Literal

import pytest
import torch
from safetensors.torch import load_file, save_file
from torch import nn

import raysim
import raysim.errors
from raysim.federation.base_files import HeldBase, base_digest, share
from raysim.methods.fedavg import FedAvg
from raysim.numbers.tensors import base_of, set_base
from raysim.testing.tasks import SmallNet, samples
from tests.tasks import UNEQUAL, StopAfter, make_settings, make_task, model_of

MOVING = {"head.weight", "head.bias", "hidden.0.weight", "hidden.0.bias"}


class Backbone(SmallNet):
    """A frozen backbone with BatchNorm, with and without parameters, below two trained layers."""

    def __init__(self) -> None:
        super().__init__()
        layers = nn.Linear(12, 12), nn.BatchNorm1d(12), nn.ReLU(), nn.BatchNorm1d(12, affine=False)
        self.features = nn.Sequential(*layers).requires_grad_(False)
        for norm in (layers[1], layers[3]):
            norm.running_mean.uniform_(-1, 1)
            norm.running_var.uniform_(0.5, 2)


def alone(whole: Backbone) -> nn.Module:
    """Return the trained layers of a network alone."""
    return nn.Sequential(copy.deepcopy(whole.hidden), copy.deepcopy(whole.head))


def featured(task: raysim.Task, network: Backbone) -> raysim.Task:
    """Return a task on the outputs of a network's backbone, in evaluation mode."""
    features = copy.deepcopy(network.features).eval()

    def made(pair):
        return features(torch.as_tensor(pair[0], dtype=torch.float32)), pair[1]

    return raysim.Task(alone(network), [made(c) for c in task.clients], made(task.test))


@pytest.mark.parametrize("options", [{}, {"engine.vectorize": 4}], ids=["alone", "stacked"])
def test_training_on_a_frozen_backbone_is_training_on_its_outputs(tmp_path, options):
    """So its statistics do not move; unequal clients, one of them with a last batch of one."""
    network, task = Backbone(), make_task(UNEQUAL)
    own = raysim.Task(network, task.clients, task.test)
    options = {"local.momentum": 0.5, "rounds": 3, "fraction": 1.0, **options}
    found = raysim.run(make_settings(tmp_path / "own", **options), own)
    expected = raysim.run(make_settings(tmp_path / "features", **options), featured(task, network))
    assert {*found.params} == MOVING
    for name in found.params:
        other = name.replace("hidden", "0").replace("head", "1")
        assert torch.allclose(found.params[name], expected.params[other], atol=1e-6), name
    assert found.metrics["bytes_up"].equals(expected.metrics["bytes_up"])


@pytest.mark.usefixtures("resident_actors")
@pytest.mark.parametrize(
    "options",
    [
        {"method.name": "scaffold"},
        {"method.name": "fedper", "method.own": "head", "keep_clients": True},
        {"method.name": "fedfusion"},
        {"aggregation.name": "median", "attack.name": "sign_flip", "attack.fraction": 0.3},
        {"channel.masks": {}},
        {"channel.topk.fraction": 0.1, "downlink.int8": {}},
        {"method.name": "fedbuff", "method.concurrency": 3},
    ],
    ids=lambda options: f"{next(iter(options.values())) or next(iter(options))}",
)
def test_no_file_of_a_run_but_its_base_has_a_frozen_tensor(tmp_path, options):
    """And the same bytes inline, on two actors, and interrupted and resumed."""
    task, options = make_task(UNEQUAL, Backbone), {"checkpoint_every": 1, **options}
    raysim.run(make_settings(tmp_path / "inline", **options), task)
    fused = options.get("method.name") == "fedfusion"
    for path in (tmp_path / "inline").rglob("*.safetensors"):
        found = [name.replace(".local" * fused, "") for name in load_file(path)]
        if path.name == "base.safetensors":
            assert {*found} == {*base_of_built()}
        else:
            assert not [name for name in found if name.endswith((*base_of_built(),))], path
    on_actors = {"engine.backend": "ray", "engine.actors": 2}
    raysim.run(make_settings(tmp_path / "actors", **options, **on_actors), task)
    with pytest.raises(KeyboardInterrupt):
        raysim.run(make_settings(tmp_path / "cut", **options), task, StopAfter(1))
    raysim.resume(tmp_path / "cut", task)
    assert model_of(tmp_path / "inline") == model_of(tmp_path / "actors")
    assert model_of(tmp_path / "inline") == model_of(tmp_path / "cut")


def base_of_built() -> dict[str, torch.Tensor]:
    network = Backbone()
    set_base(network)
    return {**base_of(network)}


def test_a_run_is_loaded_with_the_frozen_tensors_that_it_began_with(tmp_path):
    """They are drawn when the model is built, otherwise each time."""
    result = raysim.run(make_settings(tmp_path / "run"), make_task(UNEQUAL, Backbone))
    x, _ = samples(50, 3)
    loaded = [raysim.load(result.run_dir, Backbone) for _ in range(2)]
    first, again = (network(torch.as_tensor(x, dtype=torch.float32)) for network in loaded)
    assert torch.equal(first, again)
    base = load_file(tmp_path / "run" / "base.safetensors")
    assert all(torch.equal(loaded[0].state_dict()[name], base[name]) for name in base)
    copied = copy.deepcopy(loaded[0])  # a plain module again
    with torch.no_grad():
        copied.features[0].weight.zero_()
    assert loaded[0].features[0].weight.any()


@pytest.mark.parametrize("failing", ["network", "tensors"])
def test_a_module_is_a_plain_one_after_a_failed_load(tmp_path, failing):
    method = {"method.name": "fedrod"} if failing == "network" else {}
    raysim.run(make_settings(tmp_path / "run", **method), make_task(UNEQUAL, Backbone))
    other = Backbone()  # FedRoD wraps a linear head
    other.head = nn.Identity() if failing == "network" else nn.Linear(16, 4)
    with pytest.raises(raysim.RaysimError):
        raysim.load(tmp_path / "run", other)
    assert not base_of(other)


class Killed(raysim.Listener):
    """Ends the process in a run's first round."""

    def started(self, run: raysim.Started) -> None:
        os._exit(1)


@pytest.mark.parametrize("model", [Backbone, SmallNet])
def test_a_run_does_not_take_the_base_of_an_attempt_without_a_checkpoint(tmp_path, model):
    """Of another seed; the second model has no base."""
    options = {"rounds": 1, "seed": 1}
    begin = partial(raysim.run, make_settings(tmp_path / "run"), make_task(UNEQUAL, Backbone))
    killed = multiprocessing.get_context("fork").Process(target=begin, args=(Killed(),))
    killed.start()
    killed.join()
    assert (tmp_path / "run" / "base.safetensors").exists()
    for name in ("run", "fresh"):
        raysim.run(make_settings(tmp_path / name, **options), make_task(UNEQUAL, model))
    found, expected = (
        raysim.load(tmp_path / name, model).state_dict() for name in ("run", "fresh")
    )
    assert all(torch.equal(found[name], expected[name]) for name in expected)
    assert (tmp_path / "run" / "base.safetensors").exists() == (model is Backbone)


@pytest.mark.parametrize("action", ["load", "resume"])
@pytest.mark.parametrize(
    ("damage", "line"),
    [
        (lambda path: path.write_bytes(b"none"), r"base.safetensors: cannot be read"),
        (
            lambda path: save_file(
                {n: t + (n == "features.0.bias") for n, t in load_file(path).items()}, path
            ),
            r"frozen tensors",
        ),
        (lambda path: save_file({"other": torch.zeros(2)}, path), r"holds other \[2\], which is"),
    ],
    ids=["damaged", "changed", "another"],
)
def test_a_changed_base_is_refused_in_a_line(tmp_path, action, damage, line):
    task = make_task(UNEQUAL, Backbone)
    with pytest.raises(KeyboardInterrupt):
        raysim.run(make_settings(tmp_path / "run", checkpoint_every=1), task, StopAfter(1))
    damage(tmp_path / "run" / "base.safetensors")
    with pytest.raises(raysim.RunError, match=line):
        if action == "load":
            raysim.load(tmp_path / "run", Backbone)
        else:
            raysim.resume(tmp_path / "run", task)


class Unfrozen(Backbone):
    def __init__(self) -> None:
        super().__init__()
        self.features.requires_grad_()


class HeadAlone(Backbone):
    def __init__(self) -> None:
        super().__init__()
        self.hidden.requires_grad_(False)


@pytest.mark.parametrize("model", [Backbone, Unfrozen, HeadAlone])
def test_a_run_starts_with_the_frozen_tensors_of_another(tmp_path, model):
    """With another seed, and where more of the network is frozen, or less."""
    task = make_task(UNEQUAL, Backbone)
    first = raysim.run(make_settings(tmp_path / "first"), task).run_dir
    before = raysim.load(first, Backbone).state_dict()
    options = {"seed": 5, "rounds": 1, "local.lr": 1e-30, "start_from": str(first)}
    sizes = tuple(size for size in UNEQUAL if size > 8 and size % 8 != 1)
    raysim.run(make_settings(tmp_path / "next", **options), make_task(sizes, model))
    after = raysim.load(tmp_path / "next", model).state_dict()
    moved = {name for name in before if not torch.equal(before[name], after[name])}
    statistics = {name for name in before if "running" in name or "num_batches" in name}
    assert moved <= (statistics if model is Unfrozen else set())


class Published(raysim.Model):
    """A network that is read whole from files, and trained whole or its head alone."""

    train: Literal["all", "head"] = "all"

    def build(self, shape: tuple[int, ...], classes: int) -> nn.Module:
        with torch.random.fork_rng(devices=[]):
            torch.manual_seed(0)
            network = SmallNet()
        network.hidden.requires_grad_(self.train == "all")
        return network

    def read(self, module: nn.Module) -> Collection[str]:
        return [name for name, _ in module.named_parameters()]


def test_a_run_holds_what_another_has_trained_of_a_published_network(tmp_path):
    """As its files do not; a third run starts from it, too, and an interrupted one resumes."""
    parts = {
        **{"dataset.name": "tests.blobs:Blobs", "partition.name": "iid", "clients": 6},
        **{"model.name": "tests.driver.test_base:Published", "checkpoint_every": 1, "rounds": 2},
    }
    first = make_settings(tmp_path / "first", **parts)
    raysim.run(first)
    head = {**parts, "model.train": "head", "seed": 5, "local.lr": 1e-30}
    before = tmp_path / "first"
    for name in ("next", "third"):
        settings = make_settings(tmp_path / name, **head, start_from=str(before))
        with pytest.raises(KeyboardInterrupt):
            raysim.run(settings, listener=StopAfter(1))
        raysim.resume(tmp_path / name)
        whole = raysim.load(tmp_path / "first").state_dict()
        found = raysim.load(tmp_path / name).state_dict()
        assert all(torch.equal(found[n], whole[n]) for n in whole)
        before = tmp_path / name
    raysim.run(make_settings(tmp_path / "plain", **head))
    assert not (tmp_path / "plain" / "base.safetensors").exists()


def test_a_start_with_another_base_is_refused(tmp_path):
    task = make_task(UNEQUAL, Backbone)
    first = raysim.run(make_settings(tmp_path / "first", keep_clients=True), task).run_dir
    (first / "base.safetensors").write_bytes(b"none")
    with pytest.raises(raysim.RunError, match=r"base.safetensors: cannot be read"):
        raysim.run(make_settings(tmp_path / "other", seed=5, start_from=str(first)), task)
    (first / "base.safetensors").unlink()  # as of a network that is read from its own files
    shutil.copy(first / "model.safetensors", tmp_path / "copied.safetensors")
    (of_client, *_) = first.glob("client_models/*/*")
    for start in (first, first / "model.safetensors", tmp_path / "copied.safetensors", of_client):
        settings = make_settings(tmp_path / "other", seed=5, start_from=str(start))
        with pytest.raises(
            raysim.SettingsError, match=r"^start_from: the tensors that its run had"
        ):
            raysim.run(settings, task)


class Scaled(SmallNet):
    """Trained layers with BatchNorm, and a frozen number beside them."""

    def __init__(self, scaled: bool = True) -> None:
        super().__init__()
        self.hidden = nn.Sequential(nn.Linear(12, 16), nn.BatchNorm1d(16), nn.Dropout(0.5))
        if scaled:
            self.scale = nn.Parameter(torch.ones(()), requires_grad=False)


def test_a_frozen_parameter_leaves_the_modes_of_other_modules(tmp_path):
    sizes = (16, 24, 32, 40)
    found = [
        raysim.run(
            make_settings(tmp_path / f"{scaled}"),
            make_task(sizes, partial(Scaled, scaled)),
        ).params
        for scaled in (False, True)
    ]
    assert found[0].keys() == found[1].keys()
    assert all(torch.equal(found[0][name], found[1][name]) for name in found[0])
    assert found[0]["hidden.1.num_batches_tracked"] > 0


class Turns(nn.Module):
    """Turns pairs of inputs by constant angles, and drops some; it has no parameters."""

    def __init__(self, constant: bool) -> None:
        super().__init__()
        angles = torch.linspace(0.1, 1, 6)
        if constant:
            self.register_buffer("angles", angles, persistent=False)
        else:
            self.angles = angles

    def forward(self, x):
        first, second = x.chunk(2, 1)
        sine, cosine = self.angles.sin(), self.angles.cos()
        turned = torch.cat([first * cosine - second * sine, first * sine + second * cosine], 1)
        return nn.functional.dropout(turned, 0.2, self.training)


class Calls(nn.Module):
    """Counts its calls in training; it has no parameters."""

    def __init__(self) -> None:
        super().__init__()
        self.register_buffer("count", torch.tensor(0), persistent=False)

    def forward(self, x):
        self.count = self.count + self.training
        return x


class Turned(SmallNet):
    """A trained network on turned inputs."""

    def __init__(self, constant: bool, *more: Callable[[], nn.Module]) -> None:
        super().__init__()
        self.features = nn.Sequential(nn.Flatten(), Turns(constant), *(make() for make in more))


NOISE = {
    "channel.gaussian.noise": 0.05,
    "channel.gaussian.clip": 1.0,
    "aggregation.weighting": "fixed",
}
COUNTING = Calls, partial(nn.BatchNorm1d, 12, affine=False)


@pytest.mark.parametrize(
    ("options", "more"),
    [(NOISE, ()), ({}, COUNTING), ({"engine.vectorize": 4}, COUNTING)],
    ids=["noise", "counts", "counts, stacked"],
)
def test_constants_of_a_trained_network_stay_and_its_counts_move(tmp_path, options, more):
    """A network that has its constants in attributes computes the same, and sends as much."""
    constant, expected = (
        raysim.run(
            make_settings(tmp_path / f"{constant}", **options),
            make_task((16, 24, 32, 40), partial(Turned, constant, *more)),
        )
        for constant in (True, False)
    )
    assert constant.params.keys() == expected.params.keys()
    assert all(torch.equal(constant.params[n], expected.params[n]) for n in expected.params)
    assert constant.metrics["bytes_up"].equals(expected.metrics["bytes_up"])
    if more:
        assert constant.params["features.2.count"] > 0
        assert constant.params["features.3.running_mean"].any()


class Flat(Backbone):
    """All of its parameters in one memory."""

    def __init__(self) -> None:
        super().__init__()
        flat = nn.utils.parameters_to_vector(self.parameters())
        nn.utils.vector_to_parameters(flat.detach().clone(), self.parameters())


def test_a_frozen_tensor_beside_trained_ones_in_one_memory_is_of_the_base(tmp_path):
    result = raysim.run(make_settings(tmp_path / "run"), make_task(UNEQUAL, Flat))
    assert {*result.params} == MOVING


class Moving(FedAvg):
    """Its server moves a frozen weight, which clients then have."""

    def moved(self, model: nn.Module) -> Collection[str]:
        return ["features.0.weight"]

    def rules(self) -> raysim.Rules:
        return raysim.Rules(finish=_send_trained)

    def server_update(self, now, state, reduced):
        model = {**state.groups["model"], **reduced.means["model"]}
        return state.replace(model={**model, "features.0.weight": model["features.0.weight"] + 1})


def _send_trained(view, trained):
    return raysim.Upload(sums={"model": {name: view.params[name] for name in view.trainable}})


def test_a_server_that_moves_a_frozen_weight_sends_it(tmp_path):
    """It is in the model, and counted down; a client that has another one computes other values."""
    task, options = make_task(UNEQUAL, Backbone), {"rounds": 3, "fraction": 1.0}
    plain = raysim.run(make_settings(tmp_path / "plain", **options), task)
    name = "tests.driver.test_base:Moving"
    moving = raysim.run(make_settings(tmp_path / "moved", **options, **{"method.name": name}), task)
    weight = moving.params["features.0.weight"]
    assert {*moving.params} == MOVING | {"features.0.weight"}
    more = [
        a - b
        for a, b in zip(
            moving.metrics["bytes_down"].to_pylist(),
            plain.metrics["bytes_down"].to_pylist(),
            strict=True,
        )
    ]
    assert more == [weight.nbytes * len(UNEQUAL)] * 3
    assert moving.metrics["bytes_up"].equals(plain.metrics["bytes_up"])
    losses = [run.metrics["train_loss"].to_pylist() for run in (plain, moving)]
    assert losses[0][0] == losses[1][0] and losses[0][1] != losses[1][1]


class Wrong(Moving):
    def moved(self, model: nn.Module) -> Collection[str]:
        return ["head.weight"]


def test_only_frozen_parameters_can_be_moved(tmp_path):
    options = {"method.name": "tests.driver.test_base:Wrong"}
    with pytest.raises(raysim.SettingsError, match="names of the model's frozen parameters"):
        raysim.run(make_settings(tmp_path / "run", **options), make_task(UNEQUAL, Backbone))


class Freezes(FedAvg):
    """Trains the head alone."""

    def network(self, model: nn.Module) -> nn.Module:
        model.hidden.requires_grad_(False)
        return model


class Unfreezes(FedAvg):
    """Trains all."""

    def network(self, model: nn.Module) -> nn.Module:
        model.features.requires_grad_()
        return model


class TrainsCopy(FedAvg):
    def network(self, model: nn.Module) -> nn.Module:
        model.further = copy.deepcopy(model.features).requires_grad_()
        return model


@pytest.mark.parametrize(("method", "model"), [(Freezes, HeadAlone), (Unfreezes, Unfrozen)])
def test_what_a_method_freezes_or_trains_is_as_if_the_model_did(tmp_path, method, model):
    """Inline and in other processes; and the run is loaded."""
    sizes = tuple(size for size in UNEQUAL if size > 8 and size % 8 != 1)
    name = f"tests.driver.test_base:{method.__name__}"
    runs = [
        ("model", model, {}),
        ("method", Backbone, {"method.name": name}),
    ]
    expected, found = (
        raysim.run(make_settings(tmp_path / way, rounds=2, **options), make_task(sizes, built))
        for way, built, options in runs
    )
    assert found.params.keys() == expected.params.keys()
    assert all(torch.equal(found.params[n], expected.params[n]) for n in expected.params)
    assert found.metrics["bytes_up"].equals(expected.metrics["bytes_up"])
    loaded = raysim.load(tmp_path / "method", Backbone).state_dict()
    assert all(torch.equal(loaded[n], found.params[n]) for n in found.params)


def test_a_trained_copy_of_a_frozen_parameter_is_refused(tmp_path):
    options = {"method.name": "tests.driver.test_base:TrainsCopy"}
    with pytest.raises(raysim.SettingsError, match=r"trains features.0.weight, a copy of a frozen"):
        raysim.run(make_settings(tmp_path / "run", **options), make_task(UNEQUAL, Backbone))


class FrozenHead(SmallNet):
    def __init__(self) -> None:
        super().__init__()
        self.head.requires_grad_(False)


def test_fedrod_refuses_a_frozen_head(tmp_path):
    line = r"^method.name=fedrod: trains two heads, and the model's is frozen; train it"
    with pytest.raises(raysim.SettingsError, match=line):
        raysim.run(
            make_settings(tmp_path / "run", **{"method.name": "fedrod"}),
            make_task(UNEQUAL, FrozenHead),
        )


class Counting(Backbone):
    """Changes a frozen tensor in its forward, in place or by another way."""

    way = "in place"

    def forward(self, x):
        with torch.no_grad():
            weight = self.features[0].weight
            if self.training and self.way == "in place":
                weight.add_(1)
            if self.training and self.way == "data":
                weight.data[0, 0] += 1
            if self.training and self.way == "always the same":
                weight.data[0, 0] = 1
            if self.training and self.way == "rebound":
                self.features[1].running_mean = self.features[1].running_mean + 1
        return super().forward(x)


@pytest.mark.parametrize("way", ["in place", "data", "always the same", "rebound"])
def test_a_write_to_the_base_is_refused(tmp_path, way, monkeypatch):
    monkeypatch.setattr(Counting, "way", way)
    line = {
        "rebound": "assigns the buffer features.1.running_mean, which must stay",
    }.get(way, r"^the model: the frozen tensor features.0.weight was changed in place")
    with pytest.raises(raysim.RaysimError, match=line):
        raysim.run(make_settings(tmp_path / "run"), make_task(UNEQUAL, Counting))


def in_training_mode(network, x, y):
    """Move the statistics of BatchNorm, as dropout by Monte Carlo may."""
    return {"mean": network.train()(x.float()).mean().item()}


def past_versions(network, x, y):
    network.features[0].weight.data[0, 0] = 1
    return {"mean": 0.0}


@pytest.mark.parametrize(
    ("evaluate", "name"),
    [(in_training_mode, "features.1.num_batches_tracked"), (past_versions, "features.0.weight")],
)
def test_a_write_to_the_base_in_an_evaluation_is_refused(tmp_path, evaluate, name):
    task = replace(make_task(UNEQUAL, Backbone), evaluate=evaluate)
    line = f"^Task.evaluate: the frozen tensor {name} was changed in place"
    with pytest.raises(raysim.SettingsError, match=line):
        raysim.run(make_settings(tmp_path / "run"), task)
    assert not (tmp_path / "run").exists()


@pytest.mark.skipif(not Path("/proc/self/pagemap").exists(), reason="Linux tells the pages")
def test_a_write_to_a_mapped_base_is_found_and_reaches_no_other(tmp_path):
    network, other = large(), large()
    digest = base_digest(base_of(network))
    share(base_of(network), digest, tmp_path)
    share(base_of(other), digest, tmp_path)
    held = HeldBase.of(network)
    held.check_values()
    before = other[0].weight.detach().clone()
    network[0].weight.data[4095, 1023] += 1
    with pytest.raises(raysim.SettingsError, match=r"frozen tensor 0.weight was changed in place"):
        held.check_values()
    assert torch.equal(other[0].weight, before)


def test_another_tensor_in_place_of_a_mapped_one_is_found(tmp_path):
    network = large().append(nn.Linear(2, 3))
    network[2].requires_grad_(False)
    set_base(network)
    share(base_of(network), base_digest(base_of(network)), tmp_path)
    held = HeldBase.of(network)
    held.check_values()
    network[2].bias.data = network[2].bias.data * 1.001
    with pytest.raises(raysim.SettingsError, match=r"frozen tensor 2.bias was changed in place"):
        held.check_values()


class Tied(SmallNet):
    """A frozen name of the memory of a trained weight."""

    def __init__(self) -> None:
        super().__init__()
        self.other = nn.Parameter(self.head.weight.detach(), requires_grad=False)
        self.scale = nn.Parameter(torch.ones(3), requires_grad=False)


def test_a_frozen_name_of_a_trained_tensor_is_trained():
    network = Tied()
    set_base(network)
    assert {*base_of(network)} == {"scale"}


def large() -> nn.Module:
    torch.manual_seed(1)
    network = nn.Sequential(nn.Linear(1024, 4096, bias=False).requires_grad_(False))
    network.append(nn.Linear(4096, 2))
    set_base(network)
    return network


def private_bytes(folder: Path, sender) -> None:
    """Send the kilobytes that a shared base adds to this process's own memory."""
    network = large()
    digest = base_digest(base_of(network))
    share(base_of(network), digest, folder)
    copies = [copy.deepcopy(network) for _ in range(3)]
    total = sum(float(each[0].weight.sum()) for each in copies)
    own = 0
    for line in Path("/proc/self/smaps").read_text().splitlines():
        if "-" in line.split(" ")[0]:
            is_base = line.endswith(f"{digest}.base")
        elif is_base and line.startswith("Anonymous:"):  # written to since it was mapped
            own += int(line.split()[1])
    sender.send((own, total))


@pytest.mark.skipif(not Path("/proc/self/smaps").exists(), reason="Linux tells the pages")
def test_processes_and_copies_share_one_file(tmp_path):
    context = multiprocessing.get_context("fork")
    found = []
    for _ in range(2):
        receiver, sender = context.Pipe(duplex=False)
        process = context.Process(target=private_bytes, args=(tmp_path, sender))
        process.start()
        found.append(receiver.recv())
        process.join()
    assert found[0] == found[1] and found[0][0] == 0
    assert [path.suffix for path in tmp_path.iterdir() if path.name != ".lock"] == [".base"]


def test_a_damaged_file_is_written_again_and_another_base_is_refused(tmp_path):
    network = large()
    digest = base_digest(base_of(network))
    path = tmp_path / f"{digest}.base"
    path.write_bytes(bytes(1024 * 4096 * 4))
    before = network[0].weight.detach().clone()
    share(base_of(network), digest, tmp_path)
    assert torch.equal(network[0].weight, before) and path.read_bytes()[:4] != bytes(4)
    other = large()
    with torch.no_grad():
        other[0].weight.add_(1)
    share(base_of(other), digest, tmp_path)  # the file has the driver's base
    assert torch.equal(other[0].weight, before)
    path.unlink()
    with torch.no_grad():
        other[0].weight = nn.Parameter(before + 1, requires_grad=False)
        set_base(other)
    with pytest.raises(
        raysim.errors.DataError, match=r"^node .*: the model's frozen tensors differ"
    ):
        share(base_of(other), digest, tmp_path)


@pytest.mark.parametrize("again", [False, True], ids=["once", "never"])
def test_a_file_that_cannot_be_read_is_written_again(tmp_path, monkeypatch, again):
    """As another user's; if the new one cannot be read either, a line says so."""
    network, read = large(), torch.from_file
    digest = base_digest(base_of(network))
    share(base_of(network), digest, tmp_path)
    (path,) = tmp_path.glob("*.base")
    assert not path.stat().st_mode & 0o222
    before = path.stat().st_ino

    def refusing(*args, **options):
        if again or path.stat().st_ino == before:
            raise RuntimeError(f"unable to open file <{path}>: Permission denied (13)")
        return read(*args, **options)

    monkeypatch.setattr(torch, "from_file", refusing)
    if again:
        with pytest.raises(raysim.errors.DataError, match=r"written: unable to .* denied"):
            share(base_of(large()), digest, tmp_path)
    else:
        share(base_of(large()), digest, tmp_path)
        assert path.stat().st_ino != before


def test_a_file_that_is_removed_as_it_is_mapped_stays(tmp_path, monkeypatch):
    network, read = large(), torch.from_file
    digest = base_digest(base_of(network))
    share(base_of(network), digest, tmp_path)
    expected = network[0].weight.detach().clone()

    def removing(name, **options):
        mapped = read(name, **options)
        Path(name).unlink()
        return mapped

    monkeypatch.setattr(torch, "from_file", removing)
    network = large()
    share(base_of(network), digest, tmp_path)
    assert torch.equal(network[0].weight, expected) and not [*tmp_path.glob("*.base")]


def test_a_damaged_model_beside_a_base_is_taken_from_the_checkpoint(tmp_path):
    result = raysim.run(make_settings(tmp_path / "run"), make_task(UNEQUAL, Backbone))
    before = raysim.load(result.run_dir, Backbone).state_dict()
    (result.run_dir / "model.safetensors").write_bytes(b"none")
    after = raysim.load(result.run_dir, Backbone).state_dict()
    assert all(torch.equal(before[name], after[name]) for name in before)
