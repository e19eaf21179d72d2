"""Bits of a run in lockstep depend on its place and on the size, not on the runs beside it."""

from __future__ import annotations

from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

import raysim
from raysim.execution.lockstep import Lockstep
from raysim.methods.fedavg import FedAvg
from raysim.testing.tasks import small_task
from tests.tasks import make_settings, model_of

SIZE, PLACE = 4, 2
COMPANIONS = st.dictionaries(
    st.sampled_from([place for place in range(SIZE) if place != PLACE]),
    st.tuples(st.integers(0, 3), st.sampled_from([0.05, 0.1, 0.3])),
)
"""Runs at other places: the steps after which they begin, and their learning rates."""


def model(folder: Path, family: str, companions: Any, begins: int = 0, **overrides: Any) -> bytes:
    """Return the model of a run at PLACE that begins after some steps."""
    begin = {PLACE: (begins, 0.1), **companions}
    runs: Lockstep[Any] = Lockstep(SIZE)
    task, step, left = small_task(family), 0, True
    while left or begin:
        for place in [place for place, (at, _) in begin.items() if at <= step]:
            lr = {"local.lr": begin.pop(place)[1]}
            own = make_settings(folder / f"{place}", **{"rounds": 3} | overrides | lr)
            runs.start(place, own.engine, raysim.steps(own, task))
        left, step = bool(runs.advance()), step + 1
    assert runs.notes == []
    return model_of(folder / f"{PLACE}")


@pytest.mark.parametrize(
    ("family", "overrides"),
    [
        ("mlp", {}),
        ("cnn", {"local.batch_size": 7}),
        ("residual", {"engine.vectorize": 2}),
        ("mlp", {"method.name": "fedmax", "local.batch_size": "full"}),
        ("mlp", {"method.name": "scaffold", "local.momentum": 0.9}),
    ],
)
def test_the_runs_beside_it_change_no_bit_of_a_run(family, overrides):
    with TemporaryDirectory() as folder:
        expected = model(Path(folder), family, {}, **overrides)

    @settings(max_examples=6)
    @given(companions=COMPANIONS, begins=st.integers(0, 2))
    def check(companions, begins):
        with TemporaryDirectory() as folder:
            assert model(Path(folder), family, companions, begins, **overrides) == expected

    check()


class Dropping(FedAvg):
    """Adds dropout to the network."""

    def network(self, model):
        model.hidden.append(torch.nn.Dropout(0.5))
        return model


class Centring(FedAvg):
    """Has the network subtract the mean of its batch."""

    def network(self, model):
        model.features.register_forward_hook(lambda module, given, x: x - x.mean(0))
        return model


REFUSED = {
    "Dropping": "random numbers are drawn in a step, as by dropout",
    "Centring": (
        "the model or a rule of the method looks at all samples of a batch, which a stack pads"
    ),
}


@pytest.mark.parametrize("method", REFUSED)
def test_networks_that_draw_random_numbers_or_look_at_their_batch_are_trained_one_at_a_time(
    tmp_path, method
):
    """A draw would depend on the runs beside it, and the batch on the padding."""
    both = [
        make_settings(
            tmp_path / f"{number}",
            **{"method.name": f"{__name__}:{method}", "local.lr": 0.1 * (1 + number), "rounds": 2},
        )
        for number in range(2)
    ]
    runs: Lockstep[Any] = Lockstep(2)
    task = small_task("mlp")
    for number, each in enumerate(both):
        runs.start(number, each.engine, raysim.steps(each, task))
    while runs.advance():
        pass
    assert runs.notes == [f"trials are trained one at a time: {REFUSED[method]}"]
    alone = both[0].override({"out": str(tmp_path / "alone")})
    raysim.run(alone, task)
    assert model_of(tmp_path / "0") == model_of(tmp_path / "alone")
