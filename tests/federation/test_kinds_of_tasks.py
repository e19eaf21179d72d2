"""Tasks of other shapes: several inputs, masks, targets per pixel, several labels or none.

Each is trained as a plain loop of PyTorch trains it, on module and tensors as they are given.
"""

from __future__ import annotations

from collections.abc import Callable
from copy import deepcopy
from dataclasses import dataclass, replace
from itertools import product
from typing import Any

import numpy as np
import pyarrow.parquet as pq
import pytest
import torch
import torch.nn.functional as F
from torch import Tensor, nn
from torch.utils.data import DataLoader

import raysim
from raysim.api.method import METHODS
from raysim.federation.task import from_task
from raysim.numbers.seeds import stream
from tests.methods.test_contract import settings_for
from tests.tasks import Notes, in_turn, make_settings

SIZES, BATCH, LR = (9, 24, 13), 8, 0.1


class Words(nn.Module):
    """The mean of the embeddings of a sequence's words, without its padding; and an age."""

    def __init__(self) -> None:
        super().__init__()
        self.embedding, self.head = nn.Embedding(50, 6), nn.Linear(7, 3)

    def forward(self, words: Tensor, mask: Tensor, age: Tensor) -> Tensor:
        embedded = self.embedding(words) * mask.unsqueeze(-1)
        mean = embedded.sum(1) / mask.sum(1, keepdim=True)
        return self.head(torch.cat([mean, age], dim=1))


class TwoViews(nn.Module):
    """The embeddings of two views of a sample [B, 2, 4]."""

    def __init__(self) -> None:
        super().__init__()
        self.encoder = nn.Sequential(nn.Flatten(), nn.Linear(12, 8), nn.Tanh(), nn.Linear(8, 4))

    def forward(self, first: Tensor, second: Tensor) -> Tensor:
        return torch.stack([self.encoder(first), self.encoder(second)], dim=1)


def words(n, draws):
    lengths = draws.integers(1, 8, n)
    mask = np.arange(7) < lengths[:, None]
    tokens = np.where(mask, draws.integers(1, 50, (n, 7)), 0)
    inputs = {"words": tokens, "mask": mask, "age": draws.normal(size=(n, 1)).astype(np.float32)}
    return inputs, tokens[:, 0] % 3


def views(n, draws):
    first = draws.normal(size=(n, 3, 4)).astype(np.float32)
    return (first, first + 0.1), None


def images(n, draws):
    x = draws.normal(size=(n, 1, 5, 5)).astype(np.float32)
    return x, (x[:, 0] > 0).astype(np.int64) + (x[:, 0] > 1)


def labels(n, draws):
    x = draws.normal(size=(n, 6)).astype(np.float32)
    return x, (x[:, :4] > 0).astype(np.float32)


def alone(n, draws):
    return draws.normal(size=(n, 6)).astype(np.float32), None


def survival(n, draws):
    x = draws.normal(size=(n, 6)).astype(np.float32)
    times, events = np.exp(x[:, 0] + 0.3 * draws.normal(size=n)), draws.random(n) < 0.7
    return x, np.stack([times, events], axis=1).astype(np.float32)


def pixel_losses(outputs, targets):  # [B, 3, H, W], [B, H, W] -> [B]
    return F.cross_entropy(outputs, targets, reduction="none").flatten(1).mean(1)


def label_losses(outputs, targets):  # [B, L], [B, L] -> [B]
    return F.binary_cross_entropy_with_logits(outputs, targets, reduction="none").mean(1)


def squares(outputs, targets):
    return (outputs - targets).square().mean(1)


def contrast(outputs, targets):  # [B, 2, 4] -> [], InfoNCE between the two views
    first, second = F.normalize(outputs, dim=-1).unbind(1)
    return F.cross_entropy(first @ second.T / 0.5, torch.arange(len(first)))


def cox(outputs, targets):  # [B, 1], [B, 2] -> [], the negative partial log-likelihood
    times, events = targets.unbind(1)
    at_risk = torch.where(times >= times[:, None], outputs[:, 0], -torch.inf)
    return ((at_risk.logsumexp(1) - outputs[:, 0]) * events).sum() / events.sum().clamp(min=1)


def pixel_accuracy(predicted, targets):
    return float((predicted == targets).mean())


@dataclass(frozen=True)
class Kind:
    """A kind of task, and its loss in plain PyTorch."""

    model: Callable[[], nn.Module]
    draw: Callable[..., Any]
    scoring: raysim.Scoring = raysim.CLASSIFICATION
    loss: Callable[..., Tensor] | None = None


KINDS = {
    "sequences and masks": Kind(Words, words),
    "pixels": Kind(
        lambda: nn.Conv2d(1, 3, 3, padding=1),
        images,
        raysim.Scoring(pixel_losses, {"pixels": pixel_accuracy}, lambda outputs: outputs.argmax(1)),
    ),
    "labels": Kind(lambda: nn.Linear(6, 4), labels, raysim.Scoring(label_losses)),
    "autoencoder": Kind(
        lambda: nn.Sequential(nn.Linear(6, 2), nn.Linear(2, 6)), alone, raysim.Scoring(squares)
    ),
    "contrastive": Kind(TwoViews, views, raysim.Scoring(contrast, whole_batch=True)),
    "cox": Kind(lambda: nn.Linear(6, 1), survival, raysim.Scoring(cox, whole_batch=True)),
}


def model_of(kind):
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(1)
        return KINDS[kind].model()


def draws_of(kind):
    draw = KINDS[kind].draw
    return [draw(n, stream(0, kind, key)) for key, n in enumerate(SIZES)]


def task_of(kind):
    test = KINDS[kind].draw(30, stream(0, kind, 99))
    return raysim.Task(model_of(kind), draws_of(kind), test, KINDS[kind].scoring)


def batches(number, client):
    draws, n = stream(0, "batches", number, 0, client), SIZES[client]
    for _ in range(2):
        yield from np.split(draws.permutation(n), range(BATCH, n, BATCH))


def rows_of(x, rows):
    if isinstance(x, dict):
        return {key: torch.as_tensor(values[rows]) for key, values in x.items()}
    if isinstance(x, tuple):
        return tuple(torch.as_tensor(values[rows]) for values in x)
    return torch.as_tensor(x[rows])


def called(module, x):
    if isinstance(x, dict):
        return module(**x)
    return module(*x) if isinstance(x, tuple) else module(x)


def trained(kind, server, number, client):
    """A client's module after two epochs of plain SGD, as a user would write them."""
    (x, y), local, scoring = draws_of(kind)[client], deepcopy(server), KINDS[kind].scoring
    optimizer = torch.optim.SGD(local.parameters(), lr=LR)
    for rows in batches(number, client):
        inputs = rows_of(x, rows)
        targets = inputs if y is None else torch.as_tensor(y[rows])
        optimizer.zero_grad()
        scoring.losses(called(local, inputs), targets).mean().backward()
        optimizer.step()
    return local


def expected(kind, cohorts):
    server = model_of(kind)
    for number, cohort in enumerate(cohorts):
        total = sum(SIZES[client] for client in cohort)
        locals_ = [trained(kind, server, number, client).state_dict() for client in cohort]
        mean = {
            name: sum(SIZES[c] / total * own[name] for c, own in zip(cohort, locals_, strict=True))
            for name in locals_[0]
        }
        server.load_state_dict(mean)
    return server.state_dict()


def run(folder, task, **overrides):
    given = {"rounds": 3, "local.epochs": 2, "fraction": 0.7, "local.lr": LR, **overrides}
    notes = Notes()
    return raysim.run(make_settings(folder, **given), task, notes), notes.notes


@pytest.mark.parametrize("stack", [0, 2])
@pytest.mark.parametrize("kind", KINDS)
def test_a_kind_of_task_is_trained_as_by_a_plain_loop(tmp_path, kind, stack):
    result, notes = run(tmp_path / "run", task_of(kind), **{"engine.vectorize": stack})
    rows = pq.read_table(result.run_dir / "clients.parquet").to_pylist()
    cohorts = [sorted(r["client"] for r in rows if r["round"] == n) for n in (1, 2, 3)]
    for name, tensor in expected(kind, cohorts).items():
        assert (result.params[name] - tensor).abs().max() < 1e-5, name
    whole = KINDS[kind].scoring.whole_batch and stack
    assert any("of whole batches" in note for note in notes) == bool(whole)
    assert np.isfinite(result.metrics["test_loss"].to_pylist()).all()


def test_the_test_loss_is_of_the_inputs_as_given(tmp_path):
    result, _ = run(tmp_path / "run", task_of("pixels"))
    module = model_of("pixels")
    module.load_state_dict(result.params)
    x, y = map(torch.as_tensor, KINDS["pixels"].draw(30, stream(0, "pixels", 99)))
    outputs = module(x).detach()
    assert result.metrics["test_loss"][-1].as_py() == pytest.approx(
        float(F.cross_entropy(outputs, y)), abs=1e-6
    )
    share = float((outputs.argmax(1) == y).float().mean())
    assert result.metrics["test_pixels"][-1].as_py() == pytest.approx(share, abs=1e-6)


@pytest.mark.parametrize("kind", ["sequences and masks", "contrastive", "labels"])
def test_a_kind_of_task_without_a_test_set_trains_the_same(tmp_path, kind):
    tested, _ = run(tmp_path / "tested", task_of(kind))
    x, y = zip(*draws_of(kind), strict=True)
    if kind == "labels":  # in the type in which NumPy draws
        x = [each.astype(np.float64) for each in x]
    untested = raysim.Task(
        model_of(kind), [*zip(x, y, strict=True)], None, scoring=KINDS[kind].scoring
    )
    result, _ = run(tmp_path / "untested", untested)
    assert all(torch.equal(result.params[name], t) for name, t in tested.params.items())


def test_a_module_that_is_returned_each_time_takes_the_inputs_of_its_last_task(tmp_path):
    """The inputs of the tasks are as wide, but divided otherwise."""
    shared, kind = TwoViews(), KINDS["contrastive"]
    (first, second), _ = kind.draw(9, stream(0, "contrastive", 0))
    both = np.stack([first, second], axis=1).reshape(9, 2, 12)
    for inputs in ((both[:, 0, :6], both[:, 0, 6:], both[:, 1]), (first, second)):
        federation = from_task(raysim.Task(lambda: shared, [(inputs, None)], None, kind.scoring))
        federation.build()
        federation.build()
    packed = torch.as_tensor(both.reshape(9, 24))
    assert torch.equal(shared(packed), shared(*map(torch.as_tensor, (first, second))))
    assert len(shared._forward_pre_hooks) == 1


@pytest.mark.parametrize(
    ("kind", "inputs"),
    [
        ("sequences and masks", "the inputs words, mask, age"),
        ("contrastive", "a tuple of 2 inputs"),
    ],
)
@pytest.mark.parametrize("method", ["fedmax", "fedma"])
def test_methods_of_stages_say_that_they_take_one_input(tmp_path, kind, inputs, method):
    """With stages of the model, too: the first one would get all inputs as one row."""

    def build():
        module = model_of(kind)
        module.features = module.hidden = module.head = nn.Identity()
        return module

    with pytest.raises(raysim.SettingsError) as caught:
        run(tmp_path / "run", replace(task_of(kind), model=build), **{"method.name": method})
    line = str(caught.value)
    assert line.startswith(f"method.name={method}: needs a model that is head(hidden(features(x)))")
    assert f"of one array x; this one takes {inputs}: give them as one array" in line
    assert not (tmp_path / "run").exists()


@pytest.mark.parametrize("form", ["dataset", "loader", "batches"])
def test_several_inputs_of_torchs_datasets(tmp_path, form):
    class Pairs(torch.utils.data.Dataset):
        def __init__(self, x, y):
            self.x, self.y = x, y

        def __len__(self):
            return len(self.y)

        def __getitem__(self, row):
            return {key: values[row] for key, values in self.x.items()}, self.y[row]

    def whole(samples):
        return torch.utils.data.default_collate(samples)  # of one's own: batches are read

    forms = {
        "dataset": lambda pairs: pairs,
        "loader": lambda pairs: DataLoader(pairs, batch_size=4),
        "batches": lambda pairs: DataLoader(pairs, batch_size=4, collate_fn=whole),
    }
    given = [forms[form](Pairs(x, y)) for x, y in draws_of("sequences and masks")]
    test = KINDS["sequences and masks"].draw(30, stream(0, "sequences and masks", 99))
    task = raysim.Task(model_of("sequences and masks"), given, test)
    one, _ = run(tmp_path / "one", task)
    other, _ = run(tmp_path / "other", task_of("sequences and masks"))
    assert all(torch.equal(one.params[name], t) for name, t in other.params.items())


def test_clients_may_name_their_inputs_in_any_order(tmp_path):
    task = task_of("sequences and masks")
    first, (x, y), last = task.clients
    turned = replace(task, clients=[first, ({key: x[key] for key in reversed(x)}, y), last])
    one, _ = run(tmp_path / "one", task)
    other, _ = run(tmp_path / "other", turned)
    assert all(torch.equal(one.params[name], t) for name, t in other.params.items())


def other(kind, **changes):
    x, y = draws_of(kind)[1]
    return [draws_of(kind)[0], ({**x, **changes}, y), draws_of(kind)[2]]


REFUSED = {
    "another name": (
        "sequences and masks",
        lambda: [*draws_of("sequences and masks")[:2], ({"words": np.zeros((1, 7), int)}, [0])],
        "client 2: a sample has the inputs words[7]; must be as in client 0, words[7], mask[7]",
    ),
    "another length": (
        "sequences and masks",
        lambda: other("sequences and masks", words=np.zeros((24, 9), int)),
        "client 1: a sample has the inputs words[9]",
    ),
    "not as many": (
        "sequences and masks",
        lambda: other("sequences and masks", age=np.zeros((23, 1), np.float32)),
        "client 1: inputs (24, 7) and inputs (23, 1) do not match",
    ),
    "not finite": (
        "sequences and masks",
        lambda: other("sequences and masks", age=np.full((24, 1), np.nan, np.float32)),
        "client 1, sample 0, column 0: the input age is not finite",
    ),
    "too large": (
        "sequences and masks",
        lambda: other("sequences and masks", words=np.full((24, 7), 2**24 + 1)),
        "client 1, sample 0: input words is 16777217",
    ),
    "some targets": (
        "autoencoder",
        lambda: [*draws_of("autoencoder")[:2], (np.zeros((3, 6), np.float32), np.zeros(3))],
        "client 0: targets are None; client 2 has targets",
    ),
    "targets of classes": (
        "sequences and masks",
        lambda: [(x, None) for x, _ in draws_of("sequences and masks")],
        "client 0: targets are None",
    ),
}


@pytest.mark.parametrize("case", REFUSED)
def test_samples_that_do_not_match_are_refused(tmp_path, case):
    kind, clients, problem = REFUSED[case]
    test = None if "targets" in case else KINDS[kind].draw(30, stream(0, kind, 99))
    task = raysim.Task(model_of(kind), clients(), test, KINDS[kind].scoring)
    with pytest.raises(raysim.RaysimError) as caught:
        run(tmp_path, task)
    assert problem in str(caught.value) and len(str(caught.value).splitlines()) == 1


@pytest.mark.parametrize("setting", [{"method.name": "fsvrg"}, {"selection.name": "oort"}])
def test_what_needs_a_loss_of_each_sample_is_refused_with_one_of_batches(tmp_path, setting):
    with pytest.raises(raysim.SettingsError, match="needs a loss of each sample"):
        run(tmp_path, task_of("cox"), **setting)


OF_METHODS = ("sequences and masks", "contrastive", "pixels")
IN_TURN = in_turn(sorted(METHODS), OF_METHODS)
"""Methods and kinds of tasks that are not left to `tests.full`."""


@pytest.mark.parametrize(
    ("method", "kind"),
    [
        pytest.param(*pair, marks=[] if pair in IN_TURN else pytest.mark.full)
        for pair in product(sorted(METHODS), OF_METHODS)
    ],
)
def test_a_method_trains_a_kind_of_task_or_refuses_it_in_a_line(tmp_path, method, kind):
    settings = settings_for(method, tmp_path / "run", rounds=2)
    try:
        result = raysim.run(settings, task_of(kind))
    except raysim.SettingsError as error:
        assert len(str(error).splitlines()) == 1
        assert " failed: " not in str(error)  # an error of the method itself
        assert not (tmp_path / "run/metrics.parquet").exists()
    else:
        assert np.isfinite(result.metrics["test_loss"].to_pylist()).all()
