"""FedMMD against a double loop in NumPy: value, floor, gradient over two rounds, and padding."""

from __future__ import annotations

import numpy as np
import pytest
import torch

from raysim.api.rules import Batch
from raysim.methods.fedmmd import FedMmd, squared_mmd
from tests.methods import common
from tests.methods.test_oracle import assert_close, fedavg, run

NAME = {"method.name": "fedmmd"}
KERNELS = ("fixed", "adaptive")
SIGMAS = "1e-6 1e-5 1e-4 1e-3 1e-2 1e-1 1 5 10 15 20 25 30 35 100 1e3 1e4 1e5 1e6"


def bandwidths(x, y):
    """b of the five adaptive kernels exp(-d^2 / b)."""
    joint = np.concatenate([x, y])
    n = len(joint)
    total = sum(((joint[i] - joint[j]) ** 2).sum() for i in range(n) for j in range(n) if i != j)
    mean = total / (n * (n - 1))
    return [mean * 2.0**s for s in range(-2, 3)]


def constants(kind, x, y):
    """The bandwidths, and the factor of the sum of their kernels."""
    if kind == "fixed":
        return [2 * float(sigma) for sigma in SIGMAS.split()], 1.0
    return bandwidths(x, y), 1 / 5


def kernel(a, b, widths):
    return sum(np.exp(-((a - b) ** 2).sum() / width) for width in widths)


def slope(a, b, widths):
    """The derivative of the kernel by a."""
    square = ((a - b) ** 2).sum()
    return -2 * (a - b) * sum(np.exp(-square / width) / width for width in widths)


def mmd(x, y, widths, factor):
    n, total = len(x), 0.0
    for i in range(n):
        for j in range(n):
            total += kernel(x[i], x[j], widths) + kernel(y[i], y[j], widths)
            total -= 2 * kernel(x[i], y[j], widths)
    return factor * total / n**2


def derivative(kind, x, y):
    """Of the penalty by y, at fixed bandwidths; nothing below the floor of the fixed kernels."""
    n, (widths, factor) = len(x), constants(kind, x, y)
    if kind == "fixed" and mmd(x, y, widths, factor) < 1e-4:
        return np.zeros_like(y)
    rows = []
    for i in range(n):
        row = sum(slope(y[i], y[j], widths) - slope(y[i], x[j], widths) for j in range(n))
        rows.append(factor * 2 * row / n**2)
    return np.stack(rows)


def pair(n=4, key=0):
    generator = np.random.default_rng(key)
    return generator.normal(0, 2, (n, 3)), generator.normal(1, 2, (n, 3))


def tensors(*arrays):
    return [torch.from_numpy(array.astype(np.float32)) for array in arrays]


def batch(n):
    return Batch(torch.zeros(n, 12), torch.zeros(n, dtype=torch.long))


def test_bandwidths_are_powers_of_two_times_the_mean_squared_distance():
    x, y = np.array([[0.0], [1.0]]), np.array([[0.0], [3.0]])
    # Of the 12 ordered pairs: 0-1 twice two, 0-0 two, 0-3 twice two, 1-3 two.
    mean = (4 * 1 + 2 * 0 + 4 * 9 + 2 * 4) / 12
    assert bandwidths(x, y) == pytest.approx([mean / 4, mean / 2, mean, mean * 2, mean * 4])


@pytest.mark.parametrize("kind", KERNELS)
def test_discrepancy_by_double_loop(kind):
    for n, key in [(2, 0), (4, 1), (7, 2)]:
        x, y = pair(n, key)
        expected = mmd(x, y, *constants(kind, x, y))
        found = squared_mmd(*tensors(x, y), batch(n), kind)
        assert float(found) == pytest.approx(expected, rel=1e-5)


@pytest.mark.parametrize("kind", KERNELS)
def test_padding_counts_for_nothing(kind):
    x, y = pair(5)
    padded = Batch(*batch(5)[:2], torch.tensor([1.0, 1.0, 0.0, 1.0, 0.0]))
    x_kept, y_kept = x[[0, 1, 3]], y[[0, 1, 3]]
    expected = mmd(x_kept, y_kept, *constants(kind, x_kept, y_kept))
    found = squared_mmd(*tensors(x, y), padded, kind)
    assert float(found) == pytest.approx(expected, rel=1e-5)


@pytest.mark.parametrize("kind", KERNELS)
def test_derivative_is_that_at_fixed_bandwidths(kind):
    """The hand-made derivative against central differences, the method's against both."""
    x, y = pair()
    given, numeric, step = constants(kind, x, y), np.zeros_like(y), 1e-6
    for index in np.ndindex(*y.shape):
        shift = np.zeros_like(y)
        shift[index] = step
        numeric[index] = (mmd(x, y + shift, *given) - mmd(x, y - shift, *given)) / (2 * step)
    assert np.abs(numeric - derivative(kind, x, y)).max() < 1e-8
    frozen, local = tensors(x, y)
    local.requires_grad_()
    (found,) = torch.autograd.grad(squared_mmd(frozen, local, batch(4), kind), local)
    assert np.abs(found.numpy() - numeric).max() < 1e-6


@pytest.mark.parametrize("kind", KERNELS)
@pytest.mark.parametrize("rows", [[[1.0, 2.0]], [[1.0, 2.0]] * 3, [[1.0, 2.0], [0.5, -9.0]]])
def test_equal_streams_have_no_gradient(rows, kind):
    """As at a round's start; with one sample or equal rows the mean distance is 0."""
    frozen, local = torch.tensor(rows), torch.tensor(rows, requires_grad=True)
    value = common.penalty_of(FedMmd(lam=2, kernel=kind), frozen)(None, local, batch(len(rows)))
    (gradient,) = torch.autograd.grad(value + 0 * local.sum(), local)
    assert value.item() == pytest.approx(2e-4 if kind == "fixed" else 0, abs=1e-7)
    assert gradient.abs().max() < 1e-7


@pytest.mark.parametrize(("apart", "above"), [(1e-5, False), (0.3, True)])
def test_the_fixed_kernels_have_a_floor(apart, above):
    """Below 1e-4 the penalty is 1e-4 and pulls nowhere."""
    x = np.array([[0.0, 2.0], [30.0, 4.0]])
    y = x + np.array([[apart, 0.0], [0.0, 0.0]])
    squared = mmd(x, y, *constants("fixed", x, y))
    assert squared > 0 and (squared > 1e-4) == above
    frozen, local = tensors(x, y)
    local.requires_grad_()
    value = common.penalty_of(FedMmd(lam=1), frozen)(None, local, batch(2))
    (gradient,) = torch.autograd.grad(value, local)
    assert value.item() == pytest.approx(max(1e-4, squared), rel=1e-4)
    assert bool(gradient.abs().max() > 0) == above


def test_one_sample_costs_nothing_wherever_it_is():
    """At adaptive bandwidths its gradient would grow without bound as the streams near."""
    frozen, local = torch.tensor([[1.0, 2.0]]), torch.tensor([[1.0, 2.0 + 1e-6]])
    adaptive = FedMmd(kernel="adaptive")
    assert float(common.penalty_of(adaptive, frozen)(None, local, batch(1))) == 0


@pytest.mark.parametrize("kind", KERNELS)
def test_two_rounds(tmp_path, kind):
    strength = 5.0 if kind == "adaptive" else 0.5
    result, w, clients = run(tmp_path, **NAME, **{"method.lam": strength, "method.kernel": kind})

    def penalty(local, start, x):
        frozen, logits = (common.outputs(weights, x)[1] for weights in (start, local))
        d_logits = strength * derivative(kind, frozen, logits)
        return common.pull_back(local, x, d_logits=d_logits)

    expected = fedavg(w, clients, penalty=penalty)
    assert_close(result.params, expected)
    without = fedavg(w, clients)
    assert np.abs(expected[0] - without[0]).max() > 1e-3


def test_penalty_runs_under_vmap():
    frozen, _ = tensors(*pair())
    penalty = common.penalty_of(FedMmd(), frozen)
    common.assert_vmaps(lambda logits: penalty(None, logits, batch(4)), (3, 4, 3))


def test_without_lam_it_is_fedavg(tmp_path):
    common.assert_equals_fedavg(tmp_path, {**NAME, "method.lam": 0})


def test_tiny_clients(tmp_path):
    """Adaptive with steps at which a penalty on single samples would leave the allowed range."""
    large = {"local.lr": 0.5, "local.epochs": 5, "method.kernel": "adaptive"}
    common.assert_trains_tiny_clients(tmp_path / "adaptive", NAME | large)
    common.assert_trains_tiny_clients(tmp_path / "fixed", NAME)


@pytest.mark.parametrize(
    ("overrides", "message"),
    [
        ({"method.lam": -1}, "method.lam=-1: must be greater than or equal to 0"),
        ({"method.kernel": "x"}, "method.kernel=\"x\": must be 'fixed' or 'adaptive'"),
    ],
)
def test_bad_settings(tmp_path, overrides, message):
    common.assert_refused(tmp_path, NAME | overrides, message)
