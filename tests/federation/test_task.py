"""Tasks: targets are read as the scoring needs them, or refused in one line."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from torch import nn

import raysim
from raysim.federation.task import from_task
from raysim.testing.tasks import SmallNet
from tests.tasks import make_settings


def squared_errors(outputs, targets):
    return (outputs[:, 0] - targets).square()


REGRESSION = raysim.Scoring(squared_errors)
X = np.zeros((3, 12), np.float32)


def read(*targets, scoring=REGRESSION):
    task = raysim.Task(SmallNet, [(X, y) for y in targets[:-1]], (X, targets[-1]), scoring)
    return from_task(task)


@pytest.mark.parametrize("dtype", ["float32", "float64"])
def test_targets_that_are_fractions_are_read_in_the_type_of_the_model(dtype):
    y = np.array([0.25, -1.5, 3.0])
    network = SmallNet().to(getattr(torch, dtype))
    federation = read(y, torch.tensor(y), y).for_network(network)
    assert federation.train.x.dtype == federation.test.x.dtype == dtype
    assert federation.train.y.tolist() == [*y, *y] and federation.test.y.tolist() == [*y]
    assert federation.train.y.dtype == federation.test.y.dtype == dtype
    assert federation.scoring is REGRESSION


def test_targets_may_have_dimensions():
    assert read(np.ones((3, 2)), np.ones((3, 2))).train.y.shape == (3, 2)


def test_whole_targets_stay_whole_numbers():
    y = np.array([-5, 2, 2**40], np.int64)
    assert read(y, y).train.y.tolist() == [-5, 2, 2**40]


LABELS = np.array([0, 1, 2])
REFUSED = {
    "fractions": (
        (LABELS + 0.5, LABELS, raysim.CLASSIFICATION),
        r"client 0: targets float64\[3\] are not class numbers .* Task.scoring",
    ),
    "columns": (
        (LABELS, LABELS[:, None], raysim.CLASSIFICATION),
        r"Task.test: targets int64\[3, 1\] are not class numbers",
    ),
    "shapes": ((LABELS, np.zeros((3, 2)), REGRESSION), "all targets must have one shape and dtype"),
    "dtypes": ((LABELS, LABELS + 0.5, REGRESSION), "all targets must have one shape and dtype"),
    "words": ((np.array(["a", "b", "c"]), LABELS, REGRESSION), "client 0: targets must be numbers"),
    "too few": ((LABELS[:2], LABELS, REGRESSION), r"client 0: inputs \(3, 12\) and targets \(2,\)"),
    "one": ((np.float32(1), LABELS, REGRESSION), r"client 0: inputs .* do not match"),
}


@pytest.mark.parametrize("case", REFUSED)
def test_refused_targets(case):
    (train, test, scoring), message = REFUSED[case]
    with pytest.raises(raysim.RaysimError, match=message):
        read(train, test, scoring=scoring)


def test_class_numbers_may_come_as_floats():
    federation = read(LABELS.astype(float), LABELS, scoring=raysim.CLASSIFICATION)
    assert federation.train.y.tolist() == [0, 1, 2] and federation.train.y.dtype == np.int64


class Uncopied(nn.Linear):
    def __deepcopy__(self, memo):
        raise RuntimeError("a\nb")


@pytest.mark.parametrize(
    ("model", "problem"),
    [
        (nn.Linear, r"cannot be built: TypeError: .*missing 2 required positional arguments"),
        (Uncopied(12, 3), r"cannot be built: RuntimeError: a b \(test_task\.py, line \d+\)"),
        (lambda: None, "must build a torch.nn.Module; it built None"),
        (lambda: nn.Linear, "must build a torch.nn.Module; it built <class 'torch.nn"),
    ],
)
def test_a_model_that_cannot_be_built_is_named(tmp_path, model, problem):
    task = raysim.Task(model, [(X, LABELS)], (X, LABELS))
    with pytest.raises(raysim.RaysimError, match=f"^Task.model: {problem}") as refused:
        raysim.check(make_settings(tmp_path / "run"), task)
    assert "\n" not in str(refused.value)


def test_a_task_is_written_in_a_line():
    """Without samples, of which a notebook would show pages."""
    pair = torch.zeros(900, 12), torch.zeros(900, dtype=torch.int64)
    task = raysim.Task(SmallNet, [pair] * 50, pair, client_tests=[pair, None])
    assert repr(task) == (
        "Task(model=SmallNet, clients=50, test=..., client_tests=1, metrics=['accuracy',"
        " 'macro_f1'])"
    )
    assert repr(raysim.Task(SmallNet(), [pair])).startswith("Task(model=SmallNet, clients=1, te")
