"""FLOPs of a job: the same however often they are counted."""

from __future__ import annotations

from functools import partial

import numpy as np
import torch

from raysim.api.rules import Batch, Batching, LocalSteps, Pass, Rules
from raysim.config import LocalSettings
from raysim.methods.fedprox import proximal
from raysim.numbers.seeds import torch_generator
from raysim.numbers.tensors import state_of
from raysim.testing.tasks import SmallNet, samples
from raysim.training.flops import FlopCounter
from raysim.training.job import ClientJob

STEP = 2 * (2 * 12 * 16) + 3 * (2 * 16 * 3)


def test_a_count_is_the_same_however_often_it_is_taken():
    """Steps that repeat are not recorded, nor anything drawn that a run draws from."""
    network = SmallNet()
    model = {name: t.detach() for name, t in state_of(network).items()}
    x, y = (torch.from_numpy(values) for values in samples(5, 1))
    rules = Rules(transforms=(proximal(0.1),))
    job = ClientJob(
        rules=rules,
        epochs=3,
        lr=0.1,
        trainable=None,
        data=Batch(x, y),
        broadcast={"model": model},
        state={},
        personal={},
        augment=lambda inputs, generator: inputs,
        batches=partial(np.random.default_rng, 0),
        torch_seed=0,
        generator=partial(torch_generator, 0),
    )
    counter, work = FlopCounter(network, LocalSettings()), Pass([0], job.broadcast, rules, 3)
    before = torch.get_rng_state()
    for _ in range(40):  # more steps than come before a step has a script
        found = counter.kind(work, job)
        assert found.step.values == (2 * STEP, 3 * STEP, 4 * STEP)
        assert found.finish.values == (0, 0, 0)
        assert found.bytes_up == 4 * (12 * 16 + 16 + 16 * 3 + 3)
        counter._known.clear()
    assert torch.equal(before, torch.get_rng_state())
    sizes = np.array([17, 8, 1])
    assert found.each(2, sizes, Batching(8), join=True).tolist() == [17 * STEP, 8 * STEP, STEP]
    steps = found.each(LocalSteps(3), sizes, Batching(8), join=True)  # of 8, 9 and 8 samples
    assert (3 * steps).tolist() == [25 * STEP, 24 * STEP, 3 * STEP]
    fewer = found.each(2, np.array([17, 8, 7]), Batching(8, drop_last=True), join=True)
    assert fewer.tolist() == [16 * STEP, 8 * STEP, 7 * STEP]
