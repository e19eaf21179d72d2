"""Weights of clients by a table, or by a method's own function."""

from __future__ import annotations

from dataclasses import replace

import pytest
import torch
from safetensors.torch import load_file

import raysim
from raysim.api.rules import send_model
from raysim.driver.evaluation.weights import in_whole_numbers
from raysim.methods.fedavg import FedAvg
from tests.tasks import UNEQUAL, StopAfter, make_settings, make_task, model_of

WEIGHTS = [0.4 / (1 + client) for client in range(len(UNEQUAL))]
OVERLAPPING = {"method.name": "fedat", "method.tiers": 2, "method.concurrency": 4}


class ByFunction(FedAvg):
    """Weights by a function of the client."""

    def training_pass(self, now, state):
        own = {client: WEIGHTS[client] for client in now.cohort}
        return replace(super().training_pass(now, state), weighting=own)


class Lacking(FedAvg):
    """Weights of some clients."""

    def training_pass(self, now, state):
        return replace(super().training_pass(now, state), weighting={0: 1.0})


class Empty(FedAvg):
    """Weights of nobody."""

    def training_pass(self, now, state):
        return replace(super().training_pass(now, state), weighting={})


class ByUpload(FedAvg):
    """Weights that clients say."""

    def rules(self):
        return raysim.Rules(finish=_said)


def _said(view, trained):
    return replace(send_model(view, trained), samples=1000)


def table(path, weights, name="weight"):
    lines = [f"client,{name}", *(f"{client},{w}" for client, w in reversed([*enumerate(weights)]))]
    path.write_text("\n".join(lines))
    return {"weighting": str(path)}


def run(path, **options):
    options = {"rounds": 3, "fraction": 0.5, "seed": 3, **options}
    return raysim.run(make_settings(path, **options), make_task(UNEQUAL))


SEEN = {"aggregation.name": "norm_bound", "aggregation.norm": 1e9}
WAYS = {
    "table": {"weighting": "w.csv"},
    "function": {"method.name": f"{__name__}:ByFunction"},
    "seen one by one": {"weighting": "w.csv", **SEEN},
    "function, seen": {"method.name": f"{__name__}:ByFunction", **SEEN},
    "stacked": {"weighting": "w.csv", "engine.vectorize": 2},
}


@pytest.mark.parametrize("way", WAYS)
def test_the_mean_is_that_of_the_weights(tmp_path, monkeypatch, way):
    monkeypatch.chdir(tmp_path)
    table(tmp_path / "w.csv", WEIGHTS)
    found = run(tmp_path / "run", keep_clients=True, **WAYS[way]).params
    (folder,) = (tmp_path / "run/client_models").iterdir()
    trained = {int(path.stem): load_file(path) for path in folder.iterdir()}
    total = sum(WEIGHTS[client] for client in trained)
    assert len(trained) == 3
    for name, tensor in found.items():
        mean = sum(WEIGHTS[client] * own[name].double() for client, own in trained.items()) / total
        torch.testing.assert_close(tensor, mean.float(), rtol=1e-5, atol=1e-6)


@pytest.mark.parametrize("more", [{}, SEEN], ids=["mean", "seen one by one"])
def test_weights_that_are_the_samples_have_the_bits_of_examples(tmp_path, more):
    run(tmp_path / "samples", **table(tmp_path / "n.csv", UNEQUAL), **more)
    run(tmp_path / "examples", **more)
    assert model_of(tmp_path / "samples") == model_of(tmp_path / "examples")


@pytest.mark.usefixtures("resident_actors")
@pytest.mark.parametrize("more", [{}, OVERLAPPING], ids=["rounds", "overlapping"])
def test_the_same_bits_on_actors_and_after_an_interruption(tmp_path, more):
    given = table(tmp_path / "w.csv", WEIGHTS) | more
    run(tmp_path / "whole", **given)
    run(tmp_path / "actors", **given, **{"engine.backend": "ray", "engine.actors": 2})
    options = {"rounds": 3, "fraction": 0.5, "seed": 3, **given}
    with pytest.raises(KeyboardInterrupt):
        raysim.run(make_settings(tmp_path / "cut", **options), make_task(UNEQUAL), StopAfter(1))
    (tmp_path / "w.csv").rename(tmp_path / "kept.csv")
    table(tmp_path / "w.csv", UNEQUAL)
    with pytest.raises(raysim.RunError, match="file of weighting"):
        raysim.resume(tmp_path / "cut", make_task(UNEQUAL))
    (tmp_path / "kept.csv").rename(tmp_path / "w.csv")
    raysim.resume(tmp_path / "cut", make_task(UNEQUAL))
    assert len({model_of(tmp_path / name) for name in ("whole", "actors", "cut")}) == 1


@pytest.mark.parametrize(
    ("weights", "expected"),
    [
        ([3.0, 1.0, 2.0], [3, 1, 2]),
        ([0.5, 0.25, 1.0], [2**23, 2**22, 2**24]),
        ([1e-12, 1.5], [1, 2**24]),
    ],
)
def test_weights_are_whole_numbers(weights, expected):
    assert in_whole_numbers(torch.tensor(weights, dtype=torch.float64).numpy()).tolist() == expected


@pytest.mark.parametrize(
    ("written", "name", "options", "said"),
    [
        (WEIGHTS, "share", {}, "must have the columns client, weight; has"),
        (WEIGHTS[1:], "weight", {}, "is missing (1 of"),
        ([*WEIGHTS[1:], 0.0], "weight", {}, "; must be above 0"),
        ([*WEIGHTS[1:], "inf"], "weight", {}, "; must be above 0"),
        ([*WEIGHTS[1:], "much"], "weight", {}, "column 'weight' must hold numbers"),
        (WEIGHTS, "weight", {"method.name": "scaffold"}, "does not go with method.name=scaffold"),
        (
            WEIGHTS,
            "weight",
            {"aggregation.name": "mean", "aggregation.weighting": "fixed"},
            "does not go with aggregation.name=mean, which at its settings",
        ),
    ],
)
def test_tables_that_give_no_weights_are_refused(tmp_path, written, name, options, said):
    given = table(tmp_path / "w.csv", written, name)
    with pytest.raises(raysim.RaysimError) as refused:
        run(tmp_path / "run", **given, **options)
    assert str(refused.value).startswith(f"weighting={tmp_path}/w.csv: ")
    assert said in str(refused.value) and not (tmp_path / "run").exists()


@pytest.mark.parametrize(
    ("method", "said"),
    [
        ("Lacking", "Pass.weighting has no weight for client"),
        ("Empty", "Pass.weighting has no weight for client"),
        ("ByUpload", "its Upload.samples is 1000, which the engine sets; to weigh clients"),
    ],
)
def test_weights_that_a_method_does_not_give_are_refused(tmp_path, method, said):
    with pytest.raises(raysim.RaysimError) as refused:
        run(tmp_path / "run", **{"method.name": f"{__name__}:{method}", "fraction": 1.0})
    assert said in str(refused.value) and "\n" not in str(refused.value)
