"""The permuted partition."""

import numpy as np
import pytest
import torch

from raysim.samples.data import Split
from raysim.workloads.partitions.iid import Iid
from raysim.workloads.partitions.permuted import Permuted

PIXELS = torch.arange(12.0).reshape(1, 1, 3, 4)


def order_of(client: int, seed: int = 0) -> list[float]:
    """Return which pixel of a 3x4 image each pixel of a client is."""
    view = Permuted().client_view(PIXELS, torch.tensor([0]), client, seed)
    return view.flatten().tolist()


def test_the_samples_are_those_of_iid(make_split) -> None:  # type: ignore[no-untyped-def]
    data: Split = make_split(100)
    permuted, plain = (kind().split(data, 7, 3) for kind in (Permuted, Iid))
    assert np.array_equal(permuted.indices, plain.indices)
    assert np.array_equal(permuted.sizes, plain.sizes)


def test_each_client_has_one_permutation_of_its_own() -> None:
    orders = [order_of(client) for client in range(50)]
    assert all(sorted(order) == list(range(12)) for order in orders)
    assert len({tuple(order) for order in orders}) == 50
    assert order_of(3) == orders[3] != order_of(3, seed=1)


@pytest.mark.parametrize("shape", [(5, 1, 3, 4), (5, 3, 3, 4), (5, 12), (5, 3, 4)])
def test_every_input_and_channel_is_permuted_alike(shape: tuple[int, ...]) -> None:
    x = torch.rand(shape, generator=torch.Generator().manual_seed(0))
    kept = x.clone()
    view = Permuted().client_view(x, torch.arange(5), 2, 0)
    assert view.shape == x.shape
    expected = x.numpy().reshape(5, -1, 12)[:, :, np.array(order_of(2), dtype=int)]
    assert np.array_equal(view.numpy().reshape(5, -1, 12), expected)
    assert torch.equal(x, kept)


@pytest.mark.parametrize("shape", [(20, 1, 3, 4), (20, 3, 3, 4), (20, 12)])
def test_test_samples_are_dealt_over_the_clients(shape: tuple[int, ...]) -> None:
    x = torch.rand(shape, generator=torch.Generator().manual_seed(1))
    rows = torch.arange(995, 1015)
    view = Permuted().test_view(x, rows, 3, 0)
    for i, row in enumerate(rows.tolist()):
        alone = Permuted().client_view(x[i : i + 1], rows[i : i + 1], row % 3, 0)
        assert torch.equal(view[i : i + 1], alone)
    halves = [
        Permuted().test_view(x[half], rows[half], 3, 0) for half in (slice(10), slice(10, 20))
    ]
    assert torch.equal(torch.cat(halves), view)
