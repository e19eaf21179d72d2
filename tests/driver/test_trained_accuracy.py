"""`evaluation.trained`: accuracies of models before the aggregation, and the best round by them."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from safetensors.torch import load_file

import raysim
from raysim.federation.evaluation_sets import drawn_test_set
from raysim.federation.task import from_task
from raysim.testing.tasks import SmallNet
from tests.driver.test_kept_clients import kept
from tests.tasks import UNEQUAL, make_settings, make_task, model_of

OPTIONS = {
    "rounds": 3,
    "fraction": 0.5,
    "local.lr": 0.05,
    "evaluation.clients": True,
    "evaluation.trained": True,
}
COLUMNS = ("trained_accuracy_mean", *(f"trained_accuracy_d{tenth}" for tenth in range(1, 10)))


def run(path, **options):
    return raysim.run(make_settings(path, **OPTIONS | options), make_task(UNEQUAL))


WAYS = {
    "plain": {},
    "stacked": {"engine.vectorize": 3},
    "actors": {"engine.backend": "ray", "engine.actors": 2},
    "fused": {"method.name": "fedfusion", "method.operator": "single"},
    "beside an analysis": {"analysis": "aggregation_drop,activations"},
}


@pytest.mark.parametrize("way", WAYS)
@pytest.mark.usefixtures("resident_actors")
def test_they_are_those_of_the_kept_models(tmp_path, way):
    settings = make_settings(tmp_path / "run", keep_clients=True, **OPTIONS, **WAYS[way])
    result = raysim.run(settings, make_task(UNEQUAL))
    federation = from_task(make_task(UNEQUAL))
    labels = [np.concatenate([y for _, y in make_task(UNEQUAL).clients]), federation.test_targets]
    own = drawn_test_set(federation.client_indices, *labels, seed=0)
    x, y = make_task(UNEQUAL).test
    network, accuracies = settings.method.network(SmallNet()), []
    for client, tensors in sorted(kept(tmp_path / "run")[1].items()):
        network.load_state_dict(tensors)
        rows = own.samples[client]
        with torch.no_grad():
            predicted = network.eval()(torch.as_tensor(x[rows])).argmax(1).numpy()
        accuracies.append((predicted == y[rows]).mean())
    expected = [np.mean(accuracies), *np.quantile(accuracies, np.arange(1, 10) / 10)]
    last = result.metrics.to_pylist()[-1]
    assert [last[name] for name in COLUMNS] == pytest.approx(expected, abs=1e-12)
    assert last["trained_accuracy_mean"] != last["client_accuracy_mean"]
    assert result.summary["final_trained_accuracy_mean"] == last["trained_accuracy_mean"]


def test_rounds_without_evaluation_or_clients_have_none(tmp_path):
    seldom = run(tmp_path / "seldom", **{"evaluation.every": 2, "rounds": 4})
    known = [value is not None for value in seldom.metrics["trained_accuracy_mean"].to_pylist()]
    assert known == [False, True, False, True]
    some = run(tmp_path / "some", **{"selection.name": "poisson", "fraction": 0.1, "rounds": 6})
    rows = some.metrics.to_pylist()
    assert {row["clients"] == 0 for row in rows} == {True, False}
    for row in rows:
        assert (row["trained_accuracy_mean"] is None) == (row["clients"] == 0)


def test_they_choose_the_best_model_and_change_no_bit(tmp_path):
    chosen = {"rounds": 8, "local.epochs": 2, "local.lr": 0.8}
    chosen["patience_metric"] = "trained_accuracy_mean"
    result = run(tmp_path / "run", **chosen)
    accuracies = result.metrics["trained_accuracy_mean"].to_pylist()
    best = accuracies.index(max(accuracies)) + 1
    assert result.summary["best_round"] == best < 8
    until = {**chosen, "rounds": best, "evaluation.trained": False, "patience_metric": None}
    there = run(tmp_path / "there", **until)
    assert not {*COLUMNS} & {*there.metrics.column_names}
    assert load_file(tmp_path / "run/model_best.safetensors").keys() == there.params.keys()
    assert (tmp_path / "run/model_best.safetensors").read_bytes() == model_of(there.run_dir)


REFUSED = {
    "clients": ({"evaluation.clients": False}, "evaluation.trained=true: needs evaluation.clients"),
    "not measured": (
        {"evaluation.trained": False, "patience_metric": "trained_accuracy_mean"},
        "patience_metric=trained_accuracy_mean: not a column of this run's rounds",
    ),
}


@pytest.mark.parametrize("case", REFUSED)
def test_what_does_not_go_together_is_refused(tmp_path, case):
    overrides, message = REFUSED[case]
    with pytest.raises(raysim.SettingsError, match=f"^{message}"):
        run(tmp_path / "run", **overrides)
    assert not (tmp_path / "run").exists()
