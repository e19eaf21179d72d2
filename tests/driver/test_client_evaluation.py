"""Clients on test samples cut out of their own: global, deployed and fine-tuned models.

Models are trained here, in plain torch, on the batches of the same draws.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping
from dataclasses import replace
from itertools import islice
from math import ceil
from typing import Any

import numpy as np
import pyarrow.parquet as pq
import pytest
import torch
from torch import nn

import raysim
from raysim.api.columns import Column
from raysim.api.rules import Rules, Upload
from raysim.driver.evaluation.client_scores import spread
from raysim.federation.task import from_task
from raysim.methods.fedavg import FedAvg
from raysim.numbers.seeds import stream
from raysim.samples.client_indices import Holdout
from raysim.samples.local_cut import LocalCut
from raysim.samples.participants import participants_of
from raysim.storage.client_states import ClientStates
from raysim.testing.tasks import SmallNet
from tests.driver.test_same_bits import PREPARED
from tests.tasks import UNEQUAL, Notes, make_settings, make_task

CPU = torch.device("cpu")
ALL: dict[str, Any] = {
    "evaluation.local_test": 0.25,
    "evaluation.holdout": 0.2,
    "evaluation.new_clients": 0.3,
    "evaluation.finetune_epochs": 2,
    "fraction": 0.5,
    "rounds": 3,
    "local.epochs": 2,
    "local.lr": 0.05,
}
BABU = {"method.name": "fedbabu"}
"""Its clients deploy the fine-tuned models."""
DITTO = {"method.name": "ditto", "method.lam": 0.3}
CASES: dict[str, dict[str, Any]] = {
    "fedavg": {},
    "fedavg, at random": {"evaluation.local_test_cut": "random"},
    "fedavg, steps": {"evaluation.finetune_epochs": 0, "evaluation.finetune_steps": 3},
    "fedavg, after": {"evaluation.when": "after"},
    "fedbabu": BABU,
    "fedbabu, after": {**BABU, "evaluation.when": "after"},
    "ditto": DITTO,
    "ditto, after": {**DITTO, "evaluation.when": "after"},
}
Model = Mapping[str, torch.Tensor]


def parts_of(settings: Any, client: int) -> dict[str, Any]:
    """Return a client's samples to train on, held-out ones and test samples."""
    x, y = make_task(UNEQUAL).clients[client]
    labels = y if settings.evaluation.local_test_cut == "stratified" else None
    kept, tested = LocalCut(0.25, 0, labels).divide(client, np.arange(len(y)))
    trained, held = (kept[part] for part in Holdout(0.2, 0).divide(client, len(kept)))
    found = {"train": trained, "holdout": held, "local_test": tested}
    return {name: (torch.tensor(x[rows]), torch.tensor(y[rows])) for name, rows in found.items()}


def train(
    model: Model,
    data: Any,
    keys: tuple[int, ...],
    epochs: int,
    tie: Any = None,
    fixed: Any = (),
    steps: int | None = None,
) -> Model:
    """Train a model by SGD; `tie` is a strength and the model that it is tied to.

    The stages in `fixed` stay as they are. Some steps take the place of epochs.
    """
    network, (x, y) = SmallNet(), data
    network.load_state_dict(model)
    batches = stream(0, "batches", *keys)
    orders = (batches.permutation(len(y)) for _ in range(steps or epochs))
    cut = (rows for order in orders for rows in np.split(order, range(8, len(y), 8)))
    for rows in islice(cut, steps):
        network.zero_grad()
        nn.functional.cross_entropy(network(x[rows]), y[rows]).backward()
        with torch.no_grad():
            for name, parameter in network.named_parameters():
                if name.partition(".")[0] in fixed:
                    continue
                pull = tie[0] * (parameter - tie[1][name]) if tie else 0.0
                parameter.sub_(0.05 * (parameter.grad + pull))
    return {name: tensor.clone() for name, tensor in network.state_dict().items()}


def first_model() -> Model:
    """Return the network as it was built, the own model of a client that never took part."""
    return from_task(make_task(UNEQUAL)).network(0).state_dict()


def models_of(result: raysim.Result, settings: Any, client: int) -> dict[str, Model]:
    """Return the global, the deployed and the fine-tuned model of a client."""
    data, shared = parts_of(settings, client)["train"], result.params
    own: Model = shared
    is_ditto, keys = settings.method.title == "ditto", (3, -1, client)
    if is_ditto:
        own = first_model()
        states = ClientStates(result.run_dir / "clients")
        if versions := states.versions(client):
            own = states.read(client, max(versions), CPU)["personal"]
    if settings.evaluation.when == "after":
        tie = (0.3, shared) if is_ditto else None
        fixed = ["head"] if settings.method.title == "fedbabu" else []
        own = train(own, data, keys, 2, tie, fixed)
    tuned = train(own, data, (3, -100, client), 2, steps=settings.evaluation.finetune_steps)
    deploys = is_ditto or settings.evaluation.when == "after"
    if settings.method.title == "fedbabu":
        own, deploys = tuned, True
    return {"": shared, **({"personal_": own} if deploys else {}), "finetuned_": tuned}


def right(model: Model, data: Any) -> np.ndarray:
    network = SmallNet()
    network.load_state_dict(model)
    with torch.no_grad():
        return (network(data[0]).argmax(1) == data[1]).numpy()


def expected_figures(name: str, hits: list[Any], shared: list[Any] | None) -> dict[str, float]:
    """Return the columns of a set, given each client's hits, and those of the global model."""
    scores = np.array([each.mean() for each in hits])
    worst = np.sort(scores)[: ceil(len(scores) / 10)]
    figures = {
        "accuracy": np.concatenate(hits).mean(),
        "accuracy_mean": sum(scores) / len(scores),
        "accuracy_deviation": np.sqrt(np.mean(np.square(scores - scores.mean()))),
        "accuracy_d5": np.median(scores),
        "accuracy_worst_tenth": worst.mean(),
        "accuracy_jain": scores.sum() ** 2 / (len(scores) * (scores**2).sum()),
    }
    if shared is not None:
        base = np.array([each.mean() for each in shared])
        figures["accuracy_gain"] = np.mean(scores - base)
    return {f"{name}_{end}": float(value) for end, value in figures.items()}


@pytest.mark.parametrize("case", CASES)
def test_clients_are_scored_with_each_model_on_samples_of_their_own(tmp_path, case):
    settings = make_settings(tmp_path, **ALL | CASES[case])
    result = raysim.run(settings, make_task(UNEQUAL))
    new = participants_of(6, 0.3, 0).new.tolist()
    table = pq.read_table(tmp_path / "clients.parquet")
    rounds = {(r["round"], r["client"]) for r in table.to_pylist()}
    took_part = Counter(client for _, client in rounds)
    tested = [k for k in range(6) if UNEQUAL[k] > 1]
    groups = {
        "local_test": [k for k in tested if k not in new],
        "seen_local_test": [k for k in tested if k in took_part],
        "unseen_local_test": [k for k in tested if k not in took_part and k not in new],
        "new_local_test": [k for k in tested if k in new],
    }
    assert all(groups.values())
    models = {k: models_of(result, settings, k) for k in tested}
    hits = {
        (k, model): right(models[k][model], parts_of(settings, k)["local_test"])
        for k in tested
        for model in models[k]
    }
    last, expected = result.metrics.to_pylist()[-1], dict[str, float]()
    for model in models[tested[0]]:
        for group, clients in groups.items():
            shared = [hits[k, ""] for k in clients] if model else None
            own = [hits[k, model] for k in clients]
            expected |= expected_figures(f"{model}{group}", own, shared)
    assert {name: last[name] for name in expected} == pytest.approx(expected)
    rows = {r["client"]: r for r in pq.read_table(tmp_path / "client_accuracy.parquet").to_pylist()}
    assert {*rows} == {*tested}
    for (k, model), each in hits.items():
        assert rows[k][f"{model}local_test_accuracy"] == each.mean()
        assert rows[k]["is_new"] == (k in new) and rows[k]["participations"] == took_part[k]


def test_held_out_samples_are_those_of_participants_and_left_by_the_cut(tmp_path):
    settings = make_settings(tmp_path, **ALL, **DITTO)
    result = raysim.run(settings, make_task(UNEQUAL))
    clients = [k for k in participants_of(6, 0.3, 0).listed if UNEQUAL[k] > 2]
    last = result.metrics.to_pylist()[-1]
    for model in ("", "personal_", "finetuned_"):
        hits = [
            right(models_of(result, settings, k)[model], parts_of(settings, k)["holdout"])
            for k in clients
        ]
        assert last[f"{model}holdout_accuracy"] == np.concatenate(hits).mean()
        assert result.summary["held_out_samples"] == sum(map(len, hits))


def test_a_cut_trains_as_a_task_without_the_samples(tmp_path):
    """Nothing of the test samples is trained on; figures of training are those without them."""
    task = make_task(UNEQUAL)
    cut = {"evaluation.local_test": 0.25}
    whole = raysim.run(make_settings(tmp_path / "whole", **cut), task)
    left = []
    for client, (x, y) in enumerate(task.clients):
        kept, _ = LocalCut(0.25, 0, y).divide(client, np.arange(len(y)))
        left.append((x[kept], y[kept]))
    parts = raysim.Task(SmallNet, left, task.test)
    plain = raysim.run(make_settings(tmp_path / "left"), parts)
    files = [tmp_path / name / "model.safetensors" for name in ("whole", "left")]
    assert files[0].read_bytes() == files[1].read_bytes()
    assert whole.metrics["train_loss"].equals(plain.metrics["train_loss"])
    untested = raysim.run(
        make_settings(tmp_path / "untested", **cut, **{"evaluation.test": False}), task
    )
    assert untested.metrics["train_loss"].equals(plain.metrics["train_loss"])
    assert not any("local_test" in name for name in untested.metrics.column_names)


class Interrupting(raysim.Listener):
    def round_done(self, row: Mapping[str, Any]) -> None:
        if row["round"] == 2:
            raise KeyboardInterrupt


def figures_of(result: raysim.Result) -> list[Any]:
    table = pq.read_table(result.run_dir / "client_accuracy.parquet")
    names = [n for n in result.metrics.column_names if "seconds" not in n]
    return [result.metrics.select(names).to_pylist(), str(table.to_pydict())]


def test_a_resumed_run_has_the_same_figures(tmp_path):
    straight = raysim.run(make_settings(tmp_path / "straight", **ALL, **DITTO), make_task(UNEQUAL))
    with pytest.raises(KeyboardInterrupt):
        raysim.run(
            make_settings(tmp_path / "broken", **ALL, **DITTO), make_task(UNEQUAL), Interrupting()
        )
    resumed = raysim.resume(tmp_path / "broken", make_task(UNEQUAL))
    assert figures_of(resumed) == figures_of(straight)


@pytest.mark.usefixtures("resident_actors")
def test_actors_have_the_same_figures(tmp_path):
    options = {**ALL, **DITTO, "evaluation.when": "after"}
    inline = raysim.run(make_settings(tmp_path / "inline", **options), make_task(UNEQUAL))
    on_actors = {"engine.backend": "ray", "engine.actors": 2}
    actors = raysim.run(
        make_settings(tmp_path / "actors", **options, **on_actors), make_task(UNEQUAL)
    )
    assert figures_of(actors) == figures_of(inline)


KEPT_OUT: dict[str, dict[str, Any]] = {
    **{
        name: {"selection.name": name}
        for name in ("uniform", "poisson", "round_robin", "power_of_choice", "oort")
    },
    "all": {"fraction": 1.0},
    "fsvrg": {"method.name": "fsvrg"},
    "scaffold": {"method.name": "scaffold"},
    "fedbuff": {"method.name": "fedbuff", "method.buffer": 2, "method.concurrency": 3},
    "fedat": {"method.name": "fedat", "method.tiers": 2},
    "devices": {"clock.name": "devices", "clock.policy": "over_selection", "clock.extra": 1},
}


@pytest.mark.parametrize("case", KEPT_OUT)
def test_new_clients_never_train(tmp_path, case):
    options = {"evaluation.local_test": 0.25, "evaluation.new_clients": 0.3, "rounds": 6}
    settings = make_settings(tmp_path, **options, **KEPT_OUT[case], seed=3)
    raysim.run(settings, make_task((20, 30, 40, 17, 25, 30)))
    new = participants_of(6, 0.3, 3).new.tolist()
    trained = {*pq.read_table(tmp_path / "clients.parquet")["client"].to_pylist()}
    assert len(new) == 2 and not trained & {*new} and len(trained) >= 3
    table = pq.read_table(tmp_path / "client_accuracy.parquet").to_pylist()
    assert [row["client"] for row in table if row["is_new"]] == new


def test_a_pass_over_all_clients_is_refused_where_some_are_kept_out(tmp_path):
    class Everywhere(FedAvg):
        def round(self, now: Any, state: Any) -> Any:
            yield replace(self.training_pass(now, state), clients=range(6))
            return state, {}

    settings = make_settings(tmp_path / "run", **ALL).model_copy(update={"method": Everywhere()})
    with pytest.raises(raysim.SettingsError, match=r"client [0-5], which evaluation\.new_clients"):
        raysim.run(settings, make_task(UNEQUAL))


REFUSED = {
    "evaluation.finetune_epochs=2: needs evaluation.local_test above 0": {
        "evaluation.finetune_epochs": 2
    },
    "evaluation.finetune_steps=2: needs evaluation.local_test above 0": {
        "evaluation.finetune_steps": 2
    },
    "evaluation.finetune_steps=2: takes the place of evaluation.finetune_epochs=1": {
        "evaluation.finetune_steps": 2,
        "evaluation.finetune_epochs": 1,
    },
    "evaluation.new_clients=0.1: needs evaluation.local_test above 0": {
        "evaluation.new_clients": 0.1
    },
    "evaluation.when=after: needs evaluation.local_test above 0": {"evaluation.when": "after"},
    "evaluation.when=after: method.name=mifl does not define what clients deploy after": {
        "evaluation.when": "after",
        "evaluation.local_test": 0.2,
        "method.name": "mifl",
    },
    "evaluation.when=after: does not go with local.keep=true": {
        "evaluation.when": "after",
        "evaluation.local_test": 0.2,
        "local.keep": True,
        "local.momentum": 0.5,
    },
    "evaluation.local_test=1.5: must be": {"evaluation.local_test": 1.5},
}


@pytest.mark.parametrize("message", REFUSED)
def test_what_cannot_be_scored_is_refused(tmp_path, message):
    with pytest.raises(raysim.SettingsError) as caught:
        raysim.run(make_settings(tmp_path / "run", **REFUSED[message]), make_task(UNEQUAL))
    assert message in str(caught.value) and not (tmp_path / "run").exists()


def test_own_test_samples_are_used_as_they_are(tmp_path):
    """None is cut where clients have some; a client without any is not scored."""
    task, notes = make_task(UNEQUAL), Notes()
    tests = [task.clients[4], None, None, task.clients[5], None, None]
    own = replace(task, client_tests=tests)
    options = {"evaluation.local_test": 0.25, "rounds": 1}
    result = raysim.run(make_settings(tmp_path / "own", **options), own, notes)
    plain = raysim.run(make_settings(tmp_path / "plain", rounds=1), own)
    files = [tmp_path / name / "model.safetensors" for name in ("own", "plain")]
    assert files[0].read_bytes() == files[1].read_bytes()
    last = result.metrics.to_pylist()[-1]
    assert last["local_test_accuracy"] == plain.metrics["local_test_accuracy"][-1].as_py()
    assert last["local_test_accuracy_jain"] is not None
    assert any("evaluation.local_test=0.25 cuts none" in note for note in notes.notes)


def test_samples_that_clients_have_in_common_are_not_cut(tmp_path):
    """With as many samples as there are, and with fewer, as all are drawn from one pool."""
    for samples in (40, 20):
        shared = {**PREPARED, "partition.name": "resample", "partition.samples": samples}
        settings = make_settings(tmp_path / "run", **shared, **{"evaluation.local_test": 0.25})
        message = (
            r"evaluation\.local_test=0\.25: partition\.name=resample gives a sample to several"
        )
        with pytest.raises(raysim.SettingsError, match=message):
            raysim.run(settings)


@pytest.mark.parametrize("holdout", [0.0, 0.2])
def test_without_a_test_the_same_samples_are_kept_from_training(tmp_path, holdout):
    """A line says that nothing is scored on them; of a search, which holds out samples, none."""
    options, notes = {**ALL, "evaluation.holdout": holdout, "rounds": 1}, Notes()
    tested = raysim.run(make_settings(tmp_path / "tested", **options), make_task(UNEQUAL))
    blind = make_settings(tmp_path / "blind", **options, **{"evaluation.test": False})
    result = raysim.run(blind, make_task(UNEQUAL), notes)
    assert all(torch.equal(result.params[n], tested.params[n]) for n in result.params)
    assert not any("test_" in name for name in result.metrics.column_names)
    said = [note for note in notes.notes if "nothing is scored on them" in note]
    assert len(said) == (not holdout)


def test_the_worst_tenth_of_a_loss_are_the_largest():
    losses = np.array([-3.0, -1.0, 0.0, *[-2.0] * 8])  # of 11 clients the worst two
    found = spread(Column("local_test_loss", "smaller"), losses, wide=True)
    assert found["local_test_loss_worst_tenth"] == -0.5


@pytest.mark.parametrize("change", ["evaluation.local_test", "code"])
def test_another_cut_is_another_run(tmp_path, monkeypatch, change):
    with pytest.raises(KeyboardInterrupt):
        raysim.run(make_settings(tmp_path, **ALL), make_task(UNEQUAL), Interrupting())
    if change == "code":
        monkeypatch.setattr(LocalCut, "divide", lambda self, client, rows: (rows, rows[:1]))
        with pytest.raises(raysim.RunError, match=r"test samples of evaluation\.local_test was"):
            raysim.resume(tmp_path, make_task(UNEQUAL))
    else:
        with pytest.raises(raysim.RunError, match=change):
            raysim.run(make_settings(tmp_path, **ALL | {change: 0.3}), make_task(UNEQUAL))


@pytest.mark.parametrize("own", [True, False])
def test_the_best_round_is_that_of_the_holdout_and_the_best_on_test_stands_beside_it(tmp_path, own):
    options = {**ALL, **(DITTO if own else {}), "rounds": 6, "local.lr": 0.3}
    result = raysim.run(make_settings(tmp_path, **options), make_task(UNEQUAL))
    rows, prefix = result.metrics.to_pylist(), "personal_" if own else ""
    best = max(rows, key=lambda row: (row[f"{prefix}holdout_accuracy"], -row["round"]))
    assert result.summary["best_round"] == best["round"]
    name = f"{prefix}local_test_accuracy"
    for column in (name, f"{name}_mean"):
        assert result.summary[f"at_best_holdout_{column}"] == best[column]
        assert result.summary[f"best_on_test_{column}"] == max(row[column] for row in rows)
        assert result.summary[f"final_{column}"] == rows[-1][column]
    untouched = {**options, "evaluation.local_test": 0.0, "evaluation.new_clients": 0.0}
    untouched["evaluation.finetune_epochs"] = 0
    plain = raysim.run(make_settings(tmp_path / "plain", **untouched), make_task(UNEQUAL))
    held_out = plain.metrics[f"{prefix}holdout_accuracy"].to_pylist()
    assert plain.summary["best_round"] == 1 + held_out.index(max(held_out))
    assert not any(name.startswith(("at_best", "best_on")) for name in plain.summary)


class InHalves(FedAvg):
    """Trains in two passes, the second from where the client left the first."""

    def halves(self, now: Any, state: Any) -> list[Any]:
        work = self.training_pass(now, state)
        keep = Rules(finish=lambda view, trained: Upload(round_state={"half": view.params}))
        go_on = Rules(start=lambda broadcast, own, personal: own["half"])
        return [replace(work, rules=keep, epochs=1), replace(work, rules=go_on, epochs=1)]

    def round(self, now: Any, state: Any) -> Any:
        first, second = self.halves(now, state)
        yield first
        reduced = yield second
        return self.server_update(now, state, reduced), {}

    def deployment_after(self, now: Any, state: Any) -> list[Any]:
        return self.halves(now, state)


def test_passes_after_a_round_go_on_from_what_those_before_gave_back(tmp_path):
    options = {"evaluation.local_test": 0.25, "evaluation.when": "after", "local.lr": 0.05}
    settings = make_settings(tmp_path, **options, rounds=1)
    settings = settings.model_copy(update={"method": InHalves()})
    result = raysim.run(settings, make_task((20, 30, 40)))
    rows = pq.read_table(tmp_path / "client_accuracy.parquet").to_pylist()
    for client, (inputs, labels) in enumerate(make_task((20, 30, 40)).clients):
        kept, tested = LocalCut(0.25, 0, labels).divide(client, np.arange(len(labels)))
        x, y = torch.tensor(inputs), torch.tensor(labels)
        model: Model = result.params
        for number in (-1, -2):
            model = train(model, (x[kept], y[kept]), (1, number, client), 1)
        hits = right(model, (x[tested], y[tested]))
        assert rows[client]["personal_local_test_accuracy"] == hits.mean()
    losses = [row["personal_local_test_loss"] for row in result.metrics.to_pylist()]
    assert losses[0] < result.metrics["local_test_loss"][0].as_py()
