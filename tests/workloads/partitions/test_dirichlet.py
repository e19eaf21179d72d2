"""The Dirichlet partition."""

from collections.abc import Callable

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from pydantic import ValidationError

from raysim.errors import DataError
from raysim.samples.data import Split
from raysim.workloads.partitions.dirichlet import Dirichlet

MakeSplit = Callable[..., Split]


def class_proportions(data: Split, alpha: float) -> np.ndarray:
    """Return each client's class proportions [K, C]."""
    indices = Dirichlet(alpha=alpha).split(data, 20, 1)
    counts = np.array([np.bincount(data.y[indices[k]], minlength=10) for k in range(20)])
    proportions: np.ndarray = counts / counts.sum(axis=1, keepdims=True)
    return proportions


def test_a_small_alpha_concentrates_classes_and_a_large_one_spreads_them(
    make_split: MakeSplit,
) -> None:
    data = make_split(20_000)
    largest = [class_proportions(data, alpha).max(axis=1).mean() for alpha in (0.1, 1.0, 1e6)]
    assert largest[0] > 0.5 > largest[1] > largest[2]
    assert largest[2] < 0.13


def test_class_proportions_have_the_dirichlet_variance() -> None:
    # For p ~ Dir_K(a): Var(p_k) = (1/K)(1 - 1/K) / (K a + 1), over 200 classes of 1000 samples.
    y = np.repeat(np.arange(200), 1000)
    data = Split(np.zeros((len(y), 1), np.uint8), y)
    indices = Dirichlet(alpha=0.5).split(data, 10, 0)
    counts = np.array([np.bincount(y[indices[k]], minlength=200) for k in range(10)])
    assert np.var(counts / 1000) == pytest.approx(0.1 * 0.9 / 6, rel=0.1)


def test_a_class_is_divided_at_random() -> None:
    """Samples that are near each other in the dataset do not go to the same client."""
    data = Split(np.zeros((1000, 1), np.uint8), np.zeros(1000, np.int64))
    shares = Dirichlet(alpha=100).split(data, 4, 0)
    for client in range(4):
        held = shares[client]
        assert held[0] < 50 and held[-1] >= 950
        assert np.diff(held).max() < 60


@settings(max_examples=25)
@given(minimum=st.integers(1, 30), alpha=st.floats(0.2, 100), seed=st.integers(0, 2**32))
def test_every_client_has_its_minimum(
    minimum: int, alpha: float, seed: int, make_split: MakeSplit
) -> None:
    indices = Dirichlet(alpha=alpha, minimum=minimum).split(make_split(2000), 10, seed)
    assert indices.sizes.min() >= minimum


def test_classes_of_uneven_size_and_gaps_in_labels() -> None:
    y = np.array([2] * 50 + [7] * 3 + [9])
    indices = Dirichlet(alpha=1.0).split(Split(np.zeros((54, 1)), y), 3, 0)
    assert np.array_equal(np.sort(indices.indices), np.arange(54))


@pytest.mark.parametrize(("alpha", "minimum"), [(1e-6, 1), (0.5, 11)])
def test_an_impossible_division_names_alpha_clients_and_minimum(
    make_split: MakeSplit, alpha: float, minimum: int
) -> None:
    expected = rf"partition\.alpha={alpha}, clients=20, partition\.minimum={minimum}: no division"
    with pytest.raises(DataError, match=expected):
        Dirichlet(alpha=alpha, minimum=minimum).split(make_split(200), 20, 0)


@pytest.mark.parametrize("wrong", [{"alpha": 0.0}, {"alpha": 1e7}, {"minimum": 0}])
def test_settings_out_of_range(wrong: dict[str, float]) -> None:
    with pytest.raises(ValidationError):
        Dirichlet.model_validate(wrong)
