"""What several partitions require of their data."""

from __future__ import annotations

from raysim.core.data import Split
from raysim.core.errors import DataError


def one_sample_each(data: Split, clients: int) -> None:
    """Require at least one sample per client.

    Raises:
        DataError: there are more clients than samples.
    """
    if clients > len(data):
        raise DataError(
            f"clients={clients}: the dataset has {len(data)} training samples;"
            " at most one client per sample"
        )
