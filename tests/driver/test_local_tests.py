"""Clients with test samples of their own: each is scored on them, with the model it deploys."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from typing import Any

import numpy as np
import pyarrow.parquet as pq
import pytest
import torch
from torch import nn

import raysim
from raysim.api.columns import Column
from raysim.api.scoring import macro_f1
from raysim.driver.evaluation.client_scores import spread_columns
from raysim.federation.evaluation_sets import MOST_CLIENTS
from raysim.federation.task import from_task
from raysim.results.compare import check_comparable
from raysim.results.runs import read_run
from raysim.samples.client_indices import Holdout
from raysim.storage.client_states import ClientStates
from raysim.testing.tasks import SmallNet, samples
from tests.tasks import UNEQUAL, make_settings, make_task

CPU = torch.device("cpu")
SIZES = (30, None, 1, 1700, 0, 40)
"""Test samples of each client of its own."""
LOCAL = {f"local_test_{score}" for score in ("loss", "accuracy", "macro_f1")}
DITTO = {"method.name": "ditto", "method.lam": 0.0, "fraction": 0.5, "rounds": 3}


def own_tests(sizes: tuple[int | None, ...] = SIZES) -> list[Any]:
    """Return test samples by client; every other client's labels are turned round."""
    found = [size if size is None else samples(size, 50 + k) for k, size in enumerate(sizes)]
    return [(p[0], 2 - p[1]) if p and k % 2 else p for k, p in enumerate(found)]


def make(**changes: Any) -> raysim.Task:
    return replace(make_task(UNEQUAL), client_tests=own_tests(), **changes)


def logits_of(params: Any, x: Any) -> torch.Tensor:
    network = SmallNet()
    network.load_state_dict(params)
    with torch.no_grad():
        return network(torch.as_tensor(x))


def models_of(result: raysim.Result, task: raysim.Task) -> list[Any]:
    """Return each client's personal model, or the first one where it never took part."""
    states, found = ClientStates(result.run_dir / "clients"), []
    first = from_task(task).network(0).state_dict()
    for client in range(len(UNEQUAL)):
        versions = states.versions(client)
        own = states.read(client, max(versions), CPU)["personal"] if versions else first
        found.append(own)
    return found


def names_of(score: str) -> list[str]:
    return [column.name for column in spread_columns(Column(score))]


def check(result: raysim.Result, prefix: str, models: list[Any], pairs: list[Any]) -> None:
    """Compare the columns of a set of samples of each client with those computed here."""
    given = [(k, pair) for k, pair in enumerate(pairs) if pair is not None and len(pair[1])]
    logits = {k: logits_of(models[k], x) for k, (x, _) in given}
    last = result.metrics.to_pylist()[-1]
    y = np.concatenate([pair[1] for _, pair in given])
    everything = torch.cat([*logits.values()])
    predicted = everything.argmax(1).numpy()
    assert last[f"{prefix}_accuracy"] == np.mean(predicted == y)
    loss = float(nn.functional.cross_entropy(everything, torch.as_tensor(y)))
    assert last[f"{prefix}_loss"] == pytest.approx(loss, 1e-5)
    assert last[f"{prefix}_macro_f1"] == pytest.approx(macro_f1(predicted, y))
    assert result.summary[f"final_{prefix}_accuracy"] == last[f"{prefix}_accuracy"]
    if "local_test" not in prefix:
        return
    right = {k: float(np.mean(logits[k].argmax(1).numpy() == pair[1])) for k, pair in given}
    deciles = np.quantile([*right.values()], np.arange(1, 10) / 10)
    expected = [np.mean([*right.values()]), *deciles]
    assert [last[n] for n in names_of(f"{prefix}_accuracy")] == pytest.approx(expected)
    rows = {
        r["client"]: r
        for r in pq.read_table(result.run_dir / "client_accuracy.parquet").to_pylist()
    }
    for k, pair in given:
        assert rows[k]["local_test_samples"] == len(pair[1])
        assert rows[k][f"{prefix}_accuracy"] == right[k]


@pytest.mark.parametrize("stack", [0, 3])
def test_clients_are_scored_on_test_samples_of_their_own(tmp_path, stack):
    task = make()
    result = raysim.run(make_settings(tmp_path, rounds=2, **{"engine.vectorize": stack}), task)
    check(result, "local_test", [result.params] * 6, task.client_tests)
    names = {n for n in result.metrics.column_names if "local_test" in n}
    spreads = {n for each in ("accuracy", "macro_f1") for n in names_of(f"local_test_{each}")}
    assert names == {*LOCAL, *spreads}  # no client has its own model
    table = pq.read_table(tmp_path / "client_accuracy.parquet")
    assert table["client"].to_pylist() == [0, 2, 3, 5] and "accuracy" not in table.column_names


def test_with_the_models_that_they_deploy_too(tmp_path):
    """Besides the global model, which the plain columns are of."""
    task, more = make(), {"evaluation.clients": True, "evaluation.holdout": 0.2}
    more |= {
        "evaluation.train_set": True,
        "local.label_smoothing": 0.2,
    }  # not in the loss of scores
    result = raysim.run(make_settings(tmp_path / "run", **DITTO, **more), task)
    own, shared = models_of(result, task), [result.params] * 6
    trained, held = (
        [
            [each[Holdout(0.2, seed=0).divide(k, len(pair[1]))[part]] for each in pair]
            for k, pair in enumerate(task.clients)
        ]
        for part in (0, 1)
    )
    for prefix, models in (("", shared), ("personal_", own)):
        check(result, f"{prefix}local_test", models, task.client_tests)
        check(result, f"{prefix}holdout", models, held)
        check(result, f"{prefix}train_set", models, trained)
    last = result.metrics.to_pylist()[-1]
    for name in ("holdout_accuracy", "local_test_accuracy"):
        assert last[f"personal_{name}"] != last[name]
    table = pq.read_table(tmp_path / "run" / "client_accuracy.parquet").to_pydict()
    assert table["client"] == [*range(6)] and table["local_test_samples"] == [30, 0, 1, 1700, 0, 40]
    assert np.isnan(table["personal_local_test_accuracy"])[[1, 4]].all()
    assert min(table["samples"]) > 0 and not np.isnan(table["accuracy"]).any()
    plain = raysim.run(make_settings(tmp_path / "plain", **DITTO, **more), make_task(UNEQUAL))
    columns = [n for n in plain.metrics.column_names if n.startswith(("test_", "client_", "hold"))]
    assert result.metrics.select(columns).equals(plain.metrics.select(columns))
    files = [tmp_path / name / "model.safetensors" for name in ("run", "plain")]
    assert files[0].read_bytes() == files[1].read_bytes()


def test_chained_methods_score_personal_models_where_one_of_them_deploys_any(tmp_path):
    methods = {"method.name": "chain", "method.methods.fedprox.mu": 0.1}
    methods["method.methods.scaffold.lr_global"] = 0.9
    result = raysim.run(make_settings(tmp_path, **methods, **{"evaluation.holdout": 0.2}), make())
    assert not any(name.startswith("personal_") for name in result.metrics.column_names)


def evaluated(table: Any) -> Any:
    names = [name for name in table.column_names if "local_test" in name or "holdout" in name]
    assert len(names) == 2 * (3 + 3 + 2 * 10)
    return table.select(names)


class Interrupting(raysim.Listener):
    def round_done(self, row: Mapping[str, Any]) -> None:
        if row["round"] == 2:
            raise KeyboardInterrupt


def test_resumed_rounds_score_the_same(tmp_path):
    options = {**DITTO, "evaluation.holdout": 0.2, "rounds": 4}
    straight = raysim.run(make_settings(tmp_path / "straight", **options), make())
    with pytest.raises(KeyboardInterrupt):
        raysim.run(make_settings(tmp_path / "broken", **options), make(), Interrupting())
    resumed = raysim.resume(tmp_path / "broken", make())
    assert evaluated(resumed.metrics).equals(evaluated(straight.metrics))
    tables = [pq.read_table(r.run_dir / "client_accuracy.parquet") for r in (straight, resumed)]
    assert tables[0].equals(tables[1]) or str(tables[0]) == str(tables[1])


@pytest.mark.usefixtures("resident_actors")
def test_actors_score_the_same(tmp_path):
    options = {**DITTO, "evaluation.holdout": 0.2}
    inline = raysim.run(make_settings(tmp_path / "inline", **options), make())
    on_actors = {"engine.backend": "ray", "engine.actors": 2}
    actors = raysim.run(make_settings(tmp_path / "actors", **options, **on_actors), make())
    assert evaluated(actors.metrics).equals(evaluated(inline.metrics))


def test_asynchronous_rounds_score_them(tmp_path):
    method = {"method.name": "fedbuff", "method.concurrency": 4, "method.buffer": 2}
    task = make()
    result = raysim.run(make_settings(tmp_path, **method), task)
    check(result, "local_test", [result.params] * 6, task.client_tests)


def turned(task: raysim.Task, **changes: Any) -> raysim.Task:
    """Return a task of which one test sample of client 5 is another."""
    tests = [pair and (pair[0].copy(), pair[1].copy()) for pair in task.client_tests]
    tests[5][1][7] = (tests[5][1][7] + 1) % 3
    return replace(task, client_tests=tests, **changes)


@pytest.mark.parametrize("change", ["label", "none", "new"])
def test_other_test_samples_of_a_client_are_other_data(tmp_path, change):
    task, none = make(), make_task(UNEQUAL)
    before, after = {
        "label": (task, turned(task)),
        "none": (task, none),
        "new": (none, task),
    }[change]
    with pytest.raises(KeyboardInterrupt):
        raysim.run(make_settings(tmp_path / "run"), before, Interrupting())
    with pytest.raises(raysim.RunError, match=r"clients' own test samples was .* force=True\)$"):
        raysim.resume(tmp_path / "run", after)
    raysim.resume(tmp_path / "run", before)


def test_runs_with_other_test_samples_of_clients_are_not_compared(tmp_path):
    tasks = {"one": make(), "other": turned(make()), "none": make_task(UNEQUAL)}
    for name, task in tasks.items():
        raysim.run(make_settings(tmp_path / name, rounds=1), task)
    records = {name: read_run(tmp_path / name) for name in tasks}
    check_comparable([records["one"], records["none"]])
    with pytest.raises(raysim.SettingsError, match=r"client_tests .* runs of another dataset"):
        check_comparable([records["one"], records["none"], records["other"]])


X, Y = samples(4, 0)
REFUSED: dict[str, tuple[list[Any], str]] = {
    "too few": ([(X, Y)], "Task.client_tests: 1 entries for 6 clients; give one a client, None"),
    "all empty": ([None] * 5 + [(X[:0], Y[:0])], "Task.client_tests: no client has a sample"),
    "lengths": ([None] * 5 + [(X, Y[:2])], "Task.client_tests, client 5: inputs .* do not match"),
    "features": (
        [(X[:, :5], Y)] + [None] * 5,
        r"Task.client_tests, client 0: inputs float32\[5\] a sample; must be float32\[12\], as in",
    ),
    "labels in columns": ([(X, Y[:, None])] + [None] * 5, "client 0: targets .* not class numbers"),
    "negative": ([(X, Y - 5)] + [None] * 5, "Task.client_tests, client 0: labels must be class"),
    "unknown class": ([(X, Y + 7)] + [None] * 5, "client 0, sample 0: label 7; the model"),
}


@pytest.mark.parametrize("case", REFUSED)
def test_what_is_no_test_set_of_clients_is_refused(tmp_path, case):
    tests, message = REFUSED[case]
    task = replace(make_task(UNEQUAL), client_tests=tests)
    with pytest.raises(raysim.RaysimError, match=message) as caught:
        raysim.run(make_settings(tmp_path / "run"), task)
    assert "\n" not in str(caught.value) and not (tmp_path / "run").exists()


def squared_errors(outputs: Any, targets: Any) -> Any:
    return (outputs[:, 0] - targets).square()


def error(predicted: Any, targets: Any) -> float:
    if len(targets) < 2:
        raise ValueError("of one sample it is not defined")
    return float(abs(predicted[:, 0] - targets).mean())


def test_a_task_that_is_no_classification(tmp_path):
    """A metric that fails on one client's samples leaves that client out."""
    pairs = [(x, y.astype(np.float32)) for x, y in make_task(UNEQUAL).clients]
    tests = [pair if pair is None else (pair[0], pair[1] / 2) for pair in own_tests()]
    scoring = raysim.Scoring(squared_errors, {"gap": error})
    task = raysim.Task(SmallNet, pairs, (X, Y / 2), scoring, tests)
    result = raysim.run(make_settings(tmp_path, rounds=1), task)
    given = {k: tests[k] for k in (0, 3, 5)}
    gaps = [error(logits_of(result.params, x).numpy(), y) for x, y in given.values()]
    last = result.metrics.to_pylist()[-1]
    assert last["local_test_gap_mean"] == pytest.approx(np.mean(gaps), 1e-5)
    assert last["local_test_gap_d5"] == pytest.approx(np.median(gaps), 1e-5)
    table = pq.read_table(tmp_path / "client_accuracy.parquet").to_pydict()
    assert table["client"] == [0, 2, 3, 5] and np.isnan(table["local_test_gap"]).sum() == 1


def test_of_many_clients_the_seed_draws_some_of_those_with_test_samples(monkeypatch):
    from raysim.federation import evaluation_sets
    from raysim.federation.federation import LocalTest
    from raysim.samples.client_indices import ListedIndices

    assert MOST_CLIENTS > 40
    monkeypatch.setattr(evaluation_sets, "MOST_CLIENTS", 40)
    per_client = [np.arange(k, k + 2) if k % 9 == 0 else np.arange(0) for k in range(900)]
    local = LocalTest(ListedIndices.of_some(per_client))
    found = evaluation_sets.local_test_set(local, 3)
    assert len(found.clients) == 40 and not (found.clients % 9).any() and found.split == "test"
    assert found.samples[5].tolist() == per_client[found.clients[5]].tolist()
    assert (evaluation_sets.local_test_set(local, 4).clients != found.clients).any()
