"""The IID partition."""

from collections.abc import Callable

import numpy as np
from hypothesis import given
from hypothesis import strategies as st

from raysim.samples.data import Split
from raysim.workloads.partitions.iid import Iid


@given(samples=st.integers(1, 300), data=st.data())
def test_sizes_differ_by_at_most_one(
    samples: int, data: st.DataObject, make_split: Callable[..., Split]
) -> None:
    clients = data.draw(st.integers(1, samples))
    sizes = Iid().split(make_split(samples), clients, 0).sizes
    assert sizes.max() - sizes.min() <= 1


def test_every_client_sees_the_classes_of_the_whole(make_split: Callable[..., Split]) -> None:
    data = make_split(60_000)
    indices = Iid().split(data, 100, 3)
    assert set(indices.sizes) == {600}
    counts = np.array([np.bincount(data.y[indices[k]], minlength=10) for k in range(100)])
    assert counts.min() > 20
    assert counts.max() < 110
