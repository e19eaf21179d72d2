"""Per-FedAvg against NumPy: unequal clients, three of five a round, batches of 1 to 8 samples."""

from __future__ import annotations

import numpy as np
import pytest

import raysim
from tests.methods.personal import DEPLOYED_LOSS, SHORT, deployed_loss, moved
from tests.methods.reference import WEIGHT_DECAY, Reference, plain
from tests.methods.test_oracle import assert_close

ALPHA, DELTA = 0.3, 0.05
NAME = {"method.name": "per_fedavg", "method.alpha": ALPHA, "method.delta": DELTA, **SHORT}


def objective(w, x, y):
    """The gradient of the local objective, weight decay included."""
    return moved(plain(w, x, y), w, WEIGHT_DECAY)


def dealt(x, y, parts):
    """Every `parts`-th sample, round again until there are two."""
    counts = [max(len(range(part, len(y), parts)), 2) for part in range(parts)]
    rows = [(part + parts * np.arange(n)) % len(y) for part, n in enumerate(counts)]
    return [(x[own], y[own]) for own in rows]


def along(w, vector, delta, x, y):
    """The Hessian of the objective times a vector, by differences."""
    ends = [objective(moved(w, vector, sign * delta), x, y) for sign in (1, -1)]
    return [(a - b) / (2 * delta) for a, b in zip(*ends, strict=True)]


def slope_of(hessian):
    def slope(w, x, y):
        inner, outer, *curved = dealt(x, y, 2 if hessian == "none" else 3)
        step = objective(moved(w, objective(w, *inner), -ALPHA), *outer)
        if curved:
            delta = DELTA if hessian == "finite" else 1e-6
            step = moved(step, along(w, step, delta, *curved[0]), -ALPHA)
        return moved(step, w, -WEIGHT_DECAY)  # the reference adds it again

    return slope


@pytest.mark.parametrize(
    ("hessian", "stacked"), [("none", 0), ("none", 3), ("finite", 3), ("exact", 0), ("exact", 3)]
)
def test_rounds_and_deployed_models(tmp_path, hessian, stacked):
    chosen = {"method.hessian": hessian, "engine.vectorize": stacked}
    reference = Reference(tmp_path, {**NAME, **chosen})
    w, losses = reference.start, reference.result.metrics[DEPLOYED_LOSS].to_pylist()
    for number, cohort in enumerate(reference.cohorts):
        ends = [reference.train(w, number, k, slope_of(hessian)) for k in cohort]
        w = reference.mean(cohort, ends)
        adapted = [moved(w, objective(w, *data), -ALPHA) for data in reference.clients]
        expected = deployed_loss(reference.clients, adapted.__getitem__)
        assert losses[number] == pytest.approx(expected, abs=2e-5)
    assert_close(reference.result.params, w)


def test_a_method_before_it_would_be_lost():
    chosen = {"method.methods.fedprox.mu": 0.1, "method.methods.per_fedavg": {}}
    with pytest.raises(raysim.SettingsError, match="put 'per_fedavg' first"):
        raysim.load_config("mnist-fedavg", {"method.name": "chain", **chosen})
    reverse = {"method.methods.per_fedavg": {}, "method.methods.fedprox.mu": 0.1}
    raysim.load_config("mnist-fedavg", {"method.name": "chain", **reverse})
