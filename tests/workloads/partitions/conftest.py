"""Small labelled data for partitions."""

from collections.abc import Callable

import numpy as np
import pytest

from raysim.core.data import Split


def labelled(samples: int, classes: int = 10, seed: int = 0) -> Split:
    """Return samples with random labels and no inputs to speak of."""
    y = np.random.default_rng(seed).integers(classes, size=samples)
    return Split(np.zeros((samples, 1), np.uint8), y.astype(np.int64))


@pytest.fixture(scope="session")
def make_split() -> Callable[..., Split]:
    return labelled
