"""APFL against NumPy: unequal clients, three of five a round, each with its own model and alpha."""

from __future__ import annotations

import numpy as np
import pytest
import torch

import raysim
from raysim.storage.client_states import ClientStates
from raysim.testing.tasks import SmallNet
from tests.methods import common
from tests.methods.personal import DEPLOYED_LOSS, SHORT, deployed_loss, mixed, moved
from tests.methods.reference import WEIGHT_DECAY, Reference, T, plain
from tests.methods.test_oracle import assert_close
from tests.tasks import make_settings, make_task

ALPHA, DECAY = 0.3, 0.4
NAME = {"method.name": "apfl", "method.alpha": ALPHA, "method.decay": DECAY, **SHORT}
MIXTURES = ["weights", "outputs", "models"]


def objective(w, x, y):
    """The gradient of the local objective, weight decay included."""
    return moved(plain(w, x, y), w, WEIGHT_DECAY)


def of_outputs(w, other, share, x, y):
    """The gradient at w of the loss of `share` of its logits and the rest of the other's."""
    logits = [common.outputs(each, x)[1] for each in (w, other)]
    exponents = np.exp((share * logits[0] + (1 - share) * logits[1]) / T)
    back = exponents / exponents.sum(1, keepdims=True)
    back[np.arange(len(y)), y] -= 1
    found = common.pull_back(w, x, d_logits=share * back / (T * len(y)))
    return moved(found, w, WEIGHT_DECAY)


def gradients(mixture, v, w, alpha, x, y):
    """That of v's step, and u."""
    if mixture == "weights":
        u = objective(mixed(v, w, alpha), x, y)
        return [alpha * g for g in u], u
    if mixture == "outputs":
        pair = of_outputs(v, w, alpha, x, y), of_outputs(w, v, 1 - alpha, x, y)
    else:
        pair = objective(v, x, y), objective(w, x, y)
    return pair[0], mixed(*pair, alpha)


def train(reference, w, number, k, own, mixture, adaptive):
    """The client's w_k, v and alpha after a round."""
    (x, y), lr, (v, alpha) = reference.clients[k], reference.lr(number), own
    velocities = [[np.zeros_like(p) for p in w] for _ in range(2)]
    for step, rows in enumerate(reference.batches(number, 0, k, 2)):
        data = x[rows], y[rows]
        velocities[0] = moved(objective(w, *data), velocities[0], reference.momentum)
        w = moved(w, velocities[0], -lr)
        slope, u = gradients(mixture, v, w, alpha, *data)
        if adaptive and (step == 0 or mixture == "models"):
            along = sum(((a - b) * d).sum() for a, b, d in zip(v, w, u, strict=True))
            alpha = np.clip(alpha - lr * (along + DECAY * alpha), 0, 1)
        velocities[1] = moved(slope, velocities[1], reference.momentum)
        v = moved(v, velocities[1], -lr)
    return w, (mixed(v, w, alpha) if mixture == "models" else v, alpha)


@pytest.mark.parametrize(
    ("mixture", "adaptive", "stacked"),
    [("weights", False, 0), *((m, True, s) for m in MIXTURES for s in (0, 3))],
)
def test_rounds_and_deployed_models(tmp_path, mixture, adaptive, stacked):
    chosen = {"method.mixture": mixture, "method.adaptive": adaptive, "engine.vectorize": stacked}
    reference = Reference(tmp_path, {**NAME, **chosen})
    w, own = reference.start, dict.fromkeys(range(5), (reference.start, ALPHA))
    losses = reference.result.metrics[DEPLOYED_LOSS].to_pylist()
    for number, cohort in enumerate(reference.cohorts):
        ends = {k: train(reference, w, number, k, own[k], mixture, adaptive) for k in cohort}
        w = reference.mean(cohort, [end for end, _ in ends.values()])
        own |= {k: kept for k, (_, kept) in ends.items()}
        deployed = [v if mixture == "models" else mixed(v, w, a) for v, a in own.values()]
        expected = deployed_loss(reference.clients, deployed.__getitem__)
        assert losses[number] == pytest.approx(expected, abs=2e-5)
    assert_close(reference.result.params, w)
    assert (len({alpha for _, alpha in own.values()}) > 1) == adaptive


@pytest.mark.parametrize("stacked", [0, 2])
def test_mixed_outputs_are_trained_on_the_criterion_of_a_chain(tmp_path, stacked):
    """With alpha=1 the mixture is v's: FedLC's margins are then those of a model trained alone."""
    runs, mixing = [], {"apfl": {"mixture": "outputs", "alpha": 1.0}}
    for number, members in enumerate(({"fedlc": {}, **mixing}, {"fedlc": {}})):
        given = {"method.name": "chain", "method.methods": members, "rounds": 1, "fraction": 1.0}
        settings = make_settings(tmp_path / str(number), **given, **{"engine.vectorize": stacked})
        runs.append(raysim.run(settings, make_task((21,))))
    own = common.newest_states(runs[0].run_dir)[0]
    for name, found in runs[1].params.items():
        assert torch.allclose(own[f"v/{name}"], found, atol=1e-6), name


class Dropped(SmallNet):
    """SmallNet with dropout before its last layer."""

    def __init__(self):
        super().__init__()
        self.hidden.append(torch.nn.Dropout(0.5))


@pytest.mark.parametrize("stacked", [0, 2])
@pytest.mark.parametrize("optimizer", ["adamw", "nesterov"])
def test_an_own_model_alone_takes_the_steps_of_the_network(tmp_path, optimizer, stacked):
    """From the same start, with the same masks, by the run's optimizer."""
    chosen = {
        "adamw": {"local.optimizer": "adamw", "local.lr": 0.01, "local.weight_decay": 0.2},
        "nesterov": {"local.momentum": 0.8, "local.nesterov": True, "local.weight_decay": 0.1},
    }[optimizer]
    alone = {"method.name": "apfl", "method.mixture": "models", "method.alpha": 1.0, "rounds": 1}
    settings = make_settings(
        tmp_path, **alone, **chosen, **{"fraction": 1.0, "engine.vectorize": stacked}
    )
    result = raysim.run(settings, make_task((21, 13), Dropped))
    states = ClientStates(result.run_dir / "clients")
    own = [states.read(k, max(states.versions(k)), torch.device("cpu"))["v"] for k in range(2)]
    for name, found in result.params.items():
        expected = (21 * own[0][name] + 13 * own[1][name]) / 34
        assert torch.allclose(found, expected, atol=1e-6), name


@pytest.mark.parametrize(
    "chosen", [{"alpha": 0.0}, {"alpha": 0.3}, {"alpha": 1.0}, {"adaptive": True}], ids=repr
)
def test_the_global_model_is_that_of_fedavg(tmp_path, chosen):
    settings = {f"method.{name}": value for name, value in chosen.items()}
    common.assert_equals_fedavg(tmp_path, {"method.name": "apfl", **settings})
