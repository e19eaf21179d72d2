"""Buffers that `forward` binds anew reach the global model as those that it changes in place."""

from __future__ import annotations

from functools import partial
from itertools import product
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor, nn

import raysim
from raysim.federation.evaluation_sets import EVALUATION_ROWS
from raysim.testing.tasks import SmallNet, samples
from raysim.training import recorded_steps
from tests.tasks import UNEQUAL, make_settings, make_task, model_of


class Counting(SmallNet):
    """A network with a running mean and a counter, and what its forward makes of them."""

    def __init__(self, how: str = "") -> None:
        super().__init__()
        torch.manual_seed(0)
        self.how = how
        self.register_buffer("mean", torch.zeros(12))
        self.register_buffer("steps", torch.zeros((), dtype=torch.int64))
        self.register_buffer("absent", None)
        self.mean: Any
        self.steps: Any

    def forward(self, x: Tensor) -> Tensor:
        x = x * (1 + self.mean)  # which the backward pass needs as it was
        out: Tensor = self.head(self.hidden(x))
        if self.training or self.how == "evaluation":
            self.note(0.9 * self.mean + 0.1 * x.detach().mean(0))
        return out

    def note(self, mean: Tensor) -> None:
        match self.how:
            case "copy" | "evaluation":
                with torch.no_grad():
                    self.mean, self.steps = self.mean.clone(), self.steps + 1
                    self.mean.copy_(mean)
            case "assign":
                self.mean, self.steps = mean, self.steps + 1
            case "shape":
                self.mean = mean[:3]
            case "dtype":
                self.steps = self.steps + 0.5
            case "none":
                self.mean = None
            case "absent":
                self.absent = mean
            case "registers":
                self.head.register_buffer("fresh", mean)
            case "data":
                self.head.weight.data = self.head.weight.data.clamp(-1, 1)
            case "parameter":
                self.head.weight = nn.Parameter(self.head.weight.detach().clamp(-1, 1))


class InPlace(Counting):
    """The same, in place: what the others are compared with."""

    def forward(self, x: Tensor) -> Tensor:
        x = x * (1 + self.mean.clone())
        out: Tensor = self.head(self.hidden(x))
        if self.training:
            self.mean.copy_(0.9 * self.mean + 0.1 * x.detach().mean(0))
            self.steps.add_(1)
        return out


class Aliased(nn.Module):
    """A module with a buffer that another one has too."""

    def __init__(self, mean: Tensor) -> None:
        super().__init__()
        self.register_buffer("mean", mean)
        self.mean: Tensor


class Several(SmallNet):
    """A network with two means, in several ways that must come to the same."""

    def __init__(self, how: str) -> None:
        super().__init__()
        torch.manual_seed(0)
        self.how = how
        self.register_buffer("mean", torch.zeros(12))
        self.register_buffer("previous", torch.ones(12))
        self.first = Aliased(torch.zeros(12))
        self.second = Aliased(self.first.mean)
        self.mean: Tensor
        self.previous: Tensor

    def forward(self, x: Tensor) -> Tensor:
        hidden = self.hidden(x * (1 + self.mean.clone() + self.second.mean.clone()))
        out: Tensor = self.head(hidden)
        if self.training:
            new = 0.9 * self.mean + 0.1 * hidden.mean()
            match self.how:
                case "in place":
                    self.previous.copy_(self.mean)
                    self.mean.copy_(new.detach())
                    self.first.mean.copy_(new.detach())
                case "assigned":
                    self.previous, self.mean = self.mean, new  # with its graph
                    self.first.mean = self.second.mean = new
                case "alias":
                    self.second.mean = new
        return out


@pytest.mark.parametrize("stacked", [0, 2])
@pytest.mark.parametrize("method", ["fedavg", "fedmmd"])
def test_buffers_may_be_bound_to_each_other(tmp_path, method, stacked):
    for how in ("in place", "assigned"):
        overrides = {"method.name": method, "engine.vectorize": stacked, "rounds": 2}
        settings = make_settings(tmp_path / how, **overrides)
        result = raysim.run(settings, make_task((40,) * 4, partial(Several, how)))
        assert not torch.equal(result.params["mean"], result.params["previous"])
    assert model_of(tmp_path / "in place") == model_of(tmp_path / "assigned")


@pytest.mark.parametrize("stacked", [0, 2])
def test_a_buffer_of_two_names_is_assigned_by_both(tmp_path, stacked):
    settings = make_settings(tmp_path / "run", **{"engine.vectorize": stacked})
    with pytest.raises(raysim.SettingsError, match=r"buffer second\.mean, but not first\.mean"):
        raysim.run(settings, make_task((40,) * 4, partial(Several, "alias")))


FEW = (1, 3, 44, 17)
"""Samples of clients whose last batches differ in size."""


class Masked(SmallNet):
    """A network with a mask of the batch's shape, made when it is needed; or at once."""

    def __init__(self, how: str) -> None:
        super().__init__()
        torch.manual_seed(0)
        self.how = how
        if how in ("none", "empty"):
            first = None if how == "none" else torch.zeros(0)
            self.register_buffer("mask", first, persistent=False)
        self.mask: Tensor | None

    def forward(self, x: Tensor) -> Tensor:
        if self.how == "at once":
            return super().forward(x * torch.full(x.shape[:1], 0.5)[:, None])
        if not hasattr(self, "mask"):
            self.register_buffer("mask", torch.zeros(0), persistent=False)
        if self.mask is None or len(self.mask) != len(x):
            self.mask = torch.full(x.shape[:1], 0.5)
        return super().forward(x * self.mask[:, None])


HOW = ("none", "empty", "registered by forward")


@pytest.mark.parametrize(
    ("method", "stacked", "how"),
    [  # each method in each way, and either alone or in stacks, in turn
        (method, 2 * ((number + place) % 2), how)
        for number, method in enumerate(["fedavg", "fedmmd", "fsvrg"])
        for place, how in enumerate(HOW)
    ],
)
def test_a_mask_that_is_not_persistent_may_take_any_shape(
    tmp_path, monkeypatch, how, method, stacked
):
    monkeypatch.setattr(recorded_steps, "STEPS_BEFORE", 3)
    overrides = {"method.name": method, "engine.vectorize": stacked, "rounds": 2}
    overrides |= {"evaluation.holdout": 0.2, "analysis": ["cka", "temperature"]}
    results = []
    for each in ("at once", how):
        settings = make_settings(tmp_path / each, **overrides)
        results.append(raysim.run(settings, make_task(FEW, partial(Masked, each))))
    own = results[0].params
    assert all(torch.equal(tensor, results[1].params[name]) for name, tensor in own.items())
    losses = [result.metrics["test_loss"].to_pylist() for result in results]
    assert losses[0] == losses[1]


METHODS = {"fedavg": {}, "fedprox": {}, "ditto": {"evaluation.clients": True}, "fsvrg": {}}


@pytest.mark.parametrize(("method", "stacked"), [*product(METHODS, [0, 2])][:-1])
def test_a_buffer_may_be_assigned(tmp_path, monkeypatch, method, stacked):
    """Also where steps are recorded, after the fourth.

    FSVRG's second gradient of a step cannot be stacked where a buffer is changed in place.
    """
    monkeypatch.setattr(recorded_steps, "STEPS_BEFORE", 3)
    sizes = (40,) * 4 if stacked else UNEQUAL  # of padding such a module knows nothing
    overrides = {"method.name": method, "engine.vectorize": stacked, "rounds": 2}
    for name, model in {"in place": InPlace, "assigned": lambda: Counting("assign")}.items():
        settings = make_settings(tmp_path / name, **overrides | METHODS[method])
        result = raysim.run(settings, make_task(sizes, model))
        assert result.params["mean"].abs().max() > 0 and result.params["steps"] > 0
    assert model_of(tmp_path / "in place") == model_of(tmp_path / "assigned")


def test_an_evaluation_does_not_depend_on_the_one_before(tmp_path):
    """A buffer that changes in evaluation is what was trained at the start of every batch."""
    task, losses = make_task((40,) * 2, lambda: Counting("evaluation")), []
    x, y = samples(EVALUATION_ROWS, 3)
    for batches in (1, 2):
        test = np.concatenate([x] * batches), np.concatenate([y] * batches)
        repeated = raysim.Task(task.model, task.clients, test)
        result = raysim.run(make_settings(tmp_path / f"{batches}", rounds=2), repeated)
        losses.append(result.metrics["test_loss"].to_pylist())
    assert losses[0] == pytest.approx(losses[1], rel=1e-12)


REFUSED = {
    "shape": r"forward assigns the buffer mean, float32\[12\], to be float32\[3\]: a buffer must",
    "dtype": r"forward assigns the buffer steps, int64\[\], to be float32\[\]: a buffer must keep",
    "none": r"forward assigns the buffer mean, float32\[12\], to be NoneType: a buffer must keep",
    "absent": "forward assigns the buffer absent, which was None: a buffer must keep its shape",
    "registers": r"forward assigns the buffer head\.fresh, which was not registered: a buffer",
    "data": "forward replaces the parameter head.weight: a parameter must be changed in",
    "parameter": "forward replaces the parameter head.weight: a parameter must be changed in",
}


@pytest.mark.parametrize("stacked", [0, 2])
@pytest.mark.parametrize("how", REFUSED)
def test_a_tensor_must_stay_what_it_is(tmp_path, how, stacked):
    settings = make_settings(tmp_path / "run", **{"engine.vectorize": stacked})
    with pytest.raises(raysim.SettingsError, match=REFUSED[how]) as refused:
        raysim.run(settings, make_task((40,) * 4, lambda: Counting(how)))
    assert "\n" not in str(refused.value)


class Lazy(SmallNet):
    """A network that registers a buffer when it is called."""

    def forward(self, x: Tensor) -> Tensor:
        self.register_buffer("scale", torch.ones(12))
        return super().forward(x)


def test_a_buffer_that_an_evaluation_registers_is_refused_before_anything_starts(tmp_path):
    module = Lazy()
    with pytest.raises(raysim.RunError, match="assigns the buffer scale, which was not registered"):
        raysim.run(make_settings(tmp_path / "run"), make_task((40,) * 2, lambda: module))
    assert not (tmp_path / "run").exists()
