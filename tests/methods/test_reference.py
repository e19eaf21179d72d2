"""Methods against NumPy at partial participation, unequal steps and settings of one's own."""

from __future__ import annotations

import numpy as np
import pytest

from tests.methods import common, test_fedmmd
from tests.methods.reference import MOMENTUM, SIZES, Reference, plain, weighted
from tests.methods.test_oracle import assert_close


def fedprox_sum(w, start, x):
    return [0.7 * (p - s) for p, s in zip(w, start, strict=True)]


def fedprox_mean(w, start, x):
    return [5 / p.size * (p - s) for p, s in zip(w, start, strict=True)]


def fedmax(w, start, x):
    """beta/(N*F) sum log q, differentiated by the activations: beta/(N*F) (q - u)."""
    hidden = common.outputs(w, x)[0]
    q = np.exp(hidden) / np.exp(hidden).sum(1, keepdims=True)
    n, features = hidden.shape
    return common.pull_back(w, x, d_hidden=30 / (n * features) * (q - 1 / features))


def activation_l2(w, start, x):
    hidden = common.outputs(w, x)[0]
    return common.pull_back(w, x, d_hidden=0.05 * hidden / np.linalg.norm(hidden))


def fedmmd(kind, lam):
    def penalty(w, start, x):
        frozen, logits = (common.outputs(weights, x)[1] for weights in (start, w))
        if kind == "adaptive" and (len(x) == 1 or np.array_equal(frozen, logits)):
            return [0.0] * len(w)
        d_logits = lam * test_fedmmd.derivative(kind, frozen, logits)
        return common.pull_back(w, x, d_logits=d_logits)

    return penalty


def two_stream(reduction):
    def penalty(w, start, x):
        frozen, logits = (common.outputs(weights, x)[1] for weights in (start, w))
        factor = 2 / len(x) if reduction == "mean" else 1.0
        return common.pull_back(w, x, d_logits=0.05 * factor * (logits - frozen))

    return penalty


KEPT = {"local.keep": True}
KEEP = pytest.mark.parametrize("keep", [{}, KEPT], ids=["afresh", "kept"])
PENALTIES = {  # kernels of 1e-6 amplify rounding from round to round: two rounds of them
    "fedavg": ({}, None),
    "fedprox-sum": ({"method.mu": 0.7}, fedprox_sum),
    "fedprox-mean": ({"method.mu": 5.0, "method.reduction": "mean"}, fedprox_mean),
    "fedmax": ({"method.beta": 30.0}, fedmax),
    "activation_l2": ({"method.beta": 0.05}, activation_l2),
    "fedmmd-fixed": ({"method.lam": 0.02, "rounds": 2}, fedmmd("fixed", 0.02)),
    "fedmmd-adaptive": ({"method.lam": 2.0, "method.kernel": "adaptive"}, fedmmd("adaptive", 2.0)),
    "two_stream_l2-sum": ({"method.lam": 0.05}, two_stream("sum")),
    "two_stream_l2-mean": ({"method.lam": 0.05, "method.reduction": "mean"}, two_stream("mean")),
}


@KEEP
@pytest.mark.parametrize("case", PENALTIES)
def test_terms_of_the_objective(tmp_path, case, keep):
    """With a momentum that starts at zero in every round, and with one that a client keeps."""
    overrides, penalty = PENALTIES[case]
    reference = Reference(tmp_path, {"method.name": case.partition("-")[0], **overrides, **keep})
    expected = reference.fedavg(penalty)
    assert_close(reference.result.params, expected)
    assert penalty is None or np.abs(expected[0] - reference.fedavg()[0]).max() > 1e-3
    reference.keeps = False
    assert not keep or np.abs(expected[0] - reference.fedavg(penalty)[0]).max() > 1e-3


@KEEP
def test_scaffold_corrects_behind_the_momentum(tmp_path, keep):
    overrides = {"method.name": "scaffold", "method.lr_global": 0.7, "local.weight_decay": 0.01}
    reference = Reference(tmp_path, overrides | keep)
    w, clients = reference.start, len(SIZES)
    c = [np.zeros_like(p) for p in w]
    own = [c] * clients
    for number, cohort in enumerate(reference.cohorts):
        share = [1 / len(cohort)] * len(cohort)
        moved, changes = [], []
        for k in cohort:
            behind = [server - mine for server, mine in zip(c, own[k], strict=True)]
            local = reference.train(w, number, k, behind=behind)
            scale = 1 / (reference.steps(k) * reference.lr(number))
            change = [scale * (s - p) - v for s, p, v in zip(w, local, c, strict=True)]
            own[k] = [mine + d for mine, d in zip(own[k], change, strict=True)]
            moved.append([p - s for p, s in zip(local, w, strict=True)])
            changes.append(change)
        w = [p + 0.7 * d for p, d in zip(w, weighted(moved, share), strict=True)]
        part = len(cohort) / clients
        c = [v + part * d for v, d in zip(c, weighted(changes, share), strict=True)]
    assert_close(reference.result.params, w)


@pytest.mark.parametrize("local", [{"momentum": 0.0}, {"momentum": 0.5}, {"momentum": 0.5, **KEPT}])
def test_momentum_is_averaged_by_samples(tmp_path, local):
    """With `local.momentum` on top, which starts at zero or goes on; d itself is none of it."""
    local = {**local}
    momentum = local.pop("momentum")
    overrides = {"method.name": "momentum", "method.gamma": 0.6, **local}
    reference = Reference(tmp_path, overrides, momentum=momentum)
    w = reference.start
    d = [np.zeros_like(p) for p in w]
    for number, cohort in enumerate(reference.cohorts):
        locals_, velocities = [], []
        for k in cohort:
            velocity = d

            def slope(weights, x, y, decay=0.01):
                """The next velocity, less the decay that the step adds to a gradient."""
                nonlocal velocity
                found = plain(weights, x, y)
                grown = zip(velocity, found, weights, strict=True)
                velocity = [0.6 * v + g + decay * p for v, g, p in grown]
                return [v - decay * p for v, p in zip(velocity, weights, strict=True)]

            locals_.append(reference.train(w, number, k, slope))
            velocities.append(velocity)
        w, d = reference.mean(cohort, locals_), reference.mean(cohort, velocities)
    assert_close(reference.result.params, w)


def fsvrg(reference, lr_of):
    """Passes: 0 gathers full gradients at T with the weight decay, 1 trains."""
    w, everyone = reference.start, range(len(SIZES))
    for number, cohort in enumerate(reference.cohorts):
        full = reference.mean(everyone, [plain(w, *reference.clients[k]) for k in everyone])
        full = [g + 0.01 * p for g, p in zip(full, w, strict=True)]

        def slope(local, x, y, start=w, full=full):
            """The decay of the local weights is added by the step, that of w is in both others."""
            at_start = [g + 0.01 * p for g, p in zip(plain(start, x, y), start, strict=True)]
            three = zip(plain(local, x, y), at_start, full, strict=True)
            return [here - there + all_ for here, there, all_ in three]

        trained = [
            reference.train(w, number, k, slope, index=1, lr=lr_of(number, k)) for k in cohort
        ]
        w = reference.mean(cohort, trained)
    return w


def test_fsvrg_with_scaled_steps(tmp_path):
    overrides = {"method.name": "fsvrg", "method.h": 0.4, "local.lr_min": 0.0}
    reference = Reference(tmp_path, overrides, momentum=0.0)

    def lr_of(number, client):
        return 0.4 * 0.9**number / reference.steps(client)

    assert_close(reference.result.params, fsvrg(reference, lr_of))


@pytest.mark.parametrize("momentum", [0.0, MOMENTUM])
def test_fsvrg_with_constant_steps(tmp_path, momentum):
    overrides = {"method.name": "fsvrg", "method.step": "constant"}
    reference = Reference(tmp_path, overrides, momentum)
    assert_close(reference.result.params, fsvrg(reference, lambda n, k: reference.lr(n)))
