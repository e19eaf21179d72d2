"""Sequences of unequal length of any task: padding, masks, and the same result in every way."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest
import torch
from torch import nn
from torch.utils.data import Dataset

import raysim
from raysim.api.scoring import IGNORED
from raysim.errors import DataError
from raysim.federation.task import from_task
from raysim.training import recorded_steps
from tests.driver.test_language_model import BASE, TOKENS, Bigrams, task_of, texts
from tests.tasks import StopAfter, make_settings

WIDTH, SIZES = 5, (9, 4, 21)


class MaskedMean(nn.Module):
    """Classes by the mean of the values of a sequence."""

    def __init__(self) -> None:
        super().__init__()
        self.head = nn.Linear(WIDTH, 3)

    def forward(self, x: torch.Tensor, mask: torch.Tensor) -> torch.Tensor:
        mask = mask.unsqueeze(-1)
        return self.head((x * mask).sum(1) / mask.sum(1))


class Means(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.head = nn.Linear(WIDTH, 3)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.head(x)


class Listed(Dataset):
    def __init__(self, x, y):
        self.x, self.y = x, y

    def __len__(self):
        return len(self.x)

    def __getitem__(self, row):
        return torch.from_numpy(self.x[row]), self.y[row]


def series(count, key):
    draws = np.random.default_rng(key)
    x = [draws.normal(size=(draws.integers(1, 50), WIDTH)).astype(np.float32) for _ in range(count)]
    return x, [int(each.mean(0).argmax() % 3) for each in x]


@pytest.mark.parametrize("settings", [{}, {"engine.vectorize": 3}], ids=["alone", "stacked"])
def test_values_come_with_their_mask(tmp_path, settings):
    sets = [series(size, key) for key, size in enumerate((*SIZES, 40))]
    given = [Listed(*pair) for pair in sets]
    means = [(np.stack([each.mean(0) for each in x]), y) for x, y in sets]
    padded = raysim.Task(MaskedMean, given[:-1], given[-1], sequences=True)
    plain = raysim.Task(Means, means[:-1], means[-1])
    rows = []
    for name, task in {"padded": padded, "plain": plain}.items():
        result = raysim.run(make_settings(tmp_path / name, **settings), task)
        rows.append([result.params, result.metrics.to_pylist()[-1]])
    (params, row), (expected, other) = rows
    assert all(torch.allclose(params[n], t, rtol=0, atol=1e-6) for n, t in expected.items())
    assert row["test_accuracy"] == other["test_accuracy"]
    assert row["test_loss"] == pytest.approx(other["test_loss"], abs=1e-6)


@pytest.mark.usefixtures("resident_actors")
def test_the_same_bits_on_actors_and_resumed(tmp_path):
    ways = {"inline": {}, "actors": {"engine.backend": "ray", "engine.actors": 2}}
    inline, actors = (
        raysim.run(make_settings(tmp_path / name, **BASE, **way), task_of())
        for name, way in ways.items()
    )
    with pytest.raises(KeyboardInterrupt):
        raysim.run(make_settings(tmp_path / "resumed", **BASE), task_of(), StopAfter(1))
    resumed = raysim.resume(tmp_path / "resumed", task_of())
    scored = ("test_loss", "test_perplexity", "test_exact_match", "train_loss")
    first, *others = (result.metrics.to_pylist()[-1] for result in (inline, actors, resumed))
    for result, last in zip((actors, resumed), others, strict=True):
        assert torch.equal(inline.params["table.weight"], result.params["table.weight"])
        assert [first[name] for name in scored] == [last[name] for name in scored]


@pytest.mark.parametrize("parts", [1, 2])
def test_recorded_steps_have_the_same_bits(tmp_path, monkeypatch, parts):
    """Each shape of a batch has its script."""
    written = []
    compiled = recorded_steps.compile_script
    monkeypatch.setattr(
        recorded_steps,
        "compile_script",
        lambda source, name: (written.append(source), compiled(source, name))[1],
    )
    settings = {**BASE, "local.epochs": 8, "local.accumulate": parts}
    params = []
    for before in (10**9, 2):
        monkeypatch.setattr(recorded_steps, "STEPS_BEFORE", before)
        assert not written
        out = make_settings(tmp_path / str(before), **settings)
        params.append(raysim.run(out, task_of()).params["table.weight"])
    assert torch.equal(*params) and len(written) >= 3


@pytest.mark.parametrize("method", ["fedavg", "fedmmd", "two_stream_l2"])
def test_a_stack_gives_the_result_of_clients_alone(tmp_path, method):
    """One of short and one of long sequences; penalties see padded positions, too."""
    clients = [([[1, 2, 3], [0, 1]] * 4, None), ([[*range(5)] * 8, [2, 1]] * 4, None)]
    task = raysim.Task(Bigrams, clients, clients[0], raysim.LANGUAGE_MODEL, sequences=True)
    options = {**BASE, "fraction": 1.0, "local.epochs": 3, "method.name": method}
    found = [
        raysim.run(
            make_settings(tmp_path / f"{size}", **options, **{"engine.vectorize": size}), task
        )
        for size in (0, 2)
    ]
    assert torch.allclose(*(run.params["table.weight"] for run in found), atol=1e-6, rtol=0)


def test_none_as_targets_are_the_next_tokens():
    clients = [([[3, 1, 4], [1, 5]], None)]
    task = raysim.Task(Bigrams, clients, None, raysim.LANGUAGE_MODEL, sequences=True)
    train = from_task(task).train
    assert train.y[0, :4].tolist() == [1, 4, IGNORED, IGNORED]
    assert train.y[1, :4].tolist() == [5, IGNORED, IGNORED, IGNORED]


def test_the_likeliest_answer_of_a_run(tmp_path):
    """The table has learnt that 1 follows 0, so that of two answers the one with 0, 1 is chosen."""
    good, bad = [0, 1, 0, 1], [0, 2, 3]

    def answer(tokens, question, is_right):
        return tokens[:-1], [*tokens[1:], question, is_right]

    learnt = [answer(good, -1, 1), answer(bad, -1, 0)]
    asked = [answer(bad, 4, 0), answer(good, 4, 1), answer(bad, 9, 1), answer(good, 9, 0)]
    client, test = ([*map(list, zip(*rows, strict=True))] for rows in (learnt, asked))
    task = raysim.Task(Bigrams, [client], test, raysim.multiple_choice(), sequences=True)
    settings = make_settings(tmp_path, **BASE | {"fraction": 1.0, "local.epochs": 20})
    result = raysim.run(settings, task)
    last = result.metrics.to_pylist()[-1]
    assert last["test_choice_accuracy"] == 0.5 and last["train_loss"] < 0.5
    table = torch.log_softmax(result.params["table.weight"].double(), 1)
    right = [(0, 1), (1, 0), (0, 1), (0, 2), (2, 3)]  # the answers that are marked so
    assert last["test_loss"] == pytest.approx(-np.mean([float(table[p]) for p in right]), rel=1e-5)


def test_questions_of_several_clients_are_judged_one_by_one(tmp_path):
    """Each client numbers its own from 0; all have learnt that 1 follows 0."""
    learnt = [[0], [0]], [[1, -1, 1], [1, -1, 1]]
    tests = [([[0], [0]], [[1, 0, right], [2, 0, 1 - right]]) for right in (1, 0)]
    task = raysim.Task(Bigrams, [learnt] * 2, None, raysim.multiple_choice(), tests, sequences=True)
    settings = {**BASE, "fraction": 1.0, "evaluation.local_test": 0.5, "local.epochs": 20}
    last = raysim.run(make_settings(tmp_path, **settings), task).metrics.to_pylist()[-1]
    assert last["local_test_choice_accuracy"] == 0.5


EMPTY = ([], [])
OF_EMPTY_SETS = {
    "classes": lambda: raysim.Task(
        MaskedMean, [series(7, 0), series(9, 1)], series(4, 2), client_tests=[series(3, 3), EMPTY]
    ),
    "tokens": lambda: raysim.Task(
        Bigrams,
        [texts(5, 0), texts(6, 1)],
        texts(4, 2),
        raysim.LANGUAGE_MODEL,
        [EMPTY, texts(3, 3)],
    ),
}


@pytest.mark.parametrize("case", OF_EMPTY_SETS)
def test_a_set_without_a_sequence(tmp_path, case):
    task = replace(OF_EMPTY_SETS[case](), sequences=True)
    settings = make_settings(tmp_path, **BASE | {"fraction": 1.0, "evaluation.local_test": 0.5})
    last = raysim.run(settings, task).metrics.to_pylist()[-1]
    assert last["local_test_loss"] > 0
    with pytest.raises(DataError, match="client 1 has no samples"):
        from_task(replace(task, clients=[task.clients[0], EMPTY]))


def test_holdout_own_tests_and_metrics_by_client(tmp_path):
    task = task_of()
    tests = [texts(5, 50), None, texts(3, 51), texts(2, 52)]
    task = raysim.Task(task.model, task.clients, task.test, task.scoring, tests, sequences=True)
    settings = {**BASE, "evaluation.holdout": 0.3, "evaluation.local_test": 0.5}
    last = raysim.run(make_settings(tmp_path, **settings), task).metrics.to_pylist()[-1]
    for name in ("test", "holdout", "local_test"):
        assert last[f"{name}_perplexity"] == pytest.approx(np.exp(last[f"{name}_loss"]), rel=1e-6)
    assert last["local_test_perplexity_d1"] < last["local_test_perplexity_d9"]


X, Y = texts(4, 0)
REFUSED = {
    "an empty one": (([[1, 2], []], [0, 1]), {}, "client 0, sample 1: a sequence must have at"),
    "fractions": (([[1.5, 2], [1]], [0, 1]), {}, "client 0, sample 0: Task.sequences=True takes w"),
    "words": ((["some text"], [0]), {}, "client 0, sample 0: Task.sequences=True takes whole num"),
    "negative": (([[1, -7]], [0]), {}, "client 0, sample 0: token -7; must be from 0 up"),
    "several": (({"x": [[1]]}, [0]), {}, "client 0: Task.sequences=True takes one input"),
    "two kinds": (([[1], [[1.0]]], [0, 1]), {}, r"client 0, sample 1: a sequence \[1, 1\]; the fi"),
    "no tokens": (
        (X, [0, 1, 2, 3]),
        {},
        "client 0: targets must be one whole number for each position, as those of Task.test",
    ),
    "beyond the outputs": (
        (X, [np.full(len(each), TOKENS + 2) for each in X]),
        {},
        "client 0, sample 0: target 9 at position 0; must be -100, or within the sequence a token",
    ),
    "nothing counts": (
        (X, [np.full(len(each), IGNORED) for each in X]),
        {"weighting": "tokens"},
        "weighting=tokens: client 0 has no target that counts",
    ),
    "temperature": ((X, Y), {"local.temperature": 2.0}, "local.temperature=2.0: the task is no cl"),
    "smoothing": (
        (X, Y),
        {"local.label_smoothing": 0.1},
        "local.label_smoothing=0.1: the task has",
    ),
    "accuracies": ((X, Y), {"evaluation.clients": True}, "evaluation.clients=true: the task is no"),
    "class metrics": ((X, Y), {"evaluation.metrics": "auc"}, "evaluation.metrics=auc: the task is"),
}


@pytest.mark.parametrize("case", REFUSED)
def test_refused_in_one_line(tmp_path, case):
    client, settings, message = REFUSED[case]
    task = raysim.Task(Bigrams, [client], (X, Y), raysim.LANGUAGE_MODEL, sequences=True)
    with pytest.raises(raysim.RaysimError, match=f"^{message}") as refused:
        raysim.check(make_settings(tmp_path / "run", **BASE | settings), task)
    assert "\n" not in str(refused.value) and not (tmp_path / "run").exists()


class OneRow(Bigrams):
    """Outputs of a classification [B, V]."""

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return super().forward(x).mean(1)


@pytest.mark.parametrize(
    ("network", "y", "scoring", "told"),
    [
        (OneRow, Y, raysim.LANGUAGE_MODEL, r"7]: a language model's are .*=causal-lm"),
        (Bigrams, [0, 1, 0, 1], raysim.CLASSIFICATION, r"7]: a classification's are .*=classifi"),
    ],
)
def test_outputs_are_those_of_the_targets(tmp_path, network, y, scoring, told):
    task = raysim.Task(network, [(X, y)], (X, y), scoring, sequences=True)
    with pytest.raises(raysim.SettingsError, match=f"^the model's outputs have .*{told}"):
        raysim.check(make_settings(tmp_path / "run", **BASE), task)


def test_tokens_do_not_weigh_where_none_are(tmp_path):
    task = raysim.Task(Means, [series_means(4, 0)], series_means(4, 1))
    with pytest.raises(
        raysim.SettingsError, match=r"^weighting=tokens: the task's samples have no"
    ):
        raysim.check(make_settings(tmp_path / "run", weighting="tokens"), task)


def series_means(count, key):
    x, y = series(count, key)
    return np.stack([each.mean(0) for each in x]), y
