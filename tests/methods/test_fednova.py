"""FedNova against NumPy: unequal clients that do unequal work, by local solvers of all kinds."""

from __future__ import annotations

from functools import partial

import numpy as np
import pyarrow.parquet as pq
import pytest
import torch
from hypothesis import assume, given, settings
from hypothesis import strategies as st
from torch import nn

import raysim
from raysim.api.method import METHODS
from raysim.api.rules import Trained, View
from raysim.config import LocalSettings
from raysim.methods.fedavg import FedAvg
from raysim.methods.fednova import FedNova
from raysim.numbers.tensors import add_scaled
from tests.methods import common
from tests.methods.test_oracle import LR, assert_close, gradient
from tests.methods.test_transforms import EPOCHS, run_half
from tests.tasks import EQUAL, make_settings, make_task

NAME = {"method.name": "fednova"}
CHAIN = {"method.name": "chain"}


def accumulation(rho, pull, nesterov, steps):
    """The weights a [steps] of a client's gradients in its change; pull is eta * mu."""
    ago = np.arange(steps, 0, -1)  # tau - i
    if not pull:
        return (1 - rho ** (ago + nesterov)) / (1 - rho)
    if not rho:
        return (1 - pull) ** (ago - 1.0)
    h = [0.0, 1.0]
    while len(h) <= steps:
        h.append((1 + rho - pull) * h[-1] - rho * h[-2])
    return np.array(h)[ago]


def moved(w, gradients, lr, solver):
    """w - eta * sum_i a_i g_i, the formula of the paper, and the sum of the a_i."""
    a = accumulation(*solver, len(gradients))
    sums = (np.tensordot(a, g, 1) for g in zip(*gradients, strict=True))
    return [p - lr * s for p, s in zip(w, sums, strict=True)], a.sum()


def fednova(w, clients, cohorts, epochs, local=None, mu=0.0, tau_eff="norm"):
    """The last model; `epochs` [round, client] are the clients' epochs, of one step each."""
    local = local or {}
    decay = local.get("local.weight_decay", 0)
    for number, cohort in enumerate(cohorts):
        lr = LR * local.get("local.lr_decay", 1.0) ** number
        solver = (local.get("local.momentum", 0), lr * mu, local.get("local.nesterov", False))
        sizes = np.array([len(clients[k][1]) for k in cohort])
        shares, taus = sizes / sizes.sum(), np.array([epochs[number, k] for k in cohort])
        total, norms = [np.zeros_like(p) for p in w], []
        for k, share, tau in zip(cohort, shares, taus, strict=True):
            own, gradients, norm = w, [], 0.0
            for _ in range(tau):
                g = gradient(own, *clients[k])
                gradients.append([d + decay * p for d, p in zip(g, own, strict=True)])
                own, norm = moved(w, gradients, lr, solver)
            norms.append(norm)
            d = [(p - q) / norm for p, q in zip(w, own, strict=True)]
            total = [s + share * step for s, step in zip(total, d, strict=True)]
        steps = shares @ (norms if tau_eff == "norm" else taus)
        w = [p - steps * s for p, s in zip(w, total, strict=True)]
    return w


def steps_of(result):
    rows = pq.read_table(result.run_dir / "clients.parquet").to_pylist()
    return {(row["round"] - 1, row["client"]): row["steps"] for row in rows}


SOLVERS = {
    "sgd": ({}, 0.0),
    "momentum .5": ({"local.momentum": 0.5}, 0.0),
    "momentum .9": ({"local.momentum": 0.9}, 0.0),
    "nesterov": ({"local.momentum": 0.9, "local.nesterov": True}, 0.0),
    "proximal": ({}, 1.0),
    "both .5": ({"local.momentum": 0.5}, 1.0),
    "both .9": ({"local.momentum": 0.9}, 3.0),
    "decayed": ({"local.momentum": 0.9, "local.weight_decay": 0.1, "local.lr_decay": 0.7}, 2.0),
}


def assert_unequal_work(tmp_path, local, mu, tau_eff="norm", **more):
    """The result is the oracle's; without a proximal term FedNova stands alone."""
    own = {"max_epochs": 8, "tau_eff": tau_eff}
    settings = {f"method.methods.fednova.{name}": value for name, value in own.items()}
    settings |= {"method.name": "chain", "method.methods.fedprox.mu": mu}
    if not mu:
        settings = NAME | {f"method.{name}": value for name, value in own.items()}
    result, w, clients, cohorts = run_half(tmp_path, settings | local | more)
    steps = steps_of(result)
    assert len({*steps.values()}) > 2 and {*steps.values()} <= {*range(1, 9)}
    assert_close(result.params, fednova(w, clients, cohorts, steps, local, mu, tau_eff))


@pytest.mark.parametrize("stacked", [0, 2])
@pytest.mark.parametrize("solver", SOLVERS)
def test_rounds_of_unequal_work(tmp_path, solver, stacked):
    assert_unequal_work(tmp_path, *SOLVERS[solver], **{"engine.vectorize": stacked})


@pytest.mark.parametrize("solver", ["momentum .9", "proximal", "both .9"])
def test_the_mean_of_the_steps_as_those_of_the_server(tmp_path, solver):
    assert_unequal_work(tmp_path, *SOLVERS[solver], tau_eff="steps")


def test_equal_work_is_fedavg(tmp_path):
    result, w, clients, cohorts = run_half(tmp_path, NAME)
    steps = steps_of(result)
    assert {*steps.values()} == {EPOCHS}
    assert_close(result.params, fednova(w, clients, cohorts, steps))
    plain, *_ = run_half(tmp_path / "plain", {"method.name": "fedavg"})
    assert_close(result.params, [t.numpy() for t in plain.params.values()], plain.params)


class Scalar(nn.Module):
    """Output w x for inputs x."""

    def __init__(self, start):
        super().__init__()
        self.w = nn.Parameter(torch.tensor([start]))

    def forward(self, x):
        return self.w * x


def half_squares(outputs, targets):
    return (outputs.flatten() - targets) ** 2 / 2


def end_of_quadratics(folder, start, rho, **overrides):
    """w after a run of two clients, with 20 and 2 steps, of the same weight.

    They minimise h / 2 (w - e)^2 with (h, e) of (1, -1) and (0.1, 1).
    """
    clients = []
    for h, e, count in ((1.0, -1.0, 20), (0.1, 1.0, 2)):
        x = np.full((count, 1), h**0.5, np.float32)
        clients.append((x, x[:, 0] * np.float32(e)))
    scoring = raysim.Scoring(half_squares)
    task = raysim.Task(partial(Scalar, start), clients, clients[0], scoring)
    local = {"local.batch_size": 1, "local.epochs": 1, "local.momentum": rho}
    own = {"weighting": "uniform", "fraction": 1.0, "method.name": "chain", **local, **overrides}
    return raysim.run(make_settings(folder, **own), task).params["w"].item()


BEST = (-1 + 0.1) / (1 + 0.1)
"""The w for which the mean of both quadratics is least."""


def test_momentum_ends_at_the_optimum_of_the_objective(tmp_path):
    schedule = {"local.lr": 0.01, "local.lr_decay": 0.97, "rounds": 150}
    quiet = {"evaluation.every": 150, "checkpoint_every": 150}
    end = end_of_quadratics(
        tmp_path / "run", 0.0, 0.9, **schedule, **quiet, **{"method.methods.fednova": {}}
    )
    assert end == pytest.approx(BEST, abs=0.01)


NOVA, PROX = {"fednova": {}}, {"fedprox": {"mu": 40}}
FIXED_POINTS = {
    "fedavg": ({}, 0.9, -0.995),
    "sgd": (NOVA, 0.0, BEST),
    "momentum": (NOVA, 0.9, BEST),
    "proximal": (PROX | NOVA, 0.0, BEST),
    "both": (PROX | NOVA, 0.5, BEST),
    "both, with weights below 0": (PROX | NOVA, 0.95, BEST),
    "feddyn": (NOVA | {"feddyn": {"alpha": 40}}, 0.9, BEST),
    "scaffold": (NOVA | {"scaffold": {}}, 0.9, BEST),
}


@pytest.mark.parametrize("case", FIXED_POINTS)
def test_a_round_stays_at_the_optimum_of_the_objective(tmp_path, case):
    """A round is affine in w; small steps, as its fixed point has an error of their size."""
    methods, rho, expected = FIXED_POINTS[case]
    own = {"method.methods": methods, "local.lr": 5e-4, "rounds": 1}
    zero, one = (end_of_quadratics(tmp_path / str(w), w, rho, **own) for w in (0.0, 1.0))
    assert zero / (1 - (one - zero)) == pytest.approx(expected, abs=0.01)


PULLS = {
    "fedprox": ({"mu": 0.3}, 0.3),
    "feddyn": ({"alpha": 0.7}, 0.7),
    "scaffold": ({}, 0.0),
    "fedasync": ({"mu": 0.2}, 0.2),
}


@pytest.mark.parametrize("name", PULLS)
def test_a_transform_pulls_as_strongly_as_it_states(name):
    """Its change of the gradient differs by pull times the distance at two parameters."""
    method, (own, strength) = METHODS.get(name), PULLS[name]
    (transform,) = method(**own).rules().transforms
    draw = torch.Generator().manual_seed(1)
    far, near, g, *rest = ({"w": torch.randn(5, generator=draw)} for _ in range(7))
    model, c, c_k, h_k = rest

    def changed(params, gradients):
        sent, kept = {"model": model, "c": c}, {"c": c_k, "h": h_k}
        view = View(params, ["w"], model, sent, kept, {}, None, None, None)
        return transform.update(view, gradients, None, transform.init(view))[0]["w"]

    assert transform.pull == strength
    expected = 2 * g["w"] + strength * (far["w"] - near["w"])
    double = {"w": 3 * g["w"]}
    torch.testing.assert_close(changed(far, double) - changed(near, g), expected)


def unchanged(view, gradients, batch, state):
    return gradients, state


def way(lr, momentum, nesterov, steps, before, after):
    """torch's own SGD along a gradient of 1 with pulls to 0; the way over the learning rate."""
    w = torch.zeros((), dtype=torch.float64, requires_grad=True)
    sgd = torch.optim.SGD([w], lr, momentum=momentum, nesterov=nesterov and momentum > 0)
    for _ in range(steps):
        start = w.detach().clone()
        w.grad = 1 + before * start
        sgd.step()
        w.data -= lr * after * start
    return -w.item() / lr


strengths = st.just(0.0) | st.floats(0, 2)


@settings(max_examples=30)
@given(
    momentum=st.just(0.0) | st.floats(0, 0.95),
    nesterov=st.booleans(),
    steps=st.integers(1, 40),
    before=strengths,
    after=strengths,
)
def test_effective_steps_are_the_way_along_a_constant_gradient(
    momentum, nesterov, steps, before, after
):
    nesterov, lr = nesterov and momentum > 0, 0.01
    solver = LocalSettings(momentum=momentum, nesterov=nesterov).build_optimizer()
    transforms = (
        raysim.Transform("before", unchanged, pull=before),
        raysim.Transform("behind", unchanged, pull=after, after_momentum=True),
    )
    trained = Trained(steps, lr, {}, None, solver=solver, transforms=transforms)
    expected = way(lr, momentum, nesterov, steps, before, after)
    assume(expected > 0.1)  # near 0 neither is exact
    assert trained.effective_steps == pytest.approx(expected, rel=1e-9)


def halved(view, gradients, batch, state):
    return add_scaled(gradients, gradients, -0.5), state


class Halved(FedAvg):
    """FedAvg along half of the gradient."""

    def rules(self):
        return raysim.Rules(transforms=(raysim.Transform("halved", halved),))


REFUSED = {
    "momentum of rounds": ({"momentum": {"gamma": 0.5}}, "momentum .gamma=0.5."),
    "mean by tensor": ({"fedprox": {"reduction": "mean"}}, "fedprox .mu=0.01, reduction=mean."),
    "unknown": ({f"{__name__}:Halved": {}}, "Halved"),
}


@pytest.mark.parametrize("case", REFUSED)
@pytest.mark.parametrize("first", [True, False])
def test_chains_with_other_changes_of_the_gradient_are_refused(case, first):
    others, named = REFUSED[case]
    methods = NOVA | others if first else others | NOVA
    message = f"^method.methods: .*{named} cannot be chained with fednova: .*; allowed are"
    with pytest.raises(raysim.SettingsError, match=message):
        raysim.load_config("mnist-fedavg", CHAIN | {"method.methods": methods})


def test_kept_momentum_is_refused():
    kept = {"local.momentum": 0.9, "local.keep": True}
    message = "local.keep=true: does not go with method.name=fednova"
    with pytest.raises(raysim.SettingsError, match=message):
        raysim.load_config("mnist-fedavg", NAME | kept)


class HalvedNova(FedNova):
    """FedNova along half of the gradient."""

    def rules(self):
        return raysim.chain(super().rules(), Halved().rules())


FAILING = {
    "no pull": ({"method.name": f"{__name__}:HalvedNova"}, "'halved' states no `pull`"),
    "too strong": (
        CHAIN | {"local.epochs": 2, "method.methods": NOVA | {"fedprox": {"mu": 20}}},
        "2 steps at lr=0.1 are 0 effective steps, .* set a smaller local.lr, or a weaker pull",
    ),
}


@pytest.mark.parametrize("case", FAILING)
def test_a_client_without_effective_steps_stops_the_run(tmp_path, case):
    overrides, message = FAILING[case]
    settings = make_settings(tmp_path / "run", **{"local.batch_size": "full"} | overrides)
    with pytest.raises(raysim.RaysimError, match=message):
        raysim.run(settings, make_task(EQUAL))


def test_clients_send_one_number_beside_the_model(tmp_path):
    result, w, _, cohorts = run_half(tmp_path, NAME | {"local.momentum": 0.9})
    size = 4 * sum(p.size for p in w)
    assert result.metrics["bytes_down"].to_pylist() == [len(cohort) * size for cohort in cohorts]
    assert result.metrics["bytes_up"].to_pylist() == [len(c) * (size + 4) for c in cohorts]


def test_buffers_become_the_mean(tmp_path):
    common.assert_buffers_become_the_mean(tmp_path, NAME)
