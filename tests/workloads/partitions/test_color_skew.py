"""The color_skew partition."""

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from PIL import Image
from pydantic import ValidationError

from raysim.errors import DataError
from raysim.samples.data import Split
from raysim.workloads.partitions.color_skew import ColorSkew
from tests.workloads.partitions.conftest import balanced, counts_of


def images(count: int, seed: int = 0) -> torch.Tensor:
    return torch.rand(count, 3, 4, 4, generator=torch.Generator().manual_seed(seed))


def is_grey(x: torch.Tensor) -> torch.Tensor:
    return (x == x[:, :1]).all(dim=(1, 2, 3))


@pytest.mark.parametrize("seed", [0, 1])
def test_two_clients_hold_five_classes_each(seed: int) -> None:
    data = balanced(500)
    indices = ColorSkew().split(data, 2, seed)
    counts = counts_of(data, indices)
    assert np.array_equal(np.sort(counts, axis=1), [[0] * 5 + [500] * 5] * 2)
    assert np.array_equal(counts.sum(axis=0), np.full(10, 500))


def test_the_classes_are_dealt_at_random() -> None:
    data = balanced(4)
    firsts = {tuple(np.unique(data.y[ColorSkew().split(data, 2, seed)[0]])) for seed in range(9)}
    assert len(firsts) > 5


@pytest.mark.parametrize(("p", "grey"), [(0.95, (190, 10)), (0.75, (150, 50)), (0.5, (100, 100))])
def test_exactly_the_asked_fraction_is_grey(p: float, grey: tuple[int, int]) -> None:
    x, rows = images(200), torch.arange(200)
    kept = x.clone()
    views = [ColorSkew(p=p).client_view(x, rows, client, 3) for client in (0, 1)]
    assert tuple(int(is_grey(view).sum()) for view in views) == grey
    assert torch.equal(x, kept)
    for view in views:
        assert torch.equal(view[~is_grey(view)], x[~is_grey(view)])


@given(count=st.integers(1, 60), p=st.floats(0, 1), client=st.integers(0, 1))
def test_the_number_of_grey_images_is_rounded(count: int, p: float, client: int) -> None:
    view = ColorSkew(p=p).client_view(images(count), torch.arange(count), client, 0)
    assert int(is_grey(view).sum()) == round((p, 1 - p)[client] * count)


def test_which_images_are_grey_depends_on_seed_and_client() -> None:
    partition, x, rows = ColorSkew(p=0.5), images(100), torch.arange(100)
    greys = [
        tuple(is_grey(partition.client_view(x, rows, client, seed)).tolist())
        for client, seed in ((0, 0), (0, 0), (0, 1), (1, 0))
    ]
    assert greys[0] == greys[1]
    assert len(set(greys)) == 3


def test_grey_is_luminance_as_another_program_has_it() -> None:
    raw = np.random.default_rng(0).integers(256, size=(8, 8, 3), dtype=np.uint8)
    expected = np.asarray(Image.fromarray(raw).convert("L"))
    x = torch.from_numpy(raw).permute(2, 0, 1)[None] / 255
    view = ColorSkew(p=1.0).client_view(x, torch.tensor([5]), 0, 0)[0] * 255
    assert np.abs(view.numpy() - expected).max() < 0.51  # it rounds to bytes
    assert torch.equal(view[0], view[1]) and torch.equal(view[0], view[2])


def test_on_inputs_normalised_as_cifar_the_weights_are_within_a_percent() -> None:
    mean = torch.tensor([0.4914, 0.4822, 0.4465])[:, None, None]
    std = torch.tensor([0.2023, 0.1994, 0.2010])[:, None, None]
    raw = torch.cat([torch.zeros(1, 3, 1, 1), torch.eye(3).reshape(3, 3, 1, 1)])
    grey = ColorSkew(p=1.0).client_view((raw - mean) / std, torch.arange(4), 0, 0)[:, 0, 0, 0]
    weights = (grey[1:] - grey[0]) / (grey[1:] - grey[0]).sum()
    assert weights.numpy() == pytest.approx([0.299, 0.587, 0.114], rel=0.01)


@pytest.mark.parametrize("count", [1, 9, 1000])
def test_half_of_the_test_set_is_grey_whatever_the_batches(count: int) -> None:
    partition, x = ColorSkew(), images(count)
    whole = partition.test_view(x, torch.arange(count), 2, 7)
    assert int(is_grey(whole).sum()) in (count // 2, -(-count // 2))
    parts = [
        partition.test_view(x[i : i + 7], torch.arange(count)[i : i + 7], 2, 7)
        for i in range(0, count, 7)
    ]
    assert torch.equal(torch.cat(parts), whole)
    assert torch.equal(whole[~is_grey(whole)], x[~is_grey(whole)])


def test_which_test_images_are_grey_is_drawn() -> None:
    greys = [is_grey(ColorSkew().test_view(images(1000), torch.arange(1000), 2, s)) for s in (0, 1)]
    assert not torch.equal(*greys)
    assert 200 < int(greys[0][::2].sum()) < 300  # of 500 pairs, as often the first as the second


def test_refusals() -> None:
    with pytest.raises(DataError, match="clients=3: color_skew is made of two clients; set client"):
        ColorSkew().split(balanced(5), 3, 0)
    with pytest.raises(DataError, match="clients=2: 9 classes cannot be dealt equally"):
        ColorSkew().split(balanced(5, 9), 2, 0)
    colourless = r"color_skew: inputs are of shape \(1, 28, 28\); it needs images of three colour"
    grey = Split(np.zeros((10, 1, 28, 28), np.uint8), np.arange(10))
    with pytest.raises(DataError, match=colourless):
        ColorSkew().split(grey, 2, 0)
    with pytest.raises(DataError, match=colourless):
        ColorSkew().test_view(torch.zeros(2, 1, 28, 28), torch.arange(2), 2, 0)
    with pytest.raises(ValidationError):
        ColorSkew(p=1.01)
