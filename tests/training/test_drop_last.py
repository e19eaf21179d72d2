"""`local.drop_last`: the last batch of an epoch is left out, as by torch's `DataLoader`."""

from __future__ import annotations

from copy import deepcopy
from itertools import pairwise

import numpy as np
import pyarrow.parquet as pq
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch.utils.data import BatchSampler

import raysim
from raysim.api.rules import Batching, LocalSteps, samples_of
from raysim.methods.fedavg import FedAvg
from raysim.storage.client_states import ClientStates
from raysim.training.job import batch_bounds
from tests.tasks import in_turn, make_settings
from tests.training.test_optimizers import LR, MODES, ROUNDS, assert_equal, mode, run
from tests.training.torch_reference import SIZES, Reference, cohorts, model, task

__all__ = ["mode"]  # the fixture
DROP = {"local.drop_last": True}
CASES = {"batches of 4": (4, None), "of 32": (32, 31), "in part of an epoch": (4, 31)}
"""Batch size and local steps, of clients of 52, 7, 21 and 30 samples."""


@pytest.mark.parametrize(("case", "mode"), in_turn(CASES, MODES, 1), indirect=["mode"])
def test_clients_train_as_on_a_loader_that_drops_the_last_batch(tmp_path, case, mode):
    size, steps = CASES[case]
    work = {"local.batch_size": size, "local.steps": steps, "local.epochs": 1 if steps else 2}
    given = {"local.momentum": 0.8, **work, **mode}
    result = run(tmp_path / "run", **DROP, **given)
    make = lambda parameters, lr: torch.optim.SGD(parameters, lr, momentum=0.8)  # noqa: E731
    known = {"batch": size, "steps": steps}
    expected = Reference(make, [LR] * ROUNDS, drop_last=True, **known).run(cohorts(result))
    assert_equal(result.params, expected)
    with_all = Reference(make, [LR] * ROUNDS, **known).run(cohorts(result))
    assert max((result.params[n] - t).abs().max() for n, t in with_all.items()) > 1e-4


@given(st.integers(1, 300), st.integers(1, 60), st.booleans())
def test_batches_are_those_of_torch(n, size, join):
    bounds = batch_bounds(n, Batching(size, drop_last=True), join)
    lengths = [len(batch) for batch in BatchSampler(range(n), size, drop_last=True)]
    if not (join and size == 1):  # which BatchNorm has no use for
        assert [stop - start for start, stop in bounds] == (lengths or [n])
    assert bounds[0][0] == 0 and all(stop == start for (_, stop), (start, _) in pairwise(bounds))
    sizes = np.array([n])
    assert samples_of(3, sizes, Batching(size, True)).tolist() == [3 * bounds[-1][1]]
    taken = [bounds[step % len(bounds)] for step in range(7)]
    if not (join and size == 1):
        in_all = sum(stop - start for start, stop in taken)
        assert samples_of(LocalSteps(7), sizes, Batching(size, True)).tolist() == [in_all]


def test_a_whole_batch_has_nothing_to_drop(tmp_path):
    runs = [
        run(tmp_path / name, **{"local.batch_size": "full"}, **options)
        for name, options in (("plain", {}), ("drop", DROP))
    ]
    assert all(torch.equal(runs[0].params[name], t) for name, t in runs[1].params.items())


class Counting(FedAvg):
    """Says how many steps it expects of clients."""

    def round(self, now, state):
        after, metrics = yield from super().round(now, state)
        return after, {**metrics, "expected": sum(map(now.steps, now.cohort))}


@pytest.mark.parametrize("drop", [False, True])
def test_steps_are_known_before_they_are_taken(tmp_path, drop):
    options = {"method.name": f"{__name__}:Counting", "local.drop_last": drop, "fraction": 1.0}
    result = run(tmp_path / "run", rounds=1, **{"local.batch_size": 8}, **options)
    rows = pq.read_table(result.run_dir / "clients.parquet").to_pylist()
    steps = {row["client"]: row["steps"] for row in rows}
    assert steps == dict(enumerate((12, 2, 4, 6) if drop else (14, 2, 6, 8)))
    assert result.metrics["expected"].to_pylist() == [sum(steps.values())]


@pytest.mark.parametrize("stack", [0, 3])
@pytest.mark.parametrize("method", ["fednova", "scaffold"])
def test_methods_divide_by_the_steps_that_are_taken(tmp_path, method, stack):
    """FedNova's tau, and SCAFFOLD's steps in a client's control variate, by plain SGD."""
    options = {"method.name": method, "engine.vectorize": stack, "fraction": 1.0, **DROP}
    result = run(tmp_path / "run", rounds=1, **{"local.batch_size": 8}, **options)
    reference = Reference(torch.optim.SGD, [LR], batch=8, drop_last=True)
    start = {name: tensor.clone() for name, tensor in model().state_dict().items()}
    moved = []
    for client in range(len(SIZES)):
        end = reference.train(deepcopy(model()), 0, client).state_dict()
        moved.append({name: start[name] - tensor for name, tensor in end.items()})
    taus = np.array([12, 2, 4, 6])
    if method == "scaffold":
        states = ClientStates(result.run_dir / "clients")
        for client, tau in enumerate(taus.tolist()):
            own = states.read(client, max(states.versions(client)), torch.device("cpu"))["c"]
            assert_equal(own, {name: t / (tau * LR) for name, t in moved[client].items()})
        return
    shares = np.array(SIZES) / sum(SIZES)
    expected = {
        name: tensor
        - float(shares @ taus)
        * sum(share / tau * own[name] for share, tau, own in zip(shares, taus, moved, strict=True))
        for name, tensor in start.items()
    }
    assert_equal(result.params, expected)


def test_virtual_time_counts_the_samples_that_are_trained_on(tmp_path):
    """Of 8 in a batch, clients of 52, 21 and 30 samples train on 48, 16 and 24."""
    seconds = []
    for options in ({}, DROP):
        settings = {"clock.name": "devices", "fraction": 1.0, "local.batch_size": 8, "rounds": 1}
        out = tmp_path / str(len(seconds))
        result = raysim.run(make_settings(out, **settings, **options), task())
        rows = pq.read_table(result.run_dir / "clients.parquet").to_pylist()
        seconds.append({row["client"]: row["virtual_seconds"] for row in rows})
    assert seconds[0][1] == seconds[1][1]
    assert all(seconds[1][client] < seconds[0][client] for client in (0, 2, 3))
