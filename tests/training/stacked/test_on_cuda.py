"""Clients trained together on a CUDA device: as one at a time, and recorded as not recorded."""

from __future__ import annotations

import pytest

from raysim.training.stacked.cuda_graphs import CudaRecording
from tests.training.stacked.test_trainer import (
    QUICK,
    RECORDER_ON,
    assert_same,
    difference,
    every_pair,
    no_loop,  # noqa: F401
    often,  # noqa: F401
    run,
)

pytestmark = pytest.mark.cuda
ON_DEVICE = {"engine.gpus_per_actor": 1.0}


@every_pair(*QUICK)
def test_together_is_one_at_a_time_on_a_device(tmp_path, no_loop, method, family):  # noqa: F811
    """At a rate at which other rounding stays rounding.

    At ten times that an input on the edge of a ReLU made it 0.1 on a CPU, with some seeds.
    """
    own = ON_DEVICE | {"local.lr": 0.01}
    own |= {"method.step": "constant"} if method == "fsvrg" else {}
    alone, _ = run(tmp_path, method, family, 0, **own)
    no_loop()
    assert_same(alone, run(tmp_path, method, family, 7, **own)[0])


@every_pair(*QUICK, ("fedavg", "dropping"), ("fsvrg", "dropping"))
def test_a_step_recorded_on_a_device_is_the_step(
    tmp_path,
    monkeypatch,
    no_loop,  # noqa: F811
    often,  # noqa: F811
    method,
    family,
):
    """When one is recorded is by chance, so the bits must be the same; with torch from 2.10 on."""
    no_loop()
    played, play = [], CudaRecording.__call__

    def noted(self, inputs):
        played.append(inputs)
        return play(self, inputs)

    with monkeypatch.context() as patch:
        patch.setattr(RECORDER_ON, lambda device, note: None)
        plain, _ = run(tmp_path / "plain", method, family, 7, **often, **ON_DEVICE)
    monkeypatch.setattr(CudaRecording, "__call__", noted)
    together, _ = run(tmp_path, method, family, 7, **often, **ON_DEVICE)
    assert played
    assert difference(plain.params, together.params) == 0
