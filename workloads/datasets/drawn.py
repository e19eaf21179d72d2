"""Random draws of generated data sets, by their own seed or by the run's seed."""

from __future__ import annotations

import numpy as np

from raysim.errors import DataError
from raysim.numbers.seeds import stream
from raysim.user_input.limits import DataSeed


def data_stream(seed: DataSeed, purpose: str, *keys: int) -> np.random.Generator:
    """Return the generator of a data set's draws.

    Args:
        seed: `dataset.seed` of a run, as `Dataset.for_run` gives it.
        purpose: Purpose of the draws.
        keys: Numbers of the draw.

    Raises:
        DataError: the seed is to be a run's, and there is no run.
    """
    if isinstance(seed, str):
        raise DataError(f"dataset.seed={seed}: a run alone has a seed; give a number")
    return stream(seed, purpose, *keys)
