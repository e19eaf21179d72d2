"""Settings that exclude each other are refused before anything starts or is written."""

from __future__ import annotations

import pytest
from torch import nn

import raysim
from tests.conftest import make_settings, make_task


def test_a_model_that_does_not_take_the_data(tmp_path):
    task = make_task((5, 7), lambda: nn.Linear(11, 3))
    with pytest.raises(raysim.SettingsError, match=r"^the model does not take samples of 12: .*11"):
        raysim.run(make_settings(tmp_path / "run"), task)
    assert not (tmp_path / "run").exists()
