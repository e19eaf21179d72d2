"""Aggregations of a pass's updates into one update, one file each.

In: updates of clients, in blocks of coordinates. Out: one update. Imported by `raysim.config`;
imports `api` and below.
"""

from raysim.api.aggregation import AGGREGATIONS, Aggregation

AGGREGATIONS.add(
    {
        "bulyan": "raysim.aggregation.bulyan:Bulyan",
        "centred_clipping": "raysim.aggregation.centred_clipping:CentredClipping",
        "fltrust": "raysim.aggregation.fltrust:FLTrust",
        "geometric_median": "raysim.aggregation.geometric_median:GeometricMedian",
        "krum": "raysim.aggregation.krum:Krum",
        "mean": "raysim.aggregation.mean:Mean",
        "median": "raysim.aggregation.median:Median",
        "multi_krum": "raysim.aggregation.multi_krum:MultiKrum",
        "norm_bound": "raysim.aggregation.norm_bound:NormBound",
        "trimmed_mean": "raysim.aggregation.trimmed_mean:TrimmedMean",
    }
)

__all__ = ["AGGREGATIONS", "Aggregation"]
