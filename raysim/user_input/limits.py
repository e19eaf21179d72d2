"""Limits of numbers and names that a user gives."""

from __future__ import annotations

import re
from typing import Annotated, Any, Literal

from pydantic import AfterValidator, BeforeValidator, Field

MOST = 10**9
"""Largest count: a product of two, as of samples and epochs, fits in 64 bits."""
LARGEST = (2 - 2**-23) * 2.0**127
"""Largest float32 number; clients train in float32."""
Count = Annotated[int, Field(ge=1, le=MOST)]
"""Number of clients, samples, rounds, epochs or steps."""
Seed = Annotated[int, Field(ge=0, le=2**63 - 1)]
"""Seed; Parquet files and other tools hold it as a 64-bit integer."""
OF_RUN = "run"
"""Value of `dataset.seed` that takes the seed of the run."""
DataSeed = Seed | Literal["run"]
"""Seed of data that is drawn; run: the run's, so that each run has its own data."""
SEVERAL_SEEDS = "three seeds are seed=0..2 in raysim sweep, --seeds 3 in raysim table and tune"
"""What to write for several seeds, which is no setting `seeds`."""
SMALLEST_RESOURCE = 0.0001
"""Ray counts CPUs and GPUs in ten-thousandths."""
_NAME = r"[A-Za-z0-9]([A-Za-z0-9_.-]{0,61}[A-Za-z0-9])?"
_KEY = rf"([a-z0-9.-]{{1,253}}/)?{_NAME}"


def _ray_name(value: str) -> str:
    if not re.fullmatch(_NAME, value):
        raise ValueError("must be a name of at most 63 letters, digits and inner _.-")
    return value


def _labels(value: Any) -> Any:
    words = [*value, *value.values()] if isinstance(value, dict) else [None]
    texts = [word for word in words if isinstance(word, str)]
    patterns = [_KEY] * (len(words) // 2) + [_NAME] * (len(words) // 2)
    if texts != words or not all(map(re.fullmatch, patterns, texts)):
        raise ValueError('must be like {"market-type": "spot"}, names of letters and digits')
    return value


RayName = Annotated[str, AfterValidator(_ray_name)]
"""Ray's name of a type of GPU."""
NodeLabels = Annotated[dict[str, str], BeforeValidator(_labels)]
"""Labels of a node with their values, without operators of Ray's selectors such as `!spot`."""
