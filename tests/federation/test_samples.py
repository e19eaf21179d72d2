"""Samples as users of Python have them: read, cast and numbered, or refused in one line."""

from __future__ import annotations

import json
import re
from collections import UserDict, UserList
from dataclasses import replace

import numpy as np
import pandas as pd
import pytest
import scipy.sparse
import torch
from torch import nn
from torch.utils.data import (
    BatchSampler,
    DataLoader,
    Dataset,
    IterableDataset,
    SequentialSampler,
    SubsetRandomSampler,
    TensorDataset,
)

import raysim
from raysim.federation.samples import read_pair
from raysim.federation.task import from_task
from raysim.results.compare import compared_metrics, group_runs
from raysim.results.runs import read_runs
from tests.tasks import Notes, make_settings

GENERATOR = np.random.default_rng(0)
X = GENERATOR.normal(size=(6, 4)).astype(np.float32)
Y = np.array([0, 1, 1, 0, 1, 0])
WORDS = np.array(["cat", "dog"])[Y]


def linear() -> nn.Module:
    return nn.Linear(4, 2)


class Rows(Dataset):
    """A dataset whose `__getitem__` takes any number."""

    def __len__(self) -> int:
        return len(Y)

    def __getitem__(self, row: int) -> tuple[np.ndarray, int]:
        return X[row % 6], int(Y[row % 6])


class Stream(IterableDataset):
    def __iter__(self):
        return zip(torch.tensor(X), torch.tensor(Y), strict=True)


class Frame:
    """What NumPy needs of a DataFrame or a Series."""

    def __init__(self, values: np.ndarray) -> None:
        self.values = values

    def __len__(self) -> int:
        return len(self.values)

    def __array__(self, dtype: object = None, copy: object = None) -> np.ndarray:
        return self.values


def collate(pairs: list[tuple[np.ndarray, int]]) -> tuple[list[np.ndarray], list[int]]:
    return [x for x, _ in pairs], [y for _, y in pairs]


TENSORS = TensorDataset(torch.tensor(X), torch.tensor(Y))
READ = {
    "float64": (X.astype(np.float64), Y),
    "float16 of torch": (torch.tensor(X.round()).half(), torch.tensor(Y)),
    "lists": (X.astype(float).tolist(), Y.tolist()),
    "a list of arrays": ([*X], [*Y]),
    "a list of tensors": ([*torch.tensor(X)], [*torch.tensor(Y)]),
    "a pair as a list": [X, Y],
    "with gradient": (torch.tensor(X, requires_grad=True), Y),
    "longer floats": (X.astype(np.longdouble), Y.astype(np.longdouble)),
    "of another byte order": (X.astype(">f4"), Y.astype(">i2")),
    "masked, none of them": (np.ma.masked_array(X, np.isnan(X)), np.ma.masked_array(Y)),
    "a frame": (Frame(X.astype(np.float64)), Frame(Y)),
    "a frame of objects": (Frame(X.astype(object)), Frame(Y.astype(object))),
    "dataset of tensors": TENSORS,
    "dataset": Rows(),
    "stream": Stream(),
    "loader": DataLoader(Rows(), 4, shuffle=True),
    "loader of a stream": DataLoader(Stream(), 4),
    "loader that collates": DataLoader(Rows(), 4, collate_fn=collate),
}


@pytest.mark.parametrize("given", READ)
def test_read(given):
    x, y = read_pair("client 0", READ[given])
    assert x.dtype.kind == "f" and y.tolist() == Y.tolist()
    assert torch.from_numpy(np.array(x)).is_floating_point()
    assert np.array_equal(x, X.round() if "float16" in given else X)


def test_a_memory_map_and_whole_numbers_stay_as_they_are(tmp_path):
    np.save(tmp_path / "x.npy", X)
    mapped = np.load(tmp_path / "x.npy", mmap_mode="r")
    assert np.shares_memory(read_pair("client 0", (mapped, Y))[0], mapped)
    assert read_pair("client 0", (X.astype(np.uint8), Y))[0].dtype == np.uint8
    assert read_pair("client 0", (X.astype(np.float64), Y))[0].dtype == np.float64


def wrong(value: object, dtype: type = float) -> np.ndarray:
    x = X.astype(dtype)
    x[3, 2] = value
    return x


NAMES = ("client 0", "client 1", "test")
REFUSED = {
    "dictionary": (
        ({"a": X, "b": X}, Y),
        r"client 1: a sample has the inputs a\[4\], b\[4\]; must be as in client 0, \[4\]",
    ),
    "mapping": ((UserDict(a=X), Y), r"client 1: a sample has the inputs a\[4\]; must be as"),
    "ragged": (
        ([row[: k % 3 + 1] for k, row in enumerate(X)], Y),
        r"client 1, sample 1: inputs",
    ),
    "ragged in a sample": (
        ([[[1.0], [1.0, 2.0]]] * 6, Y),
        r"client 1, sample 0: its inputs are",
    ),
    "ragged dataset": (
        [(X[0], 0), (X[1, :3], 1), (X[0], 1)],
        "client 1: must be a pair .* list",
    ),
    "no pair": ({"x": X}, "client 1: must be a pair of inputs and targets, .*; is a dict"),
    "three": ((X, Y, Y), "client 1: must be a pair .*; is a tuple of 3"),
    "words as inputs": ((np.full((6, 4), "a"), Y), r"client 1, sample 0: inputs must be numbers"),
    "an object": ((wrong("a", object), Y), r"client 1, sample 3: inputs must be numbers; .*'a'"),
    "dates": ((np.zeros((6, 4), "M8[s]"), Y), r"client 1, sample 0: inputs must be numbers"),
    "a number": ((np.float32(1), Y), r"client 1: inputs \(\) and targets \(6,\) do not match"),
    "a missing label": (
        (X, np.array(["a", None, *"abab"], object)),
        "client 1, sample 1: its",
    ),
    "nan": ((wrong(np.nan), Y), "client 1, sample 3, column 2: the input is not finite [(]nan in"),
    "infinite": (
        (wrong(-np.inf), Y),
        "client 1, sample 3, column 2: the input is not finite [(]-i",
    ),
    "nan label": ((X, np.where(Y, np.nan, 0)), "client 1, sample 1: the target is not finite"),
    "complex nan": (
        (wrong(complex(0, np.nan), complex), Y),
        "client 1, sample 3, column 2: the input is not finite",
    ),
    "masked": (
        (np.ma.masked_array(X, np.arange(24).reshape(6, 4) > 13), Y),
        "client 1: inputs have 10 masked values, the first in sample 3: fill them first",
    ),
    "masked labels": (
        (X, np.ma.masked_equal(Y, 1)),
        "client 1: targets have 3 masked values: fill them first",
    ),
    "a masked row": (
        ([X[0], np.ma.masked_array(X[1], [0, 1, 0, 0])], Y[:2]),
        "client 1, sample 1: inputs have 1 masked values: fill them first",
    ),
    "sparse": (
        (scipy.sparse.csr_matrix(X), Y),
        r"client 1: inputs are a csr_matrix, which is sparse; must be dense: call \.toarray\(\)",
    ),
    "sparse rows": (
        ([scipy.sparse.coo_array(row) for row in X], Y),
        "client 1, sample 0: inputs are a coo_array, which is sparse; must be dense",
    ),
    "a sparse tensor": (
        (torch.tensor(X).to_sparse(), Y),
        r"client 1: inputs are a sparse tensor; must be dense: call \.to_dense\(\)",
    ),
    "a generator": (
        ((row for row in X), Y),
        "client 1: inputs are a generator; must be an array or a list, not a generator",
    ),
    "a map": (
        (X, map(int, Y)),
        "client 1: targets are a map; must be an array or a list, not a generator",
    ),
    "too long": (
        (wrong(np.longdouble("1e400"), np.longdouble), Y),
        "client 1, sample 3, column 2: the input is not finite",
    ),
    "words and numbers": ((X, [0, *"ababa"]), "client 1, sample 0: its label 0 is no word"),
    "numbers": ((X, Y), "client 1: labels are numbers, but client 0 has words"),
    "other": (TensorDataset(torch.tensor(X)), "client 1, sample 0: must be a pair .* tuple of 1"),
}


@pytest.mark.parametrize("case", REFUSED)
def test_refused(case):
    given, message = REFUSED[case]
    first = (X, WORDS) if case == "numbers" else (X, Y)
    with pytest.raises(raysim.RaysimError, match=message) as caught:
        from_task(raysim.Task(linear, [first, given], first))
    assert len(str(caught.value).splitlines()) == 1


@pytest.mark.parametrize(
    ("names", "targets", "says"),
    [
        ("ab", Y, "must be a list of different texts; is 'ab'"),
        ([0, 1], Y, "must be a list of different texts; is [0, 1]"),
        (np.array(0), Y, "must be a list of different texts; is array(0)"),
        (
            np.array([["a"], ["b"]]),
            Y,
            "must be a list of different texts; is array([['a'], ['b']], dtype='<U1')",
        ),
        ({"a": 0}, Y, "must be a list of different texts; is {'a': 0}"),
        (["a", "b", "a"], Y, "must be a list of different texts; is ['a', 'b', 'a']"),
        (["a", "b"], np.array(["a", "c"])[Y % 2], "targets are words, which are the names: a, c"),
    ],
)
def test_names_of_classes_that_are_none_are_refused(names, targets, says):
    task = raysim.Task(lambda: nn.Linear(2, 3), [(X, targets)], class_names=names)
    with pytest.raises(raysim.RaysimError, match=rf"^Task\.class_names: {re.escape(says)}$"):
        raysim.check(make_settings("unused", rounds=1), task)


@pytest.mark.parametrize(
    "names",
    [np.array(["a", "b"]), np.array(["a", "b"], object), pd.Index(["a", "b"]), UserList("ab")],
)
def test_names_of_classes_may_be_an_array(names):
    federation = from_task(raysim.Task(linear, [(X, Y)], class_names=names))
    assert json.dumps(federation.class_names) == '["a", "b"]'
    assert {*map(type, federation.class_names)} == {str}


@pytest.mark.parametrize("clients", [iter([(X, Y)]), np.zeros((2, 2)), {0: (X, Y)}])
def test_clients_that_are_no_list_are_refused(clients):
    with pytest.raises(
        raysim.RaysimError, match=r"^Task\.clients: must be a list of each client's"
    ):
        raysim.Task(linear, clients)


@pytest.mark.parametrize("whole", ["client 0", "client 1", "test"])
def test_whole_numbers_beside_others_are_taken_as_them(tmp_path, whole):
    """A column of a client may have whole numbers by chance."""
    sets = {name: (X.round().astype(int), Y) if name == whole else (X, Y) for name in NAMES}
    own = raysim.Task(linear, [sets["client 0"], sets["client 1"]], sets["test"])
    result = raysim.run(make_settings(tmp_path / "run", rounds=1, fraction=1.0), own)
    sets[whole] = (X.round(), Y)
    other = raysim.Task(linear, [sets["client 0"], sets["client 1"]], sets["test"])
    same = raysim.run(make_settings(tmp_path / "same", rounds=1, fraction=1.0), other)
    losses = [run.metrics["test_loss"].to_pylist() for run in (result, same)]
    assert losses[0] == losses[1]
    assert all(torch.equal(value, same.params[name]) for name, value in result.params.items())


def test_words_are_numbered_alike_and_recorded(tmp_path):
    notes, few = Notes(), (X[:1], WORDS[1:2])  # of one client, the only word is dog
    task = raysim.Task(linear, [few, (X, [*WORDS])], (X, WORDS.astype(object)))
    federation = from_task(task)
    assert federation.train.y.tolist() == [1, *Y] and federation.test.y.tolist() == [*Y]
    raysim.run(make_settings(tmp_path / "run", rounds=1), task, notes)
    assert "labels are numbered: 0 is cat, 1 is dog" in notes.notes
    assert json.loads((tmp_path / "run/environment.json").read_text())["class_names"] == [
        "cat",
        "dog",
    ]


def test_a_module_is_copied(tmp_path):
    module = linear()
    before = {name: tensor.clone() for name, tensor in module.state_dict().items()}
    settings = make_settings(tmp_path / "run", rounds=1, **{"local.lr": 0.1})
    result = raysim.run(settings, raysim.Task(module, [(X, Y)], (X, Y)))
    assert all(torch.equal(module.state_dict()[name], before[name]) for name in before)
    assert not torch.equal(result.params["weight"], before["weight"])
    built = raysim.Task(lambda: module, [(X, Y)], (X, Y))
    again = raysim.run(settings.model_copy(update={"out": str(tmp_path / "again")}), built)
    assert torch.equal(result.params["weight"], again.params["weight"])
    with pytest.raises(raysim.RaysimError, match=r"^Task.model: must be a module or a function"):
        from_task(raysim.Task(3, [(X, Y)], (X, Y)))


@pytest.mark.parametrize("holdout", [0.0, 0.5])
@pytest.mark.parametrize("vectorize", [0, 2])
def test_without_a_test_set_nothing_is_evaluated_on_one(tmp_path, holdout, vectorize):
    more = {"evaluation.holdout": holdout, "engine.vectorize": vectorize, "rounds": 3}
    settings = make_settings(tmp_path / "run", **more)
    task = raysim.Task(linear, [(X, Y), (X, Y)])
    raysim.check(settings, task)
    result = raysim.run(settings, task)
    names = set(result.metrics.column_names)
    assert not [name for name in names if name.startswith("test_")]
    assert ("holdout_accuracy" in names) == bool(holdout)
    summary = result.summary
    assert summary["final_accuracy"] is None and summary["rounds"] == 3
    assert ("final_holdout_accuracy" in summary) == bool(holdout)
    groups = group_runs(read_runs([tmp_path / "run"]))
    (last, *_) = compared_metrics(groups, None)
    assert last[0] == f"last ten {'held-out accuracy' if holdout else 'train loss'}"
    assert last[1].of(groups[0].records[0]) > 0
    evaluated = raysim.run(
        settings.model_copy(update={"out": str(tmp_path / "with")}),
        raysim.Task(linear, [(X, Y), (X, Y)], (X, Y)),
    )
    assert result.params.keys() == evaluated.params.keys()


@pytest.mark.parametrize(
    ("overrides", "says"),
    [
        ({"target_accuracy": 0.9}, "target_accuracy=0.9: needs a test set"),
        ({"evaluation.clients": True}, "evaluation.clients=true: needs a test set"),
        ({"analysis": ["label_information"]}, "analysis=label_information: needs a test set"),
    ],
)
def test_what_needs_a_test_set_is_refused_without_one(tmp_path, overrides, says):
    with pytest.raises(raysim.SettingsError, match=f"^{re.escape(says)}"):
        raysim.check(make_settings(tmp_path / "run", **overrides), raysim.Task(linear, [(X, Y)]))


@pytest.mark.parametrize("key", ["local.lr", "local.weight_decay", "local.temperature"])
def test_a_setting_beyond_float32_is_named(tmp_path, key):
    with pytest.raises(raysim.SettingsError, match=rf"^{key}=1e\+39: must be at most 3.403e\+38"):
        make_settings(tmp_path, **{key: 1e39})


class Tenfold(TensorDataset):
    """Pairs of tensors that are changed as they are read."""

    def __getitem__(self, row: int) -> tuple[torch.Tensor, torch.Tensor]:
        x, y = super().__getitem__(row)
        return 10 * x, y


@pytest.mark.parametrize(
    ("loader", "rows"),
    {
        "sampler": (DataLoader(Rows(), 4, sampler=SubsetRandomSampler([4, 1, 3])), [1, 3, 4]),
        "order": (DataLoader(Rows(), 4, sampler=[5, 0]), [5, 0]),
        "batches": (DataLoader(Rows(), batch_sampler=[[2, 1], [5]]), [2, 1, 5]),
        "last": (DataLoader(Rows(), 4, drop_last=True), [0, 1, 2, 3]),
        "single": (DataLoader(Rows(), batch_size=None), [0, 1, 2, 3, 4, 5]),
        "plain": (
            DataLoader(Rows(), batch_sampler=BatchSampler(SequentialSampler(X), 4, False)),
            [0, 1, 2, 3, 4, 5],
        ),
    }.values(),
)
def test_a_loader_gives_the_samples_that_it_draws(loader, rows):
    x, y = read_pair("client 0", loader)
    assert np.array_equal(x, X[rows]) and y.tolist() == Y[rows].tolist()


def test_a_dataset_is_read_by_its_own_items():
    x, _ = read_pair("client 0", Tenfold(torch.tensor(X), torch.tensor(Y)))
    assert np.array_equal(x, 10 * X)


class Failing(Rows):
    def __getitem__(self, row: int) -> tuple[np.ndarray, int]:
        return super().__getitem__(row) if row < 3 else [][row]


class Endless(Dataset):
    def __getitem__(self, row: int) -> tuple[np.ndarray, int]:
        return X[0], 0


@pytest.mark.parametrize(
    ("given", "problem"),
    [
        (Failing(), "client 0, sample 3: cannot be read: IndexError"),
        (Endless(), "client 0: the Endless has no length"),
    ],
)
def test_a_dataset_that_cannot_be_read_is_named(given, problem):
    with pytest.raises(raysim.RaysimError, match=problem):
        read_pair("client 0", given)


class Given(Dataset):
    """Samples as they are given."""

    def __init__(self, *samples: object) -> None:
        self.samples = samples

    def __len__(self) -> int:
        return len(self.samples)

    def __getitem__(self, row: int) -> object:
        return self.samples[row]


BOTH = {"x": X[0], "age": 1.0}
UNLIKE = {
    "a key": (
        Given((BOTH, 0), (BOTH, 0), ({"x": X[0]}, 0)),
        "sample 2: inputs are a mapping of x; must be a mapping of age, x as in sample 0",
    ),
    "no mapping": (Given((BOTH, 0), (X[0], 0)), "sample 1: inputs are a single value; must be a"),
    "fewer": (Given(((1, 2), 0), ((1, 2, 3), 0)), "sample 1: inputs are a tuple of 3; must be a"),
    "no target": (
        Given((X[0], 0), (X[0], None)),
        "sample 1: targets are None; must be a single value as in sample 0",
    ),
    "a target": (Given((X[0], None), (X[0], 0)), "sample 1: targets are a single value; must be N"),
    "a batch": (
        DataLoader(Given((BOTH, 0), (X[0], 0)), 1, collate_fn=lambda pairs: pairs[0]),
        "batch 1: inputs are a single value; must be a mapping of age, x as in batch 0",
    ),
}


@pytest.mark.parametrize("case", UNLIKE)
def test_samples_of_other_kinds_than_the_first_are_refused(case):
    given, problem = UNLIKE[case]
    with pytest.raises(raysim.RaysimError, match=f"^client 0, {problem}"):
        read_pair("client 0", given)


def test_samples_may_name_their_inputs_in_any_order():
    inputs, _ = read_pair("client 0", Given((BOTH, 0), ({"age": 2.0, "x": X[1]}, 0)))
    assert [*inputs] == ["x", "age"] and inputs["age"].tolist() == [1, 2]
    assert np.array_equal(inputs["x"], X[:2])


BEYOND = {
    "clients": "client 1",
    "test": r"Task\.test",
    "client_tests": r"Task\.client_tests, client 1",
}


@pytest.mark.parametrize("part", BEYOND)
def test_a_value_beyond_the_models_type_is_named(tmp_path, part):
    beyond = X.astype(np.float64)
    beyond[2, 1] = 1e39
    parts = {"clients": [(X, Y)] * 3, "test": (X, Y), "client_tests": [(X, Y), (X, Y), None]}
    parts[part] = (beyond, Y) if part == "test" else [(X, Y), (beyond, Y), (X, Y)]
    problem = f"^{BEYOND[part]}, sample 2, column 1: the input is not finite .* beyond the type"
    settings = make_settings(tmp_path / "run", rounds=1, fraction=1.0)
    with pytest.raises(raysim.RaysimError, match=problem):
        raysim.run(settings, raysim.Task(linear, **parts))
    assert not (tmp_path / "run").exists()
    wide = raysim.Task(lambda: linear().double(), **parts)
    raysim.check(make_settings(tmp_path / "wide", rounds=1, fraction=1.0), wide)


LABELS = {
    "clients": "client 1, sample 3",
    "test": "Task.test, sample 3",
    "client_tests": "Task.client_tests, client 1, sample 3",
}


def labelled(part: str, y: object, label: object) -> raysim.Task:
    """Return a task in which one sample of a part has another label."""
    other = np.array(y, object)
    other[3] = label
    parts = {"clients": [(X, y)] * 3, "test": (X, y), "client_tests": [(X, y), (X, y), None]}
    parts[part] = (X, other) if part == "test" else [(X, y), (X, other), (X, y)]
    return raysim.Task(linear, **parts)


@pytest.mark.parametrize("part", LABELS)
def test_a_label_beyond_the_models_outputs_is_named(tmp_path, part):
    expected = f"^{LABELS[part]}: label 7; the model has outputs for classes 0 to 1$"
    with pytest.raises(raysim.RaysimError, match=expected):
        raysim.check(make_settings(tmp_path / "run"), labelled(part, Y, 7))


@pytest.mark.parametrize("part", LABELS)
@pytest.mark.parametrize(
    ("names", "label", "shown"),
    [("ab", 7, "7"), ("abcd", 2, r"2 \(c\)"), ("abc", 3, "3"), ("abc", -1, "-1")],
)
def test_a_number_beyond_the_models_outputs_is_named(tmp_path, part, names, label, shown):
    """Names of classes do not make numbers words."""
    task = replace(labelled(part, Y, label), class_names=[*names])
    says = f"label {shown}; the model has outputs for classes 0 to 1"
    if label < 0:
        says = "labels must be class numbers from 0 up; there is -1"
    where = LABELS[part].replace(", sample 3", "") if label < 0 else LABELS[part]
    with pytest.raises(raysim.RaysimError, match=f"^{where}: {says}$"):
        raysim.check(make_settings(tmp_path / "run"), task)


@pytest.mark.parametrize("part", LABELS)
def test_a_word_beyond_the_models_outputs_is_named(tmp_path, part):
    """Words are numbered in their order, so the number beyond is another's."""
    expected = f"^{LABELS[part]}: no client trains on label 'bird'; the model has outputs for 2 lab"
    if part == "clients":
        expected = (
            r"^Task.clients: 3 labels \(bird, cat, dog\); the model has outputs for 2 labels$"
        )
    with pytest.raises(raysim.RaysimError, match=expected):
        raysim.check(make_settings(tmp_path / "run"), labelled(part, WORDS, "bird"))
