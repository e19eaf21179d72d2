"""Runs on a CUDA device: memory, bits, and actors that share it."""

from __future__ import annotations

import pytest
import torch
from torch import nn

import raysim
from raysim.config import EngineSettings
from raysim.execution.process import configure, device_of
from raysim.federation import opened, pinned
from raysim.federation.opened import memory_cap
from tests.execution.test_kernels import train
from tests.tasks import EQUAL, UNEQUAL, make_settings, make_task, model_of

pytestmark = pytest.mark.cuda


def test_tensors_beyond_the_cap_do_not_fit():
    engine = EngineSettings(gpus_per_actor=0.25)
    with configure(engine):
        cap = memory_cap(device_of(engine))
        torch.cuda.empty_cache()
        torch.empty(cap // 2, dtype=torch.uint8, device="cuda")
        with pytest.raises(torch.OutOfMemoryError):
            torch.empty(cap + 1, dtype=torch.uint8, device="cuda")
        torch.cuda.empty_cache()


@pytest.mark.parametrize(("precision", "kept"), [("fp32", 1 + 2**-12), ("tf32", 1.0)])
def test_products_keep_the_bits_of_the_precision(precision, kept):
    with configure(EngineSettings(gpus_per_actor=1.0, precision=precision)):
        values = torch.full((256, 256), 1 + 2**-12, device="cuda")
        assert (values @ torch.eye(256, device="cuda") == kept).all()


@pytest.mark.parametrize("stack", [0, 3])
@pytest.mark.parametrize("precision", ["fp32", "tf32", "bf16"])
def test_a_run_gives_the_same_bits_again(tmp_path, stack, precision):
    own = {"engine.gpus_per_actor": 1.0, "engine.vectorize": stack, "engine.precision": precision}
    for name in ("first", "second"):
        settings = make_settings(tmp_path / name, rounds=2, **own, **{"local.epochs": 5})
        raysim.run(settings, make_task(UNEQUAL))
    assert model_of(tmp_path / "first") == model_of(tmp_path / "second")


def test_samples_that_do_not_stay_there_give_the_same_bits(tmp_path, monkeypatch):
    own = {"engine.gpus_per_actor": 1.0, "rounds": 2}
    raysim.run(make_settings(tmp_path / "stay", **own), make_task(UNEQUAL))
    monkeypatch.setattr(opened, "RESIDENT_FRACTION", 0.0)
    monkeypatch.setattr(pinned, "BUFFER_BYTES", 1000)
    raysim.run(make_settings(tmp_path / "come", **own), make_task(UNEQUAL))
    assert model_of(tmp_path / "stay") == model_of(tmp_path / "come")


def test_a_layer_without_a_deterministic_kernel_is_named_before_the_first_round(tmp_path):
    said = r"^engine.deterministic=true: \w*adaptive_avg_pool2d_backward\w*, which the network or"
    with pytest.raises(raysim.SettingsError, match=said):
        train(tmp_path / "run", nn.AdaptiveAvgPool2d(2))
    assert not (tmp_path / "run").exists()


def test_actors_on_halves_of_a_gpu_give_the_bits_of_one_process(tmp_path):
    inline = make_settings(tmp_path / "inline", rounds=2, **{"engine.gpus_per_actor": 1.0})
    raysim.run(inline, make_task(EQUAL))
    halves = {"engine.backend": "ray", "engine.actors": 2, "engine.gpus_per_actor": 0.5}
    raysim.run(make_settings(tmp_path / "ray", rounds=2, **halves), make_task(EQUAL))
    assert model_of(tmp_path / "inline") == model_of(tmp_path / "ray")
