"""Opened samples of a federation: aligned in memory, the same in every process."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from torch import nn

import raysim
from raysim.federation.opened import OpenedSamples
from raysim.federation.task import from_task


@pytest.mark.parametrize("places", [0, 1, 5, 13])
def test_inputs_are_aligned_wherever_a_users_arrays_and_a_clients_rows_begin(places):
    """Check alignment, without which products may have other bits (MKL's on Zen 4)."""
    y = np.arange(10) % 3
    x = np.zeros(70 + places, dtype=np.float32)[places:].reshape(10, 7)
    x[:] = np.arange(70).reshape(10, 7)
    task = raysim.Task(nn.Flatten, [(x[:3], y[:3]), (x[3:], y[3:])], (x, y))
    data = OpenedSamples(from_task(task), torch.device("cpu"))
    for batch, rows in ((data.test(0, 10), x), (data.test(3, 9), x[3:9]), (data.client(1), x[3:])):
        assert batch.x.data_ptr() % 64 == 0
        assert np.array_equal(batch.x.numpy(), rows)
