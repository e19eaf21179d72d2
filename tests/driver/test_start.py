"""Start of a run: the process of the driver."""

from __future__ import annotations

from contextlib import nullcontext

import pytest
import torch

import raysim
from raysim.driver import start
from tests.tasks import make_settings, make_task


def test_the_driver_of_actors_computes_with_their_threads(tmp_path, monkeypatch):
    """As inline, where driver and worker are one process."""
    before, found = torch.get_num_threads(), []

    def stop(*_: object) -> None:
        found.append(torch.get_num_threads())
        raise raysim.RunError("seen")

    monkeypatch.setattr(start, "ray_runtime", lambda _: nullcontext(lambda resume: None))
    monkeypatch.setattr(start.OpenExecutor, "answer", stop)
    settings = make_settings(
        tmp_path, **{"engine.backend": "ray", "engine.threads_per_actor": before + 2}
    )
    with pytest.raises(raysim.RunError, match="seen"):
        raysim.run(settings, make_task((4, 6)))
    assert found == [before + 2] and torch.get_num_threads() == before
