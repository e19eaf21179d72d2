"""`local.accumulate`: a step on parts of a batch is the step on the whole batch."""

from __future__ import annotations

import re

import pytest
import torch
from torch import nn

import raysim
from raysim.errors import RaysimError, SettingsError
from raysim.testing.tasks import SmallNet
from tests.adapters import task_for
from tests.methods.common import Normed
from tests.tasks import UNEQUAL, make_settings, make_task

METHODS = {
    "fedavg": {"local.label_smoothing": 0.1, "local.class_weights": [3, 1, 0.2]},
    "fedprox": {"local.momentum": 0.5, "local.clip_norm": 0.5, "local.weight_decay": 0.01},
    "fedrod": {},
    "scaffold": {},
    "fedmax": {},
    "feddpa": {},
}


@pytest.mark.parametrize("method", METHODS)
def test_parts_give_the_step_of_the_batch(tmp_path, method):
    settings = {"method.name": method, **METHODS[method]}
    params = []
    for parts in (1, 3):
        task = task_for(method, make_task(UNEQUAL))
        out = tmp_path / str(parts)
        run = raysim.run(make_settings(out, **settings, **{"local.accumulate": parts}), task)
        params.append(run.params)
    for name, whole in params[0].items():
        assert torch.allclose(whole, params[1][name], rtol=0, atol=1e-6)


def test_one_part_is_in_memory_at_a_time(tmp_path):
    seen: list[int] = []

    class Watched(SmallNet):
        def forward(self, x):
            if self.training:
                seen.append(len(x))
            return super().forward(x)

    task = make_task((17,), Watched)
    settings = make_settings(tmp_path, **{"local.accumulate": 3, "fraction": 1.0, "rounds": 1})
    raysim.run(settings, task)
    assert seen[-7:] == [3, 3, 2, 3, 3, 2, 1]


class Contrasting(nn.Sequential):
    def __init__(self):
        super().__init__(nn.Linear(12, 3))

    def forward(self, x):
        return super().forward(x - x.mean(0))


def test_passes_that_train_what_an_earlier_one_kept_may_take_parts(tmp_path):
    settings = make_settings(tmp_path, **{"method.name": "feddpa", "local.accumulate": 2})
    raysim.check(settings, task_for("feddpa", make_task(UNEQUAL)))


@pytest.mark.parametrize(
    ("model", "settings", "message"),
    [
        (SmallNet, {"method.name": "fedmmd"}, "local.accumulate=2: the model or a rule"),
        (Contrasting, {}, "local.accumulate=2: the model or a rule of the method looks at all"),
        (Normed, {}, "local.accumulate=2: the model's BatchNorm takes its statistics"),
        (SmallNet, {"engine.vectorize": 4}, "engine.vectorize=4: does not go with local.accumul"),
    ],
)
def test_batches_without_parts_are_refused(tmp_path, model, settings, message):
    with pytest.raises(RaysimError, match=re.escape(message)):
        settings = make_settings(tmp_path / "run", **settings, **{"local.accumulate": 2})
        raysim.check(settings, make_task(UNEQUAL, model))
    assert not (tmp_path / "run").exists()


def test_a_loss_of_whole_batches_is_refused(tmp_path):
    scoring = raysim.Scoring(
        lambda outputs, targets: outputs.std() + targets.std(), whole_batch=True
    )
    task = make_task(UNEQUAL)
    task = raysim.Task(task.model, task.clients, task.test, scoring)
    with pytest.raises(SettingsError, match=r"local\.accumulate=2: the task's loss is of whole"):
        raysim.run(make_settings(tmp_path, **{"local.accumulate": 2}), task)
