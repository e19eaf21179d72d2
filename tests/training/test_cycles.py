"""Memory of clients: no cycle of references keeps the tensors of one that has trained."""

from __future__ import annotations

import gc
from collections.abc import Iterator, Mapping
from typing import Any

import pytest
from torch import Tensor

import raysim
from raysim.testing.tasks import small_task
from tests.tasks import make_settings


class Garbage(raysim.Listener):
    """Finds the tensors that only Python's search for cycles frees, after the first round."""

    def __init__(self) -> None:
        self.shapes: list[tuple[int, ...]] = []

    def round_done(self, row: Mapping[str, Any]) -> None:
        gc.set_debug(gc.DEBUG_SAVEALL)
        gc.collect()
        gc.set_debug(0)
        if row["round"] > 1:  # the start has some
            self.shapes += [tuple(found.shape) for found in gc.garbage if isinstance(found, Tensor)]
        gc.garbage.clear()


@pytest.fixture
def garbage() -> Iterator[Garbage]:
    gc.collect()
    gc.disable()
    yield Garbage()
    gc.enable()


@pytest.mark.parametrize(
    "given",
    [
        {},
        {"method.name": "scaffold", "evaluation.local_test": 0.2, "evaluation.finetune_epochs": 1},
        {"engine.vectorize": 4},
    ],
)
def test_a_clients_tensors_are_freed_when_it_has_trained(given, garbage, tmp_path):
    raysim.run(make_settings(tmp_path / "run", **given), small_task("cnn"), garbage)
    assert garbage.shapes == []
