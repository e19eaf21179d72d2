"""The share of each client's samples that is held out from training."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from raysim.core.data import ListedIndices
from raysim.core.holdout import TrainingIndices

HELD = {
    0.0: {1: 0, 2: 0, 600: 0},
    0.1: {1: 0, 2: 1, 14: 1, 15: 2, 16: 2, 25: 2, 600: 60},  # 2.5 is rounded to even
    0.5: {1: 0, 2: 1, 3: 2, 5: 2, 6: 3},
    0.99: {1: 0, 2: 1, 3: 2, 100: 99},
    0.001: {1: 0, 2: 1, 600: 1, 3000: 3},
}


class Lazy:
    """A population of which nobody's samples may be asked for."""

    def __init__(self, clients: int, samples: int) -> None:
        self.sizes = np.broadcast_to(np.int64(samples), clients)

    def __getitem__(self, client: int) -> np.ndarray:
        raise AssertionError(client)


def listed(*sizes: int) -> ListedIndices:
    return ListedIndices.of([np.arange(size) for size in sizes])


@pytest.mark.parametrize("share", HELD)
def test_sizes_by_hand(share: float) -> None:
    sizes, held = zip(*HELD[share].items(), strict=True)
    shares = TrainingIndices(listed(*sizes), share)
    assert shares.sizes.tolist() == [n - m for n, m in zip(sizes, held, strict=True)]
    for client, (n, m) in enumerate(HELD[share].items()):
        assert [len(part) for part in shares.parts(client, n)] == [n - m, m]


@given(n=st.integers(1, 300), share=st.floats(0, 0.999), client=st.integers(0, 10**9))
def test_a_client_is_cut_in_two(n: int, share: float, client: int) -> None:
    shares = TrainingIndices(Lazy(client + 1, n), share, seed=4)
    kept, held = shares.parts(client, n)
    assert sorted([*kept, *held]) == list(range(n))
    assert kept.tolist() == sorted(kept) and held.tolist() == sorted(held)
    assert len(kept) == shares.sizes[client] >= 1
    assert abs(len(held) - share * n) <= 1


def test_what_is_held_out_depends_on_seed_and_client_alone() -> None:
    def held(client: int, seed: int = 0) -> list[int]:
        return TrainingIndices(listed(50, 50), 0.2, seed).parts(client, 50)[1].tolist()

    backwards = [held(client) for client in (1, 0)]
    assert backwards == [held(1), held(0)]
    assert len({tuple(held(0)), tuple(held(1)), tuple(held(0, seed=1))}) == 3


def test_every_sample_is_held_out_alike_often() -> None:
    shares = TrainingIndices(listed(10), 0.3)
    times = np.bincount(np.concatenate([shares.parts(k, 10)[1] for k in range(2000)]))
    assert times.sum() == 6000
    assert np.abs(times - 600).max() < 100  # five standard deviations


@pytest.mark.parametrize("share", [0.0, 0.1])
def test_a_lazy_population_stays_lazy(share: float) -> None:
    sizes = TrainingIndices(Lazy(10**9, 60), share).sizes
    assert sizes.shape == (10**9,) and sizes.strides == (0,)
    assert sizes[10**9 - 1] == (54 if share else 60)
