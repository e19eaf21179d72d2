"""Aggregations of a pass's updates into one update, one file each.

In: updates of clients, in blocks of coordinates. Out: one update. Imported by `raysim.config`;
imports core alone.
"""

from raysim.core.aggregation import AGGREGATIONS, Aggregation

AGGREGATIONS.add(
    {
        "mean": "raysim.aggregation.mean:Mean",
        "median": "raysim.aggregation.median:Median",
    }
)

__all__ = ["AGGREGATIONS", "Aggregation"]
