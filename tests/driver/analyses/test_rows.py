"""Rows of analyses against the run's own tables, and worked out by hand."""

from __future__ import annotations

import numpy as np
import pyarrow.parquet as pq
import pytest
from safetensors.torch import load_file
from torch import nn

import raysim
from raysim.testing.tasks import SmallNet, small_task
from tests.driver.analyses.common import SIZES, tables
from tests.tasks import make_settings, make_task


def test_only_evaluated_rounds_have_rows(runs):
    found = tables(runs[1])
    rounds = {name: sorted({row["round"] for row in rows}) for name, rows in found.items()}
    assert rounds.pop("label_heat_map") == [2]
    assert rounds.pop("new_client")[0] == 2
    assert set(map(tuple, rounds.values())) == {(2, 4, 5)}


class Uncalled(SmallNet):
    """A network with a layer whose weight is used, but which is not called."""

    def __init__(self) -> None:
        super().__init__()
        self.hidden.add_module("aside", nn.Linear(16, 16))

    def forward(self, x):
        hidden, relu, aside = self.hidden
        x = relu(hidden(self.features(x)))
        return self.head(nn.functional.linear(x, aside.weight, aside.bias))


def test_a_layer_that_is_not_called_has_no_rows_of_cka(tmp_path):
    task = make_task((30, 20), Uncalled)
    raysim.run(make_settings(tmp_path, rounds=1, analysis=["cka"]), task)
    found = {(row["layer"], row["path"]) for row in tables(tmp_path)["cka"]}
    assert found == {(1, "hidden.0"), (3, "head")}


class Twins(SmallNet):
    """A network of two layers with one weight."""

    def __init__(self) -> None:
        super().__init__(inputs=12, width=12)
        self.hidden.add_module("twin", nn.Linear(12, 12))
        self.hidden.twin.weight = self.hidden[0].weight


def test_layers_with_one_weight_have_the_same_divergence(tmp_path):
    names = ["weight_divergence", "norm_divergence"]
    raysim.run(make_settings(tmp_path, rounds=1, analysis=names), make_task((30, 20), Twins))
    for rows in tables(tmp_path).values():
        first, twin, _ = rows
        assert first["divergence"] == twin["divergence"] > 0


class Words(SmallNet):
    """Its activations are a matrix of each sample."""

    def __init__(self) -> None:
        super().__init__()
        self.hidden.append(nn.Unflatten(1, (2, 8)))
        self.head = nn.Sequential(nn.Flatten(), self.head)


@pytest.mark.parametrize("network", [SmallNet, Words])
def test_mean_activations_by_hand(tmp_path, network):
    """With one client in a round its model is the global one, and its KL to the mean is 0."""
    task = make_task((30,), network)
    names = ["activations", "kl_activations", "weight_divergence", "label_information"]
    raysim.run(make_settings(tmp_path, rounds=1, analysis=names), task)
    found, model = tables(tmp_path), load_file(tmp_path / "model.safetensors")
    assert [row["kl_mean_client"] for row in found["kl_activations"]] == [0]
    x, y = task.clients[0]
    hidden = np.maximum(x @ model["hidden.0.weight"].numpy().T + model["hidden.0.bias"].numpy(), 0)
    shown = found["activations"]
    assert len(shown) == 20
    for row, n in ((shown[0], 0), (shown[-1], 29)):
        assert row["label"] == y[n]
        assert row["activations"] == pytest.approx(hidden[n], abs=1e-5)
    assert [row["divergence"] > 0 for row in found["weight_divergence"]] == [True, True]


def test_accuracies_before_and_after_are_those_of_the_evaluation(runs):
    plain, analysed = runs
    evaluated = pq.read_table(plain / "client_accuracy.parquet").to_pylist()
    rows = [row for row in tables(analysed)["aggregation_drop"] if row["round"] == 5]
    after = {row["client"]: row["accuracy_after"] for row in rows}
    assert after == {row["client"]: row["accuracy"] for row in evaluated}
    assert sum(row["participant"] for row in rows) == 4
    earlier = {r["client"]: r for r in tables(analysed)["aggregation_drop"] if r["round"] == 4}
    for row in rows:
        if not row["participant"]:
            assert row["accuracy_before"] == earlier[row["client"]]["accuracy_after"]


@pytest.mark.parametrize(("lr", "sizes"), [(0.1, (40,)), (1e-12, SIZES)])
def test_accuracy_before_is_that_of_the_model_that_was_trained(lr, sizes, tmp_path):
    """Of one client, and of steps of no length, the trained model is the next global one."""
    names = {"analysis": "aggregation_drop", "evaluation.clients": True, "local.lr": lr}
    raysim.run(make_settings(tmp_path, rounds=2, fraction=1.0, **names), make_task(sizes))
    [rows] = tables(tmp_path).values()
    assert len(rows) == 2 * len(sizes) and all(row["participant"] for row in rows)
    assert all(row["accuracy_before"] == row["accuracy_after"] for row in rows)
    assert len({row["accuracy_after"] for row in rows}) > 1


def test_similarity_with_the_reference_is_1_where_it_is_the_same_model(runs):
    last = [row for row in tables(runs[1])["cka"] if row["round"] == 5]
    same = [row["cka"] for row in last if {row["first"], row["second"]} == {"after", "reference"}]
    assert same == pytest.approx([1, 1], abs=1e-12)
    others = [row["cka"] for row in last if row["first"] == "client 0" != row["second"]]
    assert all(0 < value < 1 for value in others)


def test_new_clients_never_took_part(runs):
    plain, analysed = runs
    trained = pq.read_table(plain / "clients.parquet").to_pylist()
    for row in tables(analysed)["new_client"]:
        before = {each["client"] for each in trained if each["round"] <= row["round"]}
        assert row["client"] not in before
    for number in {row["round"] for row in tables(analysed)["new_client"]}:
        rows = [row for row in tables(analysed)["new_client"] if row["round"] == number]
        trained = {row["epochs"] for row in rows}
        assert trained == {0, *(2**power for power in range(len(trained) - 1))} >= {8, 16}


def test_the_aggregation_of_ditto_is_measured_on_its_global_models(tmp_path):
    """They are FedAvg's, whose clients keep no models of their own."""
    names = {"analysis": "aggregation_drop", "evaluation.clients": True, "fraction": 0.5}
    for method in ("fedavg", "ditto"):
        settings = make_settings(tmp_path / method, rounds=3, **names, **{"method.name": method})
        raysim.run(settings, make_task(SIZES))
    fedavg, ditto = (tables(tmp_path / method) for method in ("fedavg", "ditto"))
    assert ditto == fedavg and len(fedavg["aggregation_drop"]) == 3 * len(SIZES)
    own = [
        pq.read_table(tmp_path / method / "client_accuracy.parquet")["accuracy"].to_pylist()
        for method in ("fedavg", "ditto")
    ]
    assert own[0] != own[1]


def test_a_client_that_joins_ditto_trains_its_personal_model(tmp_path):
    """It starts at the first model, as under `local`, and lam ties it to the global one."""
    methods = {
        "local": {"method.name": "local"},
        "free": {"method.name": "ditto", "method.lam": 0.0},
        "tied": {"method.name": "ditto", "method.lam": 5.0},
    }
    found = {}
    for name, fields in methods.items():
        options = {"analysis": "new_client", "evaluation.clients": True, "fraction": 0.3}
        options |= {"local.batch_size": "full", "local.epochs": 1, **fields}
        raysim.run(make_settings(tmp_path / name, rounds=1, **options), make_task((30,) * 8))
        rows = [row for row in tables(tmp_path / name)["new_client"] if row["epochs"]]
        found[name] = {(r["client"], r["epochs"]): r["accuracy"] for r in rows}
    assert found["free"] == found["local"] != found["tied"]


def test_layers_have_the_same_numbers_under_a_method_that_adds_frozen_ones(tmp_path):
    layers = {}
    for method in ("fedavg", "fedfusion"):
        options = {"analysis": "cka,weight_divergence", "method.name": method}
        raysim.run(make_settings(tmp_path / method, rounds=1, **options), small_task("cnn"))
        layers[method] = [
            {(row["layer"], row["path"].replace(".local", "")) for row in rows}
            for rows in tables(tmp_path / method).values()
        ]
    expected = {(1, "features.0"), (2, "features.3"), (3, "hidden.1"), (4, "head")}
    assert layers["fedavg"] == layers["fedfusion"] == [expected, expected]


class Tied(SmallNet):
    """A layer with the weight of the one before it."""

    def __init__(self) -> None:
        super().__init__()
        first, second = nn.Linear(12, 12), nn.Linear(12, 12)
        second.weight = first.weight
        self.hidden = nn.Sequential(first, nn.ReLU(), second)
        self.head = nn.Linear(12, 3)


def test_a_tied_weight_is_one_tensor_in_an_analysis(tmp_path):
    """With one client in a round its model is the global one: all similarities are 1."""
    task = make_task((30,), Tied)
    raysim.run(make_settings(tmp_path, rounds=1, analysis=["cka", "temperature"]), task)
    found = tables(tmp_path)
    pairs = {("client 0", "after"), ("after", "client 0")}
    same = [r["cka"] for r in found["cka"] if (r["first"], r["second"]) in pairs]
    assert same == pytest.approx([1, 1, 1], abs=1e-9)
    assert len(found["temperature"]) == 20
