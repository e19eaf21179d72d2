"""Layers without a deterministic kernel on a GPU: one line before any client is trained there."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial

import numpy as np
import pytest
import torch
import torch.nn.functional as F
from torch import Tensor, nn

import raysim
from raysim.execution.worker import Worker
from tests.cuda.device import CudaDevice
from tests.tasks import make_settings

GPU = {"engine.gpus_per_actor": 1.0, "fraction": 1.0, "rounds": 1}


class Layer(nn.Module):
    """Linear layers before and after a function of images [B, 1, 4, 4], with noise between."""

    def __init__(self, layer: Callable[[Tensor], Tensor]) -> None:
        super().__init__()
        self.first, self.layer = nn.Linear(16, 16), layer
        self.noise, self.head = nn.Dropout(0.2), nn.Linear(1, 3)

    def forward(self, x: Tensor) -> Tensor:
        images = self.layer(self.first(x).view(-1, 1, 4, 4))
        return self.head(self.noise(images.mean((2, 3))))


def unpooled(x: Tensor) -> Tensor:
    return F.max_unpool2d(*F.max_pool2d(x, 2, return_indices=True), 2)


def sampled(x: Tensor) -> Tensor:
    return F.grid_sample(x, x.new_zeros(len(x), 4, 4, 2), align_corners=False)


LAYERS: dict[str, tuple[Callable[[Tensor], Tensor], str]] = {
    "adaptive pooling": (nn.AdaptiveAvgPool2d(2), "_adaptive_avg_pool2d_backward"),
    "reflection": (nn.ReflectionPad2d(1), "reflection_pad2d_backward"),
    "unpooling": (unpooled, "max_unpool2d"),
    "sampling": (sampled, "grid_sampler_2d_backward"),
}


def task_of(layer: Callable[[Tensor], Tensor]) -> raysim.Task:
    samples = np.ones((9, 16), np.float32), np.arange(9) % 3
    return raysim.Task(model=partial(Layer, layer), clients=[samples] * 2, test=samples)


def train(folder, layer, **own):
    return raysim.run(make_settings(folder, **GPU | own), task_of(layer))


@pytest.mark.parametrize("name", LAYERS)
def test_a_layer_is_named_with_the_setting_before_any_client_is_trained(
    tmp_path, monkeypatch, name
):
    layer, kernel = LAYERS[name]
    trained, real = [], Worker.train

    def noted(self, *given):
        trained.append(self.device.type)
        real(self, *given)

    monkeypatch.setattr(Worker, "train", noted)
    said = (
        f"^engine.deterministic=true: {kernel}, which the network or the method calls, has no"
        " deterministic kernel on a GPU; set engine.deterministic=false, or use another layer$"
    )
    with CudaDevice(), pytest.raises(raysim.SettingsError, match=said) as error:
        train(tmp_path / "strict", layer)
    assert error.value.exit_code == 2 and {*trained} == {"cpu"}  # the rehearsal
    assert not (tmp_path / "strict").exists()
    with CudaDevice():
        loose = train(tmp_path / "loose", layer, **{"engine.deterministic": False})
    assert len(loose.metrics) == 1 and "cuda" in trained


def median(x: Tensor) -> Tensor:
    return x * x.flatten(1).median(1).values.view(-1, 1, 1, 1) if len(x) > 2 else x


@pytest.mark.parametrize("stack", [0, 2])
def test_what_only_a_client_calls_is_named_when_it_does(tmp_path, stack):
    said = "^engine.deterministic=true: median, which the network or the method calls"
    with CudaDevice(), pytest.raises(raysim.SettingsError, match=said):
        train(tmp_path, median, **{"engine.vectorize": stack})


class Changing(nn.Module):
    """Draws, and keeps its first batch's size; fails for as few samples as the check has."""

    def __init__(self) -> None:
        super().__init__()
        self.head, self.noise, self.size = nn.Linear(16, 3), nn.Dropout(0.3), 0

    def forward(self, x: Tensor) -> Tensor:
        outputs = self.head(self.noise(x))
        if self.training and x.is_cuda:
            self.size = self.size or len(x)
            outputs = outputs * self.size
            if len(x) == 2:
                raise ValueError("too few")
        return outputs


def test_the_check_changes_nothing_and_leaves_other_errors_to_the_clients(tmp_path):
    samples = np.ones((9, 16), np.float32), np.arange(9) % 3
    task = raysim.Task(model=Changing, clients=[samples] * 2, test=samples)
    models = []
    for checked in (True, False):
        with CudaDevice() as gpu:
            before = torch.get_rng_state(), gpu.generator.get_state()
            own = {**GPU, "engine.deterministic": checked, "local.batch_size": 3}
            models.append(raysim.run(make_settings(tmp_path / str(checked), **own), task).params)
            after = torch.get_rng_state(), gpu.generator.get_state()
            assert all(map(torch.equal, before, after))
    assert all(torch.equal(models[0][name], models[1][name]) for name in models[0])
