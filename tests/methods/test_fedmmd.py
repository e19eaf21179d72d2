"""FedMMD against a double loop in NumPy: value, gradient over two rounds, and where it is zero."""

from __future__ import annotations

import numpy as np
import pytest
import torch

from raysim.core.rules import Batch
from raysim.methods.fedmmd import FedMmd, squared_mmd
from tests.methods import common
from tests.methods.test_oracle import assert_close, fedavg, run

NAME = {"method.name": "fedmmd"}
SHAPES = [(5, 2.0), (1, 2.0), (4, 3.0)]  # kernels, factor


def bandwidths(x, y, kernels=5, factor=2.0):
    joint = np.concatenate([x, y])
    n = len(joint)
    total = sum(((joint[i] - joint[j]) ** 2).sum() for i in range(n) for j in range(n) if i != j)
    mean = total / (n * (n - 1))
    return [mean * factor ** (s - kernels // 2) for s in range(kernels)]


def kernel(a, b, widths):
    return np.mean([np.exp(-((a - b) ** 2).sum() / width) for width in widths])


def slope(a, b, widths):
    """The derivative of the kernel by a."""
    square = ((a - b) ** 2).sum()
    return -2 * (a - b) * np.mean([np.exp(-square / width) / width for width in widths])


def mmd(x, y, widths):
    n, total = len(x), 0.0
    for i in range(n):
        for j in range(n):
            total += kernel(x[i], x[j], widths) + kernel(y[i], y[j], widths)
            total -= 2 * kernel(x[i], y[j], widths)
    return total / n**2


def derivative(x, y):
    """Of the discrepancy by y, at fixed bandwidths."""
    n, widths = len(x), bandwidths(x, y)
    rows = []
    for i in range(n):
        row = sum(slope(y[i], y[j], widths) - slope(y[i], x[j], widths) for j in range(n))
        rows.append(2 * row / n**2)
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


@pytest.mark.parametrize(("kernels", "factor"), SHAPES)
def test_discrepancy_by_double_loop(kernels, factor):
    for n, key in [(2, 0), (4, 1), (7, 2)]:
        x, y = pair(n, key)
        expected = mmd(x, y, bandwidths(x, y, kernels, factor))
        found = squared_mmd(*tensors(x, y), batch(n), kernels, factor)
        assert float(found) == pytest.approx(expected, rel=1e-5)


def test_padding_counts_for_nothing():
    x, y = pair(5)
    padded = Batch(*batch(5)[:2], torch.tensor([1.0, 1.0, 0.0, 1.0, 0.0]))
    kept = [0, 1, 3]
    expected = mmd(x[kept], y[kept], bandwidths(x[kept], y[kept]))
    found = squared_mmd(*tensors(x, y), padded, 5, 2.0)
    assert float(found) == pytest.approx(expected, rel=1e-5)


def test_derivative_is_that_at_fixed_bandwidths():
    """The hand-made derivative against central differences, the method's against both."""
    x, y = pair()
    widths, numeric, step = bandwidths(x, y), np.zeros_like(y), 1e-6
    for index in np.ndindex(*y.shape):
        shift = np.zeros_like(y)
        shift[index] = step
        numeric[index] = (mmd(x, y + shift, widths) - mmd(x, y - shift, widths)) / (2 * step)
    assert np.abs(numeric - derivative(x, y)).max() < 1e-8
    frozen, local = tensors(x, y)
    local.requires_grad_()
    (found,) = torch.autograd.grad(squared_mmd(frozen, local, batch(4), 5, 2.0), local)
    assert np.abs(found.numpy() - numeric).max() < 1e-6


@pytest.mark.parametrize("rows", [[[1.0, 2.0]], [[1.0, 2.0]] * 3, [[1.0, 2.0], [0.5, -9.0]]])
def test_equal_streams_cost_nothing(rows):
    """As at a round's start; with one sample or equal rows the mean distance is 0."""
    frozen, local = torch.tensor(rows), torch.tensor(rows, requires_grad=True)
    value = common.penalty_of(FedMmd(), frozen)(None, local, batch(len(rows)))
    (gradient,) = torch.autograd.grad(value + 0 * local.sum(), local)
    assert abs(value.detach()) < 1e-7 and gradient.abs().max() < 1e-7


def test_one_sample_costs_nothing_wherever_it_is():
    """At fixed bandwidths its gradient would grow without bound as the streams near each other."""
    frozen, local = torch.tensor([[1.0, 2.0]]), torch.tensor([[1.0, 2.0 + 1e-6]])
    assert float(common.penalty_of(FedMmd(), frozen)(None, local, batch(1))) == 0


def test_two_rounds(tmp_path):
    result, w, clients = run(tmp_path, **NAME, **{"method.lam": 5.0})

    def penalty(local, start, x):
        frozen, logits = (common.outputs(weights, x)[1] for weights in (start, local))
        return common.pull_back(local, x, d_logits=5 * derivative(frozen, logits))

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
    """With steps at which a penalty on single samples would leave the allowed range."""
    large = {"local.lr": 0.5, "local.epochs": 5}
    common.assert_trains_tiny_clients(tmp_path, NAME | large)


@pytest.mark.parametrize(
    ("overrides", "message"),
    [
        ({"method.lam": -1}, "method.lam=-1: must be greater than or equal to 0"),
        ({"method.kernels": 0}, "method.kernels=0: must be greater than or equal to 1"),
        ({"method.kernels": 33}, "method.kernels=33: must be less than or equal to 32"),
        ({"method.factor": 1}, "method.factor=1: must be greater than 1"),
        ({"method.factor": 11}, "method.factor=11: must be less than or equal to 10"),
    ],
)
def test_bad_settings(tmp_path, overrides, message):
    common.assert_refused(tmp_path, NAME | overrides, message)
