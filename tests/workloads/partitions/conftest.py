"""Small labelled data for partitions."""

from collections.abc import Callable

import numpy as np
import pytest

from raysim.samples.client_indices import ClientIndices
from raysim.samples.data import Split


def labelled(samples: int, classes: int = 10, seed: int = 0) -> Split:
    """Return samples with random labels, twenty a writer, and no inputs to speak of."""
    generator = np.random.default_rng(seed)
    y = generator.integers(classes, size=samples)
    columns = {
        "writer": np.array([f"w{sample // 20:03d}" for sample in range(samples)], dtype=object),
        "age_group": generator.integers(4, size=samples),
        "gender": generator.choice(["F", "M"], size=samples).astype(object),
    }
    return Split(np.zeros((samples, 1), np.uint8), y.astype(np.int64), columns)


def balanced(per_class: int, classes: int = 10) -> Split:
    """Return samples of equally frequent classes, shuffled."""
    y = np.random.default_rng(5).permutation(np.repeat(np.arange(classes), per_class))
    return Split(np.zeros((len(y), 1), np.uint8), y)


def counts_of(data: Split, indices: ClientIndices, classes: int = 10) -> np.ndarray:
    """Return the samples per client and class [K, C]."""
    held = [data.y[indices[client]] for client in range(len(indices.sizes))]
    return np.array([np.bincount(labels, minlength=classes) for labels in held])


@pytest.fixture(scope="session")
def make_split() -> Callable[..., Split]:
    return labelled
